"""The ways one loss can be computed, for tests that hold of all of them."""

import pytest

from infonce_kernels.ladder import LADDER

RUNGS = [rung.name for rung in LADDER]
KERNELS = [rung.name for rung in LADDER if rung.is_kernel]

# (rung, device): kernels on CPU tensors run in the emulator.
EVERY_PATH = [
    *[pytest.param(name, "cpu", id=f"{name}-cpu") for name in RUNGS],
    *[pytest.param(name, "cuda", id=f"{name}-cuda", marks=pytest.mark.cuda) for name in RUNGS],
]
KERNEL_PATHS = [path for path in EVERY_PATH if path.values[0] in KERNELS]
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.cuda)]
