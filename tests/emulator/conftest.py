"""Compiles kernels with the emulator's own tool chain; needs nothing of infonce_kernels.build."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infonce_kernels.emulator import EmulatorError, Runtime, rewrite, toolchain

KERNELS = Path(__file__).parent / "kernels"


class Module:
    """A loaded kernel module; ``module.launcher(array, 3, 0.5)`` returns the launcher's code."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._library, name)
        return lambda *arguments: int(function(*map(_argument, arguments)))


def _argument(value: Any) -> Any:
    match value:
        case np.ndarray():
            return value.ctypes.data_as(ctypes.c_void_p)
        case float():
            return ctypes.c_float(value)
        case _:
            return value


class Emulator:
    def __init__(self, folder: Path, *, ucontext: bool = False) -> None:
        self.folder = folder
        self.runtime_path = folder / "runtime.so"
        run(toolchain.runtime_command(self.runtime_path, ucontext=ucontext))
        self.runtime = Runtime.load(self.runtime_path)
        self._modules: dict[str, Module] = {}

    def compile(self, source: str, name: str) -> Path:
        """The module made of a kernel text, called ``name`` in errors."""
        cpp = self.folder / f"{Path(name).stem}.cpp"
        cpp.write_text(rewrite(source, name))
        library = cpp.with_suffix(".so")
        run(toolchain.module_command(cpp, library, self.runtime_path, [KERNELS]))
        return library

    def load(self, name: str) -> Module:
        """The module of kernels/NAME, compiled once."""
        if name not in self._modules:
            self._modules[name] = Module(self.compile((KERNELS / name).read_text(), name))
        return self._modules[name]

    def error(self, code: int) -> EmulatorError:
        """The error behind a launcher's non-zero return."""
        assert code != 0, "the launch did not fail"
        error = self.runtime.take_error()
        assert error is not None
        assert error.code == code
        return error

    def line_of(self, name: str, mark: str) -> int:
        """The line of kernels/NAME that ends in the comment ``// mark``."""
        lines = (KERNELS / name).read_text().splitlines()
        (found,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"// {mark}")]
        return found


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("the emulator (1)"))  # blanks must not matter


@pytest.fixture
def runtime(emulator: Emulator) -> Runtime:
    emulator.runtime.warnings()
    return emulator.runtime
