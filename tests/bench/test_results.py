"""The records that ship with the package: complete, of the present kernels, and possible."""

import pytest

from infonce_kernels import ladder
from infonce_kernels.bench import counters, records, sizes
from infonce_kernels.bench.subjects import PASSES


@pytest.fixture(scope="module")
def record():
    return records.latest()


def test_no_row_is_of_an_older_kernel(record):
    stale = {row.ran for row in record if row.is_stale}
    assert not stale, f"measure {', '.join(sorted(stale))} again: infonce bench --record"
    assert not {kernel.call.rung for kernel in counters.load_latest() if kernel.call.is_stale}


@pytest.mark.parametrize("sweep", ["batch", "dim", "negatives"])
def test_every_rung_has_a_row_at_every_size(record, sweep):
    for B, D, N in sizes.sweep(sweep):
        for pass_ in PASSES:
            for tier in ("ieee", "tf32"):
                for name in ("eager", "strongest", "auto", *ladder.names()):
                    if name in ladder.names() and tier not in ladder.rung(name).tiers:
                        continue
                    row = record.row(name, pass_, tier, B, N, D)
                    assert row, (name, pass_, tier, B, D, N)
                    assert row.ok or row.status.startswith("over the time limit")
            for name in ("eager", "strongest", "auto"):
                assert record.row(name, pass_, "bf16", B, N, D).ok


def test_compile_is_there_at_the_landmarks(record):
    for B, D, N in sizes.landmarks():
        for pass_ in PASSES:
            assert record.row("compile", pass_, "ieee", B, N, D)
    for B, D, N in sizes.CENTRES.values():
        assert all(record.row("compile", "both", tier, B, N, D).ok for tier in ("tf32", "bf16"))


def test_only_what_is_right_has_times(record):
    for row in record:
        assert row.ok == (row.cold_ms is not None)
        if row.ok:
            assert row.error is not None and row.error < 0.1
            assert 0 < row.cold_p20_ms <= row.cold_ms <= row.cold_p80_ms


def test_nothing_is_faster_than_the_hardware(record):
    for row in record:
        assert row.run.copy_tbps < row.run.peak_tbps
        if row.cold_ms and (row.model_bytes or 0) > 1e9:  # far more than the caches hold
            assert row.model_bytes / row.cold_ms * 1e-9 < row.run.peak_tbps
        # cuBLAS does not reach its own best rate at every shape; a kernel may pass it by a little.
        assert row.tflops is None or row.tflops < 1.1 * row.run.matrix_tflops[row.tier]


def test_every_run_describes_its_machine(record):
    for run in records.read_runs(record.path):
        assert all((run.gpu, run.driver, run.cuda, run.torch, run.clocks, run.commit, run.l2))
        assert set(run.matrix_tflops) == {"ieee", "tf32", "bf16"}


def test_the_fused_rung_is_as_fast_as_its_design_was_measured_by_others(record):
    # Milliseconds of the original design on an H200, measured apart from this package.
    for (B, D, N), ms in {
        (256, 512, 2560): 0.038, (1024, 512, 10240): 0.303, (4096, 512, 40960): 3.787,
        (8192, 512, 81920): 15.03, (4096, 128, 40960): 1.518, (4096, 2048, 40960): 13.61,
        (256, 512, 262144): 1.847,
    }.items():  # fmt: skip
        row = record.row("v3_fused", "forward", "ieee", B, N, D)
        assert row.cold_ms == pytest.approx(ms, rel=0.1)


def test_auto_is_the_rung_that_it_chose(record):
    for row in record.select(name="auto", tier=("ieee", "tf32")):
        fused = record.row("v3_fused", row.pass_, row.tier, row.B, row.N, row.D)
        assert row.ran == "v3_fused"
        assert row.cold_ms == pytest.approx(fused.cold_ms, rel=0.1)
