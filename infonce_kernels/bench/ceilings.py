"""What this GPU can do at best, measured in the same run as what it is compared with."""

import ctypes

import torch

from infonce_kernels.bench.setting import matmul_setting
from infonce_kernels.bench.subjects import DTYPES
from infonce_kernels.bench.timing import Timer

# The best of several: cuBLAS reaches its best rate at some shapes only.
_SHAPES = ((2048, 2048, 2048), (8192, 8192, 8192), (8192, 16384, 4096), (8192, 40960, 512))
_TIERS = ("ieee", "tf32", "bf16")


# Dense rates of the vendor's datasheet in TFLOP/s. A kernel can be faster than cuBLAS, and never
# than these.
DATASHEET = {"NVIDIA H200": {"ieee": 67, "tf32": 494, "bf16": 989}}


def copy_tbps(timer: Timer) -> float:
    """TB/s of a large copy within the device's memory, bytes read and written both counted."""
    # 2 GiB each way, or what a small GPU can spare.
    elements = min(1 << 29, torch.cuda.mem_get_info()[0] // 4 // 4)
    source = torch.randn(elements, device="cuda")
    target = torch.empty_like(source)
    times = timer.cold(lambda: target.copy_(source), 1e-3)
    return 2 * source.nbytes / times.median * 1e-9


def matrix_tflops(timer: Timer) -> dict[str, float]:
    """TFLOP/s of PyTorch's matrix product on random data, by tier: the best of several shapes."""
    fits = [shape for shape in _SHAPES if _bytes(*shape) < torch.cuda.mem_get_info()[0] // 2]
    return {tier: max(_product_tflops(timer, tier, *shape) for shape in fits) for tier in _TIERS}


def _bytes(rows: int, columns: int, depth: int) -> int:
    return 4 * (rows * columns + (rows + columns) * depth)


def _product_tflops(timer: Timer, tier: str, rows: int, columns: int, depth: int) -> float:
    a, b = (torch.randn(n, depth, dtype=DTYPES[tier], device="cuda") for n in (rows, columns))
    with matmul_setting(tier):
        seconds = timer.warm_up(lambda: a @ b.T)
        return 2 * rows * columns * depth / timer.cold(lambda: a @ b.T, seconds).median * 1e-9


def peak_tbps() -> float:
    """TB/s that the memory's pins can carry: clock times two transfers times the bus's width."""
    # CUdevice_attribute: MEMORY_CLOCK_RATE in kHz, GLOBAL_MEMORY_BUS_WIDTH in bits.
    clock, width = _attribute(36), _attribute(37)
    return 2 * clock * 1e3 * width / 8 * 1e-12


def _attribute(number: int) -> int:
    """Of the current device: the driver numbers devices as PyTorch does."""
    device, value = torch.cuda.current_device(), ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(value), number, device)
    if status:
        raise RuntimeError(f"the CUDA driver does not tell attribute {number}: error {status}")
    return value.value
