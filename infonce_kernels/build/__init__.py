"""Kernel text -> something to call: on a GPU, in the emulator, or as nvcc's report.

    library = build("v1_naive")                      # a rung; or a path, or the learner's own text
    library.infonce_forward(query, positive, ...)    # torch tensors and numbers

The text is the same for every backend. What was built is cached by content, so a second call, in
this process or another, costs microseconds to milliseconds.
"""

from pathlib import Path
from typing import Literal

from . import compiled, cuda, emulated
from .compiled import CompileReport, KernelUsage
from .errors import BackendUnavailable, BuildError, LaunchError
from .launcher import Launcher
from .library import KernelLibrary
from .occupancy import Occupancy, occupancy
from .progress import show_progress
from .prototypes import Parameter
from .source import KernelSource, load

Backend = Literal["auto", "cuda", "emulator", "compile"]

__all__ = [
    "BackendUnavailable",
    "BuildError",
    "CompileReport",
    "KernelLibrary",
    "KernelSource",
    "KernelUsage",
    "LaunchError",
    "Launcher",
    "Occupancy",
    "Parameter",
    "backends",
    "build",
    "build_source",
    "load",
    "occupancy",
    "show_progress",
]

_CHECKS = {"cuda": cuda.check, "emulator": emulated.check, "compile": compiled.check}


def build(
    source: str | Path,
    backend: Backend = "auto",
    *,
    name: str | None = None,
    arch: str | None = None,
) -> KernelLibrary | CompileReport:
    """Build a kernel and return what can be called, or nvcc's report for backend "compile".

    source: a rung's name, the path of a .cu file, or CUDA C++ text: what has a newline, or has a
        brace and does not end with .cu or .cuh.
    backend: "cuda" compiles for this machine's GPUs; "emulator" runs the kernel on the CPU;
        "compile" needs nvcc but no GPU; "auto" is "cuda" where that can run, else "emulator".
    name: what messages call the text; for a rung or a file its own name by default.
    arch: for "compile", the architecture: "sm_90" (default), "sm_80", "sm_90a", ...

    Raises BuildError with the compiler's first error at the learner's own line, or with what the
    emulator cannot run; BackendUnavailable with the remedy; TypeError, ValueError or
    FileNotFoundError for a source that is none. A failed build leaves nothing behind.
    """
    return build_source(load(source, name), backend, arch=arch)


def build_source(
    source: KernelSource, backend: Backend = "auto", *, arch: str | None = None
) -> KernelLibrary | CompileReport:
    """`build` for a source that was loaded before."""
    if backend == "auto":
        backend = "cuda" if _reason("cuda") is None else "emulator"
    if arch is not None and backend != "compile":
        raise ValueError(f'arch is for backend "compile"; {backend!r} takes what is here')
    match backend:
        case "compile":
            return compiled.build(source, arch or compiled.DEFAULT_ARCH)
        case "cuda":
            return cuda.build(source)
        case "emulator":
            return emulated.build(source)
    raise ValueError(f'backend is "auto", "cuda", "emulator" or "compile", not {backend!r}')


def backends() -> dict[str, str | None]:
    """Each backend, with None where it can run on this machine, else what is missing and how to
    get it, in one line."""
    return {name: _reason(name) for name in _CHECKS}


def _reason(backend: str) -> str | None:
    try:
        _CHECKS[backend]()
    except (BackendUnavailable, BuildError) as error:
        return " ".join(str(error).split())
    return None
