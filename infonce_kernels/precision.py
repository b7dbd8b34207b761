"""Precision tiers: how accurate matrix products are, and how PyTorch's setting is respected.

A tier bounds the error; a rung may be more accurate than its tier asks. No tier (None) leaves the
choice to PyTorch's own setting. No switch of PyTorch is ever set here: a call that flipped one
would change what other threads compute.
"""

import torch
from torch import Tensor

TIERS = ("ieee", "fp32", "tf32", "bf16", "fp16")
_HALF_TIERS = {"bf16": torch.bfloat16, "fp16": torch.float16}

# TF32 keeps 10 of float32's 23 mantissa bits: clearing the lowest 13 makes a number that TF32 holds
# exactly.
_TF32_BITS = -1 << 13


def check(precision: str | None, dtype: torch.dtype) -> None:
    """Raises ValueError where `precision` is no tier for operands of `dtype`."""
    if precision is not None and precision not in TIERS:
        raise ValueError(
            f"precision={precision!r} is not one of None, {', '.join(map(repr, TIERS))}"
        )
    if precision in _HALF_TIERS and _HALF_TIERS[precision] != dtype:
        raise ValueError(
            f"precision={precision!r} is for inputs of {_HALF_TIERS[precision]}, but they are "
            f"{dtype}: convert them, or choose 'ieee', 'fp32' or 'tf32'"
        )


def product(a: Tensor, b: Tensor, precision: str | None) -> Tensor:
    """The matrix product a b, within the error of the tier whatever PyTorch's setting."""
    if torch.is_autocast_enabled(a.device.type):
        # It would lower the product to half precision, in a backward pass inside it too.
        with torch.autocast(a.device.type, enabled=False):
            return product(a, b, precision)
    # Float64 has no lower setting, and its bits are not float32's to split.
    follows_setting = precision not in ("ieee", "fp32") or a.dtype == torch.float64
    if follows_setting or _is_ieee(a.device.type):
        return a @ b
    return _split_product(a, b) if a.is_cuda else (a.double() @ b.double()).float()


def _is_ieee(device_type: str) -> bool:
    """Whether PyTorch's product is accurate now; a compiled program may outlive the setting."""
    return not torch.compiler.is_compiling() and pytorch_setting(device_type) == "ieee"


def pytorch_setting(device_type: str) -> str:
    """What PyTorch's float32 product on "cuda" or "cpu" may use now: "ieee", "tf32" or "bf16"."""
    backend = torch.backends.cuda if device_type == "cuda" else torch.backends.mkldnn
    # The getter of torch >= 2.9. The older ones raise once a program has used this one to set the
    # precision.
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if setting is None:
        lowest = "tf32" if device_type == "cuda" else "bf16"
        legacy = {"highest": "ieee", "high": "tf32", "medium": lowest}
        setting = legacy[torch.get_float32_matmul_precision()]
    return "ieee" if setting == "none" else setting


def _split_product(a: Tensor, b: Tensor) -> Tensor:
    """a b to about 22 bits, out of three TF32 products: about twice the error of IEEE's.

    Each operand is a high part, which TF32 holds exactly, plus the rest. The product of the two low
    parts is below float32's own rounding and left out. The small products come first, so that they
    are not rounded away against the large one.
    """
    a_high, b_high = _tf32_part(a), _tf32_part(b)
    small = _low_part(a, a_high) @ _finite(b_high)
    small += _finite(a_high) @ _low_part(b, b_high)
    return small.add_(a_high @ b_high)


def _tf32_part(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & _TF32_BITS).view(torch.float32)


def _low_part(x: Tensor, high: Tensor) -> Tensor:
    """What the high part leaves; nothing of an infinity, which would leave a NaN."""
    return torch.where(x.isinf(), 0, x - high)


def _finite(high: Tensor) -> Tensor:
    """An infinity counts in the product of the high parts alone: 0 * inf would be NaN here."""
    return torch.where(high.isinf(), 0, high)
