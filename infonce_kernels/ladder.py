"""The ladder: the rungs from the naive kernel to the fastest, and what each should cost."""

from collections.abc import Callable
from dataclasses import dataclass

from infonce_kernels import kernels
from infonce_kernels.build import CompileReport, KernelLibrary
from infonce_kernels.build import build as build_kernel

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """A prediction. Its bytes assume that every pass over a matrix goes to memory and no element is
    fetched twice within a pass; a cache that holds a matrix from one pass to the next saves more.
    """

    launches: int
    flops: int
    bytes: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.launches + other.launches, self.flops + other.flops, self.bytes + other.bytes
        )


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    `is_kernel` is false for plain PyTorch. `forward_cost(B, N, D)` predicts a forward pass and
    `backward_cost(B, N, D)` all three gradients after it; the rung's file says where the figures
    come from. `tiers` are the precisions of `info_nce` in which the rung computes differently.
    """

    name: str
    teaches: str
    forward_cost: Callable[[int, int, int], Cost]
    backward_cost: Callable[[int, int, int], Cost]
    tiers: tuple[str, ...] = ("ieee",)
    is_kernel: bool = True

    def cost(self, pass_: str, B: int, N: int, D: int) -> Cost:
        """The prediction for pass "forward" or "both", forward and backward."""
        forward = self.forward_cost(B, N, D)
        return forward + self.backward_cost(B, N, D) if pass_ == "both" else forward

    @property
    def source(self) -> str:
        """The CUDA C++ text."""
        return kernels.source(self.name)

    def build(self, backend: str = "auto") -> KernelLibrary | CompileReport:
        """The rung's launchers, built. See `infonce_kernels.build.build`."""
        return build_kernel(self.name, backend)


def _operands(B: int, N: int, D: int) -> int:
    """Bytes of query and negatives, once each: what a product of similarities must read."""
    return FLOAT * (B + N) * D


def _rows(B: int, D: int) -> int:
    """Bytes of query and positive, once each: what the positive logits must read."""
    return FLOAT * 2 * B * D


def _forward(launches: int, passes: float) -> Callable[[int, int, int], Cost]:
    """A forward pass that carries a (B, N) matrix through memory `passes` times."""

    def cost(B: int, N: int, D: int) -> Cost:
        moved = _operands(B, N, D) + _rows(B, D) + int(FLOAT * passes * B * N)
        return Cost(launches, 2 * B * N * D, moved)

    return cost


def _backward(launches: int, passes: float, copies: float = 0.0) -> Callable[[int, int, int], Cost]:
    """Two products, of the (B, N) gradient with either operand; each gradient is written once.

    copies: passes over the negatives besides.
    """

    def cost(B: int, N: int, D: int) -> Cost:
        moved = 2 * _operands(B, N, D) + 2 * _rows(B, D)
        moved += int(FLOAT * (passes * B + copies * D) * N)
        return Cost(launches, 4 * B * N * D, moved)

    return cost


def eager_cost(pass_: str, B: int, N: int, D: int) -> Cost:
    """The prediction for the original model in eager PyTorch, pass "forward" or "both".

    The (B, N) matrix, forward: written by the product; read and written by cat, the division and
    log_softmax. Backward: written by nll_loss; two read and one written by log_softmax; read and
    written by the division; read by each product. Launches were counted by the profiler of torch
    2.11 on an H200.
    """
    forward = _forward(18, 7)(B, N, D)
    return forward + _backward(33, 8)(B, N, D) if pass_ == "both" else forward


# How often a (B, N) matrix passes through memory.
# v0 is right where the original model is not, by more operations. Forward: written by the product;
# read and written by the division and the difference; by the log-sum-exp read for the maximum, read
# and written by the difference and by exp, read for the sum. Backward: all this again; the logits
# compared, replaced where infinite, their softmax replaced likewise, multiplied, divided; read by
# each product; and a copy of the negatives. Its launches are PyTorch's operations, views left out.
# v1 and v2 forward: written, read for the maximum, read for the sum; backward: read, its gradient
# written and read twice. v3 repeats the maximum and the sum in backward: two reads more; and
# PyTorch copies the negatives without infinities: abs reads and writes, the comparison reads and
# writes a byte, where reads both and writes. PyTorch's launches in it were counted by ncu.
LADDER = (
    Rung(
        "v0_reference",
        "the loss in PyTorch: what eager launches and moves",
        _forward(52, 11),
        _backward(93, 24.75, copies=5.5),
        tiers=("ieee", "tf32"),
        is_kernel=False,
    ),
    Rung(
        "v1_naive",
        "one thread an output, uncoalesced, in five launches",
        _forward(5, 3),
        _backward(4, 4),
    ),
    Rung(
        "v2_shared",
        "tiles and tree reductions in shared memory",
        _forward(5, 3),
        _backward(4, 4),
    ),
    Rung(
        "v3_fused",
        "cuBLAS similarities, then one block a query does the rest",
        _forward(2, 3),
        _backward(9, 6, copies=5.5),
        tiers=("ieee", "tf32"),
    ),
)


def least(pass_: str, B: int, N: int, D: int, itemsize: int = FLOAT) -> Cost:
    """What no implementation can do without: operands read and gradients written once, the FLOPs.

    Backward needs two products besides forward's one. itemsize: bytes of an operand's element.
    """
    both = pass_ == "both"
    moved = itemsize * (2 * B + N) * D
    return Cost(1, (6 if both else 2) * B * N * D, 2 * moved if both else moved)


_BY_NAME = {rung.name: rung for rung in LADDER}


def names() -> tuple[str, ...]:
    """Names of the rungs, from the simplest to the fastest."""
    return tuple(_BY_NAME)


def rung(name: str) -> Rung:
    """The rung called `name`. Raises ValueError naming those there are."""
    if name not in _BY_NAME:
        shown = repr(name)[:40]  # it may be a whole kernel text
        raise ValueError(f"rung={shown} is not on the ladder; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
