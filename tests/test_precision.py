"""Accurate products whatever PyTorch's setting is."""

import pytest
import torch

from infonce_kernels import precision


def randoms(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_the_high_part_is_what_tf32_holds_and_the_rest_is_small():
    x = randoms(1000)
    high = precision._tf32_part(x)
    assert (high.view(torch.int32) & 0x1FFF).abs().sum() == 0  # TF32 drops these 13 bits
    assert ((x - high).abs() <= x.abs() * 2.0**-10).all()


def test_the_split_product_is_as_good_as_float32():
    """The products of the parts in float64 here: on a GPU tensor cores do them."""
    a, b = randoms(32, 512), randoms(512, 48)
    exact = a.double() @ b.double()
    error = (precision._split_product(a, b).double() - exact).abs().max()
    assert error <= 2 * ((a @ b).double() - exact).abs().max()


def test_infinities_survive_the_split():
    a = torch.tensor([[1.0, 2.0], [1.1, 0.3]])
    b = torch.tensor([[-torch.inf, torch.inf, 1.0], [-torch.inf, 0.7, 2.0]])
    torch.testing.assert_close(precision._split_product(a, b), a @ b)


@pytest.mark.cuda
def test_the_product_keeps_its_promise_under_tf32():
    a, b = randoms(64, 512).cuda(), randoms(512, 256).cuda()
    exact = a.double() @ b.double()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        ours, tf32 = precision.product(a, b, "fp32"), a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    ieee = ((a @ b).double() - exact).abs().max()
    # Tensor cores truncate where they add: about twice the error of IEEE sums.
    assert (ours.double() - exact).abs().max() <= 3 * ieee
    assert (tf32.double() - exact).abs().max() > 20 * ieee  # the setting was on


def test_bad_tiers_are_named():
    with pytest.raises(ValueError, match="precision='fp8'"):
        precision.check("fp8", torch.float32)
    with pytest.raises(ValueError, match="precision='fp16'"):
        precision.check("fp16", torch.bfloat16)
    precision.check("bf16", torch.bfloat16)
