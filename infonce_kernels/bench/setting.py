"""PyTorch's float32 matmul setting, for as long as something is timed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_setting(tier: str) -> Iterator[None]:
    """TF32 for tier "tf32", IEEE for every other; what held before comes back.

    The eager baseline has no argument for its precision, so the setting is all there is to set.
    PyTorch has two interfaces for it, whose getters raise where the other one has spoken. The older
    one is used as long as it answers: other packages still read it, torch.compile among them.
    """
    backends = [b for b in _matmul_backends() if hasattr(b, "fp32_precision")]
    before = [backend.fp32_precision for backend in backends]
    try:
        legacy = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if tier == "tf32" else "highest")
    except RuntimeError:
        legacy = None
        torch.backends.cuda.matmul.fp32_precision = "tf32" if tier == "tf32" else "ieee"
    try:
        yield
    finally:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def _matmul_backends() -> list[object]:
    """What holds the setting: that of the CPU changes with the GPU's in the older interface."""
    return [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
