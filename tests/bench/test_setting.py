"""PyTorch's setting comes back, whichever of its two interfaces the program has used."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, warnings
import torch
from infonce_kernels.bench.setting import matmul_setting

warnings.simplefilter("ignore")


def answer(getter):
    try:
        return getter()
    except RuntimeError:
        return "raises"


def state():
    return [answer(getter) for getter in (
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
        lambda: torch.backends.cuda.matmul.allow_tf32,
        torch.get_float32_matmul_precision,
        lambda: torch.backends.fp32_precision,
    )]


exec(sys.argv[1])
before = state()
for tier, wanted in (("tf32", "tf32"), ("ieee", "ieee"), ("bf16", "ieee")):
    with matmul_setting(tier):
        assert torch.backends.cuda.matmul.fp32_precision == wanted, (tier, state())
    assert state() == before, (tier, before, state())
"""


@pytest.mark.parametrize(
    "start",
    [
        "",
        "torch.set_float32_matmul_precision('high')",
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
        "torch.backends.fp32_precision = 'tf32'",
    ],
)
def test_it_comes_back(start):
    import torch

    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this PyTorch has one interface only")
    result = subprocess.run([sys.executable, "-c", PROGRAM, start], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
