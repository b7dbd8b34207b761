"""The ladder: the rungs from the naive kernel to the fastest, and what each should cost."""

from collections.abc import Callable
from dataclasses import dataclass

from infonce_kernels import kernels
from infonce_kernels.build import CompileReport, KernelLibrary
from infonce_kernels.build import build as build_kernel

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """A prediction for a forward pass: its bytes are those that perfect caches would move."""

    launches: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    `is_kernel` is false for plain PyTorch. `forward_cost(B, N, D)` predicts a forward pass; the
    rung's file says where the figures come from.
    """

    name: str
    teaches: str
    forward_cost: Callable[[int, int, int], Cost]
    is_kernel: bool = True

    @property
    def source(self) -> str:
        """The CUDA C++ text."""
        return kernels.source(self.name)

    def build(self, backend: str = "auto") -> KernelLibrary | CompileReport:
        """The rung's launchers, built. See `infonce_kernels.build.build`."""
        return build_kernel(self.name, backend)


def _operands(B: int, N: int, D: int) -> int:
    """Bytes of query and negatives, once each: what the product of similarities must read."""
    return FLOAT * (B + N) * D


def _rows(B: int, D: int) -> int:
    """Bytes of query and positive, once each: what the positive logits must read."""
    return FLOAT * 2 * B * D


def _eager(B: int, N: int, D: int) -> Cost:
    # 18 launches, fills and copies: counted by the profiler of torch 2.11 on an H200. The (B, N)
    # matrix is written by the product; read and written by cat, the division and log_softmax.
    return Cost(18, 2 * B * N * D, _operands(B, N, D) + _rows(B, D) + FLOAT * 7 * B * N)


def _separate_kernels(B: int, N: int, D: int) -> Cost:
    # The (B, N) matrix: written by the product, read for the maximum, read for the sum.
    return Cost(5, 2 * B * N * D, _operands(B, N, D) + _rows(B, D) + FLOAT * 3 * B * N)


def _fused(B: int, N: int, D: int) -> Cost:
    return Cost(2, 2 * B * N * D, _operands(B, N, D) + _rows(B, D) + FLOAT * 3 * B * N)


LADDER = (
    Rung(
        "v0_reference",
        "the loss in PyTorch: what eager launches and moves",
        _eager,
        is_kernel=False,
    ),
    Rung("v1_naive", "one thread an output, uncoalesced, in five launches", _separate_kernels),
    Rung("v2_shared", "tiles and tree reductions in shared memory", _separate_kernels),
    Rung("v3_fused", "cuBLAS similarities, then one block a query does the rest", _fused),
)


_BY_NAME = {rung.name: rung for rung in LADDER}


def rung(name: str) -> Rung:
    """The rung called `name`. Raises ValueError naming those there are."""
    if name not in _BY_NAME:
        shown = repr(name)[:40]  # it may be a whole kernel text
        raise ValueError(f"rung={shown} is not on the ladder; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
