"""What stands behind the notebooks: executing, pairing, opening and checking the lessons.

A lesson is written as `notebooks/src/NN_name.md` (jupytext's MyST Markdown) and committed beside
it as `notebooks/NN_name.ipynb` with outputs. `sync` makes the second from the first, `execute`
runs it on whatever hardware is there, `lab` opens working copies, `form` says what a committed
notebook must look like, `exercises` how an exercise is written and judged.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "src"
OUTPUT = ROOT / "build"


def committed() -> list[Path]:
    """Return the committed notebooks in teaching order; none without a checkout."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
