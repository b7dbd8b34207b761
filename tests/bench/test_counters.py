"""Counters: what ncu prints becomes numbers, and on a GPU they are those derived by hand."""

import csv
import io
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from infonce_kernels.bench import counters, records
from infonce_kernels.bench.counters import Call, CountersUnavailable
from infonce_kernels.bench.records import source_hash

CALL = Call(
    "v1_naive", "forward", "ieee", 256, 2560, 512, "NVIDIA H200", "580.159.04", "13.0",
    "2025.3.1.0", "2026-12-01", source_hash("v1_naive"),
)  # fmt: skip

# As ncu prints it, turned on its side: heading, unit, a launch, another. Each warp of the first
# loads D = 512 times a column (32 sectors) and an element that all its threads share (1 sector).
WARPS = 256 * 2560 // 32
PRINTED = [
    ("ID", "", "0", "1"),
    ("Process ID", "", "4242", "4242"),
    ("Process Name", "", "python3.12", "python3.12"),
    ("Host Name", "", "127.0.0.1", "127.0.0.1"),
    (
        "Kernel Name",
        "",
        "similarities_kernel(const float *, const float *, float *, int, int, int)",
        "void product_kernel<(bool)0, (bool)1, (bool)0>(const float *, float *, int)",
    ),
    ("Context", "", "1", "1"),
    ("Stream", "", "7", "7"),
    ("Block Size", "", "(256, 1, 1)", "(32, 32, 1)"),
    ("Grid Size", "", "(2560, 1, 1)", "(640, 1, 1)"),
    ("Device", "", "0", "0"),
    ("CC", "", "9.0", "9.0"),
    ("dram__bytes_read.sum", "byte", "5767168", "5,800,000"),
    ("dram__bytes_write.sum", "byte", "1000000", "0"),
    ("gpu__time_duration.sum", "ns", "1234567", "312000"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "", "0", "300"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "", "0", "3200"),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "request", str(WARPS * 1024), "655360"),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "request", str(WARPS), "0"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", str(WARPS * 512 * 33), "2621440"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", str(WARPS * 32), "0"),
    ("launch__block_dim_x", "block", "256", "32"),
    ("launch__block_dim_y", "block", "1", "32"),
    ("launch__block_dim_z", "block", "1", "1"),
    ("launch__grid_dim_x", "", "2560", "640"),
    ("launch__grid_dim_y", "", "1", "1"),
    ("launch__grid_dim_z", "", "1", "1"),
    ("launch__registers_per_thread", "register/thread", "29", "32"),
    ("sm__maximum_warps_per_active_cycle_pct", "%", "100", "100"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", "98.50", "50"),
    ("smsp__inst_executed_op_ldsm_pred_on_any.sum", "inst", "0", "50"),
    ("smsp__inst_executed_op_shared_ld_pred_on_any.sum", "inst", "0", "150"),
    ("smsp__inst_executed_op_shared_st_pred_on_any.sum", "inst", "0", "100"),
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "1", "0"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "335544320", "0"),
    ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", "10", "0"),
]


def printed(columns=PRINTED):
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows(zip(*columns, strict=True))
    return f"==PROF== Connected to process 4242\n{text.getvalue()}==PROF== Disconnected\n"


def changed(column, **change):
    """What ncu prints, with another unit, value or heading in one column."""
    place = {"heading": 0, "unit": 1, "value": 2}
    columns = [list(cells) for cells in PRINTED]
    (one,) = (cells for cells in columns if cells[0] == column)
    for name, text in change.items():
        one[place[name]] = text
    return printed(columns)


KERNELS = counters.parse(printed(), CALL)


def test_counts_are_read_launch_by_launch():
    first, second = KERNELS
    assert (first.launch, first.name) == (1, "similarities_kernel")
    assert (second.launch, second.name) == (2, "product_kernel<false, true, false>")
    assert (first.grid, first.block) == ((2560, 1, 1), (256, 1, 1))
    assert (second.grid, second.block) == ((640, 1, 1), (32, 32, 1))
    assert (first.load_requests, first.store_requests) == (20_971_520, 20_480)
    assert (first.registers, second.registers) == (29, 32)
    assert second.dram_read_bytes == 5_800_000, "digits may come in groups"


def test_ratios_are_those_of_the_access_pattern():
    first, second = KERNELS
    assert first.sectors_per_load == (32 + 1) / 2
    assert first.sectors_per_store == 32
    assert (first.wavefronts_per_load, first.wavefronts_per_store) == (None, None)
    assert second.sectors_per_load == 4
    assert second.sectors_per_store is None
    assert (second.wavefronts_per_load, second.wavefronts_per_store) == (1.5, 32)


def test_units_become_ours():
    first = KERNELS[0]
    assert first.ms == pytest.approx(1.234567)
    assert (first.occupancy, first.theoretical_occupancy) == (0.985, 1)
    assert first.flops == 2 * 335_544_320 + 10 + 1, "a fused multiply-add is two"
    assert first.dram_bytes == 6_767_168


def test_older_names_of_a_unit_are_known():
    older = counters.parse(changed("gpu__time_duration.sum", unit="nsecond"), CALL)
    assert older == KERNELS


@pytest.mark.parametrize(
    "column, change, message",
    [
        ("gpu__time_duration.sum", {"unit": "us"}, "comes in 'us', not in 'ns'"),
        ("dram__bytes_read.sum", {"unit": "Mbyte"}, "comes in 'Mbyte'"),
        ("dram__bytes_read.sum", {"heading": "other"}, "reports no dram__bytes_read.sum"),
        ("dram__bytes_read.sum", {"value": "n/a"}, "no value of dram__bytes_read.sum for simil"),
    ],
)
def test_what_is_missing_or_other_than_expected_is_named(column, change, message):
    with pytest.raises(ValueError, match=message):
        counters.parse(changed(column, **change), CALL)


def test_messages_alone_are_no_counts():
    with pytest.raises(ValueError, match="No kernels were profiled"):
        counters.parse("==WARNING== No kernels were profiled.\n", CALL)


@pytest.mark.parametrize(
    "demangled, name",
    [
        ("loss_kernel(const float *, int)", "loss_kernel"),
        ("void k<(bool)1, (unsigned int)4, (int)-2, float>(T1 *)", "k<true, 4, -2, float>"),
        ("void cutlass::Kernel2<cutlass_80_simt>(T1::Params)", "Kernel2<cutlass_80_simt>"),
        ("void at::native::<unnamed>::cat<at::native::Op<(int)2>>(T1 (*)())", "cat<Op<2>>"),
        ("sm80_xmma_gemm_kernel__5x_cublas", "sm80_xmma_gemm_kernel__5x_cublas"),
    ],
)
def test_names_are_short(demangled, name):
    assert counters.short_name(demangled) == name


def test_totals_stand_beside_the_cost_model():
    launches, moved, flops = counters.totals(KERNELS)
    assert (launches.measured, launches.predicted) == (2, 5)
    # Query and positive twice and once, negatives once, and three passes over a (B, N) matrix.
    floats = (256 + 2560) * 512 + 2 * 256 * 512 + 3 * 256 * 2560
    assert (moved.measured, moved.predicted) == (5_767_168 + 1_000_000 + 5_800_000, 4 * floats)
    assert (flops.measured, flops.predicted) == (671_088_651, 2 * 256 * 2560 * 512)
    assert flops.ratio == pytest.approx(1, abs=1e-6)


def shown(kernels):
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(counters.render(kernels))
    return console.file.getvalue()


def test_a_table_fits_a_terminal_of_100_columns():
    long = "reduce_kernel<512, 1, ReduceOp<float, MeanOps<float, float, float, float>, unsigned>>"
    large = replace(KERNELS[0], name=long, grid=(655_360, 1, 1), ms=1234.56, flops=10**13)
    text = shown([*KERNELS, large])
    assert max(map(len, text.splitlines())) <= 100
    for cell in (
        "similarities_kernel", "2560 x 256", "1.2346", "16.5/32", "5.77/1", "-/-", "98/100",
        "671 M", "4/-", "1.5/32", "50/100", "655360 x 256", "1234.6", "10.0 T",
    ):  # fmt: skip
        assert cell in text
    assert "reduce_kernel<512, 1," in text
    assert "launches: 3 measured, 5 predicted, a ratio of 0.60" in text
    assert "DRAM bytes: 19.3 M measured, 14.7 M predicted, a ratio of 1.32" in text
    assert "NVIDIA H200, 2026-12-01" in text


def test_a_changed_kernel_text_makes_counts_older():
    older = [replace(kernel, call=replace(CALL, source_hash="0" * 16)) for kernel in KERNELS]
    assert "older source" in shown(older)
    assert "older source" not in shown(KERNELS)


def test_dictionaries_hold_counts_ratios_and_totals():
    (entry,) = counters.to_dicts(KERNELS)
    assert (entry["call"]["rung"], entry["call"]["pass"]) == ("v1_naive", "forward")
    assert entry["launches"][0]["sectors_per_load"] == 16.5
    assert entry["launches"][1]["shared_load_wavefronts"] == 300
    assert entry["totals"][0] == {"name": "launches", "measured": 2, "predicted": 5, "ratio": 0.4}


def test_a_record_gives_back_what_was_counted(tmp_path):
    path = tmp_path / "results" / "h200-counters.csv"
    counters.write(KERNELS, path)
    assert counters.read(path) == KERNELS
    heading = path.read_text().splitlines()[0].split(",")
    assert heading[:8] == ["rung", "pass", "tier", "B", "N", "D", "launch", "kernel"]
    assert {"gpu", "driver", "cuda", "date", "source_hash"} < set(heading)


def test_a_record_holds_each_call_once(tmp_path):
    path = tmp_path / "counters.csv"
    both = [replace(kernel, call=replace(CALL, pass_="both")) for kernel in KERNELS]
    later = [replace(kernel, call=replace(CALL, date="2026-12-24")) for kernel in KERNELS[:1]]
    counters.write([*KERNELS, *both], path)
    counters.write(later, path)
    assert counters.read(path) == [*both, *later]


def test_the_newest_record_is_found_by_its_date(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="infonce counters"):
        counters.load_latest()
    newer = [replace(kernel, call=replace(CALL, date="2027-01-02")) for kernel in KERNELS]
    for kernels in (newer, KERNELS):
        call = kernels[0].call
        counters.write(kernels, tmp_path / records.name(call.gpu, call.date, counters.SUFFIX))
    (tmp_path / "zzz-2028-01-01.csv").write_text("a record of times\n")
    assert counters.load_latest() == newer
    assert {path.name for path in tmp_path.glob("nvidia*")} == {
        "nvidia-h200-2026-12-01-counters.csv",
        "nvidia-h200-2027-01-02-counters.csv",
    }


# ---- running ncu ---------------------------------------------------------------------------------


@pytest.fixture
def fake_ncu(tmp_path):
    """Makes a program that stands for ncu: `log` is what it writes to the file that --log-file
    names; its arguments end up in arguments.txt, one a line."""

    def make(log, script=""):
        (tmp_path / "log.txt").write_text(log)
        path = tmp_path / "ncu"
        path.write_text(
            "#!/bin/sh\n"
            'if [ "$1" = --version ]; then echo "Version 2025.3.1.0 (build 1)"; exit; fi\n'
            f'printf "%s\\n" "$@" > "{tmp_path}/arguments.txt"\n'
            'while [ "$1" != --log-file ]; do shift; done\n'
            f'cp "{tmp_path}/log.txt" "$2"\n{script}\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_only_what_lies_between_the_marks_is_profiled(fake_ncu, tmp_path):
    text = counters.profile(fake_ncu(printed()), ["python", "-m", "program"])
    assert counters.parse(text, CALL) == KERNELS
    arguments = (tmp_path / "arguments.txt").read_text().splitlines()
    for option, value in (
        ("--profile-from-start", "off"),
        ("--cache-control", "all"),
        ("--clock-control", "none"),
        ("--target-processes", "application-only"),
        ("--page", "raw"),
        ("--print-units", "base"),
    ):
        assert arguments[arguments.index(option) + 1] == value
    asked = set(arguments[arguments.index("--metrics") + 1].split(","))
    assert asked == {heading for heading, *_ in PRINTED[11:]}
    assert arguments[-3:] == ["python", "-m", "program"]


def test_a_call_is_counted_with_what_is_known_of_it(fake_ncu, tmp_path, monkeypatch):
    fake_ncu(printed())
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(counters.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(counters.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    kernels = counters.count("v0_reference", "both", 64, 96, 32, "tf32")
    call = kernels[0].call
    assert [replace(kernel, call=CALL) for kernel in kernels] == KERNELS
    assert call.key == ("v0_reference", "both", "tf32", 64, 96, 32)
    assert (call.gpu, call.ncu, call.source_hash) == ("NVIDIA H200", "2025.3.1.0", "")
    program = (tmp_path / "arguments.txt").read_text().split()[-7:]
    assert " ".join(program) == "infonce_kernels.bench.profiled v0_reference both tf32 64 96 32"


@pytest.mark.parametrize(
    "log, script, error, message",
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.\n",
            "",
            CountersUnavailable,
            "run as root.*NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n",
            "exit 9",
            CountersUnavailable,
            "gVisor",
        ),
        (
            "==ERROR== The application returned an error code (1).\n",
            "echo 'OutOfMemoryError: CUDA out of memory' >&2; exit 1",
            RuntimeError,
            "OutOfMemoryError",
        ),
        ("==WARNING== No kernels were profiled.\n", "", RuntimeError, "No kernels were profiled"),
    ],
)  # fmt: skip
def test_why_nothing_was_counted_is_said(fake_ncu, log, script, error, message):
    with pytest.raises(error, match=message):
        counters.profile(fake_ncu(log, script), ["program"])


def test_a_program_that_never_ends_is_stopped_with_all_it_started(fake_ncu, tmp_path):
    ncu = fake_ncu(printed(), f'sleep 60 & echo $! > "{tmp_path}/pid"; wait')
    with pytest.raises(RuntimeError, match="longer than 1 s"):
        counters.profile(ncu, ["program"], limit_s=1)
    state = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    for _ in range(100):  # whoever inherits it may take a moment to forget it
        if not state.exists() or ") Z " in state.read_text():
            break
        time.sleep(0.02)
    else:
        pytest.fail("the program still runs")


def test_ncu_is_found_on_the_path_and_in_cuda_home(fake_ncu, tmp_path, monkeypatch):
    ncu = fake_ncu(printed())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.find_ncu() == ncu
    (tmp_path / "bin").mkdir()
    moved = (tmp_path / "ncu").rename(tmp_path / "bin" / "ncu")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert counters.find_ncu() == str(moved)


def test_a_missing_ncu_comes_with_its_remedy(monkeypatch):
    monkeypatch.setattr(counters.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(counters.shutil, "which", lambda name, path: None)
    with pytest.raises(CountersUnavailable, match="install NVIDIA Nsight Compute"):
        counters.count("v1_naive", "forward", 64, 96, 64)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("v9", "forward", 64, 96, 64), "v9"),
        (("v1_naive", "backward", 64, 96, 64), "pass_='backward'"),
        (("v1_naive", "forward", 64, 96, 64, "int8"), "tier='int8'"),
    ],
)
def test_arguments_that_name_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        counters.count(*arguments)


# ---- on a GPU, against counts derived by hand ----------------------------------------------------


@pytest.fixture(scope="module")
def counted():
    """rung, pass -> its launches by name, at B = 64, N = 96, D = 64: nothing is left over."""

    def count(rung, pass_):
        try:
            kernels = counters.count(rung, pass_, 64, 96, 64)
        except CountersUnavailable as reason:
            pytest.skip(str(reason))
        return {kernel.name: kernel for kernel in kernels}

    return count


@pytest.mark.cuda
def test_v1_reads_a_column_and_a_broadcast(counted):
    kernels = counted("v1_naive", "both")
    assert len(kernels) == 5 + 4
    warps = 64 * 96 // 32
    similarities = kernels["similarities_kernel"]
    # nvcc unrolls the loop over D, and each of its loads stays one of 4 bytes.
    assert similarities.load_requests == warps * 2 * 64
    assert similarities.sectors_per_load == 16.5
    assert (similarities.store_requests, similarities.sectors_per_store) == (warps, 32)
    assert similarities.flops == 2 * 64 * 96 * 64
    assert similarities.grid == (24, 1, 1)
    # Neighbouring threads read neighbouring elements of G and one and the same of the query.
    assert kernels["grad_negatives_kernel"].sectors_per_load == (4 + 1) / 2


@pytest.mark.cuda
def test_v2_reads_rows_and_has_no_bank_conflict(counted):
    kernels = counted("v2_shared", "forward")
    assert len(kernels) == 5
    product = kernels["product_kernel<false, true, false>"]
    multiply_adds = 64 * 96 * 64 // 32  # of a warp
    assert product.shared_load_wavefronts == 2 * multiply_adds
    assert product.wavefronts_per_load == product.wavefronts_per_store == 1
    # Each of the 2 x 3 tiles takes two steps over D; 32 warps store an element of either operand.
    assert product.shared_store_wavefronts == 6 * 2 * 32 * 2
    assert (product.sectors_per_load, product.sectors_per_store) == (4, 4)
    # Tree of 256 floats: 24 loads, then each of 8 warps reads the result; 8 + 12 stores.
    maximum = kernels["maximum_kernel"]
    assert maximum.shared_load_wavefronts == 64 * (24 + 8)
    assert maximum.shared_store_wavefronts == 64 * (8 + 12)


@pytest.mark.cuda
def test_v3_launches_a_product_and_one_kernel(counted):
    kernels = counted("v3_fused", "forward")
    assert len(kernels) == 2
    fused = kernels["fused_forward_kernel"]
    assert fused.sectors_per_load == 4
    assert (fused.store_requests, fused.store_sectors) == (64, 64)
