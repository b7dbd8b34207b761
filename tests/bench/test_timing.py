"""The timer against a clock of its own: a kernel that waits until the GPU's nanoseconds are up."""

import ctypes

import pytest
import torch

from infonce_kernels import build
from infonce_kernels.bench import ceilings, run, sizes, subjects
from infonce_kernels.bench.records import Row
from infonce_kernels.bench.setting import matmul_setting
from infonce_kernels.bench.subjects import EAGER, Subject
from infonce_kernels.bench.timing import OverLimit, Timer
from infonce_kernels.reference import Model

WAIT = r"""
#include <cuda_runtime.h>

__device__ inline unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void wait_kernel(long long duration) {
  const unsigned long long end = nanoseconds() + duration;
  while (nanoseconds() < end) {}
}

extern "C" cudaError_t spin(long long duration, cudaStream_t stream) {
  wait_kernel<<<1, 1, 0, stream>>>(duration);
  return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def wait():
    """Keeps the GPU's current stream busy for that many milliseconds."""
    launcher = build(WAIT, "cuda", name="wait").launchers["spin"]
    return lambda ms: launcher(int(ms * 1e6))


@pytest.fixture(scope="module")
def gpu_timer():
    return Timer()


@pytest.mark.cuda
def test_fifty_milliseconds_read_as_fifty(wait, gpu_timer):
    seconds = gpu_timer.warm_up(lambda: wait(50))
    assert 0.049 < seconds < 0.055
    for times in (
        gpu_timer.cold(lambda: wait(50), seconds),
        gpu_timer.wall(lambda: wait(50), seconds),
    ):
        assert 49 < times.p20 <= times.median <= times.p80 < 51
    times, _ = gpu_timer.graph(lambda: wait(50), seconds)
    assert 49 < times.median < 51
    assert 49 < gpu_timer.sustained(lambda: wait(50), seconds, for_s=0.5) < 51


@pytest.mark.cuda
def test_nothing_takes_next_to_no_time(gpu_timer):
    times = gpu_timer.cold(lambda: None, 1e-6)
    assert 0 <= times.median < 0.1
    assert times.calls >= 90  # a sample whose pause was over too soon is left out
    assert not times.waited
    assert gpu_timer.wall(lambda: None, 1e-6).median < 0.1


@pytest.mark.cuda
def test_the_cpu_s_own_time_is_in_wall_alone(wait, gpu_timer):
    def slow_to_launch():
        total = sum(range(100_000))  # a millisecond or more of Python
        wait(0.2)
        return total

    seconds = gpu_timer.warm_up(slow_to_launch)
    assert 0.19 < gpu_timer.cold(slow_to_launch, seconds).median < 0.25
    assert gpu_timer.wall(slow_to_launch, seconds).median > 0.5


@pytest.mark.cuda
def test_a_call_that_waits_for_the_gpu_says_so(wait, gpu_timer):
    def waits():
        wait(0.2)
        torch.cuda.synchronize()
        wait(0.2)

    seconds = gpu_timer.warm_up(waits)
    assert gpu_timer.cold(waits, seconds).waited
    assert not gpu_timer.cold(lambda: wait(0.2), seconds).waited


@pytest.mark.cuda
def test_a_long_call_is_not_repeated(wait):
    calls = []
    timer = Timer(limit_s=0.05)
    with pytest.raises(OverLimit, match=r"over the time limit: 0\.1 s a call"):
        timer.warm_up(lambda: calls.append(wait(100)))
    assert len(calls) == 2


@pytest.mark.cuda
def test_peak_memory_counts_what_a_call_holds_at_once(gpu_timer):
    kept = torch.empty(1 << 20, device="cuda")

    def call():
        first = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
        del first
        a, b = (torch.empty(1 << 21, dtype=torch.uint8, device="cuda") for _ in range(2))
        return a[0] + b[0] + kept[0].byte()

    assert gpu_timer.peak_bytes(call) == pytest.approx(1 << 22, abs=8192)


@pytest.mark.cuda
def test_ceilings_are_below_what_the_chip_can_do(gpu_timer):
    pins = ceilings.peak_tbps()
    copy = ceilings.copy_tbps(gpu_timer)
    assert 0.5 * pins < copy < pins
    rates = ceilings.matrix_tflops(gpu_timer)
    for tier, datasheet in ceilings.DATASHEET.get(torch.cuda.get_device_name(), {}).items():
        assert 0.3 * datasheet < rates[tier] < datasheet
    assert rates["ieee"] < rates["tf32"] < rates["bf16"]


@pytest.mark.cuda
def test_the_setting_decides_and_comes_back():
    a = torch.randn(512, 512, device="cuda")
    exact = a.double() @ a.double()
    before = torch.backends.cuda.matmul.allow_tf32

    def error():
        return ((a @ a - exact).norm() / exact.norm()).item()

    with matmul_setting("tf32"):
        assert error() > 1e-4
    with matmul_setting("ieee"):
        assert error() < 1e-6
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.fixture(scope="module")
def this_run(gpu_timer):
    return run.start_run()


def measured(subjects_, this_run, timer, *swept, passes=("forward",), tiers=("ieee",)) -> list[Row]:
    return list(run.sweep(run.entries(subjects_, tiers, passes, swept), this_run, timer))


@pytest.mark.cuda
def test_no_bandwidth_is_above_the_memory_s_pins(this_run, gpu_timer):
    # Small enough that everything stays in the L2 cache, and large.
    for row in measured(
        (EAGER, *subjects.RUNGS[2:]),
        this_run,
        gpu_timer,
        (64, 64, 256),
        (512, 64, 8192),
        (4096, 64, 40960),
    ):
        assert row.status == "ok"
        assert row.tbps is None or 0 < row.tbps < this_run.peak_tbps


@pytest.mark.cuda
def test_two_runs_agree(this_run, gpu_timer):
    entry = ((subjects.RUNGS[3], EAGER), this_run, gpu_timer, sizes.CENTRES["small"])
    for first, second in zip(measured(*entry), measured(*entry), strict=True):
        assert first.cold_ms == pytest.approx(second.cold_ms, rel=0.05)


@pytest.mark.cuda
@pytest.mark.parametrize("pass_", ["forward", "both"])
def test_every_rung_and_tier_is_right_where_it_is_timed(this_run, gpu_timer, pass_):
    everything = (*subjects.RUNGS, subjects.AUTO, EAGER, subjects.STRONGEST)
    found = measured(
        everything,
        this_run,
        gpu_timer,
        (128, 96, 1000),
        passes=(pass_,),
        tiers=("ieee", "tf32", "bf16"),
    )
    assert len(found) == 7 + 5 + 3
    for row in found:
        assert row.status == "ok", (row.name, row.tier, row.status)
        assert 0 < row.cold_p20_ms <= row.cold_ms <= row.cold_p80_ms
        assert row.graph_ms > 0 and row.wall_ms > 0 and row.peak_bytes > 0


@pytest.mark.cuda
def test_a_kernel_that_turns_wrong_after_ten_calls_is_caught(this_run, gpu_timer):
    calls = torch.zeros((), device="cuda")

    def loss(query, positive, negatives):
        calls.add_(1)  # on the GPU, so that it counts the replays of a graph too
        return Model(0.1)(query, positive, negatives) * torch.where(calls > 10, 1.001, 1.0)

    turns = Subject("turns", "peer", lambda tier, temperature: loss, ("ieee",))
    (row,) = measured((turns,), this_run, gpu_timer, (64, 64, 256))
    assert row.status == "wrong: error 1.0e-03"


@pytest.mark.cuda
def test_out_of_memory_is_a_row_and_the_sweep_goes_on(this_run, gpu_timer):
    def loss(query, positive, negatives):
        return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    hungry = Subject("hungry", "peer", lambda tier, temperature: loss, ("ieee",))
    first, second = measured((hungry, EAGER), this_run, gpu_timer, (64, 64, 256))
    assert (first.status, second.status) == ("out of memory", "ok")


def test_the_pins_of_a_known_chip(monkeypatch):
    class Driver:
        @staticmethod
        def cuDeviceGetAttribute(value, number, device):
            # HBM3e of an H200: 3201 MHz, 6144 bits.
            ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = {36: 3_201_000, 37: 6144}[number]
            return 0

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(ceilings.ctypes, "CDLL", lambda name: Driver)
    assert ceilings.peak_tbps() == pytest.approx(4.917, abs=0.001)  # 2 x 3.201 GHz x 768 bytes
