"""What can be timed: every rung, the call that chooses one, and the baselines in plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from infonce_kernels import ladder, reference
from infonce_kernels.ladder import Cost
from infonce_kernels.loss import automatic_rung, info_nce

# query (B, D), positive (B, D), negatives (N, D) -> mean loss, a scalar.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

PASSES = ("forward", "both")
DTYPES = {
    "ieee": torch.float32,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
TIERS = tuple(DTYPES)
# For readers.
PASS_NAMES = {"forward": "forward", "both": "forward and backward"}
TIER_NAMES = {
    "ieee": "float32",
    "fp32": "split float32",
    "tf32": "TF32",
    "bf16": "bfloat16",
    "fp16": "float16",
}


def _everywhere(B: int, N: int, D: int, pass_: str) -> str | None:
    return None


@dataclass(frozen=True)
class Subject:
    """Something that computes the loss, or most of it, and can be timed.

    kind: "rung", "baseline" or "peer", another package. make: (tier, temperature) -> the function
    to time. leaves_out: what of the loss it does not do. cannot: (B, N, D, pass) -> why it does not
    run there, or None. expected: (query, positive, negatives, temperature), float64 -> the mean of
    what it computes, where that is not `info_nce`. each: (tier, temperature) -> the function that
    gives each query's loss (B,), where there is one: a mean hides a wrong query among many right
    ones. cost: (pass, B, N, D) -> what it moves in float32, where that is known. distribution: the
    package whose version is recorded.
    """

    name: str
    kind: str
    make: Callable[[str, float], Loss]
    tiers: tuple[str, ...]
    leaves_out: str = ""
    distribution: str = ""
    cannot: Callable[[int, int, int, str], str | None] = _everywhere
    expected: Callable[[Tensor, Tensor, Tensor, float], Tensor] | None = None
    each: Callable[[str, float], Loss] | None = None
    cost: Callable[[str, int, int, int], Cost] | None = None


def _rung(name: str, reduction: str = "mean") -> Callable[[str, float], Loss]:
    def make(tier: str, temperature: float) -> Loss:
        return partial(
            info_nce, temperature=temperature, rung=name, precision=tier, reduction=reduction
        )

    return make


def _eager(tier: str, temperature: float) -> Loss:
    return reference.Model(temperature)


def _compiled(tier: str, temperature: float) -> Loss:
    # What was compiled for other sizes would turn this one into a program for any size.
    torch.compiler.reset()
    return torch.compile(reference.Model(temperature), dynamic=False)


def _strongest(tier: str, temperature: float) -> Loss:
    return partial(strongest, temperature=temperature)


def strongest(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """The strongest form in plain PyTorch: one product, one fused cross entropy.

    Cross entropy against any one column is the log-sum-exp less that column's logit. The positive
    joins afterwards, as two numbers a query, so no (B, N) matrix is copied to make room for it.
    """
    logits = (query / temperature) @ negatives.T
    first = torch.zeros(len(query), dtype=torch.long, device=query.device)
    log_sum_exp = F.cross_entropy(logits, first, reduction="none") + logits[:, 0]
    positive_logit = F.cosine_similarity(query, positive) / temperature
    return F.softplus(log_sum_exp - positive_logit).mean()


def _subject(name: str, tiers: tuple[str, ...], rung: ladder.Rung) -> Subject:
    return Subject(name, "rung", _rung(name), tiers, each=_rung(name, "none"), cost=rung.cost)


RUNGS = tuple(_subject(rung.name, rung.tiers, rung) for rung in ladder.LADDER)
_AUTOMATIC = ladder.rung(automatic_rung(True, torch.float32))
AUTO = _subject("auto", ("ieee", "tf32", "bf16"), _AUTOMATIC)
EAGER = Subject("eager", "baseline", _eager, ("ieee", "tf32", "bf16"), cost=ladder.eager_cost)
COMPILE = Subject("compile", "baseline", _compiled, EAGER.tiers)
STRONGEST = Subject("strongest", "baseline", _strongest, EAGER.tiers)
