import os
import shutil
from pathlib import Path

import pytest

from infonce_kernels.build import BuildError, CompileReport, build, nvcc

TEXT = """#include <cuda_runtime.h>
#include <cuda_fp16.h>
template <typename T, int N>
__global__ void turn(const T* x, T* y) {
  __shared__ T tile[N];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[(threadIdx.x + 1) % N];
}
template __global__ void turn<float, 128>(const float*, float*);
template __global__ void turn<double, 64>(const double*, double*);

namespace { __global__ void hidden(float* x) { x[0] = 2; } }

// 2048 threads of 65536 registers: 32 each, too few for 200 live values.
__global__ void __launch_bounds__(256, 8) spilling(float* x, int n) {
  float r[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) r[i] = x[i * n];
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (int i = 0; i < 200; ++i) r[i] = r[i] * r[(i + 7) % 200] + x[j];
  }
#pragma unroll
  for (int i = 0; i < 200; ++i) x[i * n] = r[i];
}

__device__ __noinline__ float deep(float* x, int n) {
  volatile float local[64];
  for (int i = 0; i < 64; ++i) local[i] = x[i];
  return local[n];
}
__global__ void calls(float* x, int n) { x[0] = deep(x, n); }
__global__ void halves(__half* x) { x[0] = x[0] + x[1] * x[2]; }

extern "C" int launch(float* x) { hidden<<<1, 1>>>(x); return 0; }
"""


@pytest.fixture
def report(cache_root: Path, compiler: nvcc.Nvcc) -> CompileReport:
    found = build(TEXT, "compile", name="mine")
    assert isinstance(found, CompileReport)
    return found


def test_every_kernel_is_reported_by_its_own_name(report: CompileReport) -> None:
    assert [kernel.name for kernel in report.kernels] == [
        "(anonymous namespace)::hidden",
        "calls",
        "halves",
        "spilling",
        "turn<double, 64>",
        "turn<float, 128>",
    ]
    assert report["hidden"].name == "(anonymous namespace)::hidden"
    with pytest.raises(KeyError, match="'turn' names no single kernel"):
        report["turn"]


def test_shared_memory_is_what_the_source_declares(report: CompileReport) -> None:
    assert report["turn<float, 128>"].shared == 128 * 4
    assert report["turn<double, 64>"].shared == 64 * 8
    assert report["spilling"].shared == 0
    assert report["turn<float, 128>"].barriers == 1
    assert report["hidden"].barriers == 0


def test_only_the_kernel_with_too_few_registers_spills(report: CompileReport) -> None:
    assert report["spilling"].registers == 32
    assert report["spilling"].spill_stores > 0 and report["spilling"].spill_loads > 0
    others = [kernel for kernel in report.kernels if kernel.name != "spilling"]
    assert {kernel.spill_stores + kernel.spill_loads for kernel in others} == {0}


def test_occupancy_is_of_the_kernel_at_a_block_size(report: CompileReport) -> None:
    # 32 registers allow 2048 threads, the launch bound's promise.
    assert report["spilling"].occupancy(256).blocks == 8
    # 512 static and 100 KiB dynamic bytes, 1 KiB of the system's: two in 228 KiB.
    assert report.occupancy(128, 100 * 1024)["turn<float, 128>"].blocks == 2


def test_the_table_has_a_row_a_kernel(report: CompileReport) -> None:
    lines = repr(report).splitlines()
    assert lines[0] == f"mine for sm_90, nvcc {report.nvcc}"
    assert len(lines) == 2 + len(report.kernels)
    row = next(line for line in lines if line.startswith("turn<float, 128>"))
    assert row.split()[2:4] == [str(report["turn<float, 128>"].registers), "512"]
    page = report._repr_html_()
    assert page.count("<tr>") == 1 + len(report.kernels)
    assert "turn&lt;float, 128&gt;" in page


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_the_cubin_is_for_the_architecture_asked_for(
    arch: str, cache_root: Path, compiler: nvcc.Nvcc, scale_text: str
) -> None:
    report = build(scale_text, "compile", arch=arch)
    assert report.arch == report["scale_kernel"].arch == arch
    # ELF header e_flags: from CUDA 13 on the architecture is its second byte.
    header = report.cubin.read_bytes()[:64]
    assert header[:4] == b"\x7fELF"
    assert int(arch[3:5]) in header[48:52]


@pytest.mark.parametrize("arch", ["90", "sm_", "compute_90", "hopper"])
def test_an_architecture_of_another_form_is_refused(arch: str, scale_text: str) -> None:
    with pytest.raises(ValueError, match=f"arch '{arch}' is not of the form 'sm_90'"):
        build(scale_text, "compile", arch=arch)


def test_an_unknown_architecture_is_nvccs_error(
    cache_root: Path, compiler: nvcc.Nvcc, scale_text: str
) -> None:
    with pytest.raises(BuildError, match=r"nvcc.*sm_11"):
        build(scale_text, "compile", arch="sm_11")


def test_an_error_is_the_learners(cache_root: Path, compiler: nvcc.Nvcc, scale_text: str) -> None:
    before = sorted(cache_root.iterdir()) if cache_root.exists() else []
    wrong = scale_text.replace("factor * x[i]", "factr * x[i]")
    with pytest.raises(BuildError) as caught:
        build(wrong, "compile", name="mine")
    assert str(caught.value) == (
        'mine.cu:5: error: identifier "factr" is undefined\n'
        "    5 |   if (i < n) y[i] = factr * x[i];\n"
        "      |                     ^\n"
        f"compiler: {compiler.path} with {shutil.which(os.environ.get('CXX', 'g++'))}"
    )
    assert (caught.value.file, caught.value.line) == ("mine.cu", 5)
    assert 'identifier "factr" is undefined' in caught.value.log
    after = sorted(path for path in cache_root.iterdir() if path.name != "locks")
    assert after == [path for path in before if path.name != "locks"]
