"""PyTorch's float32 matmul setting, for as long as something is timed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_setting(tier: str) -> Iterator[None]:
    """TF32 for tier "tf32", IEEE for every other; what held before comes back.

    The eager baseline has no argument for its precision, so the setting is all there is to set.
    """
    matmul = torch.backends.cuda.matmul
    try:
        name, value, before = "allow_tf32", tier == "tf32", matmul.allow_tf32
    except RuntimeError:
        # The program has set it by the API of torch >= 2.9, and the two may not be mixed.
        value = "tf32" if tier == "tf32" else "ieee"
        name, before = "fp32_precision", matmul.fp32_precision
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
