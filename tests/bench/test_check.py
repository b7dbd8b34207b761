import math

import pytest
import torch

from infonce_kernels.bench import check
from infonce_kernels.bench.check import LIMITS, Errors, Expected
from infonce_kernels.bench.subjects import EAGER, Subject
from infonce_kernels.reference import truth


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(3)
    rows = (torch.randn(n, 24, generator=generator) for n in (50, 50, 70))
    return tuple(torch.nn.functional.normalize(x, dim=1) for x in rows)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_truth_in_chunks_is_the_truth(operands, monkeypatch, rows):
    monkeypatch.setattr(check, "_chunk", lambda N, x: rows)
    leaves = [x.double().requires_grad_() for x in operands]
    losses = truth(*leaves, 0.1)
    gradients = torch.autograd.grad(losses.mean(), leaves)
    found = check.expected(operands, 0.1, "both", EAGER)
    assert found.mean.item() == pytest.approx(losses.mean().item(), rel=1e-13)
    torch.testing.assert_close(found.losses, losses.detach(), rtol=1e-12, atol=0)
    for got, true in zip(found.gradients, gradients, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-11, atol=1e-15)
    assert check.expected(operands, 0.1, "forward", EAGER).gradients == ()


def test_a_chunk_fits_into_half_of_what_is_free(operands):
    # On the CPU 8 GiB count as free: 4 GiB for six float64 matrices of a million columns.
    assert check._chunk(10**6, operands[0]) == 2**32 // (6 * 8 * 10**6)
    assert check._chunk(10**12, operands[0]) == 1


def test_a_subject_is_held_against_what_it_computes(operands):
    def half_mean(query, positive, negatives, temperature):
        return (query @ negatives.T).mean() / temperature / 2

    odd = Subject("odd", "peer", lambda tier, tau: None, ("ieee",), expected=half_mean)
    found = check.expected(operands, 0.25, "both", odd)
    q, _, n = (x.double() for x in operands)
    assert found.mean.item() == pytest.approx(2 * (q @ n.T).mean().item())
    assert found.gradients[1] is None  # the positive takes no part
    result = (found.mean, found.gradients[0], None, found.gradients[2])
    assert check.errors(result, found) == Errors(0, 0, 0)


TRUE = Expected(
    torch.tensor(4.0),
    torch.tensor([3.0, 5.0]),
    (torch.tensor([3.0, 4.0]), torch.tensor([1.0]), torch.tensor([2.0])),
)
RIGHT = (TRUE.mean, *TRUE.gradients)


def test_errors_are_relative():
    result = (torch.tensor(4.4), torch.tensor([3.0, 4.5]), *TRUE.gradients[1:])
    errors = check.errors(result, TRUE)
    assert (errors.mean, errors.gradient) == (pytest.approx(0.1), pytest.approx(0.1))
    # The mean is right; the second query is off by a fifth.
    assert check.query_error(torch.tensor([3.0, 4.0]), TRUE) == pytest.approx(0.2)


@pytest.mark.parametrize("place", range(4))
def test_a_nan_is_seen_wherever_it_is(place):
    result = [torch.full_like(x, torch.nan) if k == place else x for k, x in enumerate(RIGHT)]
    errors = check.errors(tuple(result), TRUE)
    assert math.isnan(errors.largest)
    assert not any(errors.within(limits) for limits in LIMITS.values())


def test_a_nan_of_one_query_is_seen():
    assert math.isnan(check.query_error(torch.tensor([3.0, torch.nan]), TRUE))


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_gradient_that_is_missing_is_wrong(place):
    result = [None if k == place else x for k, x in enumerate(RIGHT)]
    errors = check.errors(tuple(result), TRUE)
    assert errors.gradient == math.inf and not errors.within(LIMITS["bf16"])


def test_a_gradient_that_should_not_be_is_wrong_unless_it_is_zero():
    lacks = Expected(TRUE.mean, None, (TRUE.gradients[0], None, TRUE.gradients[2]))
    assert check.errors(RIGHT, lacks).gradient == math.inf
    zero = (TRUE.mean, TRUE.gradients[0], torch.zeros(1), TRUE.gradients[2])
    assert check.errors(zero, lacks).gradient == 0


def test_limits_hold_each_error_apart():
    assert Errors(0.9e-6, 0.9e-5, 0.9e-4).within(LIMITS["ieee"])
    for errors in (Errors(1.1e-6), Errors(0, 1.1e-5), Errors(0, 0, 1.1e-4)):
        assert not errors.within(LIMITS["ieee"])
