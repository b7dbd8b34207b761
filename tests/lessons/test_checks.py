"""The exercises' checks must catch the answers that learners really give."""

import re

import jupytext
import pytest
import torch

from infonce_kernels import source
from infonce_kernels.lessons import SOURCES
from infonce_kernels.lessons.checks import (
    check_accuracy,
    check_log_sum_exp,
    check_row_sums,
    check_stable_loss,
)


def solution(lesson: str) -> dict:
    """What the names of a lesson's exercise hold once its solution has run."""
    cells = jupytext.read(SOURCES / f"{lesson}.md").cells
    names = {"source": source, "torch": torch}
    for role in ("exercise", "solution"):
        (cell,) = (c for c in cells if role in c.metadata.get("tags", []))
        exec(cell.source, names)
    return names


def edited(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


def shifted(positive, negatives):
    logits = torch.cat([positive.unsqueeze(1), negatives], 1)
    return torch.logsumexp(logits, 1) - positive


def hides_nan(positive, negatives):
    excess = torch.logsumexp(negatives.nan_to_num(0.0), 1) - positive
    return torch.logaddexp(excess, torch.zeros_like(excess))


def maximum_of_everything(positive, negatives):
    largest = negatives.max()
    excess = largest + (negatives - largest).exp().sum(1).log() - positive
    return torch.logaddexp(excess, torch.zeros_like(excess))


@pytest.mark.parametrize(
    ("loss", "hint"),
    [
        (shifted, "close positive"),
        (hides_nan, "NaN"),
        (lambda p, n: torch.nn.functional.softplus(n.logsumexp(1) - p.nan_to_num()), "NaN"),
        (maximum_of_everything, "large logits"),
        (lambda p, n: torch.nn.functional.softplus(n.exp().sum(1).log() - p), "large logits"),
        (lambda p, n: (n.logsumexp(1) - p).mean(), "shape"),
    ],
)
def test_losses_that_do_not_survive(loss, hint):
    verdict = check_stable_loss(loss)
    assert not verdict
    assert hint in repr(verdict)


def test_the_first_solution_passes():
    assert check_stable_loss(solution("00_start_here")["loss"])


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ([("  if (row >= rows) return;\n", "")], "illegal address"),
        ([("-FLT_MAX", "-INFINITY")], "-inf"),
        ([("-FLT_MAX", "0.0f")], "around -300"),
        ([("-FLT_MAX", "-2000.0f")], "around -100000"),
        ([("j < columns; ++j) sum", "j < columns - 1; ++j) sum")], "1 x 1"),
        (
            [("expf(mine[j] - maximum)", "(mine[j] == mine[j] ? expf(mine[j] - maximum) : 0)")],
            "NaN",
        ),
        ([("maximum + logf(sum)", "logf(sum)")], "1 x 1"),
    ],
)
def test_wrong_log_sum_exps(changes, hint):
    text = solution("01_naive")["text"]
    assert check_log_sum_exp(text)
    verdict = check_log_sum_exp(edited(text, *changes))
    assert not verdict
    assert hint in repr(verdict)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ([("  __syncthreads();\n  for", "  for")], "lane order"),
        ([("    __syncthreads();\n  }", "  }")], "lane order"),
        ([("kThreads / 2", "kThreads / 4")], "2 x 255"),
        (
            [("j = t; j < columns; j += kThreads", "j = t; j < columns; j += 2 * kThreads")],
            "2 x 257",
        ),
        (
            [("float sum = 0.0f;", "if (t >= columns) return;\n  float sum = 0.0f;")],
            "returned before",
        ),
        ([("row[j];", "row[j] == row[j] ? row[j] : 0.0f;")], "NaN"),
        ([("if (t == 0) sums[", "sums[t + 0 * ")], "illegal address"),
        ([("stride];\n    __syncthreads();", "stride], __syncthreads();")], "before __syncthreads"),
    ],
)
def test_wrong_row_sums(changes, hint):
    text = solution("02_shared_memory")["text"]
    assert check_row_sums(text)
    verdict = check_row_sums(edited(text, *changes))
    assert not verdict
    assert hint in repr(verdict)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        (
            [("row.positive_logit > row.largest_negative", "row.positive_logit >= row.maximum")],
            "a tie",
        ),
        (
            [("row.positive_logit > row.largest_negative", "row.positive_logit > row.maximum")],
            "correct",
        ),
        ([("? 1.0f : 0.0f", "? 1.0f : 0.5f")], "correct"),
        ([("correct[i] =", "correct[0] =")], "correct"),
        ([("correct[i] =", "correct[i + 1] =")], "illegal address"),
        (
            [("result.largest_negative = s_max[0];", "result.largest_negative = maximum;")],
            "correct",
        ),
        ([("float maximum = -FLT_MAX;", "float maximum = 0.0f;")], "negative logits alone"),
        ([("loss[i] = softplus", "loss[i] = 2.0f * softplus")], "loss"),
    ],
)
def test_wrong_accuracies(changes, hint):
    text = solution("03_fused")["text"]
    assert check_accuracy(text)
    verdict = check_accuracy(edited(text, *changes))
    assert not verdict
    assert hint in repr(verdict)


def test_an_answer_that_does_not_compile_is_a_verdict_with_its_line():
    verdict = check_log_sum_exp(edited(solution("01_naive")["text"], ("logf(sum)", "logf(summ)")))
    assert not verdict
    assert re.search(r"exercise\.cu:\d+: error: .*summ", repr(verdict))
