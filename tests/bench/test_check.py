import pytest
import torch

from infonce_kernels.bench import check
from infonce_kernels.bench.subjects import EAGER, Subject
from infonce_kernels.reference import truth


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(3)
    rows = (torch.randn(n, 24, generator=generator) for n in (50, 50, 70))
    return tuple(torch.nn.functional.normalize(x, dim=1) for x in rows)


@pytest.mark.parametrize("chunk", [1, 7 * 70, 1 << 27])
def test_the_truth_in_chunks_is_the_truth(operands, monkeypatch, chunk):
    monkeypatch.setattr(check, "_CHUNK", chunk)
    leaves = [x.double().requires_grad_() for x in operands]
    loss = truth(*leaves, 0.1).mean()
    gradients = torch.autograd.grad(loss, leaves)
    found = check.expected(operands, 0.1, "both", EAGER)
    assert found.loss.item() == pytest.approx(loss.item(), rel=1e-13)
    for got, true in zip(found.gradients, gradients, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-11, atol=1e-15)
    assert check.expected(operands, 0.1, "forward", EAGER).gradients == ()


def test_a_subject_is_held_against_what_it_computes(operands):
    def half_mean(query, positive, negatives, temperature):
        return (query @ negatives.T).mean() / temperature / 2

    odd = Subject("odd", "peer", lambda tier, tau: None, ("ieee",), expected=half_mean)
    found = check.expected(operands, 0.25, "both", odd)
    q, _, n = (x.double() for x in operands)
    assert found.loss.item() == pytest.approx(2 * (q @ n.T).mean().item())
    assert found.gradients[1] is None  # the positive takes no part
    assert check.error((found.loss, found.gradients[0], None, found.gradients[2]), found) == (0, 0)


def test_errors_are_relative_and_a_nan_is_never_right():
    expected = check.Expected(torch.tensor(4.0), (torch.tensor([3.0, 4.0]), None, None))
    errors = check.error((torch.tensor(4.4), torch.tensor([3.0, 4.5]), None, None), expected)
    assert errors == (pytest.approx(0.1), pytest.approx(0.1))
    assert check.is_right((0.9e-5, 0.9e-4), "ieee")
    assert not check.is_right((1.1e-5, 0.0), "ieee")
    assert not check.is_right((0.0, 1.1e-4), "ieee")
    assert not check.is_right((float("nan"), 0.0), "bf16")
