import ctypes
import subprocess
import time
from collections.abc import Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infonce_kernels.build import LaunchError, prototypes, source
from infonce_kernels.build.cuda import CudaDevice
from infonce_kernels.build.launcher import Launcher

# Host functions that keep what they were passed: what arrives is what C++ says arrived.
TEXT = """
extern "C" {
const float* got_x; void* got_any; void* got_stream; double got_d; float got_f;
int got_n; long long got_m; unsigned long long got_size; unsigned got_u; bool got_flag;

int record(const float* x, void* any, int n, long long m, size_t size, unsigned u, float f,
           double d, bool flag, cudaStream_t stream) {
  got_x = x; got_any = any; got_n = n; got_m = m; got_size = size; got_u = u; got_f = f; got_d = d;
  got_flag = flag; got_stream = stream;
  return 0;
}
int fail(int code) { return code; }
int stream_first(cudaStream_t stream, const float* x) { got_stream = stream; got_x = x; return 0; }
int ten(const float* a, const float* b, const float* c, const float* d, const float* e,
        float* f, float* g, float* h, float* i, float* j, float temperature, int B, int N, int D,
        cudaStream_t stream) { got_x = j; got_n = D; return 0; }
}
extern "C" int pointers(float* float32, double* float64, __half* float16, __nv_bfloat16* bfloat16,
                        int* int32, long long* int64, unsigned char* uint8, bool* boolean) {
  return 0;
}
"""
PRELUDE = """
#include <cstddef>
typedef void* cudaStream_t; struct __half; struct __nv_bfloat16;
"""
VALUES = {
    "any": None,
    "n": -(2**31),
    "m": 2**40,
    "size": 2**64 - 1,
    "u": 2**32 - 1,
    "f": 0.5,
    "d": 0.1,
    "flag": True,
}


class FakeDevice:
    """Runs on the CPU with a stream of its own, and explains an error code."""

    type = "cpu"

    def __init__(self) -> None:
        self.index: int | None = None

    def run(
        self, launcher: Launcher, arguments: list[Any], values: Sequence[Any], index: int
    ) -> int:
        self.index = index
        if launcher.stream is not None:
            arguments[launcher.stream] = 0x5EA
        return launcher.function(*arguments)

    def failure(self, code: int) -> tuple[str, BaseException | None]:
        return f"code {code}", KeyError("the cause")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("launcher")
    (folder / "host.cpp").write_text(PRELUDE + TEXT)
    command = ["g++", "-shared", "-fPIC", str(folder / "host.cpp"), "-o", str(folder / "host.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "host.so"))


@pytest.fixture
def launchers(library: ctypes.CDLL) -> dict[str, Launcher]:
    found = prototypes.launchers(source.load(TEXT))
    return {prototype.name: Launcher(prototype, library, FakeDevice()) for prototype in found}


def global_(library: ctypes.CDLL, name: str, type_: Any) -> Any:
    return type_.in_dll(library, f"got_{name}").value


def test_every_argument_arrives(library: ctypes.CDLL, launchers: dict[str, Launcher]) -> None:
    x, any_ = torch.ones(3), torch.ones(2, dtype=torch.int16)
    values = VALUES | {"any": any_}
    for arguments, keywords in (
        ((x, *values.values()), {}),
        ((x, any_), {k: v for k, v in values.items() if k != "any"}),
        ((), {"x": x, **values}),
    ):
        ctypes.c_void_p.in_dll(library, "got_x").value = 1
        launchers["record"](*arguments, **keywords)
        assert global_(library, "x", ctypes.c_void_p) == x.data_ptr()
        assert global_(library, "any", ctypes.c_void_p) == any_.data_ptr()
        assert global_(library, "stream", ctypes.c_void_p) == 0x5EA
        assert global_(library, "n", ctypes.c_int) == -(2**31)
        assert global_(library, "m", ctypes.c_longlong) == 2**40
        assert global_(library, "size", ctypes.c_uint64) == 2**64 - 1
        assert global_(library, "u", ctypes.c_uint32) == 2**32 - 1
        assert global_(library, "f", ctypes.c_float) == 0.5
        assert global_(library, "d", ctypes.c_double) == 0.1
        assert global_(library, "flag", ctypes.c_bool) is True


def test_none_is_the_null_pointer(library: ctypes.CDLL, launchers: dict[str, Launcher]) -> None:
    launchers["record"](torch.ones(1), **VALUES)
    launchers["record"](None, **VALUES)
    assert global_(library, "x", ctypes.c_void_p) is None
    assert global_(library, "any", ctypes.c_void_p) is None


def test_the_stream_goes_where_the_prototype_has_it(
    library: ctypes.CDLL, launchers: dict[str, Launcher]
) -> None:
    x = torch.ones(1)
    launchers["stream_first"](x)
    assert global_(library, "stream", ctypes.c_void_p) == 0x5EA
    assert global_(library, "x", ctypes.c_void_p) == x.data_ptr()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": torch.ones(2, dtype=torch.float64)}, TypeError, "'x' .* takes torch.float32, got"),
        ({"x": torch.ones(2, device="meta")}, ValueError, "'x' .* is on meta, .* takes cpu"),
        ({"x": torch.ones(2, 3).T}, ValueError, r"'x' .* not contiguous .*\(1, 3\)"),
        ({"x": [1.0]}, TypeError, "'x' .* takes a torch tensor or None, got"),
        ({"n": 2**31}, ValueError, "'n' .*2147483647, got 2147483648"),
        ({"n": 3.0}, TypeError, "'n' .* takes an integer, got 3.0"),
        ({"n": torch.tensor(3)}, TypeError, r"'n' .* got a tensor; pass \.item\(\)"),
        ({"n": None}, TypeError, "'n' .* takes an integer, got None"),
        ({"u": -1}, ValueError, "'u' .* 0 to 4294967295, got -1"),
        ({"m": 2**63}, ValueError, "'m'"),
        ({"size": -1}, ValueError, "'size'"),
        ({"f": "0.5"}, TypeError, "'f' .* takes a number, got '0.5'"),
        ({"f": None}, TypeError, "'f'"),
        ({"flag": 2}, TypeError, "'flag' .* True or False"),
        ({"stream": 0}, TypeError, "no parameter 'stream'"),
        ({"y": 1}, TypeError, "no parameter 'y'; it takes 9 arguments"),
    ],
)
def test_a_wrong_argument_is_named(
    launchers: dict[str, Launcher], changes: dict[str, Any], error: type, message: str
) -> None:
    arguments = {"x": torch.ones(2)} | VALUES | changes
    with pytest.raises(error, match=f"record.*{message}"):
        launchers["record"](**arguments)


def test_a_wrong_number_of_arguments_is_an_error(launchers: dict[str, Launcher]) -> None:
    x = torch.ones(1)
    with pytest.raises(TypeError, match="record lacks any, n, m, size, u, f, d, flag"):
        launchers["record"](x)
    with pytest.raises(TypeError, match=r"takes 9 arguments \(x, any.*10 were given"):
        launchers["record"](x, *VALUES.values(), 1)
    with pytest.raises(TypeError, match="'x' was given twice"):
        launchers["record"](x, x=x)


def test_other_numbers_pass_where_they_mean_the_same(
    library: ctypes.CDLL, launchers: dict[str, Launcher]
) -> None:
    values = VALUES | {"n": np.int64(7), "f": np.float32(0.25), "d": 3, "flag": np.bool_(False)}
    launchers["record"](None, **values)
    assert global_(library, "n", ctypes.c_int) == 7
    assert global_(library, "f", ctypes.c_float) == 0.25
    assert global_(library, "d", ctypes.c_double) == 3.0
    assert global_(library, "flag", ctypes.c_bool) is False


POINTEES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "boolean": torch.bool,
}


@pytest.mark.parametrize("name", POINTEES)
def test_each_pointer_takes_its_own_dtype_only(launchers: dict[str, Launcher], name: str) -> None:
    empty = {key: torch.empty(0, dtype=dtype) for key, dtype in POINTEES.items()}
    launchers["pointers"](**empty)
    for other in set(POINTEES) - {name}:
        with pytest.raises(TypeError, match=f"'{name}' .* takes {POINTEES[name]}"):
            launchers["pointers"](**empty | {name: torch.empty(0, dtype=POINTEES[other])})


def test_an_error_code_is_raised_with_its_meaning_and_cause(launchers: dict[str, Launcher]) -> None:
    launchers["fail"](0)
    with pytest.raises(LaunchError, match=r"^fail failed: code 9$") as caught:
        launchers["fail"](9)
    assert caught.value.code == 9
    assert isinstance(caught.value.__cause__, KeyError)


def test_call_takes_what_it_needs_from_a_namespace(
    library: ctypes.CDLL, launchers: dict[str, Launcher]
) -> None:
    x = torch.ones(1)
    launchers["record"].call({"unused": object(), "x": x} | VALUES)
    assert global_(library, "x", ctypes.c_void_p) == x.data_ptr()
    with pytest.raises(TypeError, match="fail: nothing is called 'code' here; there are x, n"):
        launchers["fail"].call({"x": x, "n": 1})


def test_a_call_with_ten_tensors_costs_microseconds(launchers: dict[str, Launcher]) -> None:
    tensors = [torch.ones(1) for _ in range(10)]

    def microseconds() -> float:
        start = time.perf_counter()
        for _ in range(200):
            launchers["ten"](*tensors, 0.1, 256, 2560, 512)
        return (time.perf_counter() - start) / 200 * 1e6

    # About 8 on a quiet machine; the fastest of many, since tests share theirs.
    assert min(microseconds() for _ in range(20)) < 40


class FakeGpu:
    """torch.cuda with two devices, which notes what becomes current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.switches: list[int] = []
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "current_stream", self.stream)
        monkeypatch.setattr(torch.cuda, "device", self.device)

    def stream(self, index: int) -> Any:
        return type("Stream", (), {"cuda_stream": 1000 + index})

    @contextmanager
    def device(self, index: int) -> Any:
        before, self.current = self.current, index
        self.switches.append(index)
        yield
        self.current = before


def test_a_launch_goes_to_the_tensors_device_and_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, device = FakeGpu(monkeypatch), CudaDevice()
    seen = []

    def function(*arguments: Any) -> int:
        seen.append((gpu.current, arguments))
        return 0

    def run(arguments: list[Any], stream: int | None, index: int) -> None:
        launcher = SimpleNamespace(function=function, stream=stream)
        device.run(launcher, arguments, ["x"], index)

    run(["x", None], 1, 0)  # the current device: no guard
    run(["x", None], 1, 1)
    run([None], 0, -1)  # no tensor: the current device
    run(["x"], None, 1)  # no stream asked for
    assert seen == [(0, ("x", 1000)), (1, ("x", 1001)), (0, (1000,)), (1, ("x",))]
    assert gpu.switches == [1, 1] and gpu.current == 0


@pytest.mark.cuda
def test_operands_on_two_devices_are_refused(library: ctypes.CDLL) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    record = next(p for p in prototypes.launchers(source.load(TEXT)) if p.name == "record")
    tensors = {"x": torch.ones(1, device="cuda:0"), "any": torch.ones(1, device="cuda:1")}
    with pytest.raises(ValueError, match=r"'any' .* is on cuda:1, but an earlier .* is on cuda:0"):
        Launcher(record, library, CudaDevice())(**VALUES | tensors)
