"""Sweeps: entry after entry, each measured, checked and turned into a row."""

import datetime
import gc
import math
import platform
import subprocess
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from infonce_kernels import ladder
from infonce_kernels.bench import ceilings, check, peers, timing
from infonce_kernels.bench.records import OK, Row, Run, source_hash
from infonce_kernels.bench.setting import matmul_setting
from infonce_kernels.bench.sizes import Size
from infonce_kernels.bench.subjects import COMPILE, DTYPES, Loss, Subject
from infonce_kernels.bench.timing import OverLimit, Timer
from infonce_kernels.build.progress import progress
from infonce_kernels.ladder import Cost
from infonce_kernels.loss import automatic_rung

TEMPERATURE = 0.1
# Longer calls lose nothing to the CPU, and a graph keeps a second copy of all they allocate.
_GRAPH_LIMIT_MS = 5.0


@dataclass(frozen=True)
class Entry:
    """One thing to measure."""

    subject: Subject
    pass_: str
    tier: str
    B: int
    D: int
    N: int

    @property
    def size(self) -> Size:
        return (self.B, self.D, self.N)

    @property
    def ran(self) -> str:
        """The rung behind it, where there is one."""
        if self.subject.kind != "rung":
            return ""
        name = self.subject.name
        return automatic_rung(True, DTYPES[self.tier]) if name == "auto" else name

    @property
    def flops(self) -> int:
        return ladder.least(self.pass_, self.B, self.N, self.D).flops

    @property
    def cost(self) -> Cost | None:
        """The prediction of what it moves; None where there is none."""
        if self.subject.cost is None:
            return None
        cost = self.subject.cost(self.pass_, self.B, self.N, self.D)
        itemsize = DTYPES[self.tier].itemsize
        if self.ran:
            # Rungs compute in float32: operands of half the size are read and written out first.
            copied = (itemsize + ladder.FLOAT) * (2 * self.B + self.N) * self.D
            return cost if itemsize == ladder.FLOAT else replace(cost, bytes=cost.bytes + copied)
        return replace(cost, bytes=cost.bytes * itemsize // ladder.FLOAT)


def entries(
    subjects: Iterable[Subject],
    tiers: Iterable[str],
    passes: Iterable[str],
    swept: Iterable[Size],
    *,
    compile_at: Collection[Size] | None = None,
) -> list[Entry]:
    """Every combination that makes sense, size by size, so that rivals run next to each other.

    compile_at: the sizes at which `compile` is measured, which takes it tens of seconds each; by
    default all.
    """
    subjects, tiers, passes = list(subjects), list(tiers), list(passes)
    return [
        Entry(subject, pass_, tier, B, D, N)
        for B, D, N in swept
        for tier in tiers
        for pass_ in passes
        for subject in subjects
        if tier in subject.tiers
        and (subject is not COMPILE or compile_at is None or (B, D, N) in compile_at)
    ]


def weight(entry: Entry) -> float:
    """About how many seconds an entry takes, for the progress bar."""
    return 1 + min(entry.flops / 1e12, 5) + 20 * (entry.subject is COMPILE)


def here(
    subjects: Iterable[Subject],
    swept: Iterable[Size],
    tiers: Iterable[str] = ("ieee",),
    passes: Iterable[str] = ("forward",),
) -> list[Row]:
    """Measures on this GPU, with a line of progress on standard error, and records nothing."""
    with progress("measuring what this GPU can do at best"):
        this_run = start_run()
    todo = entries(subjects, tiers, passes, swept)
    with progress(f"timing {len(todo)} entries"):
        return list(sweep(todo, this_run, Timer()))


def start_run(commit: str = "", settings: str = "") -> Run:
    """Describes the machine and measures its ceilings, in some two seconds.

    commit: where this is no checkout of git. settings: the timer's, for the record.
    """
    timer = Timer(budget_s=0.1, limit_s=math.inf)
    driver, clocks = _driver_and_clocks()
    return Run(
        number=1,
        date=datetime.date.today().isoformat(),
        gpu=torch.cuda.get_device_name(),
        driver=driver,
        cuda=torch.version.cuda or "",
        torch=torch.__version__,
        python=platform.python_version(),
        clocks=clocks,
        commit=commit or _commit(),
        timer="; ".join(filter(None, (timing.TIMER, settings))),
        l2=timing.L2,
        peak_tbps=round(ceilings.peak_tbps(), 3),
        matrix_tflops={k: round(v, 1) for k, v in ceilings.matrix_tflops(timer).items()},
        copy_tbps=round(ceilings.copy_tbps(timer), 3),
    )


def _driver_and_clocks() -> tuple[str, str]:
    """The driver's version, and the most that clocks and power may be."""
    query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    # CUDA_VISIBLE_DEVICES renumbers the GPUs for PyTorch, but not for nvidia-smi.
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    command.append(f"--id=GPU-{uuid}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown", "unknown"
    driver, sm, memory, power = answer.stdout.splitlines()[0].split(", ")
    return driver, f"SM up to {sm}, memory {memory}, power limit {power}"


def _commit() -> str:
    """The checkout's commit, with a mark where files differ from it; "" outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def operands(B: int, D: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows of norm 1 on the GPU, float32, the same at every run.

    The first query is the last negative, and the last query the first: each of the two counts for
    as much as all others together, so that a kernel which loses it is far off.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    query, positive, negatives = (
        normalize(torch.randn(rows, D, generator=generator, device="cuda"), dim=1)
        for rows in (B, B, N)
    )
    negatives[0], negatives[-1] = query[-1], query[0]
    return query, positive, negatives


class GpuLost(RuntimeError):
    """The GPU gives nothing but errors: no further entry can be measured in this process."""


def sweep(todo: Iterable[Entry], run: Run, timer: Timer, sustained: bool = False) -> Iterator[Row]:
    """Yields a row for each entry as soon as it is measured. See `measure`.

    Raises GpuLost after the row of the entry that broke it.
    """
    slow: dict[tuple[str, str, str], tuple[int, float]] = {}  # FLOPs and seconds of the last one
    for (size, tier), group in groupby(todo, key=lambda entry: (entry.size, entry.tier)):
        problem = None  # the last one's memory is free before the next one's is taken
        try:
            problem = Problem(tuple(x.to(DTYPES[tier]) for x in operands(*size)))
        except torch.OutOfMemoryError:
            yield from (
                _row(entry, run, "out of memory: the operands do not fit") for entry in group
            )
            continue
        for entry in group:
            series = (entry.subject.name, tier, entry.pass_)
            flops_before, seconds = slow.get(series, (1, 0.0))
            if (foretold := seconds * entry.flops / flops_before) > 2 * timer.limit_s:
                yield _row(entry, run, f"{OverLimit(foretold)}, foretold from a smaller size")
                continue
            row = measure(entry, problem, run, timer, sustained)
            if row.cold_ms is not None and row.cold_ms > 10:
                slow[series] = (entry.flops, row.cold_ms / 1e3)
            yield row
            try:
                timer.synchronize()
            except RuntimeError as error:
                raise GpuLost(f"{entry.subject.name} at B, D, N = {size}: {error}") from error


class Problem:
    """The operands of a size and tier, and what is right for them, worked out when first asked."""

    def __init__(self, operands: tuple[Tensor, Tensor, Tensor]) -> None:
        self.operands = operands
        self._expected: dict[tuple[object, str], check.Expected | None] = {}

    def expected(self, subject: Subject, pass_: str) -> check.Expected | None:
        """None where float64 does not fit into the GPU's memory."""
        key = (subject.expected, pass_)
        if key not in self._expected:
            try:
                self._expected[key] = check.expected(self.operands, TEMPERATURE, pass_, subject)
            except torch.OutOfMemoryError:
                self._expected[key] = None
        return self._expected[key]


def measure(entry: Entry, problem: Problem, run: Run, timer: Timer, sustained: bool = False) -> Row:
    """One entry's row. What cannot be measured becomes a row that says why."""
    reason = peers.missing(entry.subject) or entry.subject.cannot(
        entry.B, entry.N, entry.D, entry.pass_
    )
    if reason:
        return _row(entry, run, reason)
    try:
        with matmul_setting(entry.tier), torch.set_grad_enabled(entry.pass_ == "both"):
            columns, results = _timed(entry, problem, timer, sustained)
            status, columns["error"] = _verdict(entry, problem, results)
        return _row(entry, run, status, columns)
    except OverLimit as limit:
        return _row(entry, run, str(limit))
    except torch.OutOfMemoryError:
        return _row(entry, run, "out of memory")
    except Exception as failure:  # of another package or of a kernel: the sweep goes on
        reason = next(iter(str(failure).splitlines()), "")
        return _row(entry, run, f"failed: {type(failure).__name__}: {reason}"[:160])
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _timed(
    entry: Entry, problem: Problem, timer: Timer, sustained: bool
) -> tuple[dict[str, object], list[object]]:
    """The columns of a row, and results computed after all that was timed."""
    call = _call(entry.subject.make(entry.tier, TEMPERATURE), problem.operands, entry.pass_)
    seconds = timer.warm_up(call)
    cold = timer.cold(call, seconds)
    columns = {
        **_named("cold", cold),
        **_named("wall", timer.wall(call, seconds)),
        "sustained_ms": timer.sustained(call, seconds) if sustained else None,
        "calls": cold.calls,
        "peak_bytes": timer.peak_bytes(call),
        "note": "the call waits for the GPU: cold has the CPU's time in it" if cold.waited else "",
    }
    results = []
    if not cold.waited and cold.median <= _GRAPH_LIMIT_MS:
        try:
            times, result = timer.graph(call, cold.median / 1e3)
            columns |= _named("graph", times)
            results.append(result)
        except RuntimeError as refused:  # it copies from the host, or there is no memory for two
            timer.synchronize()
            columns["note"] = f"no graph: {str(refused).splitlines()[0]}"[:100]
    return columns, [*results, call()]


def _call(loss: Loss, operands: tuple[Tensor, Tensor, Tensor], pass_: str) -> timing.Call:
    """What is timed: the loss, or the loss and the gradients of all three operands."""
    if pass_ == "forward":
        return lambda: loss(*operands)
    leaves = [x.detach().requires_grad_() for x in operands]

    def both() -> tuple[Tensor | None, ...]:
        value = loss(*leaves)
        return value.detach(), *torch.autograd.grad(value, leaves, allow_unused=True)

    return both


def _named(column: str, times: timing.Times) -> dict[str, object]:
    return {
        f"{column}_ms": times.median,
        f"{column}_p20_ms": times.p20,
        f"{column}_p80_ms": times.p80,
    }


def _verdict(entry: Entry, problem: Problem, results: list[object]) -> tuple[str, float | None]:
    """The status, and the largest error of all results."""
    truth = problem.expected(entry.subject, entry.pass_)
    if truth is None:
        return "not checked: float64 does not fit into memory", None
    limits = check.LIMITS[entry.tier]
    found = [check.errors(result, truth) for result in results]
    if entry.subject.each is not None:
        losses = entry.subject.each(entry.tier, TEMPERATURE)(*problem.operands)
        found[0] = replace(found[0], query=check.query_error(losses, truth))
    error = check.largest([each.largest for each in found])
    right = all(each.within(limits) for each in found)
    return (OK if right else f"wrong: error {error:.1e}"), error


def _row(entry: Entry, run: Run, status: str, columns: dict[str, object] | None = None) -> Row:
    cost = entry.cost
    return Row(
        run=run,
        kind=entry.subject.kind,
        name=entry.subject.name,
        ran=entry.ran,
        version=_version(entry.subject),
        pass_=entry.pass_,
        tier=entry.tier,
        dtype=str(DTYPES[entry.tier]).removeprefix("torch."),
        B=entry.B,
        D=entry.D,
        N=entry.N,
        status=status,
        model_launches=cost.launches if cost else None,
        model_bytes=cost.bytes if cost else None,
        model_flops=entry.flops,
        leaves_out=entry.subject.leaves_out,
        source_hash=source_hash(entry.ran),
        **(columns or {}),
    )


def _version(subject: Subject) -> str:
    try:
        return metadata.version(subject.distribution) if subject.distribution else ""
    except metadata.PackageNotFoundError:
        return ""
