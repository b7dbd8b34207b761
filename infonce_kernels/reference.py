"""The loss in PyTorch: the original model, rung v0, and the float64 truth that every rung is held against.

Definition, for query q_i, its positive p_i, shared negatives n_j and a temperature tau::

    s+_i  = cos(q_i, p_i) / tau            each norm clamped on its own at 1e-8
    s-_ij = (q_i . n_j) / tau              a raw dot product: only the positive is normalised
    loss_i = log(exp(s+_i) + sum_j exp(s-_ij)) - s+_i = softplus(L_i - s+_i),   L_i = logsumexp_j s-_ij

Source: van den Oord et al., "Representation Learning with Contrastive Predictive Coding" (2018), eq. 4.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def truth(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float | Tensor) -> Tensor:
    """Each query's loss (B,) in float64 on the CPU, differentiable by autograd: what is right.

    A negative whose logit is -inf is left out, in the value and in the gradients, as if its column were absent.
    """
    query, positive, negatives = (x.to("cpu", torch.float64) for x in (query, positive, negatives))
    if isinstance(temperature, Tensor):
        temperature = temperature.to("cpu", torch.float64).reshape(())
    losses = [
        _truth_of_row(q, p, negatives, temperature) for q, p in zip(query, positive, strict=True)
    ]
    return torch.stack(losses) if losses else query.sum() * torch.zeros(0, dtype=torch.float64)


def _truth_of_row(q: Tensor, p: Tensor, negatives: Tensor, temperature: float | Tensor) -> Tensor:
    zero = torch.zeros((), dtype=torch.float64)
    positive_logit = (q @ p) / (_clamped_norm(q) * _clamped_norm(p)) / temperature
    present = (negatives.detach() @ q.detach()) != -torch.inf
    logits = negatives[present] @ q / temperature
    if len(logits) == 0:
        return zero * positive_logit
    # logaddexp, because softplus of PyTorch turns into the identity past 20.
    return torch.logaddexp(torch.logsumexp(logits, 0) - positive_logit, zero)


def _clamped_norm(x: Tensor) -> Tensor:
    """The norm, or a constant where it is clamped: its gradient must not be 0 / 0 at a zero vector."""
    squared = x @ x
    return squared.sqrt() if squared > MINIMUM_NORM**2 else torch.full_like(squared, MINIMUM_NORM)


class _Losses(torch.autograd.Function):
    """Rung v0: every step an ordinary PyTorch operation, with the gradient in closed form.

    Autograd's own gradient of these steps is wrong at the edges: NaN for a logit of -inf, and the cosine's for
    0 < norm < 1e-8. The backward below is made of differentiable operations, so second derivatives are right too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, positive: Tensor, negatives: Tensor, temperature: Tensor) -> Tensor:
        positive_logit = _cosine(query, positive)[0] / temperature
        log_sum_exp = _log_sum_exp(query @ negatives.T / temperature)
        return _softplus(log_sum_exp - positive_logit)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_loss: Tensor):
        return gradients(grad_loss, *ctx.saved_tensors, wanted=ctx.needs_input_grad)


def losses(query: Tensor, positive: Tensor, negatives: Tensor, temperature: Tensor) -> Tensor:
    """Each query's loss (B,) by plain PyTorch, in the operands' dtype, twice differentiable."""
    return _Losses.apply(query, positive, negatives, temperature)


def gradients(
    grad_loss: Tensor,
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: Tensor,
    wanted: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of sum_i grad_loss_i loss_i in closed form, for those wanted; differentiable themselves.

    With P_ij = exp(s-_ij - L_i) and w_i = sigmoid(L_i - s+_i): d loss_i / d s-_ij = w_i P_ij, d loss_i / d s+_i = -w_i
    and d loss_i / d tau = -w_i (sum_j P_ij s-_ij - s+_i) / tau.
    """
    cosine, query_norm, positive_norm = _cosine(query, positive)
    positive_logit = cosine / temperature
    logits = query @ negatives.T / temperature
    log_sum_exp = _log_sum_exp(logits)
    weight = grad_loss * torch.sigmoid(log_sum_exp - positive_logit)
    # Where every logit of a row is -inf, -inf - (-inf) would be NaN; and 0 * -inf would be for a single one.
    absent = logits == -torch.inf
    shares = torch.where(absent, 0, (logits - log_sum_exp.unsqueeze(1)).exp())
    grad_similarities = weight.unsqueeze(1) * shares / temperature

    grad_query = grad_positive = grad_negatives = grad_temperature = None
    cross = (weight / temperature / (query_norm * positive_norm)).unsqueeze(1)
    if wanted[0]:
        finite_negatives = torch.where(negatives.isinf(), 0, negatives)
        own = _own_term(weight * positive_logit, query_norm)
        grad_query = grad_similarities @ finite_negatives - cross * positive + own * query
    if wanted[1]:
        grad_positive = _own_term(weight * positive_logit, positive_norm) * positive - cross * query
    if wanted[2]:
        grad_negatives = grad_similarities.T @ query
    if wanted[3]:
        expected_logit = (shares * torch.where(absent, 0, logits)).sum(1)
        grad_temperature = -(weight * (expected_logit - positive_logit)).sum() / temperature
    return grad_query, grad_positive, grad_negatives, grad_temperature


def _own_term(weighted_logit: Tensor, norm: Tensor) -> Tensor:
    """The part of the cosine's gradient along the vector itself; none where its norm is clamped, a constant."""
    return torch.where(norm > MINIMUM_NORM, weighted_logit / norm.square(), 0).unsqueeze(1)


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


def _log_sum_exp(logits: Tensor) -> Tensor:
    return torch.logsumexp(logits, 1) if logits.shape[1] else logits.sum(1) - torch.inf


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))
