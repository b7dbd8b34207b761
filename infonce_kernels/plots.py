"""Figures of a record: speed-up, time against work, roofline and memory, each stating its finding.

A figure is a `Plot`, which shows itself as the value of a notebook's cell and saves itself without
a display. Those with a parameter `measured` draw rows measured here above the record's, which turn
pale. They raise ValueError where there is nothing to draw.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from matplotlib.axes import Axes

from infonce_kernels import canvas
from infonce_kernels.bench.records import OK, Record, Row, Run
from infonce_kernels.bench.sizes import CENTRES, Size
from infonce_kernels.bench.subjects import (
    COMPILE,
    DTYPES,
    PASS_NAMES,
    PASSES,
    STRONGEST,
    TIER_NAMES,
    TIERS,
)
from infonce_kernels.canvas import Curves, Layer, Line, Plot, Point, known, styled

_TIMERS = {
    "cold": "GPU time, cold cache",
    "graph": "GPU time of a CUDA graph, cold cache",
    "wall": "wall clock, back to back",
    "sustained": "wall clock, over a second",
}


@dataclass(frozen=True)
class Sweep:
    """The line of sizes through `centre` = (B, D, N) along which `axis` varies.

    Along "B" the number of negatives varies too: N / B is the centre's.
    """

    name: str
    axis: str
    centre: Size
    caption: str

    def __contains__(self, row: Row) -> bool:
        B, D, N = self.centre
        if self.axis == "B":
            return row.D == D and row.N * B == row.B * N
        if self.axis == "D":
            return (row.B, row.N) == (B, N)
        return (row.B, row.D) == (B, D)

    def x(self, row: Row) -> int:
        """Where the row is along the axis."""
        return getattr(row, self.axis)

    @property
    def middle(self) -> int:
        """Where the centre is along the axis."""
        return self.centre["BDN".index(self.axis)]

    def select(self, rows: Iterable[Row], pass_: str, tier: str) -> list[Row]:
        """The rows on the line, in order along the axis, whatever became of them."""
        found = [row for row in rows if row in self and (row.pass_, row.tier) == (pass_, tier)]
        return sorted(found, key=self.x)


def batch() -> Sweep:
    """Over the batch at ten negatives a query and D = 512: both centres are on it."""
    B, D, N = CENTRES["small"]
    return Sweep("batch", "B", CENTRES["small"], f"N = {N // B} B, D = {D}")


def dim(centre: str = "small") -> Sweep:
    """Over the feature dimension around a centre, "small" or "large"."""
    B, _, N = CENTRES[centre]
    caption = f"B = {canvas.count(B)}, N = {canvas.count(N)}"
    return Sweep(f"dim_{centre}", "D", CENTRES[centre], caption)


def negatives(centre: str = "small") -> Sweep:
    """Over the number of negatives around a centre, "small" or "large"."""
    B, D, _ = CENTRES[centre]
    return Sweep(f"negatives_{centre}", "N", CENTRES[centre], f"B = {canvas.count(B)}, D = {D}")


_BASELINES = (
    "dashed: plain PyTorch; eager is the original model, "
    "strongest one product and one cross entropy"
)
SWEEPS = (batch(), *(line(centre) for line in (dim, negatives) for centre in CENTRES))
_AXES = {"B": "batch B", "D": "feature dimension D", "N": "negatives N"}

Value = Callable[[Row], float | None]


def curves(rows: Iterable[Row], x: Value, y: Value) -> Curves:
    """A curve for each subject, in the order of the rows; what has no x or y is left out."""
    found: Curves = {}
    for row in rows:
        point = Point(x(row), y(row)) if row.ok else Point(x(row), None, row.status)
        if point.x is not None and (point.y is not None or point.reason):
            found.setdefault(row.name, []).append(point)
    return found


def speedups(
    rows: Iterable[Row],
    sweep: Sweep,
    pass_: str = "forward",
    tier: str = "ieee",
    baseline: str = "eager",
    timer: str = "cold",
) -> Curves:
    """Each subject's speed-up over the baseline at the same size, pass, tier and timer.

    Where the baseline was not measured nobody has a speed-up; where it failed, its own curve alone
    says why.
    """
    time = _time(timer)
    rows = sweep.select(rows, pass_, tier)
    base = {sweep.x(row): time(row) for row in rows if row.name == baseline}

    def ratio(row: Row) -> float | None:
        own, other = time(row), base.get(sweep.x(row))
        return other / own if own and other else None

    comparable = (row for row in rows if row.name == baseline or base.get(sweep.x(row)))
    return curves(comparable, sweep.x, ratio)


def _time(timer: str) -> Value:
    """The timer's milliseconds of a row; a wrong result has none."""
    if timer not in _TIMERS:
        raise ValueError(f"timer={timer!r} is not one of {', '.join(_TIMERS)}")
    return lambda row: getattr(row, f"{timer}_ms") if row.ok else None


@styled
def speedup(
    record: Record,
    sweep: Sweep | None = None,
    pass_: str = "forward",
    tier: str = "ieee",
    *,
    baseline: str = "eager",
    timer: str = "cold",
    names: Sequence[str] | None = None,
    measured: Sequence[Row] = (),
) -> Plot:
    """Draws speed-ups over a baseline along a sweep, by default over the batch.

    timer: "cold", "graph", "wall" or "sustained", as in a `Row`. names: the subjects, by default
    all rungs and baselines.
    """
    sweep = sweep or batch()
    wanted = None if names is None else [*names, baseline]

    def draw(rows: Iterable[Row]) -> Curves:
        return speedups(_chosen(rows, wanted), sweep, pass_, tier, baseline, timer)

    layers = _layers(record, measured, draw, besides=baseline)
    name = _best(layers[-1].curves, [*record, *measured], besides=baseline)
    centre, finding = _speedup_finding(layers[-1].curves[name], name, sweep, baseline)
    for layer in layers:
        # Its curve is the line at 1; only where it failed there is more to say.
        own = layer.curves.pop(baseline, [])
        if failed := [point for point in own if point.y is None]:
            layer.curves[baseline] = failed
    plot = Plot(
        finding,
        [PASS_NAMES[pass_], TIER_NAMES[tier], sweep.caption, _TIMERS[timer]],
        _stamp(record, measured),
        _notes(layers, [*record, *measured]),
    )
    xs = [x for layer in layers for x in layer.xs]
    line = Line(baseline, canvas.times(1), [Point(min(xs), 1.0), Point(max(xs), 1.0)])
    axes = canvas.chart(
        plot, layers, f"times as fast as {baseline}", _ratio, line,
        stressed=name, value_at=centre, value=canvas.times(centre.y),
    )  # fmt: skip
    axes.axhspan(axes.get_ylim()[0], 1, color=canvas.SHADE, zorder=0)
    axes.set_xlabel(_AXES[sweep.axis])
    return plot


def _ratio(value: float) -> str:
    """A digit more where rivals are close."""
    return canvas.times(value, 3 if value >= 0.95 else 2)


def _speedup_finding(
    curve: list[Point], name: str, sweep: Sweep, baseline: str
) -> tuple[Point, str]:
    """The point nearest the centre; and in words that one and the end that differs more from it."""
    curve = known(curve)
    centre = min(curve, key=lambda point: abs(math.log(point.x / sweep.middle)))
    end = max(curve[0], curve[-1], key=lambda point: abs(math.log(point.y / centre.y)))
    finding = f"{name} is {canvas.times(centre.y)} as fast as {baseline} at {_at(sweep, centre.x)}"
    if end is not centre:
        finding += f" and {canvas.times(end.y)} at {_at(sweep, end.x)}"
    return centre, finding


def _at(sweep: Sweep, x: float) -> str:
    """In words, and never split over lines."""
    return f"{sweep.axis} = {canvas.count(x)}".replace(" ", "\N{NO-BREAK SPACE}")


@styled
def time(
    record: Record,
    sweep: Sweep | None = None,
    pass_: str = "forward",
    tier: str = "ieee",
    *,
    timer: str = "cold",
    names: Sequence[str] | None = None,
    measured: Sequence[Row] = (),
) -> Plot:
    """Draws time against work along a sweep, by default over the batch, with the limit below it.

    The limit is one launch, estimated as eager's least time over its launches, and then what the
    operands' bytes or the FLOPs need at the run's ceilings. Arguments are those of `speedup`.
    """
    sweep = sweep or batch()

    def draw(rows: Iterable[Row]) -> Curves:
        return curves(sweep.select(_chosen(rows, names), pass_, tier), _work, _time(timer))

    layers = _layers(record, measured, draw)
    rows = sweep.select(measured or record, pass_, tier)
    roof = _roof(rows[-1].run, tier)
    launch, limit = _limit([row for row in rows if row.name in layers[-1].curves], rows, timer)
    excess = {
        name: [Point(p.x, p.y / limit[p.x]) for p in known(points)]
        for name, points in layers[-1].curves.items()
    }
    name = _best(excess, rows, besides="eager", least=True)
    plot = Plot(
        _time_finding(name, excess[name], rows, sweep),
        [PASS_NAMES[pass_], TIER_NAMES[tier], sweep.caption, _TIMERS[timer]],
        _stamp(record, measured),
        [
            f"limit: one launch ({_ms(launch, 2)}, from eager's least time), then operands and "
            f"FLOPs at {roof.copy_tbps:.3g} TB/s and {roof.matrix_tflops:.3g} TFLOP/s",
            *_notes(layers, rows),
        ],
    )
    line = Line("limit", _ms(limit[max(limit)]), [Point(x, y) for x, y in limit.items()])
    axes = canvas.chart(plot, layers, "time of a call", _ms, line, stressed=name)
    axes.fill_between(
        list(limit), axes.get_ylim()[0], list(limit.values()), color=canvas.SHADE, lw=0, zorder=0
    )
    canvas.ticks(axes.xaxis, canvas.round_values(*axes.get_xlim()), _flops)
    products = 6 if pass_ == "both" else 2
    least, most = (canvas.count(sweep.x(row)) for row in (rows[0], rows[-1]))
    axes.set_xlabel(f"work, {products} B N D ({sweep.axis} from {least} to {most})")
    return plot


def _work(row: Row) -> int | None:
    return row.model_flops


def _ms(value: float, significant: int = 3) -> str:
    return canvas.scaled(value * 1e-3, "s", significant)


def _flops(value: float) -> str:
    return canvas.scaled(value, "FLOP", 1)


def _limit(
    shown: Iterable[Row], rows: Iterable[Row], timer: str
) -> tuple[float, dict[float, float]]:
    """Milliseconds of a launch, and by work those that nobody can go below."""
    time = _time(timer)
    eager = [row for row in rows if row.name == "eager" and row.model_launches]
    launch = min((t / row.model_launches for row in eager if (t := time(row))), default=0.0)
    limits: dict[float, float] = {}
    for row in shown:
        if row.model_flops and row.limit_ms:
            limits[row.model_flops] = min(row.limit_ms, limits.get(row.model_flops, math.inf))
    return launch, {work: max(limits[work], launch) for work in sorted(limits)}


def _time_finding(name: str, excess: list[Point], rows: list[Row], sweep: Sweep) -> str:
    places = {row.model_flops: _at(sweep, sweep.x(row)) for row in rows}
    ends = dict.fromkeys((excess[0], excess[-1]))
    return f"{name} takes " + " and ".join(
        f"{canvas.times(p.y)} {'the limit ' if k == 0 else ''}at {places[p.x]}"
        for k, p in enumerate(ends)
    )


@styled
def memory(
    record: Record,
    sweep: Sweep | None = None,
    pass_: str = "forward",
    tier: str = "ieee",
    *,
    names: Sequence[str] | None = None,
    measured: Sequence[Row] = (),
) -> Plot:
    """Draws the most that a call allocates beyond its inputs along a sweep, by default over B.

    Arguments are those of `speedup`.
    """
    sweep = sweep or batch()

    def draw(rows: Iterable[Row]) -> Curves:
        found = sweep.select(_chosen(rows, names), pass_, tier)
        return curves(found, sweep.x, lambda row: row.peak_bytes or None)

    layers = _layers(record, measured, draw)
    rows = sweep.select(measured or record, pass_, tier)
    plot = Plot(
        _memory_finding(layers[-1].curves, sweep, _rungs(rows)),
        [PASS_NAMES[pass_], TIER_NAMES[tier], sweep.caption],
        _stamp(record, measured),
        _notes(layers, rows),
    )
    drawn = [row for row in rows if sweep.x(row) in layers[-1].xs]
    matrix = {sweep.x(row): row.B * row.N * DTYPES[tier].itemsize for row in drawn}
    largest = _bytes(matrix[max(matrix)])
    line = Line("(B, N) matrix", largest, [Point(x, y) for x, y in matrix.items()])
    axes = canvas.chart(plot, layers, "memory allocated in a call", _bytes, line)
    axes.set_xlabel(_AXES[sweep.axis])
    return plot


def _bytes(value: float) -> str:
    return canvas.scaled(value, "B", 2)


def _memory_finding(found: Curves, sweep: Sweep, rungs: set[str]) -> str:
    """The most and the least at the largest size that several subjects reached."""
    ends: dict[float, dict[str, float]] = {}
    for name, points in found.items():
        for point in known(points):
            ends.setdefault(point.x, {})[name] = point.y
    x, reached = max(ends.items(), key=lambda end: (min(len(end[1]), 2), end[0]))
    # Of equals, in the two digits shown, eager stands for the most and the last rung for the least.
    shown = {name: float(f"{value:.1e}") for name, value in reached.items()}
    most = max(shown, key=lambda name: (shown[name], name == "eager"))
    least = min(reversed(shown), key=lambda name: (shown[name], name not in rungs))
    finding = f"At {_at(sweep, x)} {most} allocates {_bytes(reached[most])}"
    return finding if most == least else f"{finding}, {least} {_bytes(reached[least])}"


@styled
def roofline(
    record: Record,
    pass_: str = "forward",
    tier: str = "ieee",
    *,
    centres: Sequence[str] = tuple(CENTRES),
    timer: str = "cold",
    names: Sequence[str] | None = None,
    measured: Sequence[Row] = (),
) -> Plot:
    """Draws the achieved rate against FLOPs a byte, below the roofs that the same run measured.

    FLOPs and bytes are those of the cost model, so a point may lie above the memory's roof: its
    bytes came from a cache. A line joins a subject's points from centre to centre. names: the
    subjects, by default the rungs and eager; those without predicted bytes are left out. Other
    arguments are those of `speedup`.
    """
    sizes = [CENTRES[centre] for centre in centres]

    def select(rows: Iterable[Row]) -> list[Row]:
        rows = [r for r in rows if (r.B, r.D, r.N) in sizes and (r.pass_, r.tier) == (pass_, tier)]
        if names is None:
            rows = [row for row in rows if row.kind == "rung" or row.name == "eager"]
        rows = [row for row in rows if _intensity(row) or not row.ok]
        return sorted(_chosen(rows, names), key=lambda row: row.B)

    def draw(rows: Iterable[Row]) -> Curves:
        return curves(select(rows), _intensity, _rate(timer))

    layers = _layers(record, measured, draw)
    rows = select(measured or record)
    roof = _roof(rows[-1].run, tier)
    plot = Plot(
        _roofline_finding(rows, roof, timer),
        [PASS_NAMES[pass_], TIER_NAMES[tier], batch().caption, _TIMERS[timer]],
        _stamp(record, measured),
        _roofline_notes(rows, roof, timer),
        height=5.8,
    )
    axes = plot.panel("achieved, TFLOP/s", left=0.68, right=0.2, below=0.6)
    runs = [*(row.run for row in select(record)[-1:] if measured), rows[-1].run]
    _draw_roofs(axes, layers, runs, tier)
    for layer in layers:
        for name in layer.curves:
            _draw_trail(axes, layer, name)
    canvas.label_spots(axes, layers, lambda rate: canvas.digits(rate, 2))
    axes.set_xlabel("FLOPs a byte, predicted")
    return plot


@dataclass(frozen=True)
class _Roof:
    """The most TFLOP/s at an intensity in FLOPs a byte."""

    copy_tbps: float
    matrix_tflops: float

    def __call__(self, intensity: float) -> float:
        return min(self.matrix_tflops, intensity * self.copy_tbps)

    @property
    def ridge(self) -> float:
        """The intensity from which on the memory keeps up."""
        return self.matrix_tflops / self.copy_tbps

    def line(self, low: float, high: float) -> tuple[list[float], list[float]]:
        xs = [low, self.ridge, high]
        return xs, [self(x) for x in xs]


def _roof(run: Run, tier: str) -> _Roof:
    if tier not in run.matrix_tflops:
        raise ValueError(f"run {run.number} measured no matrix rate for tier={tier!r}")
    return _Roof(run.copy_tbps, run.matrix_tflops[tier])


def _intensity(row: Row) -> float | None:
    return row.model_flops / row.model_bytes if row.model_flops and row.model_bytes else None


def _rate(timer: str) -> Value:
    """The TFLOP/s of a row."""
    time = _time(timer)
    return lambda row: row.model_flops / ms * 1e-9 if (ms := time(row)) else None


def _roofline_finding(rows: list[Row], roof: _Roof, timer: str) -> str:
    rate = _rate(timer)
    timed = [row for row in rows if rate(row)]
    fractions = curves(timed, lambda row: row.B, lambda row: rate(row) / roof(_intensity(row)))
    name = _best(fractions, rows, besides="eager")
    reached = [(f"{p.y:.0%}", f"at {_at(batch(), p.x)}") for p in known(fractions[name])]
    return (
        f"{name} reaches "
        + " of its roof ".join(reached[0])
        + "".join(f" and {fraction} {place}" for fraction, place in reached[1:])
    )


def _roofline_notes(rows: list[Row], roof: _Roof, timer: str) -> Iterator[str]:
    small, large = _at(batch(), rows[0].B), _at(batch(), rows[-1].B)
    if small != large:
        yield f"small marks: {small}, large marks: {large}"
    yield from _left_out([row.name for row in rows], rows)
    for row in rows:
        if not row.ok:
            yield f"{row.name} at {_at(batch(), row.B)}: {row.status}"
    rate = _rate(timer)
    above = [r.name for r in rows if rate(r) and rate(r) > _intensity(r) * roof.copy_tbps]
    if above:
        yield f"above the memory's roof, since a cache kept bytes: {', '.join(above)}"


def _draw_roofs(axes: Axes, layers: list[Layer], runs: list[Run], tier: str) -> None:
    """The last run's roofs, those of other tiers thin; of runs before it this tier's, pale."""
    run = runs[-1]
    points = known(point for layer in layers for point in layer.points)
    ridges = [rate / run.copy_tbps for rate in run.matrix_tflops.values()]
    low = min(_roof(run, tier).ridge / 4, *(point.x / 2 for point in points))
    high = max(max(ridges) * 3, *(point.x * 4 for point in points))
    rates = [*run.matrix_tflops.values(), *(run.matrix_tflops[tier] for run in runs)]
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_ylim(min(point.y for point in points) / 2, max(rates) * 1.9)
    for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        canvas.ticks(axis, canvas.round_values(*ends), lambda value: canvas.digits(value, 1))
    for name in sorted(run.matrix_tflops, key=lambda name: name == tier):
        roof, colour = _roof(run, name), canvas.BLACK if name == tier else "#8A8A8A"
        axes.plot(*roof.line(low, high), color=colour, lw=2 if name == tier else 0.9)
        axes.annotate(
            f"{TIER_NAMES[name]} product, {roof.matrix_tflops:.3g} TFLOP/s",
            (high, roof.matrix_tflops), (-4, 4), textcoords="offset points",
            ha="right", fontsize=11, color=colour, path_effects=canvas.HALO,
        )  # fmt: skip
    for other in runs[:-1]:
        axes.plot(*_roof(other, tier).line(low, high), color=canvas.BLACK, lw=2, alpha=0.25)
    middle = math.sqrt(low * _roof(run, tier).ridge)
    (x0, y0), (x1, y1) = axes.transData.transform([(low, low), (high, high)])
    axes.annotate(
        f"copy, {run.copy_tbps:.3g} TB/s", (middle, middle * run.copy_tbps), (-5, 5),
        textcoords="offset points", ha="center", va="bottom", fontsize=11,
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor",
    )  # fmt: skip


def _draw_trail(axes: Axes, layer: Layer, name: str) -> None:
    """A subject's points, the last one large, and a thin line between them."""
    points = known(layer.curves[name])
    look = canvas.style(name).line(layer.faint)
    for shown, size, label in ((points, 7, name), (points[-1:], 12, f"_{name}")):
        xs, ys = [point.x for point in shown], [point.y for point in shown]
        axes.plot(xs, ys, markersize=size, lw=1.2, label=label, **look)


@styled
def times(
    record: Record,
    size: Size,
    names: Sequence[str],
    pass_: str = "forward",
    tier: str = "ieee",
    *,
    timer: str = "cold",
    measured: Sequence[Row] = (),
) -> Plot:
    """Draws subjects' times at one size (B, D, N) as bars below eager's, each with its limit.

    The finding is about the last of `names`. timer: as in `speedup`.
    """
    time = _time(timer)
    names = list(dict.fromkeys(["eager", *names]))
    keys = [(name, pass_, tier, *size) for name in names]
    bars = [
        (row, source is record)
        for key in keys
        for source in (record, measured)
        for row in source
        if row.key == key and (time(row) or not row.ok)
    ]
    subject = [row for row, _ in bars if row.name == names[-1] and time(row)]
    if not subject:
        raise ValueError(f"nothing has a time of {names[-1]}, {pass_}, {tier}, at {_size(size)}")
    eager = {source: time(row) for row, source in bars if row.name == "eager"}
    plot = Plot(
        _times_finding(subject[-1], time(subject[-1]), eager.get(not measured)),
        [PASS_NAMES[pass_], TIER_NAMES[tier], _size(size), _TIMERS[timer]],
        _stamp(record, measured),
        [
            *_left_out(names, [row for row, _ in bars]),
            "limit: what the predicted bytes and FLOPs need at the ceilings of the same run",
        ],
        height=1.5 + 0.4 * len(bars),
    )
    width = max(canvas.extent(plot, name)[0] for name in names) / plot.dpi
    axes = plot.panel("", left=width + 0.3, right=2.3, below=0.32)
    ends = [value for row, _ in bars for value in (time(row), row.limit_ms) if value]
    axes.set(xlim=(0, max(ends)), ylim=(len(bars) - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines["bottom"].set_visible(False)
    for y, (row, is_recorded) in enumerate(bars):
        _draw_bar(axes, y, row, time(row), eager.get(is_recorded), is_recorded and bool(measured))
    limit = subject[-1].limit_ms
    if limit:
        axes.annotate(
            f"limit {_ms(limit, 2)}", (limit, len(bars) - 0.5), (0, -4),
            textcoords="offset points", ha="center", va="top", fontsize=11.5,
        )  # fmt: skip
    return plot


def _size(size: Size) -> str:
    return ", ".join(f"{axis} = {canvas.count(n)}" for axis, n in zip("BDN", size, strict=True))


def _times_finding(row: Row, ms: float, eager: float | None) -> str:
    finding = f"{row.name} takes {_ms(ms, 2)}"
    if eager and row.name != "eager":
        finding += f", {canvas.times(eager / ms)} as fast as eager"
    return f"{finding}; its limit is {_ms(row.limit_ms, 2)}" if row.limit_ms else finding


def _against(eager: float | None, ms: float) -> str:
    if eager is None or eager == ms:
        return ""
    return f", {_ratio(eager / ms)} as fast" if ms < eager else f", {_ratio(ms / eager)} as long"


def _draw_bar(
    axes: Axes, y: int, row: Row, ms: float | None, eager: float | None, faint: bool
) -> None:
    """A time with its name to the left and its value to the right, and a line at its limit."""
    look = canvas.style(row.name)
    shared = {"textcoords": "offset points", "va": "center", "color": look.ink}
    axes.annotate(row.name, (0, y), (-8, 0), ha="right", **shared)
    if ms is None:
        words = row.status.split(":")[0]
    else:
        axes.barh(
            y, ms, 0.66, facecolor=look.colour if look.filled else canvas.PALE,
            edgecolor=look.colour, alpha=0.35 if faint else 1.0, label=row.name,
        )  # fmt: skip
        words = _ms(ms, 2) + _against(eager, ms)
    if row.limit_ms:
        axes.plot(
            [row.limit_ms] * 2, [y - 0.45, y + 0.45], color=canvas.BLACK, lw=2.5,
            path_effects=canvas.HALO, solid_capstyle="butt",
        )  # fmt: skip
    end = max(ms or 0, row.limit_ms or 0)
    axes.annotate(words, (end, y), (8, 0), **shared)


def figures(record: Record) -> dict[str, Callable[[], Plot]]:
    """What `write` writes: by name of the file, without suffix, how to draw it.

    In each pass and tier of which the record has a rung: the speed-up along every sweep, the batch
    by the wall clock too; time, memory and roofline.
    """
    drawn: dict[str, Callable[[], Plot]] = {}
    for pass_, tier in product(PASSES, TIERS):
        rows = record.select(kind="rung", pass_=pass_, tier=tier, status=OK)
        end, what = f"{pass_}_{tier}", {"pass_": pass_, "tier": tier}
        for sweep in SWEEPS:
            if any(row in sweep for row in rows):
                drawn[f"speedup_{sweep.name}_{end}"] = partial(speedup, record, sweep, **what)
        if any(row in batch() for row in rows):
            drawn[f"speedup_batch_wall_{end}"] = partial(speedup, record, timer="wall", **what)
            drawn[f"memory_{end}"] = partial(memory, record, **what)
        if any(row in batch() and row.limit_ms for row in rows):
            drawn[f"time_{end}"] = partial(time, record, **what)
        if any((row.B, row.D, row.N) in CENTRES.values() and row.limit_ms for row in rows):
            drawn[f"roofline_{end}"] = partial(roofline, record, **what)
    return drawn


def write(
    record: Record,
    folder: str | Path,
    format: str = "svg",
    watch: Callable[[list[tuple[str, Callable[[], Plot]]]], Iterable] = iter,
) -> list[Path]:
    """Writes the figures of `figures(record)` as "svg" or "png"; returns the files.

    Those with nothing to draw, as where no baseline was measured, are left out. watch: what to go
    through the figures with, such as a progress bar.
    """
    if format not in ("svg", "png"):
        raise ValueError(f"format={format!r} is not svg or png")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in watch(list(figures(record).items())):
        try:
            plot = draw()
        except ValueError:
            continue
        written.append(plot.save(folder / f"{name}.{format}"))
    return written


def _layers(
    record: Record,
    measured: Sequence[Row],
    draw: Callable[[Iterable[Row]], Curves],
    besides: str = "",
) -> list[Layer]:
    """The record's curves and, above them, those measured here."""
    layers = [Layer(draw(record), faint=bool(measured))]
    if measured:
        layers.append(Layer(draw(measured)))
    if not any(known(points) for name, points in layers[-1].curves.items() if name != besides):
        source = "what was measured here" if measured else record.path.name
        raise ValueError(f"{source} has nothing of this figure's pass, tier, timer and sizes")
    return layers


def _stamp(record: Record, measured: Sequence[Row]) -> str:
    if not measured:
        return record.stamp
    return f"measured here, on {measured[-1].run.gpu}; pale: {record.stamp}"


def _chosen(rows: Iterable[Row], names: Sequence[str] | None) -> list[Row]:
    """The rows of these subjects, in this order; by default of all rungs and baselines.

    By default "auto" is among them where the rung that it ran is not there itself.
    """
    if names is None:
        rows = [row for row in rows if row.kind != "peer"]
        there = {(row.name, row.tier) for row in rows}
        rows = [row for row in rows if row.name != "auto" or (row.ran, row.tier) not in there]
        names = list(dict.fromkeys([*canvas.STYLES, *(row.name for row in rows)]))
    return sorted((row for row in rows if row.name in names), key=lambda r: names.index(r.name))


def _rungs(rows: Iterable[Row]) -> set[str]:
    return {row.name for row in rows if row.kind == "rung"}


def _best(found: Curves, rows: Iterable[Row], besides: str, least: bool = False) -> str:
    """The rung with the greatest geometric mean, or the least; of all where there is no rung."""

    def mean(name: str) -> float:
        logs = [math.log(point.y) for point in known(found[name])]
        return sum(logs) / len(logs) * (-1 if least else 1)

    rungs = _rungs(rows)
    others = [name for name, points in found.items() if known(points) and name != besides]
    return max([name for name in others if name in rungs] or others or [besides], key=mean)


def _notes(layers: list[Layer], rows: Iterable[Row]) -> list[str]:
    """What a reader must know: what subjects do not do of the loss, and what was not measured."""
    shown = {name for layer in layers for name in layer.curves}
    notes = _left_out(shown, rows)
    if shown & {COMPILE.name, STRONGEST.name}:
        notes.append(_BASELINES)
    if any(layer.has_gaps for layer in layers):
        notes.append("dotted: sizes in between were not measured")
    return notes


def _left_out(shown: Iterable[str], rows: Iterable[Row]) -> list[str]:
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.leaves_out and row.name in shown:
            found.setdefault(row.leaves_out, {})[row.name] = None
    return [
        f"{', '.join(names)} {'leave' if len(names) > 1 else 'leaves'} out {what}"
        for what, names in found.items()
    ]
