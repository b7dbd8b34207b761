import os
from pathlib import Path

import nbformat
import pytest

from infonce_kernels.lessons import form, sync
from infonce_kernels.lessons.kernel import NotebookError


@pytest.fixture
def own_pair(pair: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the good pair, free to be changed."""
    copies = tmp_path / "01_sample.md", tmp_path / "01_sample.ipynb"
    for original, copy in zip(pair, copies, strict=True):
        copy.write_bytes(original.read_bytes())
    return copies


def test_second_run_writes_nothing(own_pair: tuple[Path, Path]) -> None:
    os.utime(own_pair[1], (1, 1))
    assert not sync.synchronise(*own_pair)
    assert own_pair[1].stat().st_mtime == 1


def test_edited_source_keeps_ids_and_renews_outputs(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    before = nbformat.read(target, as_version=4)
    text = source.read_text("utf-8")
    source.write_text(text.replace("loss 7.8512", "loss 1.25").replace("[setup]", "[setup, new]"))

    assert len(sync.out_of_step(source, target)) == 2
    assert sync.synchronise(source, target)
    assert sync.out_of_step(source, target) == []

    after = nbformat.read(target, as_version=4)
    assert [c.id for c in after.cells] == [c.id for c in before.cells]
    assert "loss 1.25" in after.cells[2].outputs[0].text
    assert after.cells[1].metadata.tags == ["setup", "new"]


def test_tag_taken_away_in_the_source_goes_away(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    source.write_text(source.read_text("utf-8").replace(":tags: [exercise]\n\n", ""))
    assert sync.out_of_step(source, target) != []
    assert "tags" not in sync.update(source, target).cells[5].metadata


def test_solution_stays_collapsed(own_pair: tuple[Path, Path]) -> None:
    notebook = nbformat.read(own_pair[1], as_version=4)
    assert notebook.cells[7].metadata == {"jupyter": {"source_hidden": True}, "tags": ["solution"]}


def test_outputs_come_from_the_cpu_path(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    text = source.read_text("utf-8")
    source.write_text(
        text.replace('"loss 7.8512', 'repr(__import__("os").environ["CUDA_VISIBLE_DEVICES"]) + "')
    )
    sync.synchronise(source, target)
    assert nbformat.read(target, as_version=4).cells[2].outputs[0].text.startswith("''")


def test_failing_cell_is_named_and_the_notebook_left_alone(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    stored = target.read_bytes()
    source.write_text(source.read_text("utf-8").replace('print("loss', '1 / 0\nprint("loss'))
    with pytest.raises(NotebookError, match="01_sample, cell 3: ZeroDivisionError"):
        sync.synchronise(source, target)
    assert target.read_bytes() == stored


def test_what_varies_is_taken_out(own_pair: tuple[Path, Path]) -> None:
    notebook = nbformat.read(own_pair[1], as_version=4)
    notebook.metadata.language_info.version = "3.99"
    notebook.metadata.kernelspec.name = "mine"
    notebook.cells[2].metadata.execution = {"iopub.status.busy": "now"}
    notebook.cells[3].outputs.append(
        nbformat.v4.new_output("stream", name="stderr", text="compiling")
    )
    form.canonical(notebook)
    assert notebook == nbformat.read(own_pair[1], as_version=4)


def test_half_a_pair_is_out_of_step(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    target.unlink()
    assert "no notebook" in sync.out_of_step(source, target)[0]
    assert sync.pairs(target.parent, source.parent) == [(source, target)]


def test_notebook_without_source_is_out_of_step(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    source.unlink()
    assert "no source" in sync.out_of_step(source, target)[0]
    assert sync.pairs(target.parent, source.parent) == [(source, target)]


def test_added_cell_is_out_of_step(own_pair: tuple[Path, Path]) -> None:
    source, target = own_pair
    source.write_text(source.read_text("utf-8") + "\n```{code-cell} ipython3\n1\n```\n")
    assert "has 9 cells" in sync.out_of_step(source, target)[0]


def test_check_names_stale_pairs_and_changes_nothing(
    own_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = own_pair
    monkeypatch.setattr(sync, "pairs", lambda: [own_pair])
    assert sync.main(["--check"]) == 0

    stored = target.read_bytes()
    source.write_text(source.read_text("utf-8").replace("loss 7.8512", "loss 1.25"))
    assert sync.main(["--check"]) == 1
    assert "01_sample.ipynb, cell 3 differs" in capsys.readouterr().err
    assert target.read_bytes() == stored

    assert sync.main(["01_sample"]) == 0
    assert "written" in capsys.readouterr().out
    assert sync.main(["--check"]) == 0


def test_failing_lesson_is_reported(
    own_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_pair[0].write_text(
        own_pair[0].read_text("utf-8").replace('print("loss', '1 / 0\nprint("loss')
    )
    monkeypatch.setattr(sync, "pairs", lambda: [own_pair])
    assert sync.main([]) == 1
    printed = capsys.readouterr()
    assert "FAILED" in printed.out and "cell 3: ZeroDivisionError" in printed.err
