"""Excerpts of kernel text, and the list of what PyTorch runs."""

import pytest
import torch

from infonce_kernels import source
from infonce_kernels.lessons import data, operations, show

TEXT = """\
// Unrelated.

// Adds one.
template <int kStep>
__global__ void add(float* x) {
  if (x) {
    x[0] += kStep;
  }
}

__global__ void __launch_bounds__(32)
    wrapped(float* x) {
  add<1>(x);
}

__device__ int one_line() { return 1; }

void declared(int);
"""


def test_a_function_comes_with_its_comment_and_its_whole_body():
    assert (
        show.function_text(TEXT, "add")
        == TEXT[TEXT.index("// Adds") : TEXT.index("\n\n__global__")]
    )
    assert show.function_text(TEXT, "wrapped").startswith("__global__ void __launch_bounds__(32)\n")
    assert show.function_text(TEXT, "wrapped").endswith("add<1>(x);\n}")
    assert show.function_text(TEXT, "one_line") == "__device__ int one_line() { return 1; }"


@pytest.mark.parametrize("name", ["missing", "declared", "ad"])
def test_what_is_not_defined_is_named(name):
    with pytest.raises(ValueError, match=name):
        show.function_text(TEXT, name)


@pytest.mark.parametrize("rung", ["v1_naive", "v2_shared", "v3_fused"])
def test_every_launcher_can_be_shown(rung):
    for name in ("infonce_forward", "infonce_backward"):
        text = show.function_text(source(rung), name)
        assert text in source(rung)
        assert text.count("{") == text.count("}")


def test_changes_are_a_diff():
    shown = show.changes(("v1_naive", "maximum_kernel"), ("v2_shared", "maximum_kernel")).data
    assert "+  __shared__ float shared[kThreads];" in shown
    assert "-  if (i >= B) return;" in shown


def test_operations_list_what_moves_and_leave_out_views():
    x, y = torch.ones(10, 4), torch.ones(4, 6)
    with operations.Operations() as listed:
        x.T.contiguous().view(-1)
        x @ y
    assert listed.rows == [("clone", 160, 160), ("mm", 160 + 96, 240)]


def test_the_original_model_moves_the_matrix_of_logits_seven_times():
    query, positive, negatives = data.original()
    matrix = 4 * len(query) * len(negatives)
    rows = operations.of_model(query, positive, negatives).rows
    moved = sum((read >= matrix) + (written >= matrix) for _, read, written in rows)
    # One of the reads is of the product's operands, one gathers a single logit of each row.
    assert moved - 2 == 7


def test_digits_are_normalised_and_the_positive_is_near():
    query, positive, negatives = data.digits()
    assert query.shape == positive.shape == (256, 64)
    assert negatives.shape == (1541, 64)
    for x in (query, positive, negatives):
        torch.testing.assert_close(x.norm(dim=1), torch.ones(len(x)))
    own = (query * positive).sum(1)
    assert (own > (query @ negatives.T).median(1).values).all()
