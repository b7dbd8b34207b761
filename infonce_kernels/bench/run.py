"""Sweeps: entry after entry, each measured, checked and turned into a row."""

import datetime
import gc
import platform
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from infonce_kernels import ladder
from infonce_kernels.bench import ceilings, check, peers, sizes, timing
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

    def cost(self) -> Cost:
        """The prediction: the rung's; eager's for the baselines it stands for; else the least,
        operands read and gradients written once."""
        if self.ran:
            return ladder.rung(self.ran).cost(self.pass_, self.B, self.N, self.D)
        itemsize = DTYPES[self.tier].itemsize
        if self.subject.name == "eager":
            cost = ladder.rung("v0_reference").cost(self.pass_, self.B, self.N, self.D)
            return Cost(cost.launches, cost.flops, cost.bytes * itemsize // ladder.FLOAT)
        both = self.pass_ == "both"
        products, traversals = (3, 3) if both else (1, 1)
        moved = traversals * itemsize * (2 * self.B + self.N) * self.D
        return Cost(1, products * 2 * self.B * self.N * self.D, moved)


def entries(
    subjects: Iterable[Subject], tiers: Iterable[str], passes: Iterable[str], swept: Iterable[Size]
) -> list[Entry]:
    """Every combination that makes sense, size by size, so that rivals run next to each other.

    `compile` only at the centres and ends of the sweeps: each size takes it tens of seconds.
    """
    subjects, tiers, passes = list(subjects), list(tiers), list(passes)
    return [
        Entry(subject, pass_, tier, B, D, N)
        for B, D, N in swept
        for tier in tiers
        for pass_ in passes
        for subject in subjects
        if tier in subject.tiers and (subject is not COMPILE or (B, D, N) in sizes.landmarks())
    ]


def weight(entry: Entry) -> float:
    """About how many seconds an entry takes, for the progress bar."""
    return 1 + min(entry.cost().flops / 1e12, 5) + 20 * (entry.subject is COMPILE)


def here(
    subjects: Iterable[Subject],
    swept: Iterable[Size],
    tiers: Iterable[str] = ("ieee",),
    passes: Iterable[str] = ("forward",),
) -> list[Row]:
    """Measures on this GPU, with a line of progress on standard error, and records nothing."""
    timer = Timer()
    with progress("measuring what this GPU can do at best"):
        this_run = start_run(1, datetime.date.today().isoformat(), timer)
    todo = entries(subjects, tiers, passes, swept)
    with progress(f"timing {len(todo)} entries"):
        return list(sweep(todo, this_run, timer))


def start_run(number: int, date: str, timer: Timer, commit: str = "") -> Run:
    """Describes the machine and measures its ceilings, in some two seconds."""
    driver, clocks = _driver_and_clocks()
    return Run(
        number=number,
        date=date,
        gpu=torch.cuda.get_device_name(),
        driver=driver,
        cuda=torch.version.cuda or "",
        torch=torch.__version__,
        python=platform.python_version(),
        clocks=clocks,
        commit=commit or _commit(),
        timer=timing.TIMER,
        l2=timing.L2,
        peak_tbps=round(ceilings.peak_tbps(), 3),
        matrix_tflops={k: round(v, 1) for k, v in ceilings.matrix_tflops(timer).items()},
        copy_tbps=round(ceilings.copy_tbps(timer), 3),
    )


def _driver_and_clocks() -> tuple[str, str]:
    """The driver's version, and the clocks and power limit as they are under way."""
    query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
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
    """Random rows of norm 1 on the GPU, float32, the same at every run."""
    generator = torch.Generator("cuda").manual_seed(0)
    return tuple(
        normalize(torch.randn(rows, D, generator=generator, device="cuda"), dim=1)
        for rows in (B, B, N)
    )


def sweep(todo: Iterable[Entry], run: Run, timer: Timer, sustained: bool = False) -> Iterator[Row]:
    """Yields a row for each entry as soon as it is measured. See `measure`."""
    slow: dict[tuple[str, str, str], tuple[int, float]] = {}  # FLOPs and seconds of the last one
    for (size, tier), group in groupby(todo, key=lambda entry: (entry.size, entry.tier)):
        inputs = tuple(x.to(DTYPES[tier]) for x in operands(*size))
        truths: dict[tuple[object, str], check.Expected] = {}
        for entry in group:
            series, flops = (entry.subject.name, tier, entry.pass_), entry.cost().flops
            flops_before, seconds = slow.get(series, (1, 0.0))
            if (predicted := seconds * flops / flops_before) > 2 * timer.limit_s:
                yield _row(entry, run, f"{OverLimit(predicted)}, foretold from a smaller size")
                continue
            row = measure(entry, inputs, truths, run, timer, sustained)
            if row.cold_ms is not None and row.cold_ms > 10:
                slow[series] = (flops, row.cold_ms / 1e3)
            yield row


def measure(
    entry: Entry,
    inputs: tuple[Tensor, Tensor, Tensor],
    truths: dict[tuple[object, str], check.Expected],
    run: Run,
    timer: Timer,
    sustained: bool = False,
) -> Row:
    """One entry's row. What cannot be measured becomes a row that says why.

    inputs: query, positive and negatives in the tier's dtype. truths: those known so far for these
    inputs, filled on demand.
    """
    reason = peers.missing(entry.subject) or entry.subject.cannot(
        entry.B, entry.N, entry.D, entry.pass_
    )
    if reason:
        return _row(entry, run, reason)
    try:
        with matmul_setting(entry.tier), torch.set_grad_enabled(entry.pass_ == "both"):
            loss = entry.subject.make(entry.tier, TEMPERATURE)
            call = _call(loss, inputs, entry.pass_)
            columns = _columns(call, timer, sustained)
            result, columns_of_graph = _graph(call, timer, columns)
            columns |= columns_of_graph
            truth = _truth(entry, inputs, truths)
            results = [call(), *result]
        errors = [check.error(one, truth) for one in results] if truth else []
        columns["error"] = max((max(pair) for pair in errors), default=None)
        right = all(check.is_right(pair, entry.tier) for pair in errors)
        return _row(entry, run, OK if right else f"wrong: error {columns['error']:.1e}", columns)
    except OverLimit as limit:
        return _row(entry, run, str(limit))
    except torch.OutOfMemoryError:
        return _row(entry, run, "out of memory")
    except Exception as failure:
        # Of another package, or of a kernel: the sweep goes on unless the GPU itself is lost.
        timer.synchronize()
        reason = next(iter(str(failure).splitlines()), "")
        return _row(entry, run, f"failed: {type(failure).__name__}: {reason}"[:160])
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _call(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor], pass_: str) -> timing.Call:
    """What is timed: the loss, or the loss and the gradients of all three operands."""
    if pass_ == "forward":
        return lambda: loss(*inputs)
    leaves = [x.detach().requires_grad_() for x in inputs]

    def both() -> tuple[Tensor, ...]:
        value = loss(*leaves)
        return value.detach(), *torch.autograd.grad(value, leaves, allow_unused=True)

    return both


def _columns(call: timing.Call, timer: Timer, sustained: bool) -> dict[str, object]:
    seconds = timer.warm_up(call)
    cold, wall = timer.cold(call, seconds), timer.wall(call, seconds)
    return {
        **_named("cold", cold),
        **_named("wall", wall),
        "sustained_ms": timer.sustained(call, seconds) if sustained else None,
        "calls": cold.calls,
        "peak_bytes": timer.peak_bytes(call),
    }


def _graph(
    call: timing.Call, timer: Timer, columns: dict[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The result of a replay and its columns; nothing where the call is long or not capturable."""
    if columns["cold_ms"] > _GRAPH_LIMIT_MS:
        return [], {}
    try:
        times, result = timer.graph(call, columns["cold_ms"] / 1e3)
    except RuntimeError:  # it waits for the GPU or copies from the host: both are refused
        timer.synchronize()
        return [], {}
    return [result], _named("graph", times)


def _named(column: str, times: timing.Times) -> dict[str, float]:
    return {
        f"{column}_ms": times.median,
        f"{column}_p20_ms": times.p20,
        f"{column}_p80_ms": times.p80,
    }


def _truth(
    entry: Entry,
    inputs: tuple[Tensor, Tensor, Tensor],
    truths: dict[tuple[object, str], check.Expected],
) -> check.Expected | None:
    """None where float64 does not fit."""
    key = (entry.subject.expected, entry.pass_)
    if key not in truths:
        try:
            with torch.enable_grad():
                truths[key] = check.expected(inputs, TEMPERATURE, entry.pass_, entry.subject)
        except torch.OutOfMemoryError:
            return None
    return truths[key]


def _row(entry: Entry, run: Run, status: str, columns: dict[str, object] | None = None) -> Row:
    cost = entry.cost()
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
        model_launches=cost.launches,
        model_bytes=cost.bytes,
        model_flops=cost.flops,
        leaves_out=entry.subject.leaves_out,
        source_hash=source_hash(entry.ran),
        **(columns or {}),
    )


def _version(subject: Subject) -> str:
    try:
        return metadata.version(subject.distribution) if subject.distribution else ""
    except metadata.PackageNotFoundError:
        return ""
