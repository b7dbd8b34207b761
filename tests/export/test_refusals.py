"""What a harness would not take is found in code, and not in what merely reads like it."""

import pytest

from infonce_kernels.export.flat import flat_text
from infonce_kernels.export.refusals import not_portable, static_check
from tests.paths import KERNELS


@pytest.mark.parametrize(
    "line",
    [
        'asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));',
        '__asm__("bar.sync 0;");',
        "sum += __shfl_down_sync(mask, sum, offset);",
        "sum += __shfl_xor(sum, 1);",
        "unsigned votes = __ballot_sync(mask, x > 0);",
        "if (__any_sync(mask, x)) return;",
        "__syncwarp();",
        "int m = __reduce_max_sync(mask, x);",
        "const int lane = threadIdx.x % 32;",
        "const int warp = threadIdx.x / kWarpSize;",
        "if ((threadIdx.x & 31) == 0) shared[0] = sum;",
        "const int row = threadIdx.x >> 5;",
        "const int lane = threadIdx.x % warpSize;",
        "unsigned mask = 0xFFFFFFFF;",
        "mma_m16n8k16(acc, a, b);",
        "wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;",
        "wgmma_fence();",
        "tcgen05_alloc(address, 128);",
        "const __grid_constant__ CUtensorMap map,",
        "cp_async_wait<0>();",
        "mbarrier_init(&full, 1);",
        "__cluster_dims__(2, 1, 1)",
        "cooperative_groups::this_thread_block().sync();",
        "#if __CUDA_ARCH__ >= 900",
        "#include <mma.h>",
        "#include <cuda/barrier>",
        "#include <cooperative_groups/reduce.h>",
    ],
)
def test_nvidia_only_code_is_not_portable(line: str) -> None:
    reason = not_portable(f"__global__ void k(float* x) {{\n  {line}\n}}\n")
    assert reason is not None
    assert reason.startswith("its machines are not NVIDIA's, but there is ")
    assert reason.endswith(f"`{line}`")


@pytest.mark.parametrize(
    "line",
    [
        "// a warp's 32 lanes: threadIdx.x % 32, __shfl_sync, mma.sync",
        "/* asm */ x[i] *= gamma;",
        "const float comma = 0.5f, plasma = 1.0f, assembled = 2.0f;",
        "const int tile = i % 320, part = i / 32768;",
        "#include <cuda_bf16.h>",
        "#include <cmath>",
        "__launch_bounds__(256)",
    ],
)
def test_what_reads_like_it_is_portable(line: str) -> None:
    assert not_portable(f"__global__ void k(float* x) {{\n  {line}\n}}\n") is None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("try:", "`try` or `except`"),
        ("except RuntimeError:", "`try` or `except`"),
        ("        pass", "`pass`"),
        ("/* one pass over the row */", "`pass`"),  # the checker knows no such comment
        ("import threading", "threads of the host"),
        ("class Lazy(torch.Tensor):", "a subclass of Tensor"),
        ("class Lazy(Tensor):", "a subclass of Tensor"),
    ],
)
def test_static_checker_refuses(line: str, what: str) -> None:
    reason = static_check(f"__global__ void k() {{}}\n{line}\n")
    assert reason is not None
    assert what in reason and reason.endswith(f"`{line.strip()}`")


@pytest.mark.parametrize(
    "line", ["// one pass", "x = 1  # try", "two_passes = bypass(entry)", "const int retry = 0;"]
)
def test_static_checker_takes(line: str) -> None:
    assert static_check(f"__global__ void k() {{}}\n{line}\n") is None


def test_a_submission_has_a_kernel() -> None:
    assert "__global__" in static_check("// __global__\nint main() {}\n")


@pytest.mark.parametrize("rung", [name for name in KERNELS if name <= "v3_fused"])
def test_first_three_rungs_are_portable(rung: str) -> None:
    assert not_portable(flat_text(rung)) is None
