"""Every check passes the good notebook and finds the one thing that is wrong with a bad one."""

import re
from collections.abc import Callable

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output

from infonce_kernels.lessons import form

CHECKED, FIGURE, EXERCISE, CHECK, SOLUTION = 2, 3, 5, 6, 7


@pytest.mark.parametrize("check", form.CHECKS, ids=lambda check: check.__name__)
def test_good_notebook_has_no_problem(
    notebook: NotebookNode, check: Callable[[NotebookNode], list[str]]
) -> None:
    assert check(notebook) == []


def stdout(text: str) -> NotebookNode:
    return new_output("stream", name="stdout", text=text)


def other_kernel(nb: NotebookNode) -> None:
    nb.metadata.kernelspec.name = "venv311"


def with_version(nb: NotebookNode) -> None:
    nb.metadata.language_info.version = "3.11.7"


def with_timing(nb: NotebookNode) -> None:
    nb.cells[CHECKED].metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00"}


def with_stderr(nb: NotebookNode) -> None:
    nb.cells[FIGURE].outputs.append(new_output("stream", name="stderr", text="compiling"))


def never_run(nb: NotebookNode) -> None:
    nb.cells[CHECKED].execution_count = None
    nb.cells[CHECKED].outputs = []


def out_of_order(nb: NotebookNode) -> None:
    nb.cells[CHECKED].execution_count = 9


def silent(nb: NotebookNode) -> None:
    nb.cells[CHECKED].outputs = []


def nothing_compared(nb: NotebookNode) -> None:
    for cell in nb.cells:
        cell.metadata.pop("tags", None)


def comment_marker(nb: NotebookNode) -> None:
    nb.cells[CHECKED].source += "\n# NBVAL_SKIP"


def skipped(nb: NotebookNode) -> None:
    nb.cells[CHECKED].metadata.tags = ["nbval-skip"]


def magic(nb: NotebookNode) -> None:
    nb.cells[FIGURE].source = "%matplotlib inline"


def indented_magic(nb: NotebookNode) -> None:
    nb.cells[FIGURE].source = "if True:\n    %time 1"


def shell(nb: NotebookNode) -> None:
    nb.cells[FIGURE].source = "files = !ls"


def magic_by_call(nb: NotebookNode) -> None:
    nb.cells[FIGURE].source = "get_ipython().run_line_magic('who', '')"


def stored_error(nb: NotebookNode) -> None:
    nb.cells[FIGURE].outputs = [
        new_output("error", ename="ValueError", evalue="no", traceback=["no"])
    ]


def stored_time(nb: NotebookNode) -> None:
    nb.cells[FIGURE].outputs.append(stdout("took 3.1 ms"))


def stored_repr(nb: NotebookNode) -> None:
    nb.cells[FIGURE].outputs.append(
        new_output("display_data", data={"text/html": "<b>object at 0x7f3a12</b>"})
    )


def open_solution(nb: NotebookNode) -> None:
    del nb.cells[SOLUTION].metadata["jupyter"]


@pytest.mark.parametrize(
    ("check", "spoil", "word"),
    [
        (form.check_kernel, other_kernel, "venv311"),
        (form.check_kernel, with_version, "3.11.7"),
        (form.check_cells_canonical, with_timing, "cell 3 has metadata"),
        (form.check_cells_canonical, with_stderr, "cell 4 stores standard error"),
        (form.check_executed, never_run, "execution counts"),
        (form.check_executed, out_of_order, "execution counts"),
        (form.check_compared, never_run, "cell 3"),
        (form.check_compared, silent, "cell 3"),
        (form.check_compared, nothing_compared, "nothing"),
        (form.check_nothing_skipped, comment_marker, "cell 3"),
        (form.check_nothing_skipped, skipped, "cell 3"),
        (form.check_plain_python, magic, "cell 4"),
        (form.check_plain_python, indented_magic, "cell 4"),
        (form.check_plain_python, shell, "cell 4"),
        (form.check_plain_python, magic_by_call, "get_ipython"),
        (form.check_no_error_stored, stored_error, "ValueError"),
        (form.check_nothing_varies, stored_time, "'3.1 ms'"),
        (form.check_nothing_varies, stored_repr, "0x7f3a12"),
        (form.check_solutions_collapsed, open_solution, "cell 8"),
    ],
)
def test_bad_notebook_is_found(
    notebook: NotebookNode,
    check: Callable[[NotebookNode], list[str]],
    spoil: Callable[[NotebookNode], None],
    word: str,
) -> None:
    spoil(notebook)
    problems = check(notebook)
    assert len(problems) == 1 and word in problems[0]


def test_every_check_is_seen_to_fail() -> None:
    (table,) = (m for m in test_bad_notebook_is_found.pytestmark if m.name == "parametrize")
    assert {row[0] for row in table.args[1]} == set(form.CHECKS)


def test_a_cell_that_shows_a_record_may_hold_times(notebook: NotebookNode) -> None:
    stored_time(notebook)
    notebook.cells[FIGURE].metadata.tags = ["recorded"]
    assert form.check_nothing_varies(notebook) == []


@pytest.mark.parametrize(
    "text",
    [
        "0.038 ms",
        "12us",
        "4.5 µs",
        "3 s",
        "1.2e+03 ns",
        "in 2 seconds",
        "4.1 TB/s",
        "812 GB/s",
        "60 TFLOP/s",
        "<object at 0x7f00dead>",
        "/home/me/x.cu",
        "/tmp/tmpabc/kernel.cpp:12",
        "key 3f2a9c01d4e5",
        "NVIDIA H200",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA A100-SXM4-80GB",
        "an H100",
        "device='cuda:0'",
        "AMD EPYC 9654",
    ],
)
def test_what_varies_is_recognised(text: str) -> None:
    assert any(pattern.search(text) for pattern in form.varying().values())


KEPT = [
    "loss 7.851234, error 3.2e-07, ok",
    "loss = 0.1234567890123456",
    "1.2345678901234567e-05",
    "passed: 256 sectors, 5 stages",
    "not yet: the sum of row 3 is NaN",
    "B = 256, D = 512, N = 2560",
    "tensor([1.0000, 0.5000])",
    "N/A  1/2  and/or",
    "max relative error 2 smaller",
    "an NVIDIA GPU 7.85 passed",
    "65536 bytes a block, 0x1F lanes",
]


@pytest.mark.parametrize("text", KEPT)
def test_losses_and_verdicts_are_never_sanitised(text: str) -> None:
    assert [name for name, pattern in form.varying().items() if pattern.search(text)] == []


def test_nbval_reads_every_pattern() -> None:
    from nbval.plugin import get_sanitize_patterns

    text = form.SANITIZER.read_text("utf-8")
    read = dict(get_sanitize_patterns(text))
    assert {p.pattern for p in form.varying().values()} < set(read)
    assert len(read) == len(re.findall(r"^\[", text, flags=re.MULTILINE))
