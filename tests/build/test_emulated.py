import copy
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from infonce_kernels.build import (
    BackendUnavailable,
    BuildError,
    KernelLibrary,
    LaunchError,
    backends,
    build,
    emulated,
    load,
)
from infonce_kernels.build.library import KernelLibrary as Library
from infonce_kernels.emulator import EmulatorError, EmulatorWarning, UnsupportedFeature

REPOSITORY = Path(__file__).parents[2]


def emulate(text: str, name: str = "mine") -> KernelLibrary:
    library = build(text, "emulator", name=name)
    assert isinstance(library, KernelLibrary)
    return library


def scaled(library: KernelLibrary, factor: float = 3.0, n: int = 1000) -> None:
    """Launch, and compare with PyTorch's own product."""
    x = torch.randn(n)
    y = torch.empty(n)
    library.scale(x, y, factor, n)
    assert torch.equal(y, factor * x)


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != "locks")


def test_a_kernel_runs_on_cpu_tensors(cache_root: Path, scale_text: str) -> None:
    library = emulate(scale_text, "scale")
    assert (library.name, library.backend, library.text) == ("scale", "emulator", scale_text)
    for n in (1, 127, 128, 129, 1000):
        scaled(library, n=n)
    library.scale(torch.empty(0), torch.empty(0), 2.0, 0)  # nothing to launch
    assert "scale" in dir(library)
    with pytest.raises(AttributeError, match=r"scale\.cu has no launcher 'sale'; it has scale"):
        library.sale()


def test_a_copy_of_the_runtime_in_another_cache_is_not_a_second_one(
    cache_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules are linked to whichever was loaded first: it has their errors."""
    first = emulate(NARROW)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    second = emulate(NARROW + "// in another cache\n")
    assert tmp_path in second.path.parents
    for library in (first, second):
        with pytest.raises(LaunchError, match="element 1 of x"):
            library.shift(torch.zeros(1), torch.zeros(2), 2, 0, 0)


def test_edit_to_result_takes_less_than_three_seconds(cache_root: Path, scale_text: str) -> None:
    emulated.runtime_library()

    def seconds(edit: str) -> float:
        start = time.perf_counter()
        scaled(emulate(f"{scale_text}// {edit}\n"))
        return time.perf_counter() - start

    assert min(seconds("first"), seconds("second")) < 3


def test_the_same_text_is_the_same_object(cache_root: Path, scale_text: str) -> None:
    library = emulate(scale_text)
    assert emulate(scale_text) is library
    assert copy.copy(library) is library and copy.deepcopy(library) is library
    assert pickle.loads(pickle.dumps(library)) is library
    assert emulate(scale_text + "\n") is not library


def test_quoted_headers_are_followed(cache_root: Path, tmp_path: Path, scale_text: str) -> None:
    folder = tmp_path / "with blank"
    folder.mkdir()
    kernel, launcher = scale_text.split('extern "C"')
    (folder / "kernel.cuh").write_text("#pragma once\n" + kernel)
    (folder / "mine.cu").write_text(f'#include "kernel.cuh"\nextern "C"{launcher}')
    scaled(build(folder / "mine.cu", "emulator"))
    (folder / "kernel.cuh").write_text(kernel.replace("factor * x[i]", "2 * factor * x[i]"))
    edited = build(folder / "mine.cu", "emulator")
    y = torch.empty(1)
    edited.scale(torch.ones(1), y, 3.0, 1)
    assert y.item() == 6.0
    (folder / "kernel.cuh").write_text(kernel.replace("factor * x[i]", "factr * x[i]"))
    with pytest.raises(BuildError, match=r"^kernel\.cuh:5: error: 'factr' was not declared"):
        build(folder / "mine.cu", "emulator")


def test_an_error_is_the_learners_and_leaves_nothing(cache_root: Path, scale_text: str) -> None:
    scaled(emulate(scale_text))
    before = entries(cache_root)
    with pytest.raises(BuildError) as caught:
        emulate(scale_text.replace("factor * x[i]", "factr * x[i]"))
    first, source, caret, compiler = str(caught.value).splitlines()
    assert first.startswith("mine.cu:5: error: 'factr' was not declared in this scope")
    assert source == "    5 |   if (i < n) y[i] = factr * x[i];"
    assert caret == "      |                     ^"
    assert compiler == f"compiler: {shutil.which(os.environ.get('CXX', 'g++'))}"
    assert "mine.cu:5" in caught.value.log
    assert entries(cache_root) == before
    scaled(emulate(scale_text + "// corrected\n"))


def test_a_launch_without_its_end_is_shown_at_its_line(cache_root: Path, scale_text: str) -> None:
    with pytest.raises(BuildError, match=r"^mine\.cu:9: error: .*>>>") as caught:
        emulate(scale_text.replace("stream>>>", "stream>>"))
    assert "    9 |   if (n > 0) scale_kernel<<<" in str(caught.value)


def test_an_unsupported_feature_is_a_build_error(cache_root: Path, scale_text: str) -> None:
    scaled(emulate(scale_text))
    before = entries(cache_root)
    with pytest.raises(BuildError, match=r"^mine\.cu:13: error: .* inline PTX") as caught:
        emulate(scale_text + '__global__ void ptx() {\n  asm volatile("membar.gl;");\n}\n')
    assert (caught.value.file, caught.value.line) == ("mine.cu", 13)
    assert isinstance(caught.value.__cause__, UnsupportedFeature)
    assert entries(cache_root) == before


def test_a_text_without_launcher_says_what_one_looks_like(scale_text: str) -> None:
    with pytest.raises(
        BuildError, match=r'mine\.cu has no launcher.*(?s:.*)extern "C" cudaError_t'
    ):
        emulate(scale_text.split('extern "C"')[0])


@pytest.mark.parametrize("name", ["../../escape", "a/b", "x" * 300])
def test_any_name_of_one_line_serves(cache_root: Path, scale_text: str, name: str) -> None:
    library = emulate(scale_text, name)
    scaled(library)
    assert library.name == name and library.path.parent.parent == cache_root
    with pytest.raises(BuildError) as caught:
        emulate(scale_text.replace("factor * x[i]", "factr * x[i]"), name)
    assert str(caught.value).startswith(f"{name}.cu:5: error: 'factr'")


DAMAGE = """
import sys, torch
from infonce_kernels.build import build

library = build(open(sys.argv[1]).read(), "emulator")
y = torch.empty(1)
library.scale(torch.ones(1), y, 2.0, 1)
print(library.path, y.item())
"""


@pytest.mark.parametrize("damage", ["removed", "cut off", "overwritten"])
def test_a_damaged_library_is_built_anew(
    cache_root: Path, tmp_path: Path, scale_text: str, damage: str
) -> None:
    """In processes of their own: the loader may end them, and keeps what it has loaded."""
    (tmp_path / "mine.cu").write_text(f"{scale_text}// {damage}\n")

    def use() -> Path:
        done = subprocess.run(
            [sys.executable, "-c", DAMAGE, str(tmp_path / "mine.cu")],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        path, y = done.stdout.rsplit(maxsplit=1)
        assert y == "2.0"
        return Path(path)

    path = use()
    size = path.stat().st_size
    match damage:
        case "removed":
            path.unlink()
        case "cut off":
            os.truncate(path, size // 2)
        case "overwritten":
            path.write_bytes(b"x" * size)
    assert use() == path
    assert path.stat().st_size == size


def test_a_failed_launch_has_the_emulators_error_and_the_next_works(
    cache_root: Path, scale_text: str
) -> None:
    library = emulate(scale_text.replace("y[i] = ", "y[i + (i == 70 ? 1ll << 40 : 0)] = "))
    x, y = torch.ones(1000), torch.zeros(1000)
    with pytest.raises(LaunchError, match=r"scale failed: kernel scale_kernel: .*mine\.cu:5") as e:
        library.scale(x, y, 2.0, 1000)
    assert isinstance(e.value.__cause__, EmulatorError)
    assert e.value.code == 700  # cudaErrorIllegalAddress
    assert (e.value.__cause__.file, e.value.__cause__.line) == ("mine.cu", 5)
    assert (e.value.__cause__.block, e.value.__cause__.thread) == ((0, 0, 0), (70, 0, 0))
    library.scale(x, y.zero_(), 2.0, 60)
    assert y.sum() == 120


def test_a_hundred_modules_load_in_one_process(cache_root: Path, scale_text: str) -> None:
    """A hundred files, so that the loader cannot take two for one."""
    library = emulate(scale_text)
    device = library.scale._device
    folder = cache_root.parent / "hundred"
    folder.mkdir(exist_ok=True)
    for index in range(100):
        path = folder / f"{index}.so"
        shutil.copy(library.path, path)
        scaled(Library(library.source, "emulator", library.key, path, device), float(index))


def test_every_module_keeps_its_own_kernels(cache_root: Path, scale_text: str) -> None:
    """Two versions of the same names in one process."""
    one = emulate(scale_text)
    two = emulate(scale_text.replace("factor * x[i]", "-factor * x[i]"))
    y = torch.empty(1)
    for library, sign in ((one, 1), (two, -1), (one, 1)):
        library.scale(torch.ones(1), y, 2.0, 1)
        assert y.item() == 2.0 * sign


# ---- out of bounds -------------------------------------------------------------------------------

SHIFT = """#include <cuda_runtime.h>

__global__ void shift_kernel(const float* x, float* y, int read, int write) {
  int i = threadIdx.x;
  float value = 2 * x[i + read];  // read
  y[i + write] = value;  // write
}

extern "C" cudaError_t shift(const float* x, float* y, int threads, int read, int write) {
  shift_kernel<<<1, threads>>>(x, y, read, write);
  return cudaGetLastError();
}

__global__ void wide_kernel(const WIDE* x, float* y, float* remainder) {
  y[threadIdx.x] = x[threadIdx.x].w;
  *remainder = reinterpret_cast<size_t>(x) % 16;
}

extern "C" cudaError_t wide(const float* x, float* y, float* remainder, int threads) {
  wide_kernel<<<1, threads>>>((const WIDE*)x, y, remainder);
  return cudaGetLastError();
}

__global__ void constant_kernel(const float* x, float* y) { ((float*)x)[0] = y[0] = 7; }

extern "C" cudaError_t constant(float const* x, float* y) {
  constant_kernel<<<1, 1>>>(x, y);
  return cudaGetLastError();
}
"""
WIDE = SHIFT.replace("WIDE", "float4")
NARROW = SHIFT.partition("__global__ void wide_kernel")[0]


def line(text: str, mark: str) -> int:
    return next(n for n, code in enumerate(text.splitlines(), 1) if code.endswith(f"// {mark}"))


@pytest.mark.parametrize(
    ("arguments", "where", "what", "thread"),
    [
        ((8, 0, 0), "write", "element 5 of y (past its end: it has 5)", (5, 0, 0)),
        ((5, 4, 0), "read", "element 8 of x (past its end: it has 8)", (4, 0, 0)),
        ((3, 0, 1000000), "write", "element 1000000 of y (past its end: it has 5)", (0, 0, 0)),
        ((3, -5000, 0), "read", "element -5000 of x (before its start)", (0, 0, 0)),
        ((3, 0, -5000), "write", "element -5000 of y (before its start)", (0, 0, 0)),
    ],
)
def test_an_index_out_of_bounds_is_named(
    cache_root: Path, arguments: tuple[int, int, int], where: str, what: str, thread: object
) -> None:
    library = emulate(NARROW)
    x, y = torch.arange(8.0), torch.full((5,), -1.0)
    with pytest.raises(LaunchError) as caught:
        library.shift(x, y, *arguments)
    place = f"mine.cu:{line(NARROW, where)}, block (0,0,0), thread ({thread[0]},0,0)"
    assert str(caught.value).startswith(
        f"shift failed: kernel shift_kernel: illegal address: {what} at {place}\n"
    )
    cause = caught.value.__cause__
    assert isinstance(cause, EmulatorError) and str(cause) in str(caught.value)
    assert (cause.code, cause.line, cause.thread) == (700, line(NARROW, where), thread)
    assert cause.message == f"illegal address: {what}" and cause.address is not None
    # What was computed before is there, and the next launch works.
    done = thread[0]
    assert y.tolist() == [*(2.0 * x[arguments[1] :][:done]).tolist(), *[-1.0] * (5 - done)]
    library.shift(x, y, 5, 3, 0)
    assert y.tolist() == [6, 8, 10, 12, 14]


def test_an_address_far_away_stays_a_number(cache_root: Path) -> None:
    far = NARROW.replace("x[i + read]", "x[i + read - (1ll << 42)]")  # 16 TiB below: unmapped
    with pytest.raises(LaunchError, match=r"illegal address 0x[0-9a-f]+ at mine\.cu:5, block"):
        emulate(far).shift(torch.zeros(8), torch.zeros(8), 1, 0, 0)


@pytest.mark.parametrize(
    ("text", "write", "element"), [(NARROW, -1, -1), (WIDE, -1, -1), (WIDE, 2, 5)]
)
def test_a_write_that_no_page_catches_is_an_error(
    cache_root: Path, text: str, write: int, element: int
) -> None:
    library = emulate(text)
    x, y = torch.arange(4.0), torch.zeros(5)
    with pytest.raises(LaunchError, match=rf"^shift failed: .* element {element} of y .* written$"):
        library.shift(x, y, 4, 0, write)
    library.shift(x, y, 4, 0, 1)
    assert y[1:].tolist() == [0, 2, 4, 6]


def test_a_read_that_no_page_catches_is_nan(cache_root: Path) -> None:
    y = torch.zeros(4)
    emulate(NARROW).shift(torch.arange(4.0), y, 4, -1, 0)
    assert y[0].isnan() and y[1:].tolist() == [0, 2, 4]


def test_alignment_is_the_tensors_own(cache_root: Path) -> None:
    library = emulate(WIDE)
    memory, remainder = torch.arange(16.0), torch.zeros(1)
    for start, end in ((0, 12), (0, 11), (1, 12), (2, 15), (3, 16)):
        x, y = memory[start:end], torch.zeros(3)
        threads = len(x) // 4
        library.wide(x, y, remainder, threads)
        assert remainder.item() == x.data_ptr() % 16
        assert torch.equal(y[:threads], x[3::4])


def test_one_tensor_may_be_input_and_output(cache_root: Path) -> None:
    library = emulate(NARROW)
    x = torch.arange(5.0)
    library.shift(x, x, 5, 0, 0)
    assert x.tolist() == [0, 2, 4, 6, 8]
    x = torch.arange(6.0)
    library.shift(x[:5], x[1:], 1, 0, 3)  # views: x[4] = 2 * x[0]
    library.shift(x[:5], x[1:], 1, 4, 4)  # x[5] = 2 * x[4]
    assert x.tolist() == [0, 1, 2, 3, 0, 0]
    with pytest.raises(LaunchError, match=r"element 6 of x, which is also y \("):
        library.shift(x, x, 7, 0, 0)


def test_a_pointer_to_const_does_not_write(cache_root: Path) -> None:
    x, y = torch.zeros(3), torch.zeros(3)
    emulate(WIDE).constant(x, y)
    assert (x[0], y[0]) == (0, 7)


def test_a_tensor_without_elements_has_none(cache_root: Path) -> None:
    library = emulate(NARROW)
    with pytest.raises(LaunchError, match=r"element 0 of x \(past its end: it has none\)"):
        library.shift(torch.empty(0), torch.zeros(3), 1, 0, 0)
    with pytest.raises(LaunchError, match=r"element 2 of y \(past its end: it has none\)"):
        library.shift(torch.zeros(3), torch.empty(3, 0), 1, 0, 2)


def test_threads_launch_at_once(cache_root: Path) -> None:
    """Each sees its own tensors, and its own errors."""
    library = emulate(NARROW)

    def use(n: int) -> None:
        x, y = torch.arange(float(n)), torch.zeros(n)
        for _ in range(100):
            library.shift(x, y, n, 0, 0)
            assert torch.equal(y, 2 * x)
            with pytest.raises(LaunchError, match=rf"element {n} of x \(.* it has {n}\)"):
                library.shift(x, y, n + 1, 0, 0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(use, [100, 200]))


OVERRUN = """
import sys, torch
from infonce_kernels.build import LaunchError, build

library = build(open(sys.argv[1]).read(), "emulator")
for size in range(1, 200):
    keep = [torch.zeros(size) for _ in range(20)]  # what lies behind in the heap
    try:
        library.shift(torch.ones(1024), keep[7], 1024, 0, 0)
    except LaunchError as error:
        assert f"element {size} of y (past its end: it has {size})" in str(error), error
    else:
        raise AssertionError("no error")
    assert all(not other.any() for i, other in enumerate(keep) if i != 7)
print("no harm")
"""


def test_the_heap_survives(cache_root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(NARROW)
    done = subprocess.run(
        [sys.executable, "-c", OVERRUN, str(tmp_path / "mine.cu")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "no harm\n"), done.stderr


# ---- launchers -----------------------------------------------------------------------------------

HOST = """#include <cassert>
#include <cuda_runtime.h>
__device__ float own_index() { return threadIdx.x; }  // builtin
__global__ void fill(float* x) { x[threadIdx.x] = 5; }  // fill
__global__ void half(float* x) {
  if (threadIdx.x >= 4) return;
  __syncthreads();  // warning
  x[threadIdx.x] = 6;
}
extern "C" cudaError_t work(float* x, int which, int threads) {
  if (which == 1) {
    int* nothing = nullptr;
    return cudaError_t(nothing[3]);  // null
  }
  if (which == 2) return cudaError_t(x[8] > 0);  // past
  if (which == 3) x[0] = own_index();
  if (which == 4) return cudaError_t(7 / (threads - 8));  // division
  if (which == 5) assert(threads != 8);  // assertion
  if (which == 6) half<<<1, threads>>>(x);
  else fill<<<1, threads>>>(x);  // launch
  return which == 7 ? cudaSuccess : cudaGetLastError();
}
"""


@pytest.mark.parametrize(
    ("which", "mark", "code", "message"),
    [
        (
            1,
            "null",
            700,
            r"the launcher \(host code\) touched address 0xc; on a GPU, device memory",
        ),
        (2, "past", 700, r"the launcher \(host code\) touched element 8 of x \(past its end"),
        (3, "builtin", 719, "threadIdx was used in host code"),
        (4, "division", 719, r"integer division by zero in the launcher \(host code\)"),
        (5, "assertion", 719, r"in the launcher \(host code\): assert failed: threads != 8"),
    ],
)
def test_a_fault_in_a_launcher_is_an_error(
    cache_root: Path, which: int, mark: str, code: int, message: str
) -> None:
    library, x = emulate(HOST), torch.zeros(8)
    with pytest.raises(LaunchError, match=f"^work failed: {message}") as caught:
        library.work(x, which, 8)
    cause = caught.value.__cause__
    assert isinstance(cause, EmulatorError)
    assert (cause.file, cause.line, cause.kernel) == ("mine.cu", line(HOST, mark), "")
    assert caught.value.code == code
    library.work(x, 0, 8)
    assert (x == 5).all()


@pytest.mark.parametrize(
    ("threads", "message"),
    [(0, "the block has no threads"), (9, r"element 8 of x \(past its end: it has 8\)")],
)
def test_an_error_that_the_launcher_keeps_to_itself_is_told(
    cache_root: Path, threads: int, message: str
) -> None:
    library, x = emulate(HOST), torch.zeros(8)
    with pytest.raises(LaunchError, match=f"{message}(?s:.*)did not return it: end with"):
        library.work(x, 7, threads)
    library.work(x, 0, 8)  # it does not surface in an unrelated launch


def test_an_error_that_the_launcher_overcame_is_none(cache_root: Path) -> None:
    """A configuration that is refused does not harm a CUDA context."""
    mark = "  if (which == 6)"
    text = HOST.replace(mark, "  if (which == 8) fill<<<0, 0>>>(x), cudaGetLastError();\n" + mark)
    x = torch.zeros(8)
    emulate(text).work(x, 8, 8)
    assert (x == 5).all()


def test_a_warning_is_shown_where_the_launcher_is_called(cache_root: Path) -> None:
    library, x = emulate(HOST), torch.zeros(8)
    with pytest.warns(EmulatorWarning, match="kernel half: some threads.* had returned") as shown:
        library.work(x, 6, 8)
    assert [warning.filename for warning in shown] == [__file__]
    assert f"mine.cu:{line(HOST, 'warning')}" in str(shown[0].message)
    assert x.tolist() == [6] * 4 + [0] * 4


def test_a_launcher_without_return_is_refused(cache_root: Path) -> None:
    text = HOST.replace("  return which == 7 ? cudaSuccess : cudaGetLastError();\n", "")
    with pytest.raises(BuildError, match=r"end of non-void function") as caught:
        emulate(text)
    assert caught.value.file == "mine.cu"


ENDLESS = """
import os, signal, sys, threading, torch
from infonce_kernels.build import build

library = build(open(sys.argv[1]).read(), "emulator")
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    library.wait(torch.zeros(1))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_an_endless_launcher(cache_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        'extern "C" int wait(volatile float* x) {\n  while (*x == 0) {}\n  return 0;\n}\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(path)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


# ---- processes and keys --------------------------------------------------------------------------

PROGRAM = """
import multiprocessing, sys, torch
from infonce_kernels.build import build

def use(results):
    library = build(open(sys.argv[1]).read(), "emulator")
    y = torch.empty(3)
    library.scale(torch.tensor([1.0, 2.0, 3.0]), y, 2.0, 3)
    results.put(y.tolist())

fork = multiprocessing.get_context("fork")  # before anything is built or loaded
results = fork.Queue()
processes = [fork.Process(target=use, args=(results,)) for _ in range(4)]
for process in processes:
    process.start()
for process in processes:
    print(results.get(timeout=200))
for process in processes:
    process.join()
    assert process.exitcode == 0
"""


def test_four_processes_with_an_empty_cache_agree(tmp_path: Path, scale_text: str) -> None:
    """Also: cache and working folder have blanks, and nothing else is written."""
    here = tmp_path / "with space (1)"
    here.mkdir()
    (here / "mine.cu").write_text(scale_text)
    environment = os.environ | {
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "ext dir"),
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(REPOSITORY),
    }
    environment.pop("INFONCE_KERNELS_QUIET", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "mine.cu"],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[2.0, 4.0, 6.0]\n" * 4
    assert done.stderr.count("building the emulator ... ") == 1
    assert done.stderr.count("building kernel for the emulator ... ") == 1
    assert sorted(path.name for path in here.iterdir()) == ["mine.cu"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ext dir", "with space (1)"]


@pytest.mark.parametrize("name", ["/nonexistent/g++", "fails"])
def test_a_compiler_that_does_not_run_is_named(
    name: str, tmp_path: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "fails"
    script.write_text("#!/bin/sh\necho 'marker: this compiler is out of order'\nexit 1\n")
    script.chmod(0o755)
    path = str(script) if name == "fails" else name
    monkeypatch.setenv("CXX", path)
    with pytest.raises(BackendUnavailable) as caught:
        build(scale_text, "emulator")
    assert path in str(caught.value)
    assert ("marker: this compiler is out of order" in str(caught.value)) == (name == "fails")
    reason = backends()["emulator"]
    assert reason is not None and path in reason and "\n" not in reason


def test_the_key_follows_the_text(cache_root: Path, scale_text: str) -> None:
    assert emulate(scale_text).key != emulate(scale_text + "// edited\n").key
    # The name is part of what error messages say, so it is part of what is built.
    assert emulate(scale_text, "one").key != emulate(scale_text, "two").key
    assert load(scale_text, "one").digest() == load(scale_text, "one").digest()


def test_a_folder_of_the_compilers_path_is_part_of_the_key(
    cache_root: Path, tmp_path: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#include <far.h>\n" + scale_text.replace("factor * x[i]", "FAR * factor * x[i]")
    for folder, far in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "far.h").write_text(f"#define FAR {far}f\n")
        monkeypatch.setenv("CPATH", str(tmp_path / folder))
        y = torch.empty(1)
        emulate(text).scale(torch.ones(1), y, 3.0, 1)
        assert y.item() == 3.0 * far
