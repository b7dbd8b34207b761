"""`infonce plot`, `export` and `counters`: what they write, print and return."""

import json

import pytest

from infonce_kernels import cli
from infonce_kernels.bench import counters, records


def test_plot_writes_every_figure_and_names_its_source(tmp_path, capsys, monkeypatch):
    # A small record, so that few figures are drawn.
    rows = [r for r in records.latest() if (r.D, r.tier, r.pass_) == (512, "tf32", "forward")]
    monkeypatch.setattr(records, "latest", lambda: records.Record(records.FOLDER, rows))
    assert cli.main(["plot", str(tmp_path / "new"), "--format", "png"]) == 0
    printed = capsys.readouterr().out
    written = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert "recorded on NVIDIA H200" in printed
    assert {"speedup_batch_forward_tf32.png", "roofline_forward_tf32.png"} <= set(written)
    assert f"{len(written)} figures in {tmp_path / 'new'}" in printed


def test_plot_of_a_record_that_is_not_there(tmp_path, capsys):
    assert cli.main(["plot", str(tmp_path), "--record", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err


@pytest.mark.parametrize("spoiled", ["empty", "cut", "no json", "bad json", "folder", "no eager"])
def test_plot_of_a_record_that_is_none_says_why(spoiled, tmp_path, capsys):
    source = records.latest().path
    path = tmp_path / "record.csv"
    lines = source.read_text().splitlines(keepends=True)
    text = {"empty": "", "cut": "".join(lines[:3])[:-30]}.get(spoiled, "".join(lines[:3]))
    if spoiled == "no eager":
        text = "".join([lines[0], *(li for li in lines if ",v3_fused,v3_fused," in li)])
    path.write_text(text)
    if spoiled != "no json":
        runs = source.with_suffix(".json").read_text()
        path.with_suffix(".json").write_text(runs[:50] if spoiled == "bad json" else runs)
    named = tmp_path if spoiled == "folder" else path
    assert cli.main(["plot", str(tmp_path / "figures"), "--record", str(named)]) == (
        0 if spoiled == "no eager" else 2
    )
    printed = capsys.readouterr()
    if spoiled == "no eager":  # rooflines and memory need no baseline
        assert "figures in" in printed.out
    else:
        assert printed.err.startswith("infonce plot: ") and len(printed.err.splitlines()) == 1


def test_plot_into_what_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["plot", str(tmp_path / "file")]) == 2
    assert "file" in capsys.readouterr().err


def test_export_writes_a_folder_and_refuses_what_cannot_be(tmp_path, capsys):
    assert cli.main(["export", "kernelbench", str(tmp_path / "new")]) == 0
    assert "model_new.py" in capsys.readouterr().out
    assert cli.main(["export", "kernelbench", str(tmp_path / "new")]) == 2
    assert "not empty" in capsys.readouterr().err
    assert (
        cli.main(["export", "gpucodeforces", str(tmp_path / "v0"), "--rung", "v0_reference"]) == 2
    )
    assert "v0_reference" in capsys.readouterr().err


@pytest.fixture
def counted(monkeypatch):
    """ncu's counts of v1, as the record has them."""
    kernels = [
        kernel
        for kernel in counters.load_latest()
        if (kernel.call.rung, kernel.call.pass_) == ("v1_naive", "forward")
    ]
    monkeypatch.setattr(counters, "count", lambda *arguments: kernels)
    return kernels


def test_counters_prints_what_was_counted_beside_what_was_predicted(counted, capsys):
    assert cli.main(["counters", "v1_naive"]) == 0
    printed = capsys.readouterr().out
    assert "similarities_kernel" in printed and "16.5" in printed and "predicted" in printed


def test_counters_for_a_script_and_into_a_record(counted, tmp_path, capsys):
    path = tmp_path / "counts.csv"
    assert cli.main(["counters", "v1_naive", "--json", "--record", str(path)]) == 0
    (call,) = json.loads(capsys.readouterr().out)
    assert call["launches"][0]["load_sectors"] == counted[0].load_sectors
    assert counters.read(path) == counted


def test_counters_without_ncu_names_the_remedy(monkeypatch, capsys):
    def unavailable(*arguments):
        raise counters.CountersUnavailable("ncu was not found: install NVIDIA Nsight Compute")

    monkeypatch.setattr(counters, "count", unavailable)
    assert cli.main(["counters", "v1_naive"]) == 2
    assert "install NVIDIA Nsight Compute" in capsys.readouterr().err
