import os
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from infonce_kernels.lessons import execute
from infonce_kernels.lessons.execute import execute_all
from infonce_kernels.lessons.kernel import NotebookError, run_notebook

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def test_failing_notebook_does_not_stop_the_others(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "00_bad.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1"), new_code_cell("{}['x']")]), bad)
    output = tmp_path / "out with blanks"

    failures = execute_all([bad, pair[1]], output)

    assert [str(f) for f in failures] == ["00_bad, cell 2: KeyError: 'x'"]
    first, second = capsys.readouterr().out.splitlines()
    assert "[1/2] 00_bad" in first and "FAILED in cell 2: KeyError: 'x'" in first
    assert "[2/2] 01_sample" in second and "ok: 8 cells, 1 figures" in second
    assert (output / "01_sample" / "cell-04-figure-1.png").read_bytes().startswith(PNG_MAGIC)
    executed = nbformat.read(output / "00_bad.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].data["text/plain"] == "1"
    assert executed.cells[1].outputs[0].ename == "KeyError"


@pytest.mark.parametrize(
    ("source", "verify_exits", "expected"), [("1", 0, 0), ("1", 1, 1), ("1 / 0", 0, 1)]
)
def test_exit_code_tells_of_notebooks_and_rungs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    verify_exits: int,
    expected: int,
) -> None:
    path = tmp_path / "00_only.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)
    commands = []

    def verify(command: list[str]) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=verify_exits)

    monkeypatch.setattr(execute, "committed", lambda: [path])
    monkeypatch.setattr(execute, "ROOT", tmp_path)
    monkeypatch.setattr(execute, "OUTPUT", tmp_path / "build")
    monkeypatch.setattr(execute.subprocess, "run", verify)
    assert execute.main() == expected
    assert commands == [[sys.executable, "-m", "infonce_kernels", "verify"]]
    assert ("FAILED: 00_only, cell 1" in capsys.readouterr().err) == (source == "1 / 0")


def test_stale_outputs_do_not_survive_a_failure(tmp_path: Path) -> None:
    stale = new_code_cell("1", outputs=[nbformat.v4.new_output("stream", text="old")])
    bad = tmp_path / "00_bad.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0"), stale]), bad)
    execute_all([bad], tmp_path / "out")
    executed = nbformat.read(tmp_path / "out" / "00_bad.ipynb", as_version=4)
    assert executed.cells[1].outputs == []


@pytest.mark.usefixtures("foreign_kernel")
def test_kernel_is_this_interpreter_in_its_own_folder(tmp_path: Path) -> None:
    notebook = new_notebook(
        cells=[new_code_cell("import os, sys\nprint(sys.executable, os.getcwd(), sep='\\n')")]
    )
    folder = tmp_path / "work"
    folder.mkdir()
    run_notebook(notebook, "which", folder)
    assert notebook.cells[0].outputs[0].text.splitlines() == [sys.executable, str(folder)]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import time\ntime.sleep(60)", "took more than 2 s"),
        ("import os\nos.write(2, b'Oh!')\nos._exit(3)", "the kernel died\n(.*\n)*.*Oh!"),
    ],
)
def test_slow_cell_and_dead_kernel_are_named(tmp_path: Path, source: str, message: str) -> None:
    notebook = new_notebook(cells=[new_code_cell("1"), new_code_cell(source)])
    with pytest.raises(NotebookError, match=f"bad, cell 2: {message}"):
        run_notebook(notebook, "bad", tmp_path, timeout=2)


def test_kernel_ends_with_the_notebook(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[new_code_cell("import os\nprint(os.getpid())")])
    run_notebook(notebook, "which", tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(notebook.cells[0].outputs[0].text), 0)


def test_progress_counts_every_cell(pair: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    run_notebook(
        nbformat.read(pair[1], as_version=4),
        "01_sample",
        tmp_path,
        on_cell=lambda cell, cells: seen.append((cell, cells)),
    )
    assert seen == [(n, 8) for n in range(1, 9)]
