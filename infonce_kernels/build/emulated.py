"""Backend "emulator": the kernel text, rewritten line by line, compiled by g++, run on the CPU."""

import hashlib
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from infonce_kernels import emulator
from infonce_kernels.emulator import Runtime, rewrite, toolchain

from . import cache, library
from .errors import BackendUnavailable, compiler_failed
from .library import KernelLibrary
from .process import run
from .source import KernelSource

_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


def check() -> str:
    """The C++ compiler's path. Raises BackendUnavailable, in one line, where there is none."""
    if sys.platform == "win32":
        raise BackendUnavailable("the emulator needs Linux or macOS; on Windows use WSL")
    try:
        return toolchain.compiler()
    except toolchain.CompilerMissing as missing:
        raise BackendUnavailable(str(missing)) from None


def build(source: KernelSource) -> KernelLibrary:
    """Rewrite, compile and load. Raises UnsupportedFeature for what the emulator cannot run,
    BackendUnavailable, or BuildError with the first error."""
    compiler = check()
    parts = ["emulator", source.digest(), _emulator_key(toolchain.fingerprint())]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    if (known := library.loaded(source, key)) is not None:
        return known
    library.require_launchers(source)
    runtime = runtime_library()
    folder = cache.entry(
        source.name,
        key,
        f"{source.name} for the emulator",
        lambda staging: _compile(source, compiler, runtime, staging),
    )
    device = EmulatedDevice(Runtime.load(runtime))  # before the module that links against it
    return library.load(source, "emulator", key, folder / f"kernel{_SUFFIX}", device)


def runtime_library() -> Path:
    """The emulator's shared library, built once for all kernels; Runtime.load takes it."""
    compiler = check()
    name = f"libemulator{_SUFFIX}"

    def compile_runtime(staging: Path) -> None:
        status, log = run(toolchain.runtime_command(staging / name))
        if status:
            raise compiler_failed(log, compiler, lambda file, line: None, "the emulator")

    key = _emulator_key(toolchain.fingerprint())
    return cache.entry("emulator", key, "the emulator", compile_runtime) / name


@lru_cache
def _emulator_key(fingerprint: str) -> str:
    """Hash over the compiler and all of the emulator's own text, its rewriter included."""
    folder = Path(emulator.__file__).parent
    files = [*toolchain.runtime_sources(), *folder.glob("*.py")]
    digest = hashlib.sha256(fingerprint.encode())
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile(source: KernelSource, compiler: str, runtime: Path, staging: Path) -> None:
    text = staging / "kernel.cpp"
    text.write_text(source.main.flatten(rewrite), encoding="utf-8")
    command = toolchain.module_command(text, staging / f"kernel{_SUFFIX}", runtime, [])
    status, log = run(command)
    if status:
        raise compiler_failed(log, compiler, source.line, source.filename)


class EmulatedDevice:
    """Launches on the CPU. A launch is over when the launcher returns; there are no streams."""

    type = "cpu"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def run(self, function: Any, arguments: list[Any], stream: int | None, index: int) -> int:
        return function(*arguments)

    def failure(self, code: int) -> tuple[str, BaseException | None]:
        error = self._runtime.take_error()
        if error is None:
            return f"it returned CUDA error {code}", None
        return str(error), error
