import pytest
import torch

from infonce_kernels.bench import run as bench_run
from infonce_kernels.bench.records import Run
from infonce_kernels.bench.timing import OverLimit, Times


class HostTimer:
    """Stands in for the GPU's timer: every call takes `seconds`, and none is measured."""

    limit_s = 1.0
    waited = False

    def __init__(self, seconds=1e-3, calls=20):
        self.seconds = seconds
        self.calls = calls

    def warm_up(self, call):
        call()
        if self.seconds > self.limit_s:
            raise OverLimit(self.seconds)
        return self.seconds

    def cold(self, call, seconds):
        for _ in range(self.calls):
            call()
        ms = 1e3 * self.seconds
        return Times(ms, 0.9 * ms, 1.1 * ms, self.calls, self.waited)

    wall = cold

    def graph(self, call, seconds):
        return self.cold(call, seconds), call()

    def sustained(self, call, seconds):
        return 1e3 * self.seconds

    def peak_bytes(self, call):
        call()
        return 4096

    def synchronize(self):
        pass


@pytest.fixture
def timer():
    return HostTimer()


@pytest.fixture
def machine():
    """A GPU of round numbers: 1 TB/s, and 10 TFLOP/s in float32."""
    return Run(
        number=1, date="2026-12-01", gpu="NVIDIA Test", driver="1", cuda="13.0", torch="2.11",
        python="3.12", clocks="", commit="abc", timer="", l2="", peak_tbps=1.2, copy_tbps=1.0,
        matrix_tflops={"ieee": 10.0, "tf32": 80.0, "bf16": 160.0},
    )  # fmt: skip


@pytest.fixture
def on_cpu(monkeypatch):
    """Sweeps draw their operands on the CPU."""

    def operands(B, D, N):
        generator = torch.Generator().manual_seed(B + D + N)
        rows = (torch.randn(n, D, generator=generator) for n in (B, B, N))
        return tuple(torch.nn.functional.normalize(x, dim=1) for x in rows)

    monkeypatch.setattr(bench_run, "operands", operands)
