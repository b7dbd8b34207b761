"""Whether a rung is right: every backend and pass that can run here, held against float64 on the
CPU.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from infonce_kernels import ladder, reference
from infonce_kernels.build import KernelLibrary, backends
from infonce_kernels.build.emulated import runtime_library
from infonce_kernels.emulator import Runtime
from infonce_kernels.loss import info_nce

# Largest error allowed. Of a loss: relative, the worst query's. Of a gradient: of the difference's
# norm to the norm.
LIMITS = {"forward": 1e-5, "backward": 1e-4}


@dataclass(frozen=True)
class Problem:
    """Inputs to verify on: rows drawn with a fixed seed, then put where wrong kernels fail.

    kind: "normalised" rows; "plain" ones; "peaks", where a query's own copy among the negatives
    dominates, for one query in the very last column; "far", where every logit is very negative.
    """

    name: str
    B: int
    D: int
    N: int
    temperature: float = 0.1
    kind: str = "normalised"

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """query (B, D), positive (B, D) and negatives (N, D), float32 on the CPU."""
        generator = torch.Generator("cpu").manual_seed(self.B + self.D + self.N)
        options = dict(generator=generator, dtype=torch.float32, device="cpu")
        rows = [torch.randn(rows, self.D, **options) for rows in (self.B, self.B, self.N)]
        if self.kind == "plain":
            return tuple(rows)
        query, positive, negatives = (torch.nn.functional.normalize(x, dim=1) for x in rows)
        if self.kind == "peaks":
            columns = torch.linspace(130, self.N - 1, self.B).long()  # the last query: the last one
            negatives = 0.2 * negatives
            negatives[columns] = query
        elif self.kind == "far":
            query = query[:1] + 0.1 * query
            positive, negatives = 0.3 * positive - query, negatives - query[:1]
        return query, positive, negatives


# Sizes that no tile divides, fewer features than a warp has threads, a single negative, more
# negatives than a block has threads, and logits that overflow or vanish without their own maximum.
PROBLEMS = (
    Problem("odd sizes", 33, 31, 65),
    Problem("one negative", 5, 3, 1),
    Problem("not normalised", 7, 40, 300, kind="plain"),
    Problem("small temperature", 17, 33, 129, temperature=0.005),
    Problem("one dominates", 5, 24, 600, temperature=0.004, kind="peaks"),
    Problem("far below zero", 6, 24, 70, temperature=0.005, kind="far"),
    Problem("original", 256, 512, 2560),
)
# In the emulator small problems also run with their threads in other orders, where races show.
_SMALL = 100_000
_ORDERS = (0, 1, 2)


@dataclass(frozen=True)
class Check:
    """One rung on one backend in one pass, at its worst problem. `error` is NaN where the result
    is.
    """

    rung: str
    backend: str
    pass_: str
    error: float
    limit: float
    problem: str
    trouble: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran and its error is within the limit; a NaN is not."""
        return not self.trouble and self.error <= self.limit

    @property
    def verdict(self) -> str:
        return "right" if self.passed else self.trouble or "wrong"


class Report(list[Check]):
    """The checks, as a table in a terminal or a notebook."""

    @property
    def passed(self) -> bool:
        return bool(self) and all(check.passed for check in self)

    def to_dicts(self) -> list[dict]:
        """Plain values, for JSON."""
        rows = [
            asdict(check) | {"passed": check.passed, "verdict": check.verdict} for check in self
        ]
        return [{key.rstrip("_"): value for key, value in row.items()} for row in rows]

    def __repr__(self) -> str:
        rows = [("rung", "backend", "pass", "max error", "limit", "worst at", "verdict")]
        for c in self:
            verdict = "failed" if c.trouble else c.verdict
            error, limit = f"{c.error:.1e}", f"{c.limit:.0e}"
            rows.append((c.rung, c.backend, c.pass_, error, limit, c.problem, verdict))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        rule = "-" * max(map(len, lines))
        troubles = [f"{c.rung} on {c.backend}: {c.trouble}" for c in self if c.trouble]
        return "\n".join([lines[0], rule, *lines[1:], *troubles])


def verify(
    rung: str | KernelLibrary | None = None,
    backend: str = "auto",
    *,
    problems: tuple[Problem, ...] = PROBLEMS,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Holds a rung (all of them by default), or your own library from `build`, against float64.

    Parameters
    ----------
    rung: a name from `ladder`, a library that `build` made, or None for the whole ladder
    backend: "auto" for every one that can run here, "pytorch", "emulator" or "cuda"
    problems: what to verify on
    progress: called with a line before each rung and backend

    Returns
    -------
    A `Report`: one `Check` a rung, backend and pass. `report.passed` says whether all are right.

    Raises
    ------
    ValueError: naming rung or backend, or where the two leave nothing to run
    """
    report = Report()
    for subject, where in _subjects(rung, backend):
        name = subject if isinstance(subject, str) else subject.name
        progress(f"verifying {name} on {where}")
        report += _check(subject, name, where, problems)
    if not report:
        raise ValueError(f"rung={rung!r} has nothing that runs on backend={backend!r} here")
    return report


def _subjects(
    rung: str | KernelLibrary | None, backend: str
) -> Iterator[tuple[str | KernelLibrary, str]]:
    if isinstance(rung, KernelLibrary):
        if backend not in ("auto", rung.backend):
            raise ValueError(f"backend={backend!r}, but the library was built for {rung.backend!r}")
        yield rung, rung.backend
        return
    reasons = backends()
    wanted = ("pytorch", "emulator", "cuda") if backend == "auto" else (backend,)
    if unknown := set(wanted) - {"pytorch", "emulator", "cuda"}:
        raise ValueError(
            f"backend={unknown.pop()!r} is not one of 'auto', 'pytorch', 'emulator', 'cuda'"
        )
    if backend in reasons and reasons[backend] is not None:
        raise ValueError(f"backend={backend!r} cannot run here: {reasons[backend]}")
    for step in [ladder.rung(rung)] if rung else ladder.LADDER:
        for where in wanted:
            if (where != "pytorch") == step.is_kernel and reasons.get(where) is None:
                yield step.name, where


def _check(
    rung: str | KernelLibrary, name: str, where: str, problems: tuple[Problem, ...]
) -> list[Check]:
    worst = {pass_: (-1.0, "") for pass_ in LIMITS}
    for problem, order in _runs(where, problems):
        label = f"{problem.name}, other order" if order else problem.name
        try:
            with _lane_order(where, order):
                errors = _errors(rung, where, problem)
        except Exception as trouble:  # a learner's kernel may fail in any way: the report says how
            line = f"{type(trouble).__name__}: {trouble}".splitlines()[0]
            return [Check(name, where, "both", float("nan"), LIMITS["backward"], label, line)]
        for pass_, error in errors.items():
            # A NaN compares false with everything: it must win, and stay.
            if not error <= worst[pass_][0] and not math.isnan(worst[pass_][0]):
                worst[pass_] = error, label
    return [
        Check(name, where, pass_, worst[pass_][0], LIMITS[pass_], worst[pass_][1])
        for pass_ in LIMITS
    ]


def _runs(where: str, problems: tuple[Problem, ...]) -> Iterator[tuple[Problem, int]]:
    """Every problem, with the orders of threads to run it in."""
    for problem in problems:
        is_small = problem.B * problem.D * problem.N <= _SMALL
        for order in _ORDERS if where == "emulator" and is_small else _ORDERS[:1]:
            yield problem, order


def _lane_order(where: str, order: int) -> AbstractContextManager[None]:
    if where != "emulator":
        return nullcontext()
    return Runtime.load(runtime_library()).settings(lane_order=order)


def _errors(rung: str | KernelLibrary, where: str, problem: Problem) -> dict[str, float]:
    device = "cuda" if where == "cuda" else "cpu"
    operands = [x.requires_grad_() for x in problem.operands()]
    options = dict(dtype=torch.float32, device="cpu", requires_grad=True)
    temperature = torch.tensor(problem.temperature, **options)
    true_losses = reference.truth(*operands, temperature)
    # Weights that differ, so that a gradient put into the wrong row is seen.
    weights = torch.linspace(0.5, 1.5, problem.B, dtype=torch.float64, device="cpu")
    true_gradients = torch.autograd.grad((true_losses * weights).sum(), [*operands, temperature])

    ours = [x.detach().to(device).requires_grad_() for x in (*operands, temperature)]
    losses = info_nce(*ours, reduction="none", rung=rung, precision="fp32")
    gradients = torch.autograd.grad((losses * weights.to(device)).sum(), ours)
    forward = (losses.cpu() - true_losses).abs() / true_losses
    backward = [
        (g.cpu().double() - true.double()).norm() / true.double().norm()
        for g, true in zip(gradients, true_gradients, strict=True)
    ]
    return {"forward": forward.max().item(), "backward": torch.stack(backward).max().item()}
