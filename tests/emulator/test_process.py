"""What happens around launches: forks, threads, signals, many modules, other context switches."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from infonce_kernels.emulator import Runtime, toolchain

if TYPE_CHECKING:
    from tests.emulator.conftest import Emulator

ROOT = Path(__file__).parents[2]

SCALE = """
#include <cuda_runtime.h>
template <int kUnused>
__global__ void scale(float* x, int n) {
  __shared__ float factor;
  if (threadIdx.x == 0) factor = FACTOR;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
}
extern "C" int run(float* x, int n) {
  scale<0><<<(n + 63) / 64, 64>>>(x, n);
  return cudaGetLastError();
}
"""


def test_a_forked_child_can_launch(emulator: Emulator) -> None:
    module = emulator.load("faults.cu")
    p = np.zeros(64, np.float32)
    assert module.run_fills(p, 1, 1, 64, 1, 1, 0) == 0
    child = os.fork()
    if child == 0:  # no assertion may escape here
        p[:] = 0
        ok = module.run_fills(p, 1, 1, 64, 1, 1, 0) == 0 and bool((p == 4).all())
        ok = ok and module.run_wild(p) == 700 and emulator.runtime.take_error() is not None
        os._exit(0 if ok else 1)
    deadline = time.monotonic() + 30
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < deadline:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
    assert done and os.waitstatus_to_exitcode(status) == 0
    assert module.run_fills(p, 1, 1, 64, 1, 1, 0) == 0


def test_threads_launch_at_once_and_keep_their_own_errors(emulator: Emulator) -> None:
    module = emulator.load("faults.cu")
    problems: list[str] = []

    def healthy() -> None:
        for _ in range(40):
            p = np.zeros(256, np.float32)
            if module.run_fills(p, 1, 1, 256, 1, 1, 0) != 0 or not (p == 4).all():
                problems.append("healthy launch")
            if emulator.runtime.take_error() is not None:
                problems.append("a stranger's error")

    def faulty(name: str, code: int) -> None:
        for _ in range(40):
            if getattr(module, f"run_{name}")(np.ones(256, np.float32)) != code:
                problems.append(f"{name}: no error")
            error = emulator.runtime.take_error()
            if error is None or error.kernel != name:
                problems.append(f"{name}: {error}")

    threads = [
        threading.Thread(target=healthy),
        threading.Thread(target=healthy),
        threading.Thread(target=faulty, args=("traps", 719)),
        threading.Thread(target=faulty, args=("wild", 700)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems


def test_a_hundred_modules_in_one_process(emulator: Emulator) -> None:
    """Each is a copy of one library; thread-local storage is what used to run out."""
    library = emulator.compile(SCALE.replace("FACTOR", "3.f"), "scale.cu")
    content = library.read_bytes()
    for i in range(100):
        copy = emulator.folder / f"copy {i}.so"
        copy.write_bytes(content)
        x = np.ones(100, np.float32)
        module = ctypes.CDLL(str(copy))
        assert module.run(x.ctypes.data_as(ctypes.c_void_p), 100) == 0
        assert (x == 3).all()


def test_modules_with_the_same_names_do_not_mix(emulator: Emulator) -> None:
    """Two versions of an edited kernel are loaded at once."""
    results = []
    modules = []
    for factor in ("2.f", "5.f"):
        name = f"version{factor[0]}.cu"
        modules.append(ctypes.CDLL(str(emulator.compile(SCALE.replace("FACTOR", factor), name))))
    for module in modules + modules:
        x = np.ones(10, np.float32)
        assert module.run(x.ctypes.data_as(ctypes.c_void_p), 10) == 0
        results.append(x[0])
    assert results == [2, 5, 2, 5]


# ---- signals -------------------------------------------------------------------------------------


def run_python(emulator: Emulator, code: str) -> subprocess.Popen[str]:
    """A process of its own, with the faults module loaded as `module` and an array `p`."""
    emulator.load("faults.cu")
    library = emulator.folder / "faults.so"
    start = f"""
        import ctypes, faulthandler, signal, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from infonce_kernels.emulator import Runtime
        runtime = Runtime.load(Path({str(emulator.runtime_path)!r}))
        module = ctypes.CDLL({str(library)!r})
        p = (ctypes.c_float * 1024)(*[1.0] * 1024)
    """
    text = textwrap.dedent(start) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("kernel", ["slow", "endless_barriers"])
def test_keyboard_interrupt_stops_a_launch(emulator: Emulator, kernel: str) -> None:
    process = run_python(
        emulator,
        f"""
        print("ready", flush=True)
        start = time.monotonic()
        try:
            module.run_{kernel}(p)
        except KeyboardInterrupt:
            print("stopped")
        print(runtime.take_error())
        print(module.run_traps(p), module.run_fills(p, 1, 1, 32, 1, 1, 0), p[0])
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 2
    first, error, *_, last = out.splitlines()
    assert first == "stopped", (out, err)
    assert "interrupted (Ctrl-C)" in error and f"kernel {kernel}" in error
    assert last == "719 0 4.0"


def test_old_handlers_come_back(emulator: Emulator) -> None:
    """A crash outside a kernel still ends the process, with faulthandler's report."""
    process = run_python(
        emulator,
        """
        faulthandler.enable()
        before = signal.getsignal(signal.SIGINT)
        print(module.run_wild(p), module.run_divide(p), module.run_overflow(p), flush=True)
        assert signal.getsignal(signal.SIGINT) is before
        ctypes.string_at(8)
        """,
    )
    out, err = process.communicate(timeout=30)
    assert out == "700 719 700\n"
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in err


def test_a_crash_elsewhere_during_a_launch_is_reported(emulator: Emulator) -> None:
    process = run_python(
        emulator,
        """
        import threading
        faulthandler.enable()
        threading.Thread(target=lambda: module.run_slow(p), daemon=True).start()
        time.sleep(0.3)
        ctypes.string_at(8)
        """,
    )
    _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in err


def test_faults_with_faulthandler_enabled(emulator: Emulator) -> None:
    was_enabled = faulthandler.is_enabled()
    faulthandler.enable()
    try:
        assert emulator.load("faults.cu").run_wild(np.ones(64, np.float32)) == 700
        assert emulator.runtime.take_error() is not None
    finally:
        if not was_enabled:
            faulthandler.disable()


# ---- settings ------------------------------------------------------------------------------------


def test_settings(emulator: Emulator, runtime: Runtime) -> None:
    assert Runtime.load(emulator.runtime_path) is runtime
    old = runtime.set_timeout(5)
    assert runtime.set_timeout(old) == 5
    with runtime.settings(timeout=7, threads=1, lane_order=3):
        assert runtime.set_timeout(7) == 7
        assert runtime.set_threads(1) == 1
        assert runtime.set_lane_order(3) == 3
    assert runtime.set_timeout(old) == old
    with pytest.raises(ValueError, match="must be positive"):
        runtime.set_timeout(0)
    with pytest.raises(ValueError, match="must not be negative"):
        runtime.set_threads(-1)
    with pytest.raises(ValueError, match="must not be negative"):
        runtime.set_lane_order(-1)


# ---- portability ---------------------------------------------------------------------------------


def test_portable_context_switch(
    tmp_path_factory: pytest.TempPathFactory, emulator: Emulator
) -> None:
    """The ucontext build, beside the other runtime in one process."""
    portable = type(emulator)(tmp_path_factory.mktemp("ucontext"), ucontext=True)
    assert portable.runtime is not emulator.runtime
    x = np.random.default_rng(1).standard_normal(8 * 256).astype(np.float32)
    o = np.zeros(8, np.float32)
    assert portable.load("warp.cu").run_tree(x, o) == 0
    np.testing.assert_allclose(o, x.reshape(8, 256).sum(1), atol=1e-4)
    faults = portable.load("faults.cu")
    p = np.ones(256, np.float32)
    error = portable.error(faults.run_wild(p))
    assert error.line == portable.line_of("faults.cu", "wild")
    with portable.runtime.settings(timeout=0.3):
        assert portable.error(faults.run_spin(p)).code == 702
    assert faults.run_fills(p, 1, 1, 64, 1, 1, 0) == 0


def test_compiler_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert toolchain.compiler() == "g++"
    folder = tmp_path / "with blank"
    folder.mkdir()
    script = folder / "my g++"
    script.write_text('#!/bin/sh\nexec g++ "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert toolchain.module_command(Path("a.cpp"), Path("a.so"), Path("r.so"))[0] == str(script)
    assert toolchain.fingerprint() != ""
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(toolchain.CompilerMissing, match="/nonexistent/g"):
        toolchain.compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(toolchain.CompilerMissing, match="apt install"):
        toolchain.compiler()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(toolchain.CompilerMissing, match="needs Linux"):
        toolchain.compiler()


def test_a_compiler_that_fails_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho licence expired >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(toolchain.CompilerMissing, match=r"broken.*licence expired"):
        toolchain.fingerprint()


def test_fingerprint_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert toolchain.fingerprint() == toolchain.fingerprint()
    names = {path.name for path in toolchain.runtime_sources()}
    assert {"cuda_runtime.h", "worker.cpp", "context.h", "small_float.h", "reduce.h"} <= names


def test_no_name_of_a_real_cuda_runtime_is_exported(emulator: Emulator) -> None:
    emulator.load("language.cu")
    for library in (emulator.runtime_path, emulator.folder / "language.so"):
        symbols = subprocess.run(
            ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
        ).stdout
        names = [line.split()[-1] for line in symbols.splitlines()]
        assert names
        assert not [name for name in names if name.startswith("cuda") or "cudaError" in name]
