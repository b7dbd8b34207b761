"""The timer: GPU time with the CPU hidden and the caches cold, as a CUDA graph, and by the clock.

Three columns, because they answer three questions. `cold` and `graph` are what the GPU needs;
`wall` is what the program waits for, which at small sizes is the CPU preparing launches.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]

TIMER = "CUDA events, launches queued ahead; median, 20th and 80th percentile"
L2 = "flushed before each call by writing 4 times its size; not flushed for wall and sustained"


@dataclass(frozen=True)
class Times:
    """Milliseconds a call: median, 20th and 80th percentile of `calls` calls."""

    median: float
    p20: float
    p80: float
    calls: int


def _times(samples: list[float], calls: int) -> Times:
    ordered = sorted(samples)
    p20, median, p80 = (ordered[round(q * (len(ordered) - 1))] for q in (0.2, 0.5, 0.8))
    return Times(median, p20, p80, calls)


class OverLimit(Exception):
    """A single call took, or would take, longer than an entry may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"over the time limit: {seconds:.1f} s a call")


class Timer:
    """Times calls on the current CUDA device.

    budget_s: about how long each column may take; medians of fewer than five calls happen only
    where a single call takes a fifth of it. limit_s: a call that takes longer is not repeated.
    """

    def __init__(self, budget_s: float = 0.25, limit_s: float = 1.0) -> None:
        self.budget_s = budget_s
        self.limit_s = limit_s
        properties = torch.cuda.get_device_properties()
        self._flush = torch.empty(properties.L2_cache_size, dtype=torch.int32, device="cuda")
        self._cycles_per_second = 0.0

    def warm_up(self, call: Call) -> float:
        """Brings code, memory and clocks to where they stay; returns seconds a call.

        Raises OverLimit.
        """
        self._seconds(call)  # compiles and allocates
        seconds = self._seconds(call)
        if seconds > self.limit_s:
            raise OverLimit(seconds)
        for _ in range(_repeats(0.05, seconds, 0, 20)):
            call()
        torch.cuda.synchronize()
        return seconds

    @staticmethod
    def _seconds(call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def cold(self, call: Call, seconds: float) -> Times:
        """GPU time between two events around a call, with the L2 cache flushed.

        A pause on the GPU, twice as long as the CPU takes to queue a call, keeps the CPU's time out
        of the interval (20 ms at most: a call that waits for the GPU never gets ahead of it).
        seconds: about what a call takes, from `warm_up`.
        """
        return self._events(call, seconds, pause=min(2 * self._host_seconds(call), 0.02))

    def graph(self, call: Call, seconds: float) -> tuple[Times, object]:
        """The same for the replay of a CUDA graph of `call`, and what the last replay returned.

        Raises what the capture raises.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
        return self._events(graph.replay, seconds, pause=100e-6), result

    def wall(self, call: Call, seconds: float) -> Times:
        """The host's clock over back-to-back calls; one sample is the mean of several."""
        calls = _repeats(self.budget_s / 10, seconds, 1, 100)
        samples = []
        for _ in range(_repeats(self.budget_s, calls * seconds, 3, 10)):
            samples.append(1e3 * self._seconds(lambda: [call() for _ in range(calls)][-1]) / calls)
        return _times(samples, calls * len(samples))

    def sustained(self, call: Call, seconds: float, for_s: float = 1.0) -> float:
        """Milliseconds a call over `for_s` of back-to-back calls: power and heat have settled."""
        calls = _repeats(for_s, seconds, 3, 1_000_000)
        return 1e3 * self._seconds(lambda: [call() for _ in range(calls)][-1]) / calls

    @staticmethod
    def peak_bytes(call: Call) -> int:
        """What a call allocates at most at one time beyond what is there, results included."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    @staticmethod
    def synchronize() -> None:
        """Waits for the GPU. Raises where it is lost, as after an illegal memory access."""
        torch.cuda.synchronize()

    def _events(self, call: Call, seconds: float, pause: float) -> Times:
        pairs = []
        for _ in range(_repeats(self.budget_s, seconds + pause, 3, 100)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            torch.cuda._sleep(int(pause * self._clock()))
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return _times([start.elapsed_time(end) for start, end in pairs], len(pairs))

    @staticmethod
    def _host_seconds(call: Call) -> float:
        """How long the CPU takes to queue a call, the least of three."""
        spans = []
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            spans.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        return min(spans)

    def _clock(self) -> float:
        """Cycles a second of the GPU's pause, measured once."""
        if not self._cycles_per_second:
            cycles = 20_000_000
            torch.cuda._sleep(cycles)
            self._cycles_per_second = cycles / self._seconds(lambda: torch.cuda._sleep(cycles))
        return self._cycles_per_second


def _repeats(budget: float, seconds: float, least: int, most: int) -> int:
    return max(least, min(most, int(budget / max(seconds, 1e-9))))
