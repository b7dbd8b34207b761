import pytest
from nbformat import NotebookNode

from infonce_kernels.lessons.exercises import NotYet, Verdict, check, find, judge


def test_stub_fails_and_solution_passes(notebook: NotebookNode) -> None:
    (exercise,) = find(notebook, "01_sample")
    assert exercise.name == "01_sample/1"
    assert judge(exercise) == ("not yet: the square of 3 is 9\n", "passed\n")


def test_stub_that_passes_is_seen(notebook: NotebookNode) -> None:
    notebook.cells[5].source = notebook.cells[7].source
    (exercise,) = find(notebook, "01_sample")
    assert judge(exercise)[0] == "passed\n"


def test_wrong_solution_is_seen(notebook: NotebookNode) -> None:
    notebook.cells[7].source = "def square(x):\n    return x"
    (exercise,) = find(notebook, "01_sample")
    assert judge(exercise)[1] == "not yet: the square of 3 is 9\n"


@pytest.mark.parametrize(
    ("cell", "tag", "message"),
    [
        (5, "other", "cell 7: tagged check where exercise is due"),
        (6, "other", "cell 8: tagged solution where check is due"),
        (7, "other", "the last exercise has no solution"),
    ],
)
def test_misplaced_tags_are_refused(
    notebook: NotebookNode, cell: int, tag: str, message: str
) -> None:
    notebook.cells[cell].metadata.tags = [tag]
    with pytest.raises(ValueError, match=message):
        find(notebook, "01_sample")


def test_check_turns_outcomes_into_verdicts() -> None:
    @check
    def judged(value: int) -> str | None:
        if value < 0:
            raise NotYet("negative")
        return "zero" if 1 // value == 0 else None

    assert judged(1) == Verdict(True)
    assert repr(judged(2)) == "passed: zero"
    assert repr(judged(-1)) == "not yet: negative"
    assert not judged(0)
    assert "ZeroDivisionError" in repr(judged(0))
