"""The truth itself, held against closed forms and numerical derivatives; then rung v0 against
it.
"""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from infonce_kernels.reference import Model, losses, truth


def _double(*shape, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape))
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_orthogonal_unit_vectors_give_the_closed_form(temperature):
    e1, e2 = torch.eye(2)[:1], torch.eye(2)[1:]
    expected = math.log1p(math.exp(-1 / temperature))
    assert truth(e1, e1, e2, temperature).item() == pytest.approx(expected, rel=1e-14)


def test_equal_logits_give_the_logarithm_of_their_number():
    x = torch.eye(3)[:1]
    assert truth(x, x, x.expand(9, 3), 0.1).item() == pytest.approx(math.log(10), rel=1e-14)


def test_truth_keeps_the_digits_of_a_tiny_loss():
    x, opposite = torch.eye(2)[:1], -torch.eye(2)[:1]
    # s+ = 50, s- = -50: the loss is exp(-100) to all digits, which log(1 + p) - s+ would round to
    # 0.
    assert truth(x, x, opposite, 0.02).item() == pytest.approx(math.exp(-100), rel=1e-12)


@pytest.mark.parametrize("loss", [truth, losses])
def test_gradients_equal_numerical_ones(loss):
    operands = _double(3, 4), _double(3, 4, scale=0.7), _double(5, 4, scale=0.5)
    temperature = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert gradcheck(loss, (*operands, temperature), atol=1e-8)


def test_second_derivatives_of_plain_pytorch_equal_numerical_ones():
    operands = _double(3, 4), _double(3, 4, scale=0.7), _double(5, 4, scale=0.5)
    temperature = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(losses, (*operands, temperature), atol=1e-7)


def test_absent_columns_change_neither_value_nor_gradient():
    query = torch.tensor([[1.0, 2.0], [0.5, 1.0]], requires_grad=True)
    positive = torch.tensor([[1.0, 1.0], [2.0, -1.0]])
    present = torch.tensor([[1.0, -1.0], [0.3, 0.2]])
    absent = torch.tensor([[-torch.inf, -torch.inf]])
    with_it = truth(query, positive, torch.cat([present, absent]), 0.5)
    without = truth(query, positive, present, 0.5)
    torch.testing.assert_close(with_it, without, rtol=1e-15, atol=0)
    gradients = [
        torch.autograd.grad(x.sum(), query, retain_graph=True)[0] for x in (with_it, without)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-14, atol=0)


def test_the_original_model_agrees_with_the_truth_on_normalised_rows():
    query, positive, negatives = (
        torch.nn.functional.normalize(_double(rows, 16).detach()) for rows in (8, 8, 40)
    )
    expected = truth(query, positive, negatives, 0.1).mean()
    torch.testing.assert_close(Model(0.1)(query, positive, negatives), expected, rtol=1e-12, atol=0)
