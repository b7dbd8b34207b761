"""The program that `counters` runs under ncu: one call of a rung between the profiler's marks.

python -m infonce_kernels.bench.profiled RUNG PASS TIER B N D
"""

import sys

import torch

from infonce_kernels.bench.run import TEMPERATURE, operands
from infonce_kernels.bench.setting import matmul_setting
from infonce_kernels.bench.subjects import DTYPES
from infonce_kernels.loss import info_nce


def run(rung: str, pass_: str, tier: str, B: int, N: int, D: int) -> None:
    """Each query's loss, and for "both" its three gradients: once to warm up, once to be counted.

    The losses are not averaged, because the mean is PyTorch's and no rung's.
    """
    both = pass_ == "both"
    inputs = [x.to(DTYPES[tier]).requires_grad_(both) for x in operands(B, D, N)]
    grad_loss = torch.ones(B, device="cuda")

    def call() -> None:
        losses = info_nce(*inputs, TEMPERATURE, reduction="none", precision=tier, rung=rung)
        if both:
            torch.autograd.grad(losses, inputs, grad_loss)

    with matmul_setting(tier):
        call()
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():
            call()
            torch.cuda.synchronize()


if __name__ == "__main__":
    run(*sys.argv[1:4], *map(int, sys.argv[4:7]))
