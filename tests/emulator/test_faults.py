"""Every way to fail becomes an error that names the place, and the next launch works."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from infonce_kernels.emulator import Runtime
from tests.emulator.conftest import Module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulator.conftest import Emulator

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
    assert "stack overflow: in the emulator a thread has 64 KiB" in error.message
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
    assert "Runtime.settings(timeout=seconds) changes the limit" in error.message
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


# ---- shared memory -------------------------------------------------------------------------------

OVERRUN = """
__global__ void overrun(int which, int i, float* p) {
  __shared__ float s[128];  // s
  __shared__ double t[4][8];  // t
  __shared__ int lonely;  // lonely
  extern __shared__ float dynamic[];
  float* const flat = s;
  double* const wide = t[0];
  flat[threadIdx.x % 128] = wide[threadIdx.x % 32] = lonely = 1;
  __syncthreads();
  if (which == 0) flat[threadIdx.x] = 2;
  if (threadIdx.x > 0 || blockIdx.x == 0) return;
  if (which == 1) flat[i] = 2;  // store s
  if (which == 2) wide[i] = 2;
  if (which == 3) (&lonely)[i] = 2;  // store lonely
  if (which == 4) dynamic[i] = 2;  // store dynamic
  if (which == 5) p[0] = flat[i];
}
extern "C" int run_overrun(int which, int i, int threads, int bytes, float* p) {
  overrun<<<3, threads, bytes>>>(which, i, p);  // launch
  return cudaGetLastError();
}
"""
S = "s, an array of 128 elements in shared memory"
T = "t, an array of 32 elements in shared memory"


@pytest.fixture(scope="module")
def overrun(emulator: Emulator) -> Module:
    return Module(emulator.compile(OVERRUN, "overrun.cu"))


def overrun_line(mark: str) -> int:
    return next(n for n, text in enumerate(OVERRUN.split("\n"), 1) if text.endswith(f"// {mark}"))


@pytest.mark.parametrize(
    ("which", "i", "message", "mark"),
    [
        (0, 0, f"{S}, was written past its end; it is declared", "s"),
        (1, 128, f"{S}, was written past its end; it is declared", "s"),
        (1, -1, f"{S}, was written before its start; it is declared", "s"),
        (2, 32, f"{T}, was written past its end; it is declared", "t"),
        (2, 33, f"{T}, was written past its end; it is declared", "t"),
        (2, -1, f"{T}, was written before its start; it is declared", "t"),
        (3, 400, "lonely, a variable in shared memory, was written past its end", "lonely"),
        (4, 3, "dynamic shared memory (12 bytes at this launch) was written past", "launch"),
        (1, 30000, "past the end of static shared memory, where lonely, a variable", "store s"),
        (1, -3000, f"before the start of static shared memory, where {S}, is the first", "store s"),
    ],
)
def test_an_overrun_of_shared_memory(
    emulator: Emulator, overrun: Module, which: int, i: int, message: str, mark: str
) -> None:
    p = np.zeros(1, np.float32)
    error = emulator.error(overrun.run_overrun(which, i, 256, 12, p))
    assert message in error.message
    assert (error.code, error.kernel) == (700, "overrun")
    assert (error.file, error.line) == ("overrun.cu", overrun_line(mark))
    assert error.block == ((0, 0, 0) if which == 0 else (1, 0, 0))
    emulator.runtime.warnings()
    # The last elements are inside, and the next launch is clean.
    for inside, last in ((0, 0), (1, 127), (2, 31), (3, 0), (4, 2)):
        assert overrun.run_overrun(inside, last, 128, 12, p) == 0


@pytest.mark.parametrize("i", [-1, 128])
def test_a_read_beside_a_shared_array_is_nan(overrun: Module, i: int) -> None:
    p = np.zeros(1, np.float32)
    assert overrun.run_overrun(5, i, 128, 0, p) == 0
    assert np.isnan(p[0])


LAYOUT = """
__global__ void layout(unsigned* p) {
  __shared__ char a[5];
  __shared__ float b[3];
  __shared__ __align__(512) float c[2];
  volatile __shared__ int lock;
  static __shared__ double d;
  lock = a[0] = b[0] = c[0] = d = 1;
  p[0] = size_t(&b[0]) - size_t(&a[0]);
  p[1] = size_t(&c[0]) % 512;
  p[2] = size_t(&lock) - size_t(&c[0]);
  p[3] = size_t(&d) % 8;
}
extern "C" int run_layout(unsigned* p) { layout<<<1, 1>>>(p); return cudaGetLastError(); }
"""


def test_red_zones_keep_banks_and_alignment(emulator: Emulator) -> None:
    """A zone is as wide as the 32 banks of 4 bytes."""
    p = np.zeros(4, np.uint32)
    library = ctypes.CDLL(str(emulator.compile(LAYOUT, "layout.cu")))
    assert library.run_layout(p.ctypes.data_as(ctypes.c_void_p)) == 0
    assert p[0] % 128 == 8 and p[0] > 8
    assert p[2] % 128 == 8 and p[2] > 8
    assert p[1] == p[3] == 0


MANY = """
template <int N> __device__ void use(float* p) {
  __shared__ float s[40];
  s[threadIdx.x] = N;
  __syncthreads();
  if (threadIdx.x == 0) p[N] = s[39];
  if constexpr (N > 0) use<N - 1>(p);
}
__global__ void many(float* p) { use<299>(p); }
extern "C" int run_many(float* p) { many<<<4, 40>>>(p); return cudaGetLastError(); }
"""


def test_more_variables_than_zones(emulator: Emulator) -> None:
    """300 arrays of 160 bytes take 48000 of the 49152; zones are no part of that."""
    p = np.zeros(300, np.float32)
    library = ctypes.CDLL(str(emulator.compile(MANY, "many.cu")))
    assert library.run_many(p.ctypes.data_as(ctypes.c_void_p)) == 0
    np.testing.assert_array_equal(p, np.arange(300))


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
