"""`make sync`: writes notebooks/NN_name.ipynb again from notebooks/src/NN_name.md, and README's
figure and tables from the record.

The source is the truth. Cells that it still has keep their ids; everything is executed anew, on
the CPU path; what varies from run to run is left out; a file is written only where its content
changed. `--check` executes nothing and says which pairs are out of step.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs
from nbformat import NotebookNode

from infonce_kernels.bench import records
from infonce_kernels.lessons import NOTEBOOKS, ROOT, SOURCES, readme
from infonce_kernels.lessons.form import canonical
from infonce_kernels.lessons.kernel import NotebookError, run_notebook

SOURCE_FORMAT = "md:myst"
# Without a visible GPU every backend is one that all readers have.
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": ""}


def read_source(path: Path) -> NotebookNode:
    """Read a MyST Markdown lesson as a notebook without outputs."""
    return jupytext.read(path, fmt=SOURCE_FORMAT)


def update(source: Path, target: Path) -> NotebookNode:
    """Return the notebook that `source` describes, with the cell ids of `target` where that exists.

    The same as `jupytext --to ipynb --update`, less the outputs.
    """
    notebook = read_source(source)
    if target.exists():
        old = nbformat.read(target, as_version=4)
        notebook = combine_inputs_with_outputs(notebook, old, fmt=SOURCE_FORMAT)
        # jupytext keeps metadata that the source no longer has.
        for cell, written in zip(notebook.cells, read_source(source).cells, strict=True):
            cell.metadata = written.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    canonical(notebook)
    return notebook


def synchronise(source: Path, target: Path) -> bool:
    """Make `target` from `source`, executed on the CPU path; return whether the file changed.

    Raises:
        NotebookError: a cell failed; `target` is then as it was.
    """
    notebook = update(source, target)
    with tempfile.TemporaryDirectory() as folder:
        run_notebook(notebook, source.stem, Path(folder), environment=CPU_ONLY)
    canonical(notebook)
    text = nbformat.writes(notebook) + "\n"
    if target.exists() and target.read_text("utf-8") == text:
        return False
    target.write_text(text, "utf-8")
    return True


def out_of_step(source: Path, target: Path) -> list[str]:
    """Return how the pair differs in cells and their metadata; outputs are not compared."""
    if not source.exists():
        return [f"{target.name} has no source {source.parent.name}/{source.name}"]
    if not target.exists():
        return [f"{source.name} has no notebook {target.name}: run `make sync`"]
    written = read_source(source).cells
    stored = nbformat.read(target, as_version=4).cells
    if len(written) != len(stored):
        return [f"{source.name} has {len(written)} cells, {target.name} {len(stored)}"]
    return [
        f"{target.name}, cell {number} differs from {source.name}: run `make sync`"
        for number, (left, right) in enumerate(zip(written, stored, strict=True), start=1)
        if (left.cell_type, left.source, left.metadata)
        != (right.cell_type, right.source, right.metadata)
    ]


def pairs(notebooks: Path = NOTEBOOKS, sources: Path = SOURCES) -> list[tuple[Path, Path]]:
    """Return (source, notebook) of every lesson of which at least one of the two exists."""
    names = {p.stem for p in sources.glob("*.md")} | {p.stem for p in notebooks.glob("*.ipynb")}
    return [(sources / f"{name}.md", notebooks / f"{name}.ipynb") for name in sorted(names)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sync", description="Write notebooks from their sources.")
    parser.add_argument("lessons", nargs="*", help="such as 01_naive; all when none is given")
    parser.add_argument("--check", action="store_true", help="change nothing, name what is stale")
    options = parser.parse_args(arguments)
    chosen = [p for p in pairs() if not options.lessons or p[0].stem in options.lessons]
    if unknown := set(options.lessons) - {source.stem for source, _ in chosen}:
        parser.error(f"no lesson {', '.join(sorted(unknown))} in {SOURCES}")

    problems = []
    for source, target in chosen:
        if options.check or not source.exists():
            problems += out_of_step(source, target)
            continue
        print(f"{source.stem:<20} ", end="", flush=True)
        start = time.perf_counter()
        try:
            outcome = "written" if synchronise(source, target) else "unchanged"
        except NotebookError as error:
            problems.append(str(error))
            outcome = "FAILED"
        print(f"{outcome}, {time.perf_counter() - start:.1f} s", flush=True)
    if not options.lessons:
        problems += _readme(options.check)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _readme(check: bool) -> list[str]:
    """Writes what README has from the record, or says that it is out of step."""
    record = records.latest()
    if check:
        text = readme.README.read_text("utf-8")
        return [] if readme.update(text, record) == text else ["README.md: run `make sync`"]
    for path in readme.write(record):
        print(f"{path.relative_to(ROOT)} written", flush=True)
    return []


if __name__ == "__main__":
    sys.exit(main())
