"""Whether what was timed is right: the truth in float64, on the GPU, at any size."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from infonce_kernels.bench.subjects import Subject


@dataclass(frozen=True)
class Limits:
    """The largest relative errors allowed: of the mean loss, of any query's, and of a gradient.

    A gradient's is that of the difference's norm to the norm.
    """

    mean: float
    query: float
    gradient: float


# Some ten times what PyTorch's own float32 reached on an H200. TF32 keeps 10 bits of a factor,
# bfloat16 7; and eager PyTorch rounds every intermediate result to bfloat16 too.
LIMITS = {
    "ieee": Limits(1e-6, 1e-5, 1e-4),
    "fp32": Limits(1e-6, 1e-5, 1e-4),
    "tf32": Limits(1e-5, 1e-3, 3e-3),
    "bf16": Limits(1e-2, 3e-2, 1e-1),
    "fp16": Limits(2e-3, 5e-3, 2e-2),
}


@dataclass(frozen=True)
class Expected:
    """What is right. mean: the loss; losses (B,): each query's, where it is known; gradients: of
    query, positive and negatives, None where there is none, and empty where none were asked for."""

    mean: Tensor
    losses: Tensor | None = None
    gradients: tuple[Tensor | None, ...] = ()


@dataclass(frozen=True)
class Errors:
    """Relative errors, as in `Limits`; NaN where a result is, 0 for what was not asked for."""

    mean: float
    query: float = 0.0
    gradient: float = 0.0

    @property
    def largest(self) -> float:
        return largest([self.mean, self.query, self.gradient])

    def within(self, limits: Limits) -> bool:
        """A NaN is within no limit."""
        return (
            self.mean <= limits.mean
            and self.query <= limits.query
            and self.gradient <= limits.gradient
        )


def expected(
    operands: tuple[Tensor, Tensor, Tensor], temperature: float, pass_: str, subject: Subject
) -> Expected:
    """The truth of what `subject` computes on these operands."""
    leaves = [x.detach().double().requires_grad_(pass_ == "both") for x in operands]
    if subject.expected is None:
        return _info_nce(*leaves, temperature)
    mean = subject.expected(*leaves, temperature)
    if pass_ == "forward":
        return Expected(mean)
    gradients = torch.autograd.grad(mean, leaves, allow_unused=True)
    return Expected(mean.detach(), None, gradients)


def _info_nce(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> Expected:
    """The definition of `reference.truth`, a chunk of rows at a time so that any size fits."""
    losses = []
    for q, p in zip(*(x.split(_chunk(len(negatives), x)) for x in (query, positive)), strict=True):
        log_sum_exp = torch.logsumexp(q @ negatives.T / temperature, 1)
        excess = log_sum_exp - F.cosine_similarity(q, p) / temperature
        losses.append(torch.logaddexp(excess, torch.zeros_like(excess)))
        if query.requires_grad:
            (losses[-1].sum() / len(query)).backward()
            losses[-1] = losses[-1].detach()
    each = torch.cat(losses)
    gradients = tuple(x.grad for x in (query, positive, negatives) if x.requires_grad)
    return Expected(each.mean(), each, gradients)


def _chunk(N: int, x: Tensor) -> int:
    """Rows at a time: six matrices of them and N columns in float64 take half of what is free."""
    free = torch.cuda.mem_get_info(x.device)[0] if x.is_cuda else 1 << 33
    return max(1, min(free // 2, 6 << 30) // (6 * 8 * max(N, 1)))


def errors(result: Tensor | tuple[Tensor | None, ...], truth: Expected) -> Errors:
    """Of a mean loss, or of a mean loss and the three gradients."""
    mean, *gradients = result if isinstance(result, tuple) else (result,)
    of_gradients = [
        _in_norm(got, true) for got, true in zip(gradients, truth.gradients, strict=True)
    ]
    return Errors(_relative(mean, truth.mean), gradient=largest(of_gradients))


def query_error(losses: Tensor, truth: Expected) -> float:
    """The worst query's relative error; losses (B,)."""
    return _relative(losses, truth.losses)


def _relative(got: Tensor, true: Tensor) -> float:
    return ((got.double() - true) / true).abs().max().item()


def _in_norm(got: Tensor | None, true: Tensor | None) -> float:
    """Infinite for a gradient that is not there, or should not be."""
    if got is None or true is None:
        present = true if got is None else got
        return math.inf if present is not None and present.count_nonzero() else 0.0
    return ((got.double() - true).norm() / true.norm()).item()


def largest(values: list[float]) -> float:
    """0 for none; NaN where one is NaN, which Python's max would overlook."""
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)
