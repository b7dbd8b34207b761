"""What a committed notebook must look like. Each check returns the problems that it found.

Some of these close holes of nbval, which reports success where it compared nothing.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from nbformat import NotebookNode

from infonce_kernels.lessons.kernel import DISPLAY_NAME, NAME

SANITIZER = Path(__file__).with_name("sanitize.cfg")
CHECKED = "nbval-check-output"
RECORDED = "recorded"
METADATA = {
    "kernelspec": {"display_name": DISPLAY_NAME, "language": "python", "name": NAME},
    # What a Python 3 kernel reports, less the version.
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
CELL_METADATA = {"tags", "jupyter"}


def tags(cell: NotebookNode) -> list[str]:
    """Return the cell's tags."""
    return cell.metadata.get("tags", [])


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    """Return the code cells, each with its number among all cells, from 1."""
    return [(i, c) for i, c in enumerate(notebook.cells, start=1) if c.cell_type == "code"]


def text_outputs(cell: NotebookNode) -> Iterator[str]:
    """Yield every text among a cell's outputs; images are left out."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield "\n".join([output.evalue, *output.traceback])
        else:
            for kind, data in output.data.items():
                if not kind.startswith("image/"):
                    yield str(data)


@cache
def varying() -> dict[str, re.Pattern[str]]:
    """Return the patterns of `sanitize.cfg` that no committed output may hold, by name."""
    found = re.findall(
        r"^\[(\w+)\]\nregex: (.*)\nreplace: ", SANITIZER.read_text("utf-8"), flags=re.MULTILINE
    )
    return {name: re.compile(regex) for name, regex in found if name != "figures"}


def canonical(notebook: NotebookNode) -> None:
    """Bring a notebook, in place, into the form that is committed: nothing in it varies."""
    notebook.metadata = NotebookNode(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in CELL_METADATA})
        if cell.cell_type == "code":
            # Progress and warnings of a first run; a second run has none.
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]


def check_kernel(notebook: NotebookNode) -> list[str]:
    """The kernel must exist on every machine: python3, with no trace of the author's."""
    if notebook.metadata != METADATA:
        return [f"metadata is not canonical, run `make sync`: {dict(notebook.metadata)}"]
    return []


def check_cells_canonical(notebook: NotebookNode) -> list[str]:
    """Cells carry tags and `jupyter` as their only metadata, and no standard error."""
    problems = []
    for number, cell in enumerate(notebook.cells, start=1):
        if extra := set(cell.metadata) - CELL_METADATA:
            problems.append(f"cell {number} has metadata {sorted(extra)}, run `make sync`")
        if any(output.get("name") == "stderr" for output in cell.get("outputs", [])):
            problems.append(f"cell {number} stores standard error, run `make sync`")
    return problems


def check_executed(notebook: NotebookNode) -> list[str]:
    """Every code cell was executed, in order; nbval passes a checked cell that was not."""
    counts = [cell.execution_count for _, cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        return [f"execution counts are {counts}, not 1 to {len(counts)}: run `make sync`"]
    return []


def check_compared(notebook: NotebookNode) -> list[str]:
    """Cells tagged `nbval-check-output` have text to compare, and there is at least one."""
    checked = [(number, cell) for number, cell in code_cells(notebook) if CHECKED in tags(cell)]
    problems = [
        f"cell {number} is tagged {CHECKED} but has no text output"
        for number, cell in checked
        if cell.execution_count is None or not any(text.strip() for text in text_outputs(cell))
    ]
    return problems if checked else [f"no cell is tagged {CHECKED}: nbval compares nothing"]


def check_nothing_skipped(notebook: NotebookNode) -> list[str]:
    """No cell asks to be skipped or steers nbval by a comment, which the checks do not see."""
    problems = []
    for number, cell in code_cells(notebook):
        if re.search(r"#\s*(NBVAL_|PYTEST_VALIDATE)", cell.source):
            problems.append(f"cell {number} steers nbval by a comment; use the tag {CHECKED}")
        if "nbval-skip" in tags(cell):
            problems.append(f"cell {number} is tagged nbval-skip")
    return problems


def check_plain_python(notebook: NotebookNode) -> list[str]:
    """No magics and shell commands: nbval lets an unknown one pass, whatever follows it."""
    problems = []
    for number, cell in code_cells(notebook):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            problems.append(f"cell {number} is not plain Python: {error.msg}, line {error.lineno}")
            continue
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if "get_ipython" in names:
            problems.append(f"cell {number} calls get_ipython")
    return problems


def check_no_error_stored(notebook: NotebookNode) -> list[str]:
    """A stored traceback is a lesson that broke, unless the cell is meant to raise."""
    return [
        f"cell {number} stores the error {output.ename}"
        for number, cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "error" and "raises-exception" not in tags(cell)
    ]


def check_nothing_varies(notebook: NotebookNode) -> list[str]:
    """Stored outputs hold no time, rate, address, path, hash or device name.

    A cell tagged `recorded` may: it shows what a committed record says, the same on every machine.
    """
    return [
        f"cell {number} stores {match.group()!r} ({name})"
        for number, cell in code_cells(notebook)
        if RECORDED not in tags(cell)
        for text in text_outputs(cell)
        for name, pattern in varying().items()
        if (match := pattern.search(text))
    ]


def check_solutions_collapsed(notebook: NotebookNode) -> list[str]:
    """Solutions are folded away until the reader opens them."""
    return [
        f"cell {number} is tagged solution but not collapsed: jupyter: {{source_hidden: true}}"
        for number, cell in code_cells(notebook)
        if "solution" in tags(cell) and not cell.metadata.get("jupyter", {}).get("source_hidden")
    ]


CHECKS: tuple[Callable[[NotebookNode], list[str]], ...] = (
    check_kernel,
    check_cells_canonical,
    check_executed,
    check_compared,
    check_nothing_skipped,
    check_plain_python,
    check_no_error_stored,
    check_nothing_varies,
    check_solutions_collapsed,
)
