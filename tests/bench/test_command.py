"""`infonce bench`: what it prints, keeps and returns."""

import argparse
import json

import pytest

from infonce_kernels import cli
from infonce_kernels.bench import check, records, run
from infonce_kernels.commands import bench as command


@pytest.fixture
def gpu(monkeypatch, machine, timer, on_cpu):
    """A GPU that is none."""
    monkeypatch.setattr(command, "backends", lambda: {"cuda": None})
    monkeypatch.setattr(command, "Timer", lambda budget, limit: timer)
    monkeypatch.setattr(run, "start_run", lambda commit, settings: machine)
    monkeypatch.setattr(command.torch.cuda, "get_device_name", lambda: "NVIDIA Test")


ONE = ("bench", "--size", "16,8,40", "--rungs", "v0_reference")


def test_without_a_gpu_it_says_what_is_missing_and_what_remains(monkeypatch, capsys):
    monkeypatch.setattr(command, "backends", lambda: {"cuda": "no NVIDIA GPU: get one"})
    assert cli.main(["bench"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "no NVIDIA GPU: get one" in told and "infonce plot" in told


def test_it_prints_rungs_and_baselines_side_by_side(gpu, capsys):
    assert cli.main([*ONE, "--tiers", "ieee"]) == 0
    printed = capsys.readouterr()
    assert "B 16, D 8, N 40, ieee, forward" in printed.out
    lines = [line.split() for line in printed.out.splitlines()]
    (eager,) = (line for line in lines if line[:1] == ["eager"])
    assert eager[1:6] == ["1", "10%", "1", "1", "1.00"]  # cold, spread, graph, wall, x eager
    assert "copy 1.00 TB/s" in printed.err


def test_rows_for_a_script(gpu, capsys):
    assert cli.main([*ONE, "--json", "--baselines", "eager", "--passes", "both"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["name"], r["tier"], r["pass"]) for r in rows] == [
        ("v0_reference", "ieee", "both"), ("eager", "ieee", "both"),
        ("v0_reference", "tf32", "both"), ("eager", "tf32", "both"),
    ]  # fmt: skip
    eager = rows[1]
    assert eager["status"] == "ok" and eager["cold_ms"] == 1.0 and eager["run"]["gpu"]
    assert eager["tflops"] == pytest.approx(6 * 16 * 8 * 40 * 1e-9)


def test_a_record_grows_and_numbers_its_runs(gpu, tmp_path):
    path = tmp_path / "mine.csv"
    for _ in range(2):
        assert cli.main([*ONE, "--record", str(path), "--commit", "abc"]) == 0
    assert [run.number for run in records.read_runs(path)] == [1, 2]
    assert len(path.read_text().splitlines()) == 1 + 2 * 6  # v0, eager and strongest, in two tiers


def test_an_interruption_keeps_and_shows_what_was_measured(gpu, tmp_path, monkeypatch, capsys):
    measure, path = run.measure, tmp_path / "mine.csv"

    def measure_one(entry, *rest):
        if entry.subject.name == "eager":
            raise KeyboardInterrupt
        return measure(entry, *rest)

    monkeypatch.setattr(run, "measure", measure_one)
    assert cli.main([*ONE, "--record", str(path)]) == 130
    assert [row.name for row in records.read(path)] == ["v0_reference"]
    assert "v0_reference" in capsys.readouterr().out


def test_a_record_that_cannot_be_is_refused_at_once(gpu, tmp_path, capsys):
    assert cli.main([*ONE, "--record", str(tmp_path / "mine.json")]) == 2
    assert "must end in .csv" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert cli.main([*ONE, "--record", str(tmp_path / "file" / "mine.csv")]) == 2
    assert "infonce bench:" in capsys.readouterr().err


def test_nothing_to_measure_is_said(gpu, capsys):
    assert cli.main(["bench", "--rungs", "v1_naive", "--tiers", "bf16", "--baselines", ""]) == 2
    assert "nothing to measure" in capsys.readouterr().err


def test_compile_runs_at_a_size_of_one_s_own(gpu):
    options = ["--size", "16,8,40", "--rungs", "", "--baselines", "compile", "--tiers", "ieee"]
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    (entry,) = command._entries(parser.parse_args(["bench", *options]))
    assert (entry.subject.name, entry.size) == ("compile", (16, 8, 40))


def test_a_wrong_result_is_an_exit_code(gpu, monkeypatch, capsys):
    monkeypatch.setitem(check.LIMITS, "ieee", check.Limits(0.0, 0.0, 0.0))
    assert cli.main([*ONE, "--tiers", "ieee"]) == 1
    assert "eager: wrong: error" in capsys.readouterr().out


def test_a_result_that_nobody_checked_is_an_exit_code(gpu, monkeypatch):
    monkeypatch.setattr(run.Problem, "expected", lambda self, subject, pass_: None)
    assert cli.main([*ONE, "--tiers", "ieee"]) == 1


def test_a_lost_gpu_is_an_exit_code(gpu, timer, capsys):
    calls = []

    def synchronize():
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("CUDA error: unspecified launch failure")

    timer.synchronize = synchronize
    assert cli.main([*ONE, "--tiers", "ieee"]) == 1
    printed = capsys.readouterr()
    assert "unspecified launch failure" in printed.err and "v0_reference" in printed.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--size", "16,8"), "'16,8' is not B,D,N"),
        (("--size", "16,0,8"), "sizes are positive"),
        (("--tiers", "ieee,half"), "'half' is not one of ieee, tf32, bf16"),
        (("--rungs", "v9"), "'v9' is not one of v0_reference"),
        (("--limit", "-1"), "'-1' is not positive and finite"),
        (("--budget", "much"), "'much' is no number"),
    ],
)
def test_a_bad_argument_is_named(arguments, told, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", *arguments])
    assert told in capsys.readouterr().err
