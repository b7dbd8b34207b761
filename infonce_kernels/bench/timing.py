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
L2 = "before each call overwritten by 4 times its size; as it is for wall and sustained"


@dataclass(frozen=True)
class Times:
    """Milliseconds a call: median, 20th and 80th percentile of `calls` calls.

    `waited`: whether the GPU waited for the CPU within the calls, so that its time is in them.
    """

    median: float
    p20: float
    p80: float
    calls: int
    waited: bool = False


def _times(samples: list[float], calls: int, waited: bool = False) -> Times:
    ordered = sorted(samples)
    p20, median, p80 = (ordered[round(q * (len(ordered) - 1))] for q in (0.2, 0.5, 0.8))
    return Times(median, p20, p80, calls, waited)


class OverLimit(Exception):
    """A single call took, or would take, longer than an entry may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"over the time limit: {seconds:.1f} s a call")


class Timer:
    """Times calls on the current CUDA device.

    budget_s: about how long each column may take; it is exceeded for five calls at least. limit_s:
    a call that takes longer is not repeated.
    """

    def __init__(self, budget_s: float = 0.25, limit_s: float = 1.0) -> None:
        self.budget_s = budget_s
        self.limit_s = limit_s
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
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

        A pause on the GPU lets the CPU queue the whole call, so that none of its time is in the
        interval. Samples whose pause was over too soon are left out; where they are the more, a
        longer pause is tried, and where none helps the call waits for the GPU and `waited` says so.
        seconds: about what a call takes, from `warm_up`.
        """
        pause = 2 * self._host_seconds(call)
        for _ in range(3):
            samples, late = self._events(call, seconds, min(pause, 0.05))
            ahead = [ms for ms, was_late in zip(samples, late, strict=True) if not was_late]
            if 2 * len(ahead) >= len(samples):
                return _times(ahead, len(ahead))
            pause *= 3
        return _times(samples, len(samples), waited=True)

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
        samples, _ = self._events(graph.replay, seconds, pause=200e-6)
        return _times(samples, len(samples)), result

    def wall(self, call: Call, seconds: float) -> Times:
        """The host's clock over back-to-back calls; one sample is the mean of several."""
        seconds = self._back_to_back(call, _repeats(0.02, seconds, 1, 50))  # without waiting
        calls = _repeats(self.budget_s / 20, seconds, 1, 200)
        samples = [
            1e3 * self._back_to_back(call, calls)
            for _ in range(_repeats(self.budget_s, calls * seconds, 5, 20))
        ]
        return _times(samples, calls * len(samples))

    def sustained(self, call: Call, seconds: float, for_s: float = 1.0) -> float:
        """Milliseconds a call over `for_s` of back-to-back calls: power and heat have settled."""
        return 1e3 * self._back_to_back(call, _repeats(for_s, seconds, 3, 1_000_000))

    def _back_to_back(self, call: Call, calls: int) -> float:
        """Seconds a call."""

        def repeated() -> None:
            for _ in range(calls):
                call()

        return self._seconds(repeated) / calls

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

    def _events(self, call: Call, seconds: float, pause: float) -> tuple[list[float], list[bool]]:
        """Milliseconds of each call, and whether the GPU began it before all of it was queued."""
        pairs, late = [], []
        for _ in range(_repeats(self.budget_s, seconds + pause, 5, 100)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            torch.cuda._sleep(int(pause * self._clock()))
            start.record()
            call()
            end.record()
            late.append(start.query())
            pairs.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs], late

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
