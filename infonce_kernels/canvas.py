"""What every figure of `plots` shares: styles, a page with its finding, curves with their labels.

Nothing here uses pyplot or leaves a setting of matplotlib changed.
"""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise, product
from pathlib import Path
from typing import ParamSpec

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter
from matplotlib.transforms import Bbox

P = ParamSpec("P")
Colour = str | tuple[float, float, float]

BLACK, GREY, PALE, SHADE = "#222222", "#666666", "#E4E4E4", "#F2F2F2"
_SETTINGS = {
    "font.size": 12.5,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": PALE,
    "svg.hashsalt": "infonce_kernels",  # the same ids, and so the same file, every time
    "text.color": BLACK,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
}
_SMALL, _TICK = 10.5, 11.5
HALO = [withStroke(linewidth=3, foreground="white")]  # keeps what is on top legible


@dataclass(frozen=True)
class Style:
    """How a subject looks in every figure."""

    colour: str
    marker: str
    dashes: str = "-"
    filled: bool = True

    @property
    def ink(self) -> Colour:
        """The colour, darkened until text in it reads well on white (a contrast of 4.5)."""
        red, green, blue = to_rgb(self.colour)
        while 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.175:
            red, green, blue = 0.95 * red, 0.95 * green, 0.95 * blue
        return red, green, blue

    def line(self, faint: bool = False) -> dict[str, object]:
        """Arguments of `Axes.plot` for a line with its marks."""
        return {
            "color": self.colour,
            "alpha": 0.35 if faint else 1.0,
            "marker": self.marker,
            "markerfacecolor": self.colour if self.filled else "white",
            "markeredgecolor": "white" if self.filled else self.colour,
            "markeredgewidth": 0.7 if self.filled else 1.5,
            "zorder": 2.5,
        }


# Okabe and Ito's colours, which colour-blind readers tell apart; markers tell apart in grey too.
# Rungs are solid, baselines in plain PyTorch grey and dashed, everything else dotted.
STYLES = {
    "v0_reference": Style("#999999", "o"),
    "v1_naive": Style("#56B4E9", "v"),
    "v2_shared": Style("#E69F00", "s"),
    "v3_fused": Style("#D55E00", "D"),
    "v4_warp": Style("#CC79A7", "^"),
    "v5_flash": Style("#009E73", "P"),
    "v6_tensor_core": Style("#0072B2", "X"),
    "v7_hopper": Style("#000000", "*"),
    "auto": Style("#000000", "h", "-.", filled=False),
    "eager": Style("#333333", "p", "--", filled=False),
    "compile": Style("#666666", "s", "--", filled=False),
    "strongest": Style("#666666", "o", "--", filled=False),
    "cut_cross_entropy": Style("#0072B2", "^", ":", filled=False),
    "liger": Style("#CC79A7", "v", ":", filled=False),
    "liger_sm90": Style("#009E73", "D", ":", filled=False),
    "inf_cl": Style("#E69F00", "<", ":", filled=False),
    "memeff": Style("#56B4E9", ">", ":", filled=False),
    "info_nce_pytorch": Style("#D55E00", "d", ":", filled=False),
}
UNKNOWN = Style("#777777", "8", ":", filled=False)


def style(name: str) -> Style:
    """The subject's style; grey and dotted where it is not in the table."""
    return STYLES.get(name, UNKNOWN)


def styled(draw: Callable[P, "Plot"]) -> Callable[P, "Plot"]:
    """Draws with our settings whatever the reader's are, and leaves those as they were."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Plot:
        with matplotlib.style.context(["default", _SETTINGS]):
            plot = draw(*args, **kwargs)
            plot.draw_without_rendering()  # ticks are made now, with these settings
        return plot

    return drawn


class Plot(Figure):
    """A figure with its finding on top and its stamp in the lower right corner.

    finding: what the data shows. details: what was measured and how. notes: small print. height: in
    inches, of a figure without notes whose finding takes one line; others are taller. Jupyter shows
    a `Plot` that is the value of a cell, whether or not pyplot is in use.
    """

    def __init__(
        self,
        finding: str,
        details: Sequence[str],
        stamp: str,
        notes: Iterable[str] = (),
        height: float = 5.2,
    ) -> None:
        super().__init__(figsize=(8.6, height), dpi=100)
        FigureCanvasAgg(self)
        self.finding, self.stamp = finding, stamp
        title = self._lines(finding.split(" "), " ", fontsize=15, weight="bold")
        below = self._lines(details, "  ·  ", fontsize=11.5)
        small = [
            line for note in notes for line in self._lines(note.split(" "), " ", fontsize=_SMALL)
        ]
        # The stamp shares the last note's line where both fit.
        if not (small and self._fits(f"{small[-1]}    {stamp}", fontsize=_SMALL)):
            small.append("")
        # In inches, as text is.
        above = 0.22 + 0.27 * len(title)
        self._above = above + 0.2 * len(below)
        self._below = 0.13 + 0.19 * len(small)
        extra = 0.27 * (len(title) - 1) + 0.2 * (len(below) - 1) + 0.19 * (len(small) - 1)
        self.set_figheight(height + extra)
        self._write(0.12, -0.12, title, va="top", fontsize=15, weight="bold")
        self._write(0.12, -above, below, va="top", fontsize=11.5, color=GREY)
        for k, line in enumerate(small, start=1):
            self._write(0.12, self._below - 0.19 * k, [line], fontsize=_SMALL, color=GREY)
        self._write(-0.12, 0.13, [stamp], ha="right", fontsize=_SMALL, color=GREY)

    def _lines(self, parts: Sequence[str], between: str, **font: object) -> list[str]:
        """The parts in as many lines as they need to fit into the figure."""
        lines = [parts[0]]
        for part in parts[1:]:
            longer = lines[-1] + between + part
            if self._fits(longer, **font):
                lines[-1] = longer
            else:
                lines.append(part)
        return lines

    def _fits(self, line: str, **font: object) -> bool:
        return extent(self, line, **font)[0] < (self.get_figwidth() - 0.3) * self.dpi

    def _write(self, x: float, y: float, lines: Sequence[str], **how: object) -> None:
        """Text at a place in inches, from the right or the top where negative."""
        width, height = self.get_size_inches()
        self.text(x / width % 1, y / height % 1, "\n".join(lines), linespacing=1.25, **how)

    def panel(self, meaning: str, left: float, right: float, below: float) -> Axes:
        """Axes within margins in inches, beyond what the texts take.

        meaning: of the vertical axis; it stands above it.
        """
        width, height = self.get_size_inches()
        bottom, top = self._below + below, self._above + (0.42 if meaning else 0.12)
        across, up = width - left - right, height - bottom - top
        axes = self.add_axes((left / width, bottom / height, across / width, up / height))
        axes.annotate(
            meaning, (0, 1), ((0.12 - left) * 72, 10),
            xycoords="axes fraction", textcoords="offset points",
        )  # fmt: skip
        return axes

    def save(self, path: str | Path) -> Path:
        """Writes a file in the format of its suffix, with finding and stamp in its metadata.

        An SVG file depends on the data and on matplotlib's version alone. Returns the path.
        """
        path = Path(path)
        # By default either holds the version, and SVG the date too.
        hidden = {".svg": {"Creator": None, "Date": None}, ".png": {"Software": None}}
        metadata = {"Title": self.finding, "Description": self.stamp}
        with matplotlib.style.context(["default", _SETTINGS]):
            self.savefig(path, metadata={**metadata, **hidden.get(path.suffix, {})})
        return path

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def extent(figure: Figure, text: str, **how: object) -> tuple[float, float]:
    """Width and height of a text in pixels."""
    trial = figure.text(0, 0, text, **how)
    box = trial.get_window_extent()
    trial.remove()
    return box.width, box.height


@dataclass(frozen=True)
class Point:
    """A place on a curve; without `y` where the measurement failed, for `reason`."""

    x: float
    y: float | None
    reason: str = ""


Curves = dict[str, list[Point]]


def known(points: Iterable[Point]) -> list[Point]:
    """Those that did not fail."""
    return [point for point in points if point.y is not None]


@dataclass(frozen=True)
class Layer:
    """Curves from one source; pale ones stand behind what was measured here."""

    curves: Curves
    faint: bool = False

    @property
    def points(self) -> list[Point]:
        return [point for points in self.curves.values() for point in points]

    @property
    def xs(self) -> list[float]:
        """Where anything was measured, in order."""
        return sorted({point.x for point in self.points})

    @property
    def has_gaps(self) -> bool:
        """Whether a size between others of a curve was not measured."""
        xs = self.xs
        places = [[xs.index(p.x) for p in points] for points in self.curves.values()]
        return any(b - a > 1 for place in places for a, b in pairwise(place))


@dataclass(frozen=True)
class Line:
    """A line without marks, for a baseline or a limit. words: its last value as text."""

    name: str
    words: str
    points: list[Point]


@dataclass(frozen=True)
class _End:
    """The last point of a line and what its label says."""

    name: str
    words: str
    point: Point
    colour: Colour

    @property
    def label(self) -> str:
        return f"{self.name}  {self.words}"


_PAD = 0.04  # of the axes: room beside the outermost points
_ROW = 0.075  # of the axes: the height of a row that says what failed


def chart(
    plot: Plot,
    layers: Sequence[Layer],
    meaning: str,
    words: Callable[[float], str],
    line: Line,
    stressed: str = "",
    value_at: Point | None = None,
    value: str = "",
) -> Axes:
    """Draws curves on logarithmic axes, labels each at its end and says below them what failed.

    Labels of curves that reach the last size stand in a column beside the axes. words: a value of
    the vertical axis as text. stressed: the curve that the finding is about. value_at: a point on
    it to write `value` at.
    """
    ends = [_end(name, points, words) for name, points in _labelled(layers)]
    ends.append(_End(line.name, line.words, line.points[-1], BLACK))
    xs = sorted({x for layer in layers for x in layer.xs})
    beside = [end for end in ends if end.point.x == xs[-1]]
    widths = [extent(plot, end.label, weight="bold")[0] for end in beside]
    width = max(widths, default=0) / plot.dpi
    axes = plot.panel(meaning, left=0.84, right=width + 0.3, below=0.6)
    failed = [(layer, name) for layer in layers for name in layer.curves if _failures(layer, name)]
    _scale(axes, [p for layer in layers for p in layer.points], line, len(failed))
    ticks(axes.yaxis, round_values(*axes.get_ylim()), words)
    ticks(axes.xaxis, _with_room(axes, xs), count, unlabelled=xs)
    axes.plot(
        [p.x for p in line.points], [p.y for p in line.points],
        color=BLACK, lw=1.4, zorder=2, label=line.name,
    )  # fmt: skip
    for layer in layers:
        for name in layer.curves:
            _draw_curve(axes, layer, name, 3.2 if name == stressed else 2.0)
    for k, (layer, name) in enumerate(failed):
        _say_failed(axes, name, _failures(layer, name), _PAD + _ROW * (len(failed) - 1 - k))
    room = _Room(axes)
    if value_at:
        ink = style(stressed).ink
        _write_beside(axes, value_at, value, ink, room, _UPRIGHT, weight="bold")
    for end in ends:
        if end not in beside:
            weight = "bold" if end.name == stressed else "normal"
            _write_beside(axes, end.point, end.label, end.colour, room, _SIDEWAYS, weight=weight)
    if beside:
        _label_column(axes, beside, stressed)
    return axes


def _labelled(layers: Sequence[Layer]) -> list[tuple[str, list[Point]]]:
    """Curves to label, each name once: what was measured here comes before the record."""
    curves = {name: points for layer in layers for name, points in layer.curves.items()}
    return [(name, points) for name, points in curves.items() if known(points)]


def _end(name: str, points: list[Point], words: Callable[[float], str]) -> _End:
    last = known(points)[-1]
    return _End(name, words(last.y), last, style(name).ink)


def _failures(layer: Layer, name: str) -> list[Point]:
    return [point for point in layer.curves[name] if point.y is None]


def _scale(axes: Axes, points: list[Point], line: Line, rows: int) -> None:
    """Sets limits, with room for rows of text at the bottom."""
    axes.set(xscale="log", yscale="log", xlim=_padded([p.x for p in points], _PAD, _PAD))
    values = [p.y for p in known([*points, *line.points])]
    axes.set_ylim(_padded(values, _PAD + _ROW * rows, 1.5 * _PAD))
    axes.yaxis.grid(True)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _padded(values: Iterable[float], below: float, above: float) -> tuple[float, float]:
    """Limits of a logarithmic axis that leave these fractions of it free."""
    logs = [math.log(value) for value in values]
    low, high = min(logs), max(logs)
    whole = max(high - low, 0.5) / (1 - below - above)
    return math.exp(low - below * whole), math.exp(high + above * whole)


def round_values(low: float, high: float) -> list[float]:
    """Powers of ten within limits, and round values between them where those are few."""
    steps = (1, 2, 5) if high / low < 100 else (1, 3) if high / low < 3000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{step}e{power}") for power in powers for step in steps]
    return [value for value in values if low <= value <= high]


def ticks(
    axis: Axis,
    places: Sequence[float],
    words: Callable[[float], str],
    unlabelled: Sequence[float] = (),
) -> None:
    """Sets an axis's ticks, its labels and the ticks that have none."""
    axis.set_major_locator(FixedLocator(places))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_locator(FixedLocator(unlabelled))
    axis.set_minor_formatter(NullFormatter())
    if axis.axis_name == "x":
        axis.set_tick_params(which="both", length=4, labelsize=_TICK)


def _with_room(axes: Axes, xs: Sequence[float]) -> list[float]:
    """Those of the sizes whose labels have room below the axis, beginning with the last."""
    kept: list[float] = []
    left = math.inf
    for x in reversed(xs):
        place, _ = axes.transData.transform((x, 1))
        half = extent(axes.get_figure(), count(x), fontsize=_TICK)[0] / 2
        if place + half + 6 <= left:
            kept.append(x)
            left = place - half
    return kept


def _draw_curve(axes: Axes, layer: Layer, name: str, width: float) -> None:
    """A line with a mark a measurement, broken where one failed, dotted past what was skipped."""
    look, points = style(name), {point.x: point.y for point in layer.curves[name]}
    xs = layer.xs
    ys = [points.get(x) for x in xs]
    axes.plot(
        xs,
        [math.nan if y is None else y for y in ys],
        label=f"{name} (recorded)" if layer.faint else name,
        markersize=7.5,
        linestyle=look.dashes,
        linewidth=width,
        **look.line(layer.faint),
    )
    measured = [x for x in xs if x in points]
    for a, b in pairwise(measured):
        skipped = xs.index(b) - xs.index(a) > 1
        if skipped and points[a] is not None and points[b] is not None:
            dotted = {**look.line(layer.faint), "marker": "", "linestyle": (0, (1, 2.5))}
            axes.plot([a, b], [points[a], points[b]], linewidth=1.5, **dotted)


def _say_failed(axes: Axes, name: str, failures: list[Point], height: float) -> None:
    """A row at the bottom of the axes: a cross at each size that failed, and why."""
    xs = [point.x for point in failures]
    reasons = dict.fromkeys(point.reason.split(":")[0] for point in failures)
    across = axes.get_xaxis_transform()
    axes.plot(
        xs, [height] * len(xs), ls="", marker="x", markersize=7, markeredgewidth=2,
        color=style(name).colour, transform=across, label=f"{name} failed",
    )  # fmt: skip
    # The words stand in the widest gap between crosses and edges.
    low, high = axes.get_xlim()
    edges = [low, *xs, high]
    gap = max(range(len(edges) - 1), key=lambda k: edges[k + 1] / edges[k])
    shift, side = {0: (-8, "right"), len(xs): (8, "left")}.get(gap, (0, "center"))
    place = edges[gap + 1] if gap == 0 else math.sqrt(edges[gap] * edges[min(gap + 1, len(xs))])
    axes.annotate(
        f"{name}: {', '.join(reasons)}",
        (place, height),
        (shift, 0),
        xycoords=across,
        textcoords="offset points",
        ha=side,
        va="center_baseline",
        fontsize=11,
        color=style(name).ink,
    )


def _label_column(axes: Axes, ends: Sequence[_End], stressed: str) -> None:
    """Labels beside the axes, each at the height of its line's end or as close as there is room."""
    figure = axes.get_figure()
    places = axes.transData.transform([(end.point.x, end.point.y) for end in ends])
    apart = max(extent(figure, end.label)[1] for end in ends) + 2
    heights = spread(list(places[:, 1]), apart, axes.bbox.y0, axes.bbox.y1)
    for end, (x, y), height in zip(ends, places, heights, strict=True):
        across, up = np.array([axes.bbox.x1 - x, height - y]) * 72 / figure.dpi
        axes.annotate(
            end.label,
            (end.point.x, end.point.y),
            (across + 4, up),
            textcoords="offset points",
            va="center",
            color=end.colour,
            weight="bold" if end.name == stressed else "normal",
            arrowprops=_leader(end.colour, 5),
        )


def _leader(
    colour: Colour, room: float, start: tuple[float, float] = (0.0, 0.5)
) -> dict[str, object]:
    """A thin line to a point, `room` points away from it, from a place within a label's box."""
    ends = {"shrinkA": 0, "shrinkB": room, "relpos": start}
    return {"arrowstyle": "-", "color": colour, "linewidth": 0.8, **ends}


def spread(ys: list[float], apart: float, low: float, high: float) -> list[float]:
    """Heights in the order of `ys` and close to them, each `apart` from the next, within limits.

    Neighbours that are too close move away from each other by equal parts until all have room.
    """
    order = sorted(range(len(ys)), key=lambda k: ys[k])
    ys = list(ys)
    for _ in range(1000):
        moved = False
        for a, b in pairwise(order):
            if (lack := apart - (ys[b] - ys[a])) > 0.01:
                ys[a], ys[b], moved = ys[a] - lack / 2, ys[b] + lack / 2, True
        if not moved:
            break
        ys = [min(max(y, low), high) for y in ys]
    return ys


def label_spots(axes: Axes, layers: Sequence[Layer], words: Callable[[float], str]) -> None:
    """Writes each curve's name and last value beside its last point, where least is in the way."""
    room = _Room(axes)
    for name, points in _labelled(layers):
        end = _end(name, points, words)
        _write_beside(axes, end.point, end.label, end.colour, room, _SIDEWAYS)


# Directions from a point in degrees, the best first.
_SIDEWAYS = (0, 180, 25, -25, 155, -155, 50, -50, 130, -130, 90, -90)
_UPRIGHT = (90, -90, 60, 120, -60, -120, 35, 145, -35, -145)


def _write_beside(
    axes: Axes,
    point: Point,
    label: str,
    colour: Colour,
    room: "_Room",
    angles: Sequence[float],
    **how: object,
) -> None:
    figure = axes.get_figure()
    place = axes.transData.transform((point.x, point.y))
    box, is_close = room.take(place, np.array(extent(figure, label, **how)), angles)
    nearest = tuple(np.clip((place - box.min) / box.size, 0, 1))
    axes.annotate(
        label,
        (point.x, point.y),
        (np.array([box.x0, (box.y0 + box.y1) / 2]) - place) * 72 / figure.dpi,
        textcoords="offset points",
        va="center",
        color=colour,
        arrowprops=None if is_close else _leader(colour, 8, nearest),
        path_effects=HALO,
        zorder=4 - 0.01 * len(room.texts),  # a later label's leader passes behind
        **how,
    )


class _Room:
    """What is drawn on axes in pixels, as boxes, to find where there is room for a text."""

    def __init__(self, axes: Axes) -> None:
        self.within = Bbox.from_extents(axes.bbox.extents + np.array([4, 0, -12, 0]))
        self.texts = [text.get_window_extent().extents for text in axes.texts]
        marks = []
        for line in axes.lines:
            half = line.get_markersize() / 2 * axes.get_figure().dpi / 72 + 1
            corners = line.get_transform().transform(line.get_xydata())
            places = [*corners]
            for a, b in pairwise(corners[np.isfinite(corners).all(axis=1)]):
                places += [*np.linspace(a, b, int(np.hypot(*(b - a)) / half))]
            marks += [[*(place - half), *(place + half)] for place in places]
        self.marks = np.array(marks)

    def take(
        self, place: np.ndarray, size: np.ndarray, angles: Sequence[float]
    ) -> tuple[Bbox, bool]:
        """The box of this size near a place that covers least, and whether it is right beside it.

        Nothing later will cover it.
        """
        marks, texts = self.marks, np.array(self.texts).reshape(-1, 4)
        least, found, closest = math.inf, Bbox.null(), 0
        for ring, angle in product(range(8), np.radians(angles)):
            way = np.array([np.cos(angle), np.sin(angle)])
            box = Bbox.from_bounds(*(place + way * (13 + 11 * ring) + (way - 1) * size / 2), *size)
            outside = box.x0 < self.within.x0 or box.x1 > self.within.x1 or box.y0 < self.within.y0
            cost = _covered(box, marks) + 20 * _covered(box, texts) + 1e6 * outside
            if cost < least:
                least, found, closest = cost, box, ring
            if not cost:
                break
        self.texts.append(found.extents)
        return found, closest == 0


def _covered(box: Bbox, others: np.ndarray) -> float:
    """How much of the others' area lies in a box; NaN counts as nowhere."""
    lower = np.maximum(others[:, :2], box.min)
    upper = np.minimum(others[:, 2:], box.max)
    return float(np.nansum(np.prod(np.maximum(upper - lower, 0), axis=1)))


def count(number: float) -> str:
    """A size: "4096", "16,384"."""
    return f"{number:,.0f}" if number >= 10_000 else f"{number:.0f}"


def digits(value: float, significant: int) -> str:
    """Rounded to significant digits, without an exponent or zeros at the end."""
    exponent = math.floor(math.log10(abs(float(f"{value:.{significant - 1}e}"))))
    thousands = "," if abs(value) >= 10_000 else ""
    text = f"{value:{thousands}.{max(significant - 1 - exponent, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def times(value: float, significant: int = 2) -> str:
    """A ratio: "6.9x", with the sign for times."""
    return f"{digits(value, significant)}\N{MULTIPLICATION SIGN}"


_PREFIXES = {-2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}


def scaled(value: float, unit: str, significant: int) -> str:
    """A value with the prefix that suits it: "38 µs", "7.7 GB"."""
    power = min(max(math.floor(math.log10(value) / 3 + 1e-9), min(_PREFIXES)), max(_PREFIXES))
    return f"{digits(value / 1000.0**power, significant)} {_PREFIXES[power]}{unit}"
