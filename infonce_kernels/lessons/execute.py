"""`make notebooks`: executes every lesson on the hardware that is there, then verifies every rung.

Executed copies go to `build/notebooks/NN_name.ipynb`, their figures and whatever they write to
`build/notebooks/NN_name/`. A failing lesson does not stop the others; the exit code is 1 then.
"""

import base64
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from infonce_kernels.lessons import NOTEBOOKS, OUTPUT, ROOT, committed
from infonce_kernels.lessons.kernel import NotebookError, run_notebook


def save_figures(notebook: NotebookNode, folder: Path) -> list[Path]:
    """Write every PNG among the outputs to `folder`/cell-CC-figure-F.png and return the files."""
    files = []
    for index, cell in enumerate(notebook.cells, start=1):
        images = [
            output.data["image/png"]
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
        for number, image in enumerate(images, start=1):
            files.append(folder / f"cell-{index:02}-figure-{number}.png")
            files[-1].write_bytes(base64.b64decode(image))
    return files


def execute_file(path: Path, output: Path, on_cell: Callable[[int, int], None]) -> tuple[int, int]:
    """Execute one notebook and write copy and figures to `output`, also when it fails.

    Returns:
        the number of cells and of figures.

    Raises:
        NotebookError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    folder = output / path.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    try:
        run_notebook(notebook, path.stem, folder, on_cell=on_cell)
    finally:
        nbformat.write(notebook, output / path.name)
        figures = save_figures(notebook, folder)
    return len(notebook.cells), len(figures)


def execute_all(paths: Sequence[Path], output: Path) -> list[NotebookError]:
    """Execute the notebooks in order, with a line of progress each; return the failures."""
    failures = []
    live = sys.stdout.isatty()
    for number, path in enumerate(paths, start=1):
        head = f"[{number}/{len(paths)}] {path.stem:<20}"
        start = time.perf_counter()

        def on_cell(cell: int, cells: int, head: str = head, start: float = start) -> None:
            # A terminal sees the running cell; a log keeps one line a notebook.
            if live:
                elapsed = time.perf_counter() - start
                print(f"\r{head} cell {cell} of {cells}, {elapsed:.0f} s ", end="", flush=True)

        if not live:
            print(head, end="", flush=True)
        try:
            cells, figures = execute_file(path, output, on_cell)
            outcome = f"ok: {cells} cells, {figures} figures"
        except NotebookError as error:
            failures.append(error)
            outcome = f"FAILED in cell {error.cell}: {error.error}"
        elapsed = time.perf_counter() - start
        again = f"\r{head}" if live else ""
        print(f"{again} {outcome}, {elapsed:.1f} s", flush=True)
    return failures


def main() -> int:
    paths = committed()
    if not paths:
        print(f"No notebooks in {NOTEBOOKS}: run this from a checkout.", file=sys.stderr)
        return 1
    output = OUTPUT / "notebooks"
    failures = execute_all(paths, output)
    print(f"Executed copies and figures: {output.relative_to(ROOT)}/\n", flush=True)
    verified = subprocess.run([sys.executable, "-m", "infonce_kernels", "verify"]).returncode == 0
    for error in failures:
        print(f"FAILED: {error}", file=sys.stderr)
    return 0 if verified and not failures else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
