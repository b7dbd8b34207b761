"""The committed lessons: form, outputs under nbval, cells under nbclient, exercises."""

import copy
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat import NotebookNode

from infonce_kernels.lessons import NOTEBOOKS, OUTPUT, ROOT, committed
from infonce_kernels.lessons.exercises import NOT_YET, PASSED, find, judge
from infonce_kernels.lessons.form import CHECKS, SANITIZER
from infonce_kernels.lessons.kernel import run_notebook
from infonce_kernels.lessons.sync import out_of_step, pairs
from tests.conftest import PASSED_CALL

# Seconds a cell may take: while kernels still have to be compiled, and after.
COLD, WARM = 120, 30

each_lesson = pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)


@pytest.fixture
def unless_unchanged(request: pytest.FixtureRequest, path: Path) -> Iterator[None]:
    """Skips a lesson that has passed here and has not changed since, nor anything it stands on.

    The lessons take most of the time of a run. `make clean` forgets what has passed.
    """
    stamp = OUTPUT / "tested" / f"{request.node.originalname}-{path.stem}-{fingerprint(path)}"
    if stamp.exists():
        pytest.skip("it passed before, and nothing has changed since")
    yield
    if request.node.stash.get(PASSED_CALL, False):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()


def fingerprint(path: Path) -> str:
    """Hash over the notebook, the package, the tests of notebooks and what runs them."""
    here = (sys.version, torch.__version__, torch.cuda.is_available(), os.environ.get("CXX"))
    digest = hashlib.sha256(repr(here).encode())
    package = (p for p in (ROOT / "infonce_kernels").rglob("*") if p.suffix not in (".pyc", ""))
    pinned = (ROOT / "constraints.txt", ROOT / "pyproject.toml", Path(__file__))
    for file in sorted([path, *package, *pinned]):
        digest.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def nbval(path: Path, folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Compare a copy's outputs with newly computed ones, by the command that the README gives."""
    shutil.copy(path, folder)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no"]
    command += ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={COLD}"]
    command += [f"--nbval-sanitize-with={SANITIZER}", path.name]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"TORCH_EXTENSIONS_DIR": str(cache), "IPYTHONDIR": str(folder / "ipython")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def run_twice(notebook: NotebookNode, name: str, folder: Path, cache: Path) -> None:
    """Run all cells and then, in the same session, all of them again."""
    again = copy.deepcopy(notebook)
    for cell in again.cells:
        cell.id = f"{cell.id[:60]}-2"
    both = copy.deepcopy(notebook)
    both.cells += again.cells
    run_notebook(both, name, folder, timeout=WARM, environment={"TORCH_EXTENSIONS_DIR": str(cache)})


def test_lessons_are_numbered_from_00() -> None:
    numbers = [int(path.name[:2]) for path in committed()]
    assert numbers and numbers == list(range(len(numbers)))
    assert set(NOTEBOOKS.glob("*.ipynb")) == set(committed())


@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: pair[0].stem)
def test_notebook_is_in_step_with_its_source(pair: tuple[Path, Path]) -> None:
    assert out_of_step(*pair) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@each_lesson
def test_form(path: Path, check: Callable[[NotebookNode], list[str]]) -> None:
    assert check(nbformat.read(path, as_version=4)) == []


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unless_unchanged")
@each_lesson
def test_lesson_runs_cold_under_nbval_then_warm_and_twice(path: Path, tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "elsewhere"
    cache.mkdir()
    folder.mkdir()
    result = nbval(path, tmp_path, cache)
    assert result.returncode == 0, result.stdout + result.stderr
    run_twice(nbformat.read(path, as_version=4), path.stem, folder, cache)


@pytest.mark.usefixtures("unless_unchanged")
@each_lesson
def test_exercises_stub_fails_and_solution_passes(path: Path) -> None:
    exercises = find(nbformat.read(path, as_version=4), path.stem)
    assert exercises, "a lesson ends with an exercise"
    for exercise in exercises:
        stub, solution = judge(exercise)
        assert stub.startswith(NOT_YET), f"{exercise.name}: the stub gives {stub!r}"
        assert solution.startswith(PASSED), f"{exercise.name}: the solution gives {solution!r}"


# The two ways of running a lesson, tried on one whose right outcome is known.


@pytest.mark.usefixtures("foreign_kernel")
def test_nbval_passes_the_good_notebook_with_another_time(
    notebook: NotebookNode, tmp_path: Path
) -> None:
    cell = notebook.cells[2]
    cell.source = "print('loss 7.8512, 3.1 ms')"
    cell.outputs[0].text = "loss 7.8512, 12.7 µs\n"
    path = tmp_path / "01_sample.ipynb"
    nbformat.write(notebook, path)
    (tmp_path / "run").mkdir()
    result = nbval(path, tmp_path / "run", tmp_path)
    assert result.returncode == 0 and "6 passed" in result.stdout, result.stdout


@pytest.mark.parametrize(
    ("old", "new"), [("7.8512", "7.8513"), ("3.1e-07", "3.1e-06"), (", ok", ", WRONG")]
)
def test_nbval_sees_another_loss_error_or_verdict(
    notebook: NotebookNode, tmp_path: Path, old: str, new: str
) -> None:
    notebook.cells[2].source = notebook.cells[2].source.replace(old, new)
    path = tmp_path / "01_sample.ipynb"
    nbformat.write(notebook, path)
    (tmp_path / "run").mkdir()
    result = nbval(path, tmp_path / "run", tmp_path)
    assert result.returncode == 1 and "Cell outputs differ" in result.stdout, result.stdout


def test_cell_that_works_only_once_is_seen(notebook: NotebookNode, tmp_path: Path) -> None:
    notebook.cells[3].source = "print(once)\ndel once"
    notebook.cells[1].source += "\nif 'seen' not in globals():\n    seen = once = 1"
    with pytest.raises(Exception, match=r"cell 12: NameError: name 'once'"):
        run_twice(notebook, "01_sample", tmp_path, tmp_path)
