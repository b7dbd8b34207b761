"""The loss in PyTorch: the original model, rung v0, and the float64 truth.

Definition, for query q_i, its positive p_i, shared negatives n_j and a temperature tau::

    s+_i  = cos(q_i, p_i) / tau            each norm clamped on its own at 1e-8
    s-_ij = (q_i . n_j) / tau              a raw dot product: only the positive is normalised
    L_i    = logsumexp_j s-_ij
    loss_i = log(exp(s+_i) + sum_j exp(s-_ij)) - s+_i = softplus(L_i - s+_i)

Source: van den Oord et al., "Representation Learning with Contrastive Predictive Coding" (2018),
eq. 4.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from infonce_kernels.precision import product

MINIMUM_NORM = 1e-8


class Model(nn.Module):
    """The model whose eager time is the baseline: cosine, matmul, cat, cross entropy."""

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        """Mean loss, a scalar, of query (B, D), positive (B, D) and negatives (N, D)."""
        positive_similarity = F.cosine_similarity(query, positive, dim=-1).unsqueeze(1)
        negative_similarities = query @ negatives.T
        logits = torch.cat([positive_similarity, negative_similarities], dim=1) / self.temperature
        target = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        return F.cross_entropy(logits, target)


def truth(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float | Tensor
) -> Tensor:
    """Each query's loss (B,) in float64 on the CPU, differentiable by autograd: what is right.

    A negative whose logit is -inf is left out, in the value and in the gradients, as if its column
    were absent.
    """
    query, positive, negatives = (x.to("cpu", torch.float64) for x in (query, positive, negatives))
    if isinstance(temperature, Tensor):
        temperature = temperature.to("cpu", torch.float64).reshape(())
    norms = _clamped_norm(query) * _clamped_norm(positive)
    positive_logits = (query * positive).sum(1) / norms / temperature
    present = (query.detach() @ negatives.detach().T) != -torch.inf
    if present.all():
        excess = _log_sum_exp(query @ negatives.T / temperature) - positive_logits
    else:
        # Row by row: masking columns after the product would leave 0 * inf in its gradient.
        sums = [
            _log_sum_exp((negatives[columns] @ q / temperature).unsqueeze(0))
            for q, columns in zip(query, present, strict=True)
        ]
        excess = torch.cat(sums) - positive_logits
    # logaddexp, because softplus of PyTorch turns into the identity past 20.
    return torch.logaddexp(excess, torch.zeros_like(excess))


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Of each row; -inf, with no gradient, where there is no column."""
    return torch.logsumexp(logits, 1) if logits.shape[1] else logits.sum(1) - torch.inf


def _clamped_norm(x: Tensor) -> Tensor:
    """Each row's norm; a constant where clamped, so that no gradient is 0 / 0 at a zero vector."""
    squared = x.square().sum(1)
    clamped = squared <= MINIMUM_NORM**2
    return torch.where(clamped, MINIMUM_NORM, torch.where(clamped, 1.0, squared).sqrt())


class _Losses(torch.autograd.Function):
    """Rung v0: every step an ordinary PyTorch operation, with the gradient in closed form.

    Autograd's own gradient of these steps is wrong at the edges: NaN for a logit of -inf, and the
    cosine's for 0 < norm < 1e-8. The backward below is made of differentiable operations, so second
    derivatives are right too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(query, positive, negatives, temperature, precision):
        positive_logit = _cosine(query, positive)[0] / temperature
        logits = product(query, negatives.T, precision) / temperature
        return _softplus(_negative_excess(logits, positive_logit))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        *operands, ctx.precision = inputs
        ctx.save_for_backward(*operands)

    @staticmethod
    def backward(ctx, grad_loss: Tensor):
        wanted = ctx.needs_input_grad[:4]
        return *gradients(grad_loss, *ctx.saved_tensors, ctx.precision, wanted), None


def losses(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: Tensor,
    precision: str | None = None,
) -> Tensor:
    """Each query's loss (B,) by plain PyTorch, in the operands' dtype, twice differentiable."""
    return _Losses.apply(query, positive, negatives, temperature, precision)


def gradients(
    grad_loss: Tensor,
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: Tensor,
    precision: str | None,
    wanted: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The wanted gradients of sum_i grad_loss_i loss_i in closed form, differentiable themselves.

    With P_ij = exp(s-_ij - L_i) and w_i = sigmoid(L_i - s+_i)::

        d loss_i / d s-_ij = w_i P_ij
        d loss_i / d s+_i  = -w_i
        d loss_i / d tau   = -w_i (sum_j P_ij s-_ij - s+_i) / tau
    """
    cosine, query_norm, positive_norm = _cosine(query, positive)
    positive_logit = cosine / temperature
    logits = _logits(query, negatives, temperature, precision)
    weight = grad_loss * _sigmoid(_negative_excess(logits, positive_logit))
    shares = _shares(logits)
    grad_similarities = weight.unsqueeze(1) * shares / temperature

    grad_query = grad_positive = grad_negatives = grad_temperature = None
    unit_query = query / query_norm.unsqueeze(1)
    unit_positive = positive / positive_norm.unsqueeze(1)
    if wanted[0]:
        finite_negatives = torch.where(negatives.isinf(), 0, negatives)
        direction = unit_positive - _along(unit_query, cosine, query_norm)
        step = (weight / temperature / query_norm).unsqueeze(1)
        grad_query = product(grad_similarities, finite_negatives, precision) - step * direction
    if wanted[1]:
        direction = unit_query - _along(unit_positive, cosine, positive_norm)
        grad_positive = -(weight / temperature / positive_norm).unsqueeze(1) * direction
    if wanted[2]:
        grad_negatives = product(grad_similarities.T, query, precision)
    if wanted[3]:
        expected_logit = (shares * torch.where(logits == -torch.inf, 0, logits)).sum(1)
        grad_temperature = -(weight * (expected_logit - positive_logit)).sum() / temperature
    return grad_query, grad_positive, grad_negatives, grad_temperature


def _logits(query: Tensor, negatives: Tensor, temperature: Tensor, precision: str | None) -> Tensor:
    """The negatives' logits (B, N), with a derivative that an infinite negative does not spoil."""
    similarities = product(query, negatives.T, precision)
    if not torch.is_grad_enabled():
        return similarities / temperature
    finite_negatives = torch.where(negatives.isinf(), 0, negatives)
    finite = product(query, finite_negatives.T, precision) / temperature
    similarities = similarities.detach()
    return torch.where(similarities.isinf(), similarities, finite)


def _sigmoid(x: Tensor) -> Tensor:
    """The sigmoid without exp(-x), which overflows where the result can still be told from 0."""
    e = (-x.abs()).exp()
    return torch.where(x < 0, e, 1) / (1 + e)


def _shares(logits: Tensor) -> Tensor:
    """P_ij: the softmax of each row; a logit of -inf has share 0 even in a row of nothing else."""
    absent = logits == -torch.inf
    all_absent = absent.all(1, keepdim=True)
    return torch.where(absent, 0, torch.softmax(torch.where(all_absent, 0, logits), 1))


def _along(unit: Tensor, cosine: Tensor, norm: Tensor) -> Tensor:
    """The cosine's gradient along the vector itself; none where the norm is clamped, a constant."""
    return torch.where(norm > MINIMUM_NORM, cosine, 0).unsqueeze(1) * unit


def _cosine(query: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cosine (B,) and both clamped norms (B,).

    Rows are scaled to a largest element of 1 first: a float32 square overflows past 1.8e19.
    """
    query_scale, positive_scale = _scale(query), _scale(positive)
    q, p = query / query_scale, positive / positive_scale
    query_norm = _clamped(q, query_scale)
    positive_norm = _clamped(p, positive_scale)
    scales = (query_scale / query_norm.unsqueeze(1)) * (positive_scale / positive_norm.unsqueeze(1))
    return (q * p).sum(1) * scales.squeeze(1), query_norm, positive_norm


def _scale(x: Tensor) -> Tensor:
    if x.shape[1] == 0:
        return x.new_ones(x.shape[0], 1)
    largest = x.detach().abs().amax(1, keepdim=True)
    return torch.where(largest > 0, largest, 1)


def _clamped(scaled: Tensor, scale: Tensor) -> Tensor:
    squared = scaled.square().sum(1)
    positive = squared > 0
    # The square root of a stand-in keeps second derivatives finite at a zero vector.
    norm = torch.where(positive, squared, 1).sqrt() * scale.squeeze(1)
    norm = torch.where(positive, norm, squared)
    return torch.where(norm <= MINIMUM_NORM, MINIMUM_NORM, norm)


def _negative_excess(logits: Tensor, positive_logit: Tensor) -> Tensor:
    """L - s+ of each row; the positive is subtracted first, since both may be large and close."""
    differences = logits - positive_logit.unsqueeze(1)
    if not torch.is_grad_enabled():
        return _log_sum_exp(differences)
    # The derivative of the log-sum-exp of nothing but -inf would be NaN.
    empty = (logits == -torch.inf).all(1)
    excess = _log_sum_exp(torch.where(empty.unsqueeze(1), 0, differences))
    return torch.where(empty, -torch.inf, excess)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))
