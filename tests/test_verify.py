"""`verify` must pass what is right, and above all fail what is wrong."""

import math

import pytest

from infonce_kernels import build, kernels, source, verify
from infonce_kernels.verify import LIMITS, PROBLEMS, Check, Report
from tests.paths import KERNELS

SMALL = PROBLEMS[:2]


def broken(old, new, rung="v3_fused"):
    text = source(rung)
    assert old in text
    return build(text.replace(old, new), "emulator")


@pytest.mark.parametrize("rung", KERNELS)
def test_every_rung_is_right_on_the_emulator(rung):
    report = verify(rung, "emulator")
    assert [check.pass_ for check in report] == ["forward", "backward"]
    assert report.passed, report


@pytest.mark.cuda
def test_every_rung_is_right_on_cuda():
    report = verify(backend="cuda")
    assert {check.rung for check in report} == set(KERNELS)
    assert report.passed, report


def test_plain_pytorch_is_right():
    assert verify("v0_reference").passed


@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ("return s_sum[0];", "return s_sum[0] * 1.001f;", "forward"),
        (" - cosine.positive_self * p", "", "backward"),
        ("loss[i] = softplus", "loss[0] = softplus", "forward"),  # the other rows stay unwritten
        ("j += kThreads) sum +=", "j += kThreads) if (j > 0) sum +=", "forward"),
        ("= grad_excess * share", "= share", "backward"),
    ],
)
def test_a_wrong_kernel_fails(old, new, failing):
    report = verify(broken(old, new), problems=SMALL)
    assert failing in [check.pass_ for check in report if not check.passed], report


@pytest.mark.parametrize(
    ("rung", "old", "new"),
    [
        # A maximum that misses columns, starts too high, or is read before it is complete.
        (
            "v3_fused",
            "j < N; j += kThreads) maximum",
            "j < N && j < kThreads; j += kThreads) maximum",
        ),
        ("v3_fused", "fmaxf(-FLT_MAX, result.positive_logit)", "0.0f"),
        ("v3_fused", "s_max[t] = maximum;\n  __syncthreads();", "s_max[t] = maximum;"),
        ("v1_naive", "fmaxf(-FLT_MAX, positive_logits[i])", "0.0f"),
        ("v1_naive", "return __fmul_rn", "return 1.00001f * __fmul_rn"),
        # A shared buffer that is used again while slow threads still read it.
        ("v2_shared", "  __syncthreads();  // everyone has read the result", "  // everyone has"),
    ],
)
def test_subtly_wrong_kernels_fail(rung, old, new):
    text = source(rung)
    if old not in text:  # it stands in the header that the rungs share
        include = '#include "infonce.cuh"'
        text = text.replace(include, (kernels.FOLDER / "infonce.cuh").read_text())
    assert old in text
    library = build(text.replace(old, new), "emulator")
    assert not verify(library, problems=PROBLEMS[:-1]).passed


def test_the_same_text_from_elsewhere_passes():
    assert verify(build(source("v3_fused"), "emulator"), problems=SMALL).passed


def test_a_kernel_that_gives_nan_fails():
    report = verify(broken("return s_sum[0];", "return NAN;"), problems=SMALL)
    assert not report.passed
    assert math.isnan(report[0].error)
    assert report[0].verdict == "wrong"


def test_a_kernel_that_crashes_is_a_row_that_says_so():
    report = verify(broken("query += i * D;", "query += 1ll << 45;"), problems=SMALL)
    assert not report.passed
    assert "v3_fused" in report[0].verdict or "Error" in report[0].verdict


def test_a_nan_at_the_first_problem_stays_the_worst():
    """Of the two problems only the first has more than one negative; the second is right."""
    report = verify(
        broken("return s_sum[0];", "return gridDim.x == 33 ? NAN : s_sum[0];"), problems=SMALL
    )
    assert math.isnan(report[0].error)
    assert report[0].problem == SMALL[0].name


def test_bad_calls_are_named():
    with pytest.raises(ValueError, match="rung='v9'"):
        verify("v9")
    with pytest.raises(ValueError, match="backend='gpu'"):
        verify(backend="gpu")
    with pytest.raises(ValueError, match="built for 'emulator'"):
        verify(build("v3_fused", "emulator"), "cuda")
    with pytest.raises(ValueError, match="nothing that runs"):
        verify("v0_reference", "emulator")


def test_an_empty_report_has_not_passed():
    assert not Report().passed


def test_the_table_names_rung_backend_error_and_verdict():
    report = Report(
        [Check("v1_naive", "emulator", "forward", 2e-7, LIMITS["forward"], "odd sizes")]
    )
    lines = repr(report).splitlines()
    assert "max error" in lines[0]
    assert all(word in lines[2] for word in ("v1_naive", "emulator", "2.0e-07", "right"))
