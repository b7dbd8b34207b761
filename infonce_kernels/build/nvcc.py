"""Finding nvcc, and the flags that every build of a kernel has."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from infonce_kernels.emulator import toolchain

from .errors import BackendUnavailable, BuildError
from .process import run

# -lineinfo costs no speed, and profilers show source lines by it.
FLAGS = ["-O3", "-std=c++17", "-lineinfo"]
INSTALL = "`pip install '.[nvcc]'` in the checkout"


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler. `home` is its toolkit's folder (CUDA_HOME); `version` e.g. (13, 0)."""

    path: Path
    home: Path
    version: tuple[int, int]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def find(major: int | None = None) -> Nvcc:
    """The CUDA compiler to use.

    `$CUDA_HOME` or `$CUDA_PATH` decides where set. Else the first of: nvcc on PATH,
    /usr/local/cuda, PyPI's toolkit in this Python's site-packages; one of CUDA version `major`
    before others. Raises BackendUnavailable where there is none.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            path = Path(home) / "bin" / "nvcc"
            if not path.is_file():
                raise BackendUnavailable(
                    f"{variable} is {home!r}, but there is no {path}; set it to a CUDA toolkit's "
                    "folder or unset it"
                )
            return _nvcc(path, Path(home))
    found = list(map(_nvcc, _candidates()))
    if not found:
        raise BackendUnavailable(f"no nvcc found; {INSTALL} brings one, no system toolkit needed")
    return next((nvcc for nvcc in found if nvcc.version[0] == major), found[0])


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    if (system := Path("/usr/local/cuda/bin/nvcc")).is_file():
        yield system
    for folder in pypi_folders():
        yield from sorted(folder.glob("*/bin/nvcc"))


def pypi_folders() -> list[Path]:
    """Folders that hold PyPI's NVIDIA packages: site-packages/nvidia."""
    spec = importlib.util.find_spec("nvidia")
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location) for location in locations or []]


def _nvcc(path: Path, home: Path | None = None) -> Nvcc:
    modified = path.stat().st_mtime_ns  # a new toolkit may come while this process lives
    return _inspect(path, home, modified)


@lru_cache
def _inspect(path: Path, home: Path | None, _modified: int) -> Nvcc:
    status, output = run([path, "--version"])
    match = re.search(r"release (\d+)\.(\d+)", output)
    if status or match is None:
        raise BuildError(
            f"{path} --version failed:\n{output.strip()[-2000:]}", log=output, compiler=str(path)
        )
    return Nvcc(path, home or _home(path), (int(match[1]), int(match[2])))


def _home(path: Path) -> Path:
    """nvcc on PATH may be a script or a link far from its toolkit, so it is asked: a dry run prints
    its folder as TOP."""
    home = path.resolve().parent.parent
    if (home / "include" / "cuda_runtime.h").is_file():
        return home
    _, output = run([path, "--dryrun", "-x", "cu", "/dev/null"])
    top = re.search(r"^#\$ TOP=(.+)$", output, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else home


def host_compiler(default: str = "g++") -> list[str]:
    """The C++ compiler that nvcc shall use, `$CXX` or `default`: its path, then its options.

    nvcc starts one program, so a launcher ("ccache g++") is left out: it changes no result. Raises
    BuildError where there is no such program, or `$CXX` is another kind of command.
    """
    try:
        words = toolchain.command(default)
    except toolchain.CompilerMissing as missing:
        raise BuildError(str(missing)) from None
    while len(words) > 1 and not words[1].startswith("-") and shutil.which(words[1]):
        words = words[1:]
    if len(words) > 1 and not words[1].startswith("-"):
        raise BuildError(
            f"the environment variable CXX is {os.environ['CXX']!r}, but nvcc takes one C++ "
            f"compiler with options, and {words[1]!r} is neither; set CXX to the compiler's path",
            compiler=words[0],
        )
    return words


def host_compiler_flags() -> list[str]:
    """nvcc's flags for a C++ compiler that the user chose through CXX; else nvcc takes g++."""
    if not os.environ.get("CXX"):
        return []
    program, *options = host_compiler()
    flags = ["-ccbin", program]
    for option in options:  # nvcc splits at commas, and hands the rest to a shell
        flags += ["-Xcompiler", shlex.quote(option).replace(",", "\\,")]
    return flags


def check_host_compiler(default: str) -> str:
    """The C++ compiler's path, `$CXX` or `default`, once it has shown that it runs.

    nvcc and ninja bury the reason when it does not. Raises BuildError with the compiler's path and
    its own words.
    """
    path = host_compiler(default)[0]
    status, output = run([path, "--version"])
    if status:
        chosen = "the environment variable CXX" if os.environ.get("CXX") else "PATH"
        raise BuildError(
            f"the C++ compiler {path} (taken from {chosen}) does not run; it says:\n"
            + "\n".join(output.strip().splitlines()[-20:]),
            log=output,
            compiler=path,
        )
    return path


def find_ninja() -> str:
    """ninja's path: on PATH, beside this interpreter, or in the `ninja` package, since a notebook's
    PATH often lacks the environment's folder. Raises BackendUnavailable."""
    beside = Path(sys.executable).parent
    path = shutil.which("ninja") or shutil.which("ninja", path=str(beside))
    if path is None and importlib.util.find_spec("ninja") is not None:
        import ninja

        path = shutil.which("ninja", path=ninja.BIN_DIR)
    if path is None:
        raise BackendUnavailable("ninja was not found, which load_inline needs: pip install ninja")
    return path
