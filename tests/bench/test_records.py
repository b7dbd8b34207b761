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
    # 20 MB at 1 TB/s take 0.02 ms, 0.6 GFLOP at 10 TFLOP/s 0.06 ms.
    assert measured.limit_ms == pytest.approx(0.06)
    assert measured.fraction == pytest.approx(1.5)


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
    later = dataclasses.replace(machine, number=2, copy_tbps=1.1)
    Writer(path, machine).write(row(machine))
    Writer(path, later).write(row(later, cold_ms=0.05))
    record = records.read(path)
    assert [run.number for run in records.read_runs(path)] == [1, 2]
    assert len(record) == 1
    found = record.row("v3_fused", "forward", "ieee", 256, 2560, 512)
    assert (found.cold_ms, found.run.copy_tbps) == (0.05, 1.1)


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
