"""The C++ compiler, and the command lines that make the runtime library and kernel modules."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
INCLUDE = FOLDER / "include"

_COMMON = ["-std=c++17", "-g1", "-fPIC", "-shared", "-pthread"]
_MODULE = [
    "-O2",
    "-ffp-contract=fast",  # nvcc fuses a * b + c by default
    "-fno-strict-aliasing",  # kernels reinterpret float as float4
    "-fno-semantic-interposition",  # a function of the module may be inlined
    "-fno-delete-null-pointer-checks",  # a null pointer must fault where it is used
    "-fno-builtin-printf",  # printf("x\n") must stay printf: see language.h
    "-fstack-clash-protection",  # a large frame must touch the guard page, not jump over it
    "-fno-optimize-sibling-calls",  # a call at a function's end keeps the function in the trace
    "-Wl,-Bsymbolic",  # its own functions first, whatever else the process has loaded
    "-Werror=return-type",  # a launcher without its return would crash
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
]
_OPTIONAL = [  # not known to every compiler
    "--param=stack-clash-protection-guard-size=12",  # of 4 KiB; GCC takes 64 KiB on aarch64
    "-fno-finite-loops",  # an endless loop must stay one
    "-fno-isolate-erroneous-paths-dereference",  # an error in sight must fault, not be removed
    "-fno-gnu-unique",  # static variables of templates belong to their module
]


class CompilerMissing(RuntimeError):
    """No C++ compiler was found, or it does not work."""


def compiler() -> str:
    """The command of the C++ compiler: ``$CXX``, else ``g++``.

    Raises:
        CompilerMissing: there is none, or this is not Linux.
    """
    if sys.platform != "linux":
        raise CompilerMissing(
            f"the CPU emulator needs Linux, and this is {sys.platform}: use a Linux container, or "
            "WSL on Windows (its kernels run on their own stacks and survive their faults, which "
            "only the Linux port of the emulator knows how to do)"
        )
    command()
    return _chosen("g++")


def command(default: str = "g++") -> list[str]:
    """The C++ compiler as the start of an argument list, its programs by absolute paths.

    ``$CXX`` may be one path with blanks, or a program with options ("g++ -O1") or behind a launcher
    ("ccache g++"), quoted as for a shell; ``default`` serves where it is not set.

    Raises:
        CompilerMissing: there is no such program, or ``$CXX`` has an open quote.
    """
    chosen = _chosen(default)
    try:
        words = [chosen] if shutil.which(chosen) else shlex.split(chosen)
    except ValueError as error:
        raise CompilerMissing(
            f"the environment variable CXX is {chosen!r}, which no shell could read "
            f"({str(error).lower()}): correct its quotes"
        ) from None
    if shutil.which(words[0]) is None:
        source = "from PATH" if chosen == default else "named by the environment variable CXX"
        raise CompilerMissing(
            f"the C++ compiler {words[0]}, {source}, was not found: install one "
            "(apt install g++, dnf install gcc-c++, or conda install gxx) or set CXX"
        )
    # By absolute paths, since compilers start in other folders; behind a launcher too.
    options = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    programs = [shutil.which(word) or word for word in words[:options]]
    return [*(os.path.abspath(p) if "/" in p else p for p in programs), *words[options:]]


def _chosen(default: str) -> str:
    return os.environ.get("CXX", "").strip() or default


@functools.lru_cache
def _accepts(command: tuple[str, ...], flag: str) -> bool:
    probe = [*command, "-Werror", flag, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@functools.lru_cache
def _predefined_macros(command: tuple[str, ...], flags: tuple[str, ...]) -> str:
    """The compiler's version and every CPU feature it will use, as it tells them itself."""
    probe = [*command, *flags, "-dM", "-E", "-x", "c++", os.devnull]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise CompilerMissing(f"the C++ compiler {' '.join(command)} does not work: {output}")
    return done.stdout


def _cpu_flags(command: tuple[str, ...]) -> list[str]:
    """Use what this processor offers: some compilers say -march=native, others -mcpu=native."""
    return [f for f in ("-march=native", "-mcpu=native") if _accepts(command, f)][:1]


def _module_flags(command: tuple[str, ...]) -> list[str]:
    optional = [flag for flag in _OPTIONAL if _accepts(command, flag)]
    return [*_COMMON, *_cpu_flags(command), *_MODULE, *optional]


def fingerprint() -> str:
    """Changes with the compiler, the CPU's features and the flags: part of every cache key."""
    words = tuple(command())
    macros = _predefined_macros(words, tuple(_cpu_flags(words)))
    text = "\n".join([*words, macros, *_module_flags(words)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def runtime_sources() -> list[Path]:
    """Every C++ file of the emulator: sources, and headers that modules include."""
    files = [*(FOLDER / "src").iterdir(), *INCLUDE.rglob("*.h")]
    return sorted(path for path in files if path.suffix in (".cpp", ".h"))


def runtime_command(output: Path, *, ucontext: bool = False) -> list[str]:
    """Compiles the runtime library, which every kernel module of the process shares.

    ``ucontext`` takes the portable context switch instead of this processor's assembly.
    """
    defines = ["-DCUEMU_UCONTEXT"] if ucontext else []
    # Modules find the runtime by this name, which differs for every version of it: two versions may
    # live in one process.
    digest = hashlib.sha256(fingerprint().encode())
    for path in runtime_sources():
        digest.update(path.read_bytes())
    digest.update(" ".join(defines).encode())
    version = digest.hexdigest()[:12]
    sources = [str(path) for path in runtime_sources() if path.suffix == ".cpp"]
    return [
        *command(),
        *_COMMON,
        "-O3",
        "-fvisibility=hidden",
        *defines,
        f'-DCUEMU_VERSION="{version}"',
        f"-Wl,-soname,libcuemu-{version}.so",
        f"-I{INCLUDE}",
        *sources,
        "-ldl",
        "-o",
        str(output),
    ]


def module_command(
    source: Path, output: Path, runtime: Path, include_dirs: Sequence[Path] = ()
) -> list[str]:
    """Compiles one rewritten kernel file. Like nvcc, it includes cuda_runtime.h by itself."""
    words = tuple(command())
    return [
        *words,
        *_module_flags(words),
        f"-I{INCLUDE}",
        *(f"-I{folder}" for folder in include_dirs),
        "-include",
        "cuda_runtime.h",
        "-x",
        "c++",
        str(source),
        "-x",
        "none",
        str(runtime),
        "-o",
        str(output),
    ]
