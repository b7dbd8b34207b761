"""The kernels' text: one CUDA C++ file a rung, and the small headers they share.

The files are plain CUDA C++: `nvcc -c v3_fused.cu` takes them as they are.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the rungs that are kernels, from the simplest to the fastest."""
    return sorted(path.stem for path in FOLDER.glob("v*_*.cu"))


def path(name: str) -> Path:
    """The file of rung `name`. Raises ValueError naming the rungs there are."""
    if name not in names():
        raise ValueError(f"no rung is called {name!r}; there are {', '.join(names())}")
    return FOLDER / f"{name}.cu"


def source(name: str) -> str:
    """The CUDA C++ text of rung `name`, to read, edit and hand to `build`."""
    return path(name).read_text(encoding="utf-8")
