import io
import math
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from infonce_kernels import canvas, ladder
from infonce_kernels.bench.peers import PEERS
from infonce_kernels.bench.subjects import AUTO, COMPILE, EAGER, STRONGEST
from infonce_kernels.canvas import Curves, Layer, Line, Plot, Point


def contrast_with_white(colour: canvas.Colour) -> float:
    """WCAG 2.1, "relative luminance" and "contrast ratio"."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


@pytest.mark.parametrize("name", [*canvas.STYLES, "something new"])
def test_labels_can_be_read_on_white(name: str) -> None:
    assert contrast_with_white(canvas.style(name).ink) >= 4.5


def test_every_subject_has_a_look_of_its_own() -> None:
    others = (subject.name for subject in (AUTO, EAGER, COMPILE, STRONGEST, *PEERS))
    assert {*ladder.names(), *others} <= set(canvas.STYLES)
    marks = [(look.marker, look.filled) for look in canvas.STYLES.values()]
    assert len(set(marks)) == len(marks), "in grey, marks alone tell subjects apart"
    solid = [look.colour for look in canvas.STYLES.values() if look.dashes == "-"]
    assert len(set(solid)) == len(solid)
    assert canvas.style("something new").dashes == ":"


def test_spread_keeps_order_and_distance() -> None:
    places = canvas.spread([50, 52, 51, 200, 0], apart=20, low=0, high=210)
    by_height = sorted(range(5), key=lambda k: places[k])
    assert by_height == [4, 0, 2, 1, 3]
    assert all(places[b] - places[a] > 19.9 for a, b in pairwise(by_height))
    assert places[3:] == [200, 0], "what has room stays"
    assert sum(places[:3]) / 3 == pytest.approx(51, abs=0.1)


def test_spread_pushes_off_the_edges() -> None:
    assert canvas.spread([0, 1, 2], 10, 0, 100) == pytest.approx([0, 10, 20], abs=0.1)
    assert canvas.spread([98, 99, 100], 10, 0, 100) == pytest.approx([80, 90, 100], abs=0.1)


@pytest.mark.parametrize(
    ("value", "significant", "text"),
    [(6.9211, 2, "6.9"), (0.01834, 2, "0.018"), (1.0, 3, "1"), (12.34, 2, "12"), (99.6, 2, "100"),
     (9.96, 2, "10"), (163840, 2, "163,840"), (1000, 1, "1000"), (450, 2, "450")],
)  # fmt: skip
def test_digits(value: float, significant: int, text: str) -> None:
    assert canvas.digits(value, significant) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(38e-6, "s", "38 µs"), (4.852e-3, "s", "4.85 ms"), (1.0, "s", "1 s"), (1e-6, "s", "1 µs"),
     (7.7e9, "B", "7.7 GB"), (1000.0, "B", "1 kB"), (2e-8, "s", "0.02 µs"), (9e18, "B", "9000 PB")],
)  # fmt: skip
def test_scaled(value: float, unit: str, text: str) -> None:
    assert canvas.scaled(value, unit, 3) == text


def test_count_groups_digits_from_ten_thousand_on() -> None:
    assert [canvas.count(n) for n in (256, 4096, 16384, 1048576)] == [
        "256", "4096", "16,384", "1,048,576",
    ]  # fmt: skip


def test_round_values_are_neither_few_nor_many() -> None:
    assert canvas.round_values(0.8, 7) == [1, 2, 5]
    assert canvas.round_values(0.008, 12) == [0.01, 0.03, 0.1, 0.3, 1, 3, 10]
    assert canvas.round_values(1, 1e5) == [1, 10, 100, 1000, 10000, 100000]


def plot(**texts: object) -> Plot:
    given = {"finding": "A is 2x", "details": ["forward"], "stamp": "recorded on X", **texts}
    return Plot(**given)


def draw(curves: Curves, faint: Curves | None = None) -> Figure:
    @canvas.styled
    def drawn() -> Plot:
        page = plot()
        layers = [Layer(faint, faint=True)] if faint else []
        xs = Layer(curves).xs
        line = Line("limit", "1", [Point(xs[0], 1.0), Point(xs[-1], 1.0)])
        canvas.chart(page, [*layers, Layer(curves)], "y", str, line)
        return page

    return drawn()


def lines(figure: Figure) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}


def test_a_failure_breaks_the_line_and_says_why() -> None:
    points = [Point(1, 2.0), Point(2, 3.0), Point(4, None, "out of memory: 7 GB"), Point(8, 4.0)]
    figure = draw({"a": points})
    ys = lines(figure)["a"]
    assert ys[:2] == [2, 3] and math.isnan(ys[2]) and ys[3] == 4
    crosses = next(line for line in figure.axes[0].lines if line.get_label() == "a failed")
    assert list(crosses.get_xdata()) == [4] and crosses.get_marker() == "x"
    assert "a: out of memory" in [text.get_text() for text in figure.axes[0].texts]
    assert len(figure.axes[0].lines) == 3, "no dotted line passes a failure"


def failure_text(xs: list[float]) -> tuple[Bbox, Axes]:
    figure = draw(
        {
            "a": [Point(x, None if x in xs else 1.0, "too slow") for x in (1, 2, 4, 8, 16, 32, 64)],
            "b": [Point(1, 1.0), Point(64, 1.0)],
        }
    )
    axes = figure.axes[0]
    return next(t for t in axes.texts if "too slow" in t.get_text()).get_window_extent(), axes


@pytest.mark.parametrize(
    ("failed", "within"), [([64], (1, 64)), ([1, 2], (2, 64)), ([1, 2, 64], (2, 64))]
)
def test_a_reason_stands_where_there_are_no_crosses(
    failed: list[float], within: tuple[float, float]
) -> None:
    box, axes = failure_text(failed)
    low, high = (axes.transData.transform((x, 1))[0] for x in within)
    assert low < box.x0 and box.x1 < high


def test_a_label_is_beside_the_axes_only_where_its_line_gets_there() -> None:
    figure = draw({"a": [Point(1, 2.0), Point(2, 2.0)], "b": [Point(1, 3.0), Point(64, 3.0)]})
    axes = figure.axes[0]
    boxes = {t.get_text(): Text.get_window_extent(t) for t in axes.texts}
    assert boxes["b  3.0"].x0 > axes.bbox.x1
    end = axes.transData.transform((2, 2))
    assert boxes["a  2.0"].x1 < axes.bbox.x1
    assert abs(boxes["a  2.0"].x0 - end[0]) < 40 and abs(boxes["a  2.0"].y0 - end[1]) < 40


def test_a_skipped_size_is_passed_by_a_dotted_line() -> None:
    figure = draw({"a": [Point(1, 2.0), Point(8, 4.0)], "b": [Point(1, 1.0), Point(2, 1.0)]})
    ys = lines(figure)["a"]
    assert math.isnan(ys[1])
    dotted = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [1, 8]]
    assert [2, 4] in [list(line.get_ydata()) for line in dotted]
    assert Layer({"a": [Point(1, 2.0), Point(8, 4.0)], "b": [Point(2, 1.0)]}).has_gaps
    assert not Layer({"a": [Point(1, 2.0), Point(2, 4.0)], "b": [Point(8, 1.0)]}).has_gaps


def test_what_was_measured_here_stands_out_from_the_record() -> None:
    figure = draw({"a": [Point(1, 2.0)]}, faint={"a": [Point(1, 3.0)], "b": [Point(1, 4.0)]})
    alphas = {line.get_label(): line.get_alpha() for line in figure.axes[0].lines}
    assert alphas["a"] == 1 and alphas["a (recorded)"] < 0.5 and alphas["b (recorded)"] < 0.5
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert "a  2.0" in labels and "b  4.0" in labels and "a  3.0" not in labels


def test_labels_of_lines_that_end_together_are_moved_apart() -> None:
    figure = draw({f"name {k}": [Point(1, 1 + k / 1000)] for k in range(9)})
    texts = [text for text in figure.axes[0].texts if "name" in text.get_text()]
    heights = sorted(Text.get_window_extent(text).y0 for text in texts)  # without the leader
    assert len(heights) == 9
    assert min(b - a for a, b in pairwise(heights)) > 14


def test_long_texts_take_more_lines_and_a_taller_figure() -> None:
    short, long = plot(), plot(finding="word " * 30 + "end", notes=["note " * 60 + "end"])
    assert long.get_figheight() > short.get_figheight() + 0.5
    for text in long.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= long.bbox.x1, text.get_text()
    joined = " ".join(text.get_text().replace("\n", " ") for text in long.texts)
    assert "word " * 30 + "end" in joined and "note " * 60 + "end" in joined


def test_the_readers_settings_neither_change_nor_matter(tmp_path: Path) -> None:
    expected = draw({"a": [Point(1, 2.0)]}).save(tmp_path / "a.svg").read_bytes()
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.hashsalt": "other"}):
        before = dict(matplotlib.rcParams)
        file = draw({"a": [Point(1, 2.0)]}).save(tmp_path / "b.svg")
        assert dict(matplotlib.rcParams) == before
    assert file.read_bytes() == expected


def test_files_carry_the_finding_and_the_stamp_but_no_date(tmp_path: Path) -> None:
    page = plot()
    text = page.save(tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "A is 2x" in text and "recorded on X" in text
    assert "<dc:date>" not in text and "matplotlib.org/" not in text.split("</metadata>")[0]
    with Image.open(page.save(tmp_path / "a.png")) as image:
        assert image.text["Title"] == "A is 2x" and image.text["Description"] == "recorded on X"
        assert image.size == (860, 520)


def test_jupyter_shows_it_without_pyplot() -> None:
    shown, _ = DisplayFormatter().format(plot())
    assert shown["image/png"].startswith(b"\x89PNG")


def test_label_spots_keep_clear_of_each_other_and_of_lines() -> None:
    figure = Figure(figsize=(8, 5), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    axes.set(xlim=(0, 10), ylim=(0, 10))
    axes.plot([0, 10], [5.5, 5.5])
    curves = {f"name {k}": [Point(5, 5 + 0.01 * k)] for k in range(6)}
    canvas.label_spots(axes, [Layer(curves)], str)
    figure.savefig(io.BytesIO())
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    pairs = [(a, b) for k, a in enumerate(boxes) for b in boxes[k + 1 :]]
    assert len(boxes) == 6 and not any(a.overlaps(b) for a, b in pairs)
    height = axes.transData.transform((0, 5.5))[1]
    assert not any(box.y0 < height < box.y1 for box in boxes)
