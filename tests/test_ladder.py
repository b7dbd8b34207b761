"""The cost models against what PyTorch's operations read and write."""

import pytest
import torch

from infonce_kernels import info_nce, ladder
from infonce_kernels.lessons.operations import Operations
from infonce_kernels.reference import Model

B, N, D = 256, 8192, 4  # so that nothing but the (B, N) matrices counts
MATRIX = ladder.FLOAT * B * N

# What an operation is said to touch and does not: nll_loss picks one number of each row, and its
# backward only writes.
UNTOUCHED = {"nll_loss_forward": 1, "nll_loss_backward": 1}
# PyTorch's kernels for a log-sum-exp, one operation: the maximum is read; the difference and exp
# read and write; the sum is read. The operation itself is said to read once.
HIDDEN = {"logsumexp": 5}


def passes(loss, both):
    """How often (B, N) matrices pass through memory."""
    leaves = [torch.randn(n, D).requires_grad_(both) for n in (B, B, N)]
    with torch.set_grad_enabled(both), Operations() as operations:
        value = loss(*leaves)
        if both:
            torch.autograd.grad(value, leaves)
    moved = sum(read + written for _, read, written in operations.rows)
    names = [name for name, _, _ in operations.rows]
    hidden = sum(HIDDEN.get(name, 0) - UNTOUCHED.get(name, 0) for name in names)
    return moved / MATRIX + hidden


@pytest.mark.parametrize("both", [False, True])
def test_eager_moves_what_is_predicted(both):
    predicted = ladder.eager_cost("both" if both else "forward", B, N, D).bytes / MATRIX
    assert passes(Model(0.1), both) == pytest.approx(predicted, abs=0.3)


@pytest.mark.parametrize("both", [False, True])
def test_v0_moves_what_is_predicted(both):
    def loss(*operands):
        return info_nce(*operands, rung="v0_reference", precision="ieee")

    predicted = ladder.rung("v0_reference").cost("both" if both else "forward", B, N, D).bytes
    # In backward autograd's own log-sum-exp is the same four kernels again.
    assert passes(loss, both) == pytest.approx(predicted / MATRIX, abs=0.6)


def test_what_nobody_can_do_without():
    # 2 B N D FLOPs and the operands once; backward two products more, and the gradients written.
    assert ladder.least("forward", 3, 5, 7).flops == 2 * 3 * 5 * 7
    assert ladder.least("both", 3, 5, 7).flops == 6 * 3 * 5 * 7
    assert ladder.least("forward", 3, 5, 7, itemsize=2).bytes == 2 * (3 + 3 + 5) * 7
    assert ladder.least("both", 3, 5, 7).bytes == 2 * 4 * (3 + 3 + 5) * 7
