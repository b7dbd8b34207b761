"""Every way to fail becomes an error that names the place, and the next launch works."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from infonce_kernels.emulator import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulator.conftest import Emulator, Module

FILE = "faults.cu"


@pytest.fixture
def module(emulator: Emulator) -> Iterator[Module]:
    """The module, which must still work when the test is over."""
    module = emulator.load(FILE)
    yield module
    p = np.zeros(64, np.float32)
    assert module.run_fills(p, 1, 1, 64, 1, 1, 0) == 0
    assert (p == 4).all()
    assert emulator.runtime.take_error() is None


@pytest.fixture
def p() -> np.ndarray:
    return np.ones(1024, np.float32)


FIRST = (0, 0, 0)
FAULTS = [
    ("wild", 700, "illegal address 0x", (1, 0, 0), (5, 0, 0)),
    ("null_write", 700, "null pointer", FIRST, FIRST),
    ("in_function", 700, "illegal address 0x", FIRST, FIRST),
    ("inlined", 700, "illegal address 0x", FIRST, FIRST),
    ("in_library", 700, "illegal address 0x", FIRST, FIRST),
    ("wild_atomic", 700, "illegal address 0x", FIRST, FIRST),
    ("past_dynamic", 700, "past the end of dynamic shared memory (128 bytes", FIRST, FIRST),
    ("divide", 719, "integer division by zero", FIRST, FIRST),
    ("asserts", 710, "device-side assert failed: threadIdx.x != 77", FIRST, (77, 0, 0)),
    ("traps", 719, "__trap()", FIRST, (3, 0, 0)),
    (
        "not_in_mask",
        719,
        "lane 16 calls a warp shuffle with the mask 0x0000ffff",
        FIRST,
        (16, 0, 0),
    ),
    ("static_shared", 9, "__shared__ more takes 4000 bytes, after 48000", FIRST, FIRST),
    ("several", 710, "device-side assert failed", (1, 0, 0), FIRST),
]


@pytest.mark.parametrize(("name", "code", "message", "block", "thread"), FAULTS)
def test_fault(
    emulator: Emulator,
    module: Module,
    p: np.ndarray,
    name: str,
    code: int,
    message: str,
    block: tuple[int, int, int],
    thread: tuple[int, int, int],
) -> None:
    error = emulator.error(getattr(module, f"run_{name}")(p))
    assert error.code == code
    assert message in str(error)
    assert error.kernel == name
    assert (error.file, error.line) == (FILE, emulator.line_of(FILE, name))
    assert (error.block, error.thread) == (block, thread)
    for part in (f"kernel {name}:", f"{FILE}:{error.line}", "block (", "thread (", "launched at"):
        assert part in str(error)


def test_stack_overflow(emulator: Emulator, module: Module, p: np.ndarray) -> None:
    error = emulator.error(module.run_overflow(p))
    assert "stack overflow" in error.message
    assert error.file == FILE


THROWS = """
#include <string>
__global__ void throws() { if (threadIdx.x == 2) std::string("a").at(threadIdx.x); }
extern "C" int run_throws() { throws<<<1, 32>>>(); return cudaGetLastError(); }
"""


def test_exception(emulator: Emulator, module: Module) -> None:
    """Device code cannot throw, but a function of the C++ library may."""
    library = emulator.compile(THROWS, "throws.cu")
    code = ctypes.CDLL(str(library)).run_throws()
    error = emulator.error(code)
    assert "an exception left the kernel: basic_string" in error.message
    assert error.thread == (2, 0, 0)


# ---- endless loops -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spin", "forever", "endless_barriers", "endless_function"])
def test_endless_loop(emulator: Emulator, module: Module, p: np.ndarray, name: str) -> None:
    start = time.monotonic()
    with emulator.runtime.settings(timeout=0.3):
        error = emulator.error(getattr(module, f"run_{name}")(p))
    assert 0.3 <= time.monotonic() - start < 3
    assert error.code == 702
    assert "longer than 0.3 s" in error.message
    assert error.kernel == name
    # An empty loop has no line of its own, and one of two lines may be met on either.
    tolerance = {"forever": 2, "endless_function": 1}.get(name, 0)
    assert error.file == FILE
    assert abs(error.line - emulator.line_of(FILE, name)) <= tolerance
    assert error.thread is not None


# ---- barriers ------------------------------------------------------------------------------------


def test_divergent_barrier(emulator: Emulator, module: Module, p: np.ndarray) -> None:
    error = emulator.error(module.run_divergent(p))
    first = emulator.line_of(FILE, "divergent_first")
    second = emulator.line_of(FILE, "divergent_second")
    assert "divergent barrier" in error.message
    assert f"128 threads wait at __syncthreads(), {FILE}:{first}" in str(error)
    assert f"128 threads wait at __syncthreads(), {FILE}:{second}" in str(error)
    assert "(first: (128,0,0))" in str(error)
    assert error.block == (0, 0, 0) and error.line == first


def test_early_return_is_a_warning(
    emulator: Emulator, module: Module, p: np.ndarray, runtime: Runtime
) -> None:
    assert module.run_early_return(p) == 0
    np.testing.assert_array_equal(p[:128], 2)
    (warning,) = runtime.warnings()
    line = emulator.line_of(FILE, "early_return")
    assert "had returned before __syncthreads()" in warning
    assert f"{FILE}:{line}" in warning and "early_return" in warning
    assert runtime.warnings() == []


def test_deadlock(emulator: Emulator, module: Module, p: np.ndarray) -> None:
    error = emulator.error(module.run_deadlock(p))
    barrier = emulator.line_of(FILE, "deadlock_barrier")
    warp = emulator.line_of(FILE, "deadlock_warp")
    assert "deadlock" in error.message
    assert f"100 threads wait at __syncthreads(), {FILE}:{barrier}" in str(error)
    assert "wait at __syncwarp() (mask 0xf" in str(error) and f"{FILE}:{warp}" in str(error)


def test_shuffle_in_a_branch(emulator: Emulator, module: Module, p: np.ndarray) -> None:
    error = emulator.error(module.run_shuffle_in_branch(p))
    line = emulator.line_of(FILE, "shuffle_in_branch")
    assert "deadlock" in error.message
    assert f"16 threads wait at a warp shuffle (mask 0xffffffff), {FILE}:{line}" in str(error)
    assert error.line == line


# ---- configurations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ((0, 1, 32, 1, 1, 0), "the grid has no blocks"),
        ((1, 0, 32, 1, 1, 0), "the grid has no blocks"),
        ((1, 1, 0, 1, 1, 0), "the block has no threads"),
        ((1, 1, 1025, 1, 1, 0), "at most 1024 threads"),
        ((1, 1, 64, 32, 1, 0), "at most 1024 threads"),
        ((1, 1, 1, 1, 65, 0), "64 threads deep"),
        ((1, 70000, 32, 1, 1, 0), "a grid has at most"),
        ((-1, 1, 32, 1, 1, 0), "a negative size?"),
        ((1, 1, 32, 1, 1, 50000), "50000 bytes of dynamic shared memory"),
    ],
)
def test_invalid_configuration(
    emulator: Emulator,
    module: Module,
    p: np.ndarray,
    configuration: tuple[int, ...],
    message: str,
) -> None:
    error = emulator.error(module.run_fills(p, *configuration))
    assert error.code == 9
    assert message in error.message
    assert (error.file, error.line) == (FILE, emulator.line_of(FILE, "fills"))
    assert (p == 1).all()


def test_error_is_told_once(emulator: Emulator, module: Module, p: np.ndarray) -> None:
    """A failed launch does not show up in a later, unrelated call."""
    assert module.run_fills(p, 0, 1, 32, 1, 1, 0) == 9
    assert module.run_fills(p, 1, 1, 32, 1, 1, 0) == 0
    assert emulator.runtime.take_error() is not None
    assert emulator.runtime.take_error() is None
