"""Backend "emulator": the kernel text, rewritten line by line, compiled by g++, run on the CPU."""

import hashlib
import json
import re
import threading
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from infonce_kernels import emulator
from infonce_kernels.emulator import (
    Array,
    EmulatorError,
    EmulatorWarning,
    Fence,
    Runtime,
    UnsupportedFeature,
    rewrite,
    toolchain,
)

from . import cache, library
from .errors import BackendUnavailable, compiler_failed, error_at
from .launcher import Launcher
from .library import KernelLibrary
from .process import INCLUDE_PATHS, environment, run
from .prototypes import Parameter
from .source import KernelSource, without_comments

_WIDEST = 16  # bytes of the widest access of one thread (float4), which must be aligned
# Vector types, casts between pointers, and whatever asks for an alignment.
_WIDER_ACCESS = re.compile(
    r"(?:char|short|int|long|float|double|half|bfloat16)[2-4](?:_16a|_32a)?\b"
    r"|reinterpret_cast|\*\s*\)|align|uintptr_t"
)


def check() -> str:
    """The C++ compiler's command, once it has shown that it runs. Raises BackendUnavailable."""
    try:
        toolchain.compiler()
        toolchain.fingerprint()
        return " ".join(toolchain.command())
    except toolchain.CompilerMissing as missing:
        raise BackendUnavailable(str(missing)) from None


def build(source: KernelSource) -> KernelLibrary:
    """Rewrite, compile and load. Raises BackendUnavailable, or BuildError with the first error;
    its cause is UnsupportedFeature for what the emulator cannot run."""
    compiler = check()
    emulator_key = _emulator_key(toolchain.fingerprint())
    parts = ["emulator", source.digest(), emulator_key, environment(INCLUDE_PATHS)]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    if (known := library.loaded(source, key)) is not None:
        return known
    library.require_launchers(source)
    runtime = runtime_library()
    # The runtime is loaded before the module that links against it.
    device = EmulatedDevice(Runtime.load(runtime), _uses_alignment(source))
    return cache.use(
        source.name,
        key,
        f"{source.name} for the emulator",
        build=lambda staging: _compile(source, compiler, runtime, staging),
        load=lambda folder: library.load(source, "emulator", key, folder / "kernel.so", device),
    )


def runtime_library() -> Path:
    """The emulator's shared library, built once for all kernels; Runtime.load takes it."""
    compiler = check()
    name = "libemulator.so"

    def compile_runtime(staging: Path) -> None:
        status, log = run(toolchain.runtime_command(staging / name))
        if status:
            raise compiler_failed(log, compiler, lambda file, line: None, "the emulator")

    def load(folder: Path) -> Path:
        Runtime.load(folder / name)
        return folder / name

    key = _emulator_key(toolchain.fingerprint())
    return cache.use("emulator", key, "the emulator", compile_runtime, load)


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
    except UnsupportedFeature as error:
        message = str(error).removeprefix(f"{name}:{error.line}: ")
        raise error_at(name, error.line, message, text) from error
    except SyntaxError as error:
        line, _, message = str(error).removeprefix(f"{name}:").partition(": ")
        raise error_at(name, int(line), message, text) from None


class EmulatedDevice:
    """Launches on the CPU. A launch is over when the launcher returns; there are no streams."""

    type = "cpu"

    def __init__(self, runtime: Runtime, keeps_alignment: bool) -> None:
        self._runtime = runtime
        self._keeps_alignment = keeps_alignment
        self._last = threading.local()  # .error, .swallowed: of the launch that has just failed

    def run(
        self, launcher: Launcher, arguments: list[Any], values: Sequence[Any], index: int
    ) -> int:
        """The launch works on fenced copies of the tensors: an index out of bounds is an error."""
        values = list(values)
        if launcher.stream is not None:
            values.insert(launcher.stream, None)
        passed = {
            position: self._array(parameter, value)
            for position, (parameter, value) in enumerate(
                zip(launcher.parameters, values, strict=True)
            )
            if isinstance(value, torch.Tensor)
        }
        with Fence(list(passed.values())) as fence:
            for position, address in zip(passed, fence.addresses, strict=True):
                arguments[position] = address
            code = launcher.function(*arguments)
            swallowed = 0 if code else self._runtime.pending_error()
            spoiled = fence.spoiled() if not code and not swallowed else None
            error = self._runtime.take_error(fence.describe)
        for warning in self._runtime.warnings():
            warnings.warn(warning, EmulatorWarning, stacklevel=4)  # at the caller of the launcher
        self._last.error = error
        self._last.swallowed = bool(swallowed)
        if spoiled is not None:
            self._last.error = _written_unseen(fence, spoiled)
            return self._last.error.code
        return code or swallowed

    def _array(self, parameter: Parameter, tensor: torch.Tensor) -> Array:
        element = tensor.element_size()
        wide = self._keeps_alignment or parameter.element == "void"
        alignment = max(element, _WIDEST) if wide else element
        return Array(
            parameter.name,
            tensor.data_ptr(),
            tensor.nbytes,
            element,
            alignment,
            parameter.writable,
        )

    def failure(self, code: int) -> tuple[str, BaseException | None]:
        error = self._last.error
        if error is None:
            return f"it returned CUDA error {code}", None
        told = "\n  the launcher did not return it: end with `return cudaGetLastError();`"
        return str(error) + (told if self._last.swallowed else ""), error


def _written_unseen(fence: Fence, address: int) -> EmulatorError:
    """The error of a launch that wrote beside an array, but on the array's own page."""
    return EmulatorError(
        code=700,
        message=f"illegal address: {fence.describe(address)} was written",
        kernel="",
        file="",
        line=0,
        launch_file="",
        launch_line=0,
        block=None,
        thread=None,
        address=address,
    )


def _uses_alignment(source: KernelSource) -> bool:
    """Whether any access of the source may be wider than an element of its parameter's type."""
    return any(_WIDER_ACCESS.search(without_comments(file.text)) for file in source.main.files())
