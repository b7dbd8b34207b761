"""Backend "emulator": the kernel text, rewritten line by line, compiled by g++, run on the CPU."""

import hashlib
import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from infonce_kernels import emulator
from infonce_kernels.emulator import Runtime, rewrite, toolchain

from . import cache, library
from .errors import BackendUnavailable, compiler_failed, error_at
from .library import KernelLibrary
from .process import run
from .source import KernelSource


def check() -> str:
    """The C++ compiler's path, once it has shown that it runs. Raises BackendUnavailable."""
    try:
        command = toolchain.compiler()
        toolchain.fingerprint()
    except toolchain.CompilerMissing as missing:
        raise BackendUnavailable(str(missing)) from None
    return shutil.which(command) or command


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
    return library.load(source, "emulator", key, folder / "kernel.so", device)


def runtime_library() -> Path:
    """The emulator's shared library, built once for all kernels; Runtime.load takes it."""
    compiler = check()
    name = "libemulator.so"

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
    text.write_text(source.main.flatten(_rewrite), encoding="utf-8")
    command = toolchain.module_command(text, staging / "kernel.so", runtime, [])
    # The working folder becomes part of the debug information; the reader's is no business of it.
    status, log = run(command, cwd=staging)
    if status:
        raise compiler_failed(log, compiler, source.line, source.filename)


def _rewrite(text: str, name: str) -> str:
    """As many lines as `text` has: the `#line` that the rewriter puts first is flatten's task."""
    try:
        return rewrite(text, name).partition("\n")[2]
    except SyntaxError as error:
        line, _, message = str(error).removeprefix(f"{name}:").partition(": ")
        raise error_at(name, int(line), message, text) from None


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
