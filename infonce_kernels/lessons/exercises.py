"""How an exercise is written, checked and tested.

In the lesson, in this order, each a code cell with its tag (Markdown with the task and the hints
around them):

    setup      imports and data that exercises need; they may assume nothing else of the lesson
    exercise   the stub: the reader edits it. It may be wrong, it must not raise
    check      one call that shows a `Verdict`, tagged `nbval-check-output` too
    solution   collapsed (`jupyter: {source_hidden: true}`): gives the stub's names right values

A check is a function under `@check` that returns when it is content and raises otherwise:

    @check
    def check_sum(kernel: str) -> None:
        got = build(kernel).row_sum(...)
        if got.isnan().any():
            raise NotYet("the sum is NaN: is every lane's register set?")

Anything else that the reader's code raises becomes a verdict as well. Run top to bottom, the
committed lesson shows "not yet" under its check. `judge` runs an exercise both ways: the stub must
fail the check, the solution pass it.
"""

import functools
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

import nbformat.v4
from nbformat import NotebookNode

from infonce_kernels.lessons.form import code_cells, tags, text_outputs
from infonce_kernels.lessons.kernel import run_notebook

PASSED = "passed"
NOT_YET = "not yet"
ROLES = ("exercise", "check", "solution")
P = ParamSpec("P")


class NotYet(Exception):
    """Raised by a check; the message says what is wrong and where to look."""


@dataclass(frozen=True)
class Verdict:
    """What a check shows under its cell."""

    passed: bool
    hint: str = ""

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        verdict = PASSED if self.passed else NOT_YET
        return f"{verdict}: {self.hint}" if self.hint else verdict


def check(function: Callable[P, str | None]) -> Callable[P, Verdict]:
    """Turn a function that raises when the reader is wrong into one that returns a `Verdict`.

    What the function returns is the remark behind "passed".
    """

    @functools.wraps(function)
    def judged(*args: P.args, **kwargs: P.kwargs) -> Verdict:
        try:
            return Verdict(True, function(*args, **kwargs) or "")
        except NotYet as problem:
            return Verdict(False, str(problem))
        except Exception as error:
            return Verdict(False, f"{type(error).__name__}: {error}")

    return judged


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson; all but the name are sources of cells."""

    name: str
    setup: tuple[str, ...]
    stub: str
    check: str
    solution: str


def find(notebook: NotebookNode, lesson: str) -> list[Exercise]:
    """Return the exercises of a lesson, named `lesson/1`, `lesson/2`, ...

    Raises:
        ValueError: the tags do not come in the order exercise, check, solution.
    """
    setup: list[str] = []
    exercises: list[Exercise] = []
    parts: list[str] = []
    for number, cell in code_cells(notebook):
        if "setup" in tags(cell):
            setup.append(cell.source)
        for role in set(tags(cell)) & set(ROLES):
            if role != ROLES[len(parts)]:
                raise ValueError(
                    f"{lesson}, cell {number}: tagged {role} where {ROLES[len(parts)]} is due"
                )
            parts.append(cell.source)
        if len(parts) == len(ROLES):
            exercises.append(Exercise(f"{lesson}/{len(exercises) + 1}", tuple(setup), *parts))
            parts = []
    if parts:
        raise ValueError(f"{lesson}: the last exercise has no {ROLES[len(parts)]}")
    return exercises


def judge(exercise: Exercise) -> tuple[str, str]:
    """Run the check on the stub, then on the solution, in a fresh kernel; return what it showed.

    Raises:
        NotebookError: a cell raised.
    """
    parts = [exercise.stub, exercise.check, exercise.solution, exercise.check]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(s) for s in itertools.chain(exercise.setup, parts)]
    )
    with tempfile.TemporaryDirectory() as folder:
        run_notebook(notebook, exercise.name, Path(folder))
    stub, solution = ("".join(text_outputs(notebook.cells[i])) for i in (-3, -1))
    return stub, solution
