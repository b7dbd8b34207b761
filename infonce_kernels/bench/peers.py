"""Other packages that compute the loss, or most of it, each called as its authors mean it.

`pip install 'infonce_kernels[peers]'` brings them; nothing else here needs them. They differ in
what they leave out:

- a linear cross entropy has logits of every query with all negatives, but one of these for target:
  the query's own positive is not there;
- an in-batch loss takes the other queries' positives for negatives, so it has N = B keys.

They also differ in what they are exact about. A setting that makes one skip work (gradients below
a threshold) or wait for the GPU (a check of targets) is off where its authors provide for that.
"""

import math
import os
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import normalize

from infonce_kernels.bench.subjects import Loss, Subject

_REMEDY = "pip install 'infonce_kernels[peers]'"
_NO_POSITIVE = "the query's own positive: the first negative is the target"
_INT32_MAX = 2**31 - 1


@lru_cache(maxsize=1)
def _first(count: int, device: torch.device) -> Tensor:
    """Targets of a linear cross entropy: part of the problem, so not made anew by every call."""
    return torch.zeros(count, dtype=torch.long, device=device)


def _cut_cross_entropy(tier: str, temperature: float) -> Loss:
    from cut_cross_entropy import linear_cross_entropy

    def loss(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        targets = _first(len(query), query.device)
        # Its default leaves out gradients below 2.4e-4, which are almost all at N = 40960.
        return linear_cross_entropy(query / temperature, negatives, targets, filter_eps=None)

    return loss


def _liger_triton(tier: str, temperature: float) -> Loss:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def loss(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        targets = _first(len(query), query.device)
        scaled = query / temperature
        return LigerFusedLinearCrossEntropyFunction.apply(scaled, negatives, targets)[0]

    return loss


def _liger_sm90(tier: str, temperature: float) -> Loss:
    from liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90 import (
        LigerFusedScaledCrossEntropySM90Function,
    )

    # Every call would wait for the GPU to say whether the targets are in range.
    os.environ.setdefault("LIGER_SCALED_CE_SM90_VALIDATE_TARGETS", "0")

    def loss(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        targets = _first(len(query), query.device)
        each = LigerFusedScaledCrossEntropySM90Function.apply(
            query, negatives, targets, temperature
        )
        return each.mean()

    return loss


def _inf_cl(tier: str, temperature: float) -> Loss:
    # The form for one GPU: the others start from here where torch.distributed is not set up.
    from inf_cl import cal_flash_loss

    def loss(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        head = _head(query.shape[1])
        return cal_flash_loss(query, negatives, scale=1 / temperature, head_dim=head).mean()

    return loss


def _memeff(tier: str, temperature: float) -> Loss:
    from memeff import MemoryEfficientQwen3Loss

    # Of its losses the one with a softmax over the keys alone. A margin of 2 or more masks no
    # negative; "stable" would scale the gradients by sqrt(B * temperature).
    module = MemoryEfficientQwen3Loss(
        temperature=temperature, margin=4.0, normalized_inputs=True, stable=False
    )

    def loss(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        return module(query, negatives)

    return loss


def _info_nce_pytorch(tier: str, temperature: float) -> Loss:
    from info_nce import info_nce

    def loss(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        return info_nce(query, positive, negatives, temperature=temperature)

    return loss


def _against_first(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    logits = (query / temperature) @ negatives.T
    return (torch.logsumexp(logits, 1) - logits[:, 0]).mean()


def _against_diagonal(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    logits = (query / temperature) @ negatives.T
    return (torch.logsumexp(logits, 1) - logits.diagonal()).mean()


def _normalised(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    # The value is that of info_nce for rows of norm 1; the gradients have no radial part.
    query, positive, negatives = (normalize(x, dim=1) for x in (query, positive, negatives))
    positive_logits = (query * positive).sum(1) / temperature
    log_sum_exp = torch.logsumexp((query / temperature) @ negatives.T, 1)
    return (torch.logaddexp(log_sum_exp, positive_logits) - positive_logits).mean()


def _offsets_overflow(B: int, N: int, D: int, pass_: str) -> str | None:
    if max(B, N) * D > _INT32_MAX:
        return "its offsets have 32 bits: B * D and N * D must be below 2**31"
    return None


def _head(D: int) -> int:
    """Inf-CL cuts a row into heads of the same size: the largest power of two up to 256."""
    return math.gcd(D, 256)


def _inf_cl_cannot(B: int, N: int, D: int, pass_: str) -> str | None:
    if N < B:
        return "query i has key i for target: needs N >= B"
    if _head(D) < 16:
        return "its heads have at least 16 features: D must be a multiple of 16"
    return _offsets_overflow(B, N, D, pass_)


def _memeff_cannot(B: int, N: int, D: int, pass_: str) -> str | None:
    if N != B:
        return "in-batch only: needs N = B"
    if D < 64 and D not in (16, 32):
        return "D must be 16, 32 or at least 64"
    return _offsets_overflow(B, N, D, pass_)


# What a peer refuses by itself at one tier fails there in its own words: the backward pass of
# cut_cross_entropy in float32; that of memeff in float32 at 256 < D <= 1024, whose tiles need more
# shared memory than an SM has.
PEERS = (
    Subject(
        name="cut_cross_entropy",
        kind="peer",
        make=_cut_cross_entropy,
        tiers=("ieee", "tf32", "bf16"),
        leaves_out=_NO_POSITIVE,
        distribution="cut-cross-entropy",
        cannot=_offsets_overflow,
        expected=_against_first,
    ),
    Subject(
        name="liger",
        kind="peer",
        make=_liger_triton,
        tiers=("ieee", "tf32", "bf16"),
        leaves_out=_NO_POSITIVE,
        distribution="liger-kernel",
        expected=_against_first,
    ),
    Subject(
        name="liger_sm90",
        kind="peer",
        make=_liger_sm90,
        tiers=("bf16",),
        leaves_out=_NO_POSITIVE,
        distribution="liger-kernel",
        expected=_against_first,
    ),
    Subject(
        name="inf_cl",
        kind="peer",
        make=_inf_cl,
        # bfloat16 is turned into float32 first; its products are TF32 always.
        tiers=("tf32", "bf16"),
        leaves_out="the query's own positive: negative i is the target of query i",
        distribution="inf-cl",
        cannot=_inf_cl_cannot,
        expected=_against_diagonal,
    ),
    Subject(
        name="memeff",
        kind="peer",
        make=_memeff,
        tiers=("tf32", "bf16"),
        leaves_out="separate negatives: the keys are the positives of the batch",
        distribution="memeff",
        cannot=_memeff_cannot,
        expected=_against_diagonal,
    ),
    Subject(
        name="info_nce_pytorch",
        kind="peer",
        make=_info_nce_pytorch,
        tiers=("ieee", "tf32", "bf16"),
        distribution="info-nce-pytorch",
        expected=_normalised,
    ),
)

# What each imports. Triton comes with CUDA builds of PyTorch, CUTLASS's Python with the extra.
_MODULES = {
    "cut_cross_entropy": ("cut_cross_entropy", "triton"),
    "liger": ("liger_kernel", "triton"),
    "liger_sm90": ("liger_kernel", "triton", "cutlass"),
    "inf_cl": ("inf_cl", "triton"),
    "memeff": ("memeff", "triton"),
    "info_nce_pytorch": ("info_nce",),
}


def missing(subject: Subject) -> str | None:
    """Why a peer cannot be measured on this machine at all, with the remedy, in a line; or None.

    None too for what is no peer. Nothing is imported.
    """
    for module in _MODULES.get(subject.name, ()):
        if find_spec(module) is None:
            return f"module {module} is not installed: {_REMEDY}"
    if subject.name == "liger_sm90" and (found := _capability()) != (9, 0):
        return f"needs a GPU of compute capability 9.0; here: {_text(found)}"
    return None


def _capability() -> tuple[int, int] | None:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def _text(capability: tuple[int, int] | None) -> str:
    return "no GPU" if capability is None else "{}.{}".format(*capability)
