import dataclasses

import pytest

from infonce_kernels import kernels
from infonce_kernels.bench import records
from infonce_kernels.bench.records import Row, Writer


def row(run, name="v3_fused", **changes):
    fields = dict(
        run=run, kind="rung", name=name, ran=name, version="", pass_="forward", tier="ieee",
        dtype="float32", B=256, D=512, N=2560, status="ok", cold_ms=0.04, cold_p20_ms=0.039,
        cold_p80_ms=0.041, wall_ms=0.1, wall_p20_ms=0.09, wall_p80_ms=0.11, calls=100, error=1e-7,
        peak_bytes=2_600_000, model_launches=2, model_bytes=20_000_000, model_flops=600_000_000,
        source_hash=records.source_hash(name),
    )  # fmt: skip
    return Row(**(fields | changes))


def test_rates_are_those_of_the_cost_model(machine):
    measured = row(machine)  # 20 MB and 0.6 GFLOP in 0.04 ms
    assert measured.tbps == pytest.approx(0.5)
    assert measured.tflops == pytest.approx(15)
    # 2 * 256 * 2560 * 512 FLOPs at 10 TFLOP/s; the operands, 6.3 MB, need less at 1 TB/s.
    assert measured.limit_ms == pytest.approx(0.0671, rel=1e-3)
    assert measured.fraction == pytest.approx(0.0671 / 0.04, rel=1e-3)


def test_the_limit_is_of_the_problem_and_not_of_how_it_is_solved(machine):
    assert row(machine, "v1_naive").limit_ms == row(machine, model_bytes=10**12).limit_ms
    assert row(machine, pass_="both").limit_ms == pytest.approx(3 * row(machine).limit_ms)
    # One query: 4 * 512 * (2 + 10 ** 6) bytes count, and twice as many with their gradients.
    long = dict(B=1, N=10**6)
    assert row(machine, **long).limit_ms == pytest.approx(2.048, rel=1e-3)
    assert row(machine, pass_="both", **long).limit_ms == pytest.approx(4.096, rel=1e-3)
    bf16 = row(machine, tier="bf16", dtype="bfloat16", **long)
    assert bf16.limit_ms == pytest.approx(1.024, rel=1e-3)


def test_no_rate_above_the_memory_s_pins_is_a_bandwidth(machine):
    assert row(machine, model_bytes=47_900_000).tbps == pytest.approx(1.1975)
    assert row(machine, model_bytes=48_100_000).tbps is None  # 1.2025 TB/s; the pins carry 1.2


def test_what_was_not_measured_has_no_rates(machine):
    failed = row(machine, status="out of memory", cold_ms=None)
    assert (failed.ok, failed.tbps, failed.tflops, failed.fraction) == (False, None, None, None)
    assert row(machine, tier="fp16").limit_ms is None  # no ceiling was measured for it


def test_a_record_reads_back_as_it_was_written(machine, tmp_path):
    written = [
        row(machine),
        row(machine, "v1_naive", status="over the time limit: 6.3 s a call, a, b", cold_ms=None),
        row(machine, "auto", ran="v3_fused", pass_="both", graph_ms=0.038),
    ]
    writer = Writer(tmp_path / "gpu-2026-12-01.csv", machine)
    for one in written:
        writer.write(one)
    record = records.read(writer.path)
    assert record.rows == written
    assert record.stamp == "recorded on NVIDIA Test, 2026-12-01"


def test_a_second_run_is_appended_and_its_rows_are_the_newest(machine, tmp_path):
    path = tmp_path / "gpu.csv"
    first = Writer(path, machine)
    first.write(row(first.run))
    second = Writer(path, dataclasses.replace(machine, copy_tbps=1.1))
    second.write(row(second.run, cold_ms=0.05))
    assert (first.run.number, second.run.number) == (1, 2)
    record = records.read(path)
    assert len(record) == 1
    found = record.row("v3_fused", "forward", "ieee", 256, 2560, 512)
    assert (found.cold_ms, found.run.copy_tbps) == (0.05, 1.1)


def test_a_failure_hides_no_measurement(machine, tmp_path):
    failed = row(machine, status="out of memory", cold_ms=None)
    later = row(machine, cold_ms=0.05)
    assert records.Record(tmp_path, [row(machine), failed]).rows == [row(machine)]
    assert records.Record(tmp_path, [failed, later]).rows == [later]


def test_records_of_two_gpus_do_not_mix(machine, tmp_path):
    other = dataclasses.replace(machine, number=2, gpu="NVIDIA Other")
    with pytest.raises(ValueError, match="mixes NVIDIA Other and NVIDIA Test"):
        records.Record(tmp_path, [row(machine), row(other)])


def test_a_record_of_several_days_says_so(machine, tmp_path):
    later = dataclasses.replace(machine, number=2, date="2026-12-03")
    record = records.Record(tmp_path, [row(later, "v2_shared"), row(machine)])
    assert record.stamp == "recorded on NVIDIA Test, 2026-12-01 to 2026-12-03"
    assert records.Record(tmp_path, []).stamp == "an empty record"


def test_a_line_that_was_cut_is_named(machine, tmp_path):
    writer = Writer(tmp_path / "gpu.csv", machine)
    writer.write(row(machine))
    text = writer.path.read_text()
    writer.path.write_text(text + text.splitlines()[1][:40])
    with pytest.raises(ValueError, match=r"gpu\.csv, line 3 is no row of a record"):
        records.read(writer.path)
    with pytest.raises(ValueError, match="line 3"):
        records.prepare(writer.path, machine.gpu)
    writer.path.write_text(text.rstrip("\n"))  # the next row would be glued to it
    with pytest.raises(ValueError, match="ends in the middle of a line"):
        records.prepare(writer.path, machine.gpu)


def test_a_run_whose_numbers_are_none_is_named(machine, tmp_path):
    writer = Writer(tmp_path / "gpu.csv", machine)
    runs = writer.path.with_suffix(".json")
    runs.write_text(runs.read_text().replace('"copy_tbps": 1.0', '"copy_tbps": "fast"'))
    with pytest.raises(ValueError, match=r"gpu\.json does not describe the runs"):
        records.read(writer.path)


def test_the_runs_are_there_whole_whenever_the_writing_stops(machine, tmp_path, monkeypatch):
    path = tmp_path / "gpu.csv"
    first = Writer(path, machine)
    first.write(row(first.run))

    def full(self, text, *arguments):
        with self.open("w") as file:
            file.write(text[:20])
        raise OSError("no space left on device")

    monkeypatch.setattr(type(path), "write_text", full)
    with pytest.raises(OSError, match="no space"):
        Writer(path, machine)
    assert len(records.read(path)) == 1


def test_what_cannot_be_appended_to_is_refused_before_anything_is_measured(machine, tmp_path):
    path = tmp_path / "gpu.csv"
    with pytest.raises(ValueError, match=r"must end in \.csv"):
        records.prepare(tmp_path / "record.json", machine.gpu)
    writer = Writer(path, machine)
    writer.write(row(writer.run))
    records.prepare(path, machine.gpu)
    with pytest.raises(ValueError, match="is of NVIDIA Test and this is NVIDIA Other"):
        records.prepare(path, "NVIDIA Other")
    path.write_text("run,kind\n")
    with pytest.raises(ValueError, match="other columns"):
        records.prepare(path, machine.gpu)
    path.unlink()
    with pytest.raises(ValueError, match=r"gpu\.json is there without gpu\.csv"):
        records.prepare(path, machine.gpu)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OSError, match="directory"):
        records.prepare(tmp_path / "folder.csv", machine.gpu)


def test_a_run_that_came_to_nothing_is_in_nobody_s_way(machine, tmp_path):
    path = tmp_path / "new" / "gpu.csv"
    records.prepare(path, machine.gpu)
    assert path.read_bytes() == b""  # as if interrupted while the ceilings were measured
    records.prepare(path, machine.gpu)
    writer = Writer(path, machine)
    writer.write(row(writer.run))
    assert (len(records.read(path)), writer.run.number) == (1, 1)


def test_rows_are_selected_by_fields(machine, tmp_path):
    rows = [row(machine), row(machine, "v2_shared"), row(machine, "v1_naive", B=512)]
    record = records.Record(tmp_path, rows)
    assert record.select(name=("v3_fused", "v1_naive"), B=256) == rows[:1]
    assert record.row("v3_fused", "both", "ieee", 256, 2560, 512) is None


def test_only_code_counts_in_the_hash(monkeypatch, tmp_path):
    text = kernels.source("v3_fused")
    before = records.source_hash("v3_fused")

    def hash_of(changed):
        for path in kernels.FOLDER.iterdir():
            if path.suffix in (".cu", ".cuh"):
                (tmp_path / path.name).write_text(path.read_text())
        (tmp_path / "v3_fused.cu").write_text(changed)
        monkeypatch.setattr(kernels, "FOLDER", tmp_path)
        return records.source_hash("v3_fused")

    assert (
        hash_of("// new words\n" + text.replace("  return result;", "\n    return   result;"))
        == before
    )
    assert hash_of(text.replace("stride > 0; stride /= 2", "stride > 0; stride >>= 1")) != before
    (tmp_path / "infonce.cuh").write_text(
        (tmp_path / "infonce.cuh").read_text().replace("1e-8", "1e-9")
    )
    assert records.source_hash("v3_fused") != before


def test_only_kernels_have_a_hash():
    assert records.source_hash("v0_reference") == records.source_hash("eager") == ""
    assert len(records.source_hash("v1_naive")) == 16


def test_a_row_of_an_older_text_says_so(machine, tmp_path):
    old = row(machine, source_hash="0123456789abcdef")
    assert old.is_stale and not row(machine).is_stale
    assert records.Record(tmp_path, [old]).stamp.endswith("2026-12-01, older source")


def test_without_any_record_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="infonce bench --record"):
        records.latest()


def test_the_latest_record_is_the_one_of_the_latest_date(machine, monkeypatch, tmp_path):
    for name in ("nvidia-h200-2026-11-30", "nvidia-a100-2026-12-01", "nvidia-h200-2026-01-31"):
        Writer(tmp_path / f"{name}.csv", machine).write(row(machine))
    (tmp_path / "nvidia-h200-2026-12-02-counters.csv").write_text("not a record\n")
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert records.latest().path.stem == "nvidia-a100-2026-12-01"
