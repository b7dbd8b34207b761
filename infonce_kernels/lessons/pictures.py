"""The drawings of the lessons: which thread touches what, and how errors grow."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

SECTOR = 8  # floats in a sector of 32 bytes, the least that the memory system moves
WARP = 32
BANKS = 32

# Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#D0D0D0"


def digits(query: Tensor, positive: Tensor, negatives: Tensor, shown: int) -> Figure:
    """Draws the first `shown` queries, each above its positive and three of its negatives.

    The number over an image is its similarity with the query on top of its column.
    """
    names = ["query", "positive", *["negative"] * 3]
    figure, axes = plt.subplots(len(names), shown, figsize=(1.2 * shown + 1, 1.45 * len(names)))
    for k in range(shown):
        rows = [query[k], positive[k], *negatives[3 * k : 3 * k + 3]]
        for axis, row, name in zip(axes[:, k], rows, names, strict=True):
            axis.imshow(row.reshape(8, 8), cmap="gray_r")
            axis.set(xticks=[], yticks=[])
            if name != "query":
                axis.set_title(f"{query[k] @ row:.2f}", fontsize=9, pad=2)
            if k == 0:
                axis.set_ylabel(name, fontsize=9)
    figure.tight_layout()
    return figure


def warp_addresses(patterns: dict[str, Callable[[int], int]]) -> Figure:
    """Draws which floats and which sectors the 32 threads of a warp touch in one load.

    patterns: title -> function from the lane (0..31) to the index of the float it loads.
    """
    figure, axes = plt.subplots(len(patterns), 1, figsize=(10, 1.5 * len(patterns)), squeeze=False)
    for axis, (title, index) in zip(axes[:, 0], patterns.items(), strict=True):
        touched = [index(lane) for lane in range(WARP)]
        sectors = sorted({float_ // SECTOR for float_ in touched})
        # Sectors stand side by side even where they are far apart in memory.
        for place, sector in enumerate(sectors):
            x = place * (SECTOR + 1)
            for k in range(SECTOR):
                used = sector * SECTOR + k in touched
                axis.add_patch(
                    Rectangle((x + k, 0), 1, 1, facecolor=BLUE if used else GREY, edgecolor="white")
                )
        _bare(axis, len(sectors) * (SECTOR + 1), 1)
        wasted = len(sectors) * SECTOR - len(set(touched))
        count = f"{len(sectors)} sector{'s' if len(sectors) > 1 else ''}"
        axis.set_title(
            f"{title}: {count}, {wasted} floats moved and not used",
            loc="left",
            fontsize=11,
        )
    figure.suptitle(
        "One load by one warp: blue floats are used, grey ones come along", x=0.01, ha="left"
    )
    figure.tight_layout()
    return figure


def tile_reuse(tile: int, side: int = 12) -> Figure:
    """Draws what one output, and what a tile of outputs, reads; not to scale."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    for axis, size, title in (
        (axes[0], 1, "v1: one thread reads two rows for one output"),
        (axes[1], 4, f"v2: a block reads {tile} rows of each for {tile * tile} outputs"),
    ):
        axis.add_patch(Rectangle((0, 0), side, side, facecolor="white", edgecolor="black"))
        axis.add_patch(Rectangle((4, 4), size, size, facecolor=ORANGE))
        axis.add_patch(Rectangle((-9, 4), 8, size, facecolor=BLUE))
        axis.add_patch(Rectangle((-9, 0), 8, side, fill=False, edgecolor="black"))
        axis.add_patch(Rectangle((4, side + 1), size, 6, facecolor=BLUE))
        axis.add_patch(Rectangle((0, side + 1), side, 6, fill=False, edgecolor="black"))
        axis.text(-5, side + 0.4, "query", ha="center")
        axis.text(side + 0.4, side + 4, "negatives\n(a row upright)", va="center")
        axis.text(side + 0.4, 6, "similarities", va="center")
        axis.set(xlim=(-10, side + 8), ylim=(-1, side + 8), aspect="equal")
        axis.axis("off")
        axis.set_title(title, fontsize=11)
    figure.tight_layout()
    return figure


def reduction_trees(threads: int = 16) -> Figure:
    """Draws the steps of a tree reduction with interleaved and with sequential addressing."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    halves = [threads >> k for k in range(1, threads.bit_length())]
    interleaved = [[(t, t + s) for t in range(0, threads, 2 * s)] for s in reversed(halves)]
    sequential = [[(t, t + s) for t in range(s)] for s in halves]
    for axis, title, steps in (
        (axes[0], "interleaved: busy threads lie apart", interleaved),
        (axes[1], "sequential: busy threads are the first ones", sequential),
    ):
        for row, pairs in enumerate([[], *steps]):
            y = len(steps) - row
            written = {t for t, _ in pairs} if row else set(range(threads))
            for t in range(threads):
                colour = ORANGE if t in written and row else GREY
                axis.add_patch(Rectangle((t, y), 0.9, 0.6, facecolor=colour))
            for target, other in pairs:
                axis.annotate(
                    "", (target + 0.45, y + 0.6), (other + 0.45, y + 1),
                    arrowprops=dict(arrowstyle="->", color=BLUE, lw=0.8),
                )  # fmt: skip
            label = "loaded" if row == 0 else f"stride {pairs[0][1] - pairs[0][0]}"
            axis.text(-0.4, y + 0.3, label, ha="right", va="center", fontsize=9)
        axis.set(xlim=(-4, threads), ylim=(0, len(steps) + 1))
        axis.axis("off")
        axis.set_title(title, fontsize=11)
    figure.suptitle(
        f"Reducing {threads} values: who adds what (orange: written in this step)",
        x=0.01,
        ha="left",
    )
    figure.tight_layout()
    return figure


def bank_conflicts(patterns: dict[str, Callable[[int], int]]) -> Figure:
    """Draws how many different words of each shared-memory bank a warp asks for in one access.

    patterns: title -> function from the lane (0..31) to the word's index in shared memory.
    """
    figure, axes = plt.subplots(len(patterns), 1, figsize=(10, 1.9 * len(patterns)), squeeze=False)
    for axis, (title, word) in zip(axes[:, 0], patterns.items(), strict=True):
        words = {word(lane) for lane in range(WARP)}
        counts = np.bincount([w % BANKS for w in words], minlength=BANKS)
        axis.bar(range(BANKS), counts, color=[ORANGE if c > 1 else BLUE for c in counts])
        axis.set(
            xlim=(-0.6, BANKS - 0.4),
            ylim=(0, max(2, counts.max()) + 0.3),
            xticks=range(0, BANKS, 4),
        )
        axis.set_ylabel("words")
        axis.set_title(
            f"{title}: {counts.max()} pass{'es' if counts.max() > 1 else ''}",
            loc="left",
            fontsize=11,
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("bank")
    figure.tight_layout()
    return figure


def launches(rows: Sequence[tuple[str, Sequence[str]]]) -> Figure:
    """Draws each rung's launches of a forward pass, in their order."""
    figure, axis = plt.subplots(figsize=(11, 0.9 * len(rows) + 0.6))
    for k, (rung, steps) in enumerate(rows):
        y = len(rows) - 1 - k
        axis.text(-0.1, y + 0.3, rung, ha="right", va="center")
        for x, step in enumerate(steps):
            axis.add_patch(
                Rectangle((x * 1.3, y), 1.1, 0.6, facecolor=BLUE if step != "cuBLAS" else GREEN)
            )
            axis.text(
                x * 1.3 + 0.55, y + 0.3, step, ha="center", va="center", color="white", fontsize=8.5
            )
            if x:
                axis.annotate(
                    "",
                    (x * 1.3, y + 0.3),
                    (x * 1.3 - 0.2, y + 0.3),
                    arrowprops=dict(arrowstyle="->"),
                )
    axis.set(xlim=(-1.2, 1.3 * max(len(steps) for _, steps in rows)), ylim=(-0.2, len(rows)))
    axis.axis("off")
    axis.set_title(
        "Launches of a forward pass, in order: each finds its input in global memory",
        loc="left",
        fontsize=11,
    )
    figure.tight_layout()
    return figure


def errors(temperatures: Sequence[float], curves: dict[str, Sequence[float]], title: str) -> Figure:
    """Draws relative errors against falling temperature, both logarithmic; a curve ends at a NaN.

    Each curve is labelled at its end; the dashed line is what counts as right.
    """
    figure, axis = plt.subplots(figsize=(9, 4))
    offsets = (8, -8, 0)  # points; curves that fail meet at an error of 1
    for (name, values), colour, offset in zip(
        curves.items(), (ORANGE, BLUE, GREEN), offsets, strict=False
    ):
        shown = np.maximum(np.asarray(values, dtype=float), 1e-9)  # an exact result has a place too
        axis.plot(temperatures, shown, color=colour, marker="o", markersize=4)
        end = np.flatnonzero(np.isfinite(shown))[-1]
        axis.annotate(
            name, (temperatures[end], shown[end]), (6, offset),
            textcoords="offset points", color=colour, va="center",
        )  # fmt: skip
    axis.axhline(1e-5, color="grey", lw=0.8, ls="--")
    axis.set(xscale="log", yscale="log", xlabel="temperature", ylabel="relative error")
    axis.invert_xaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.15)
    axis.set_title(title, loc="left", fontsize=11)
    figure.tight_layout()
    return figure


def _bare(axis: Axes, width: float, height: float) -> None:
    axis.set(xlim=(0, max(width, WARP)), ylim=(0, height))
    axis.axis("off")
