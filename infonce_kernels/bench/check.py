"""Whether what was timed is right: the truth in float64, on the GPU, at any size."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from infonce_kernels.bench.subjects import Subject

# Largest relative error allowed, of the mean loss and, in norm, of a gradient. TF32 keeps 10 bits
# of a factor, bfloat16 7, and eager PyTorch rounds every intermediate result to bfloat16 too.
LIMITS = {
    "ieee": (1e-5, 1e-4),
    "fp32": (1e-5, 1e-4),
    "tf32": (1e-4, 1e-2),
    "bf16": (1e-2, 1e-1),
    "fp16": (2e-3, 2e-2),
}
_CHUNK = 1 << 27  # logits at a time: 1 GiB in float64


@dataclass(frozen=True)
class Expected:
    """The mean loss, and the gradients of query, positive and negatives where they were asked."""

    loss: Tensor
    gradients: tuple[Tensor | None, ...] = ()


def expected(
    operands: tuple[Tensor, Tensor, Tensor], temperature: float, pass_: str, subject: Subject
) -> Expected:
    """The truth of what `subject` computes on these operands."""
    leaves = [x.detach().double().requires_grad_(pass_ == "both") for x in operands]
    if subject.expected is None:
        return _info_nce(*leaves, temperature)
    loss = subject.expected(*leaves, temperature)
    if pass_ == "forward":
        return Expected(loss)
    return Expected(loss.detach(), torch.autograd.grad(loss, leaves, allow_unused=True))


def _info_nce(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> Expected:
    """The definition of `reference.truth`, a chunk of rows at a time so that any size fits."""
    B, N = len(query), len(negatives)
    loss = query.new_zeros(())
    for rows in torch.arange(B, device="cpu").split(max(1, _CHUNK // max(N, 1))):
        q, p = query[rows[0] : rows[-1] + 1], positive[rows[0] : rows[-1] + 1]
        log_sum_exp = torch.logsumexp(q @ negatives.T / temperature, 1)
        excess = log_sum_exp - F.cosine_similarity(q, p) / temperature
        part = torch.logaddexp(excess, torch.zeros_like(excess)).sum() / B
        if part.requires_grad:
            part.backward()
        loss += part.detach()
    return Expected(loss, tuple(x.grad for x in (query, positive, negatives) if x.requires_grad))


def error(result: Tensor | tuple[Tensor, ...], truth: Expected) -> tuple[float, float]:
    """Relative error of the loss, and the largest of the gradients in norm (0 for no gradients)."""
    loss, *gradients = result if isinstance(result, tuple) else (result,)
    of_loss = ((loss.double() - truth.loss) / truth.loss).abs().item()
    of_gradients = [
        ((got.double() - true).norm() / true.norm()).item()
        for got, true in zip(gradients, truth.gradients, strict=True)
        if got is not None and true is not None
    ]
    return of_loss, max(of_gradients, default=0.0)


def is_right(errors: tuple[float, float], tier: str) -> bool:
    """Whether both errors are within the tier's limits. A NaN is not."""
    return all(value <= limit for value, limit in zip(errors, LIMITS[tier], strict=True))
