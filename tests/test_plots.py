import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from infonce_kernels import plots
from infonce_kernels.bench import sizes
from infonce_kernels.bench.records import Record, Row, Run, latest
from infonce_kernels.canvas import Plot, Point

RUN = Run(
    number=1, date="2026-12-01", gpu="NVIDIA H200", driver="580", cuda="13.0", torch="2.11",
    python="3.12", clocks="", commit="", timer="", l2="",
    peak_tbps=4.8, copy_tbps=4.0, matrix_tflops={"ieee": 50.0, "tf32": 300.0, "bf16": 600.0},
)  # fmt: skip
STAMP = "recorded on NVIDIA H200, 2026-12-01"
SMALL, LARGE = sizes.CENTRES["small"], sizes.CENTRES["large"]


def row(name: str, B: int, D: int, N: int, cold: float | None, **columns: object) -> Row:
    kind = "rung" if name.startswith("v") or name == "auto" else "baseline"
    given = {
        "run": RUN, "kind": kind, "name": name,
        "ran": "v3_fused" if name == "auto" else "", "version": "", "pass_": "forward",
        "tier": "ieee", "dtype": "float32", "status": "ok", "model_launches": 10,
        "model_bytes": 4 * (B + N) * D, "model_flops": 2 * B * N * D, **columns,
    }  # fmt: skip
    return Row(B=B, D=D, N=N, cold_ms=cold, **given)


def small_record(*rows: Row) -> Record:
    return Record(Path("made-up.csv"), list(rows))


# Of each subject, forward and both: launches, traversals of a (B, N) matrix in memory and in
# traffic, and the fraction of the matrix rate that it reaches.
MODEL = {
    "v0_reference": ((18, 38), (2, 4), (7, 15), 0.9),
    "v1_naive": ((5, 9), (1, 2), (3, 7), 0.012),
    "v2_shared": ((5, 9), (1, 2), (3, 7), 0.12),
    "v3_fused": ((2, 8), (1, 2), (3, 9), 0.93),
    "auto": ((2, 8), (1, 2), (3, 9), 0.93),
    "eager": ((18, 38), (2, 4), (7, 15), 0.9),
    "compile": ((6, 14), (1, 2), (4, 9), 0.9),
    "strongest": ((7, 20), (1, 2), (4, 9), 0.92),
}
TIERS = {
    "v0_reference": ("ieee", "tf32"),
    "v1_naive": ("ieee",),
    "v2_shared": ("ieee",),
    "v3_fused": ("ieee", "tf32"),
}


@pytest.fixture(scope="module")
def record() -> Record:
    """All sweeps of a made-up GPU, with subjects that run out of memory or time."""
    swept = dict.fromkeys(
        size for name in ("batch", "dim", "negatives") for size in sizes.sweep(name)
    )
    rows = [
        modelled(name, pass_, tier, size)
        for size, pass_, tier, name in product(swept, plots.PASSES, RUN.matrix_tflops, MODEL)
        if tier in TIERS.get(name, tuple(RUN.matrix_tflops))
        if name != "compile" or size in sizes.landmarks()
    ]
    return small_record(*rows)


def modelled(name: str, pass_: str, tier: str, size: sizes.Size) -> Row:
    B, D, N = size
    both = pass_ == "both"
    launches, kept, moved, fraction = (p[both] if isinstance(p, tuple) else p for p in MODEL[name])
    flops, memory = (6 if both else 2) * B * N * D, 4 * kept * B * N
    traffic = 4 * ((B + N) * D + moved * B * N)
    ms = flops / (RUN.matrix_tflops[tier] * fraction) * 1e-9 + traffic / 3.5e9 + 0.004 * launches
    status = "out of memory" if memory > 50e9 else "ok"
    if ms > 1000:
        status = f"over the time limit: {ms / 1e3:.1f} s a call"
    ok = status == "ok"
    return row(
        name, B, D, N, ms if ok else None, pass_=pass_, tier=tier, status=status,
        wall_ms=max(ms, 0.0145 * launches) if ok else None,
        graph_ms=0.9 * ms if ok and ms < 5 else None,
        peak_bytes=memory if ok else None,
        model_launches=launches, model_bytes=traffic, model_flops=flops,
    )  # fmt: skip


def line(figure: Figure, label: str) -> Line2D:
    return next(line for line in figure.axes[0].lines if line.get_label() == label)


def xy(figure: Figure, label: str) -> list[tuple[float, float]]:
    """Where a curve is drawn; broken places are left out."""
    xs, ys = line(figure, label).get_data()
    return [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y)]


def texts(figure: Figure) -> list[str]:
    return [plain(text.get_text()) for text in visible(figure)]


def plain(text: str) -> str:
    """As one types it."""
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MULTIPLICATION SIGN}", "x")


def visible(figure: Figure) -> list[Text]:
    found = list(figure.texts)
    for axes in figure.axes:
        ticks = [*axes.xaxis.get_ticklabels(), *axes.yaxis.get_ticklabels()]
        found += [*axes.texts, axes.xaxis.label, *ticks]
    return [text for text in found if text.get_visible() and text.get_text()]


FIGURES: dict[str, Callable[..., Plot]] = {
    "speedup": plots.speedup,
    "time": plots.time,
    "memory": plots.memory,
    "roofline": plots.roofline,
    "times": lambda record, **how: plots.times(record, SMALL, ["v1_naive", "v3_fused"], **how),
}


# ------------------------------------------------------------------------------------- selections


def test_a_sweep_takes_the_rows_on_its_line_in_order() -> None:
    sizes_ = [(64, 512, 640), (256, 512, 2560), (256, 64, 2560), (256, 512, 256), (128, 512, 1281)]
    rows = [row("eager", *size, cold=1.0) for size in reversed(sizes_)]
    rows += [row("eager", 128, 512, 1280, None, status="out of memory")]
    rows += [
        row("eager", 512, 512, 5120, 1.0, tier="tf32"),
        row("eager", 32, 512, 320, 1, pass_="both"),
    ]

    def places(sweep: plots.Sweep) -> list[int]:
        return [sweep.x(row) for row in sweep.select(rows, "forward", "ieee")]

    assert places(plots.batch()) == [64, 128, 256]
    assert places(plots.dim("small")) == [64, 512]
    assert places(plots.negatives("small")) == [256, 2560]
    assert places(plots.dim("large")) == []


def test_sweeps_are_those_of_the_benchmark() -> None:
    for sweep, swept in (
        (plots.batch(), sizes.batch()),
        (plots.dim("large"), sizes.dim("large")),
        (plots.negatives("large"), sizes.negatives("large")),
    ):
        rows = [row("eager", *size, cold=1.0) for size in swept]
        assert sweep.select(rows, "forward", "ieee") == rows
        assert swept[[sweep.x(r) for r in rows].index(sweep.middle)] in sizes.CENTRES.values()


def test_speedups_of_the_anchors() -> None:
    rows = [
        row("eager", *SMALL, cold=0.263), row("v3_fused", *SMALL, cold=0.038),
        row("eager", *LARGE, cold=4.852), row("v3_fused", *LARGE, cold=3.787),
        row("v3_fused", 128, 512, 1280, cold=0.03),
    ]  # fmt: skip
    found = plots.speedups(rows, plots.batch())
    assert found["v3_fused"] == [
        Point(256, pytest.approx(6.921, abs=1e-3)), Point(4096, pytest.approx(1.2812, abs=1e-3)),
    ]  # fmt: skip
    assert found["eager"] == [Point(256, 1.0), Point(4096, 1.0)]


def test_a_wrong_result_has_no_speedup() -> None:
    wrong = row("v3_fused", *SMALL, cold=0.01, status="wrong: error 1.0e-02")
    found = plots.speedups([row("eager", *SMALL, cold=0.2), wrong], plots.batch())
    assert found["v3_fused"] == [Point(256, None, "wrong: error 1.0e-02")]


def test_where_the_baseline_failed_it_alone_says_so() -> None:
    failed = row("eager", *LARGE, None, status="out of memory")
    rows = [row("eager", *SMALL, 0.2), row("v3_fused", *SMALL, 0.1), failed]
    rows += [row("v3_fused", *LARGE, 3.0), row("v1_naive", *LARGE, None, status="over")]
    assert plots.speedups(rows, plots.batch()) == {
        "eager": [Point(256, 1.0), Point(4096, None, "out of memory")],
        "v3_fused": [Point(256, 2.0)],
    }


# ---------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("timer", ["cold", "graph", "wall"])
@pytest.mark.parametrize("sweep", plots.SWEEPS, ids=lambda sweep: sweep.name)
def test_speedup_draws_the_ratios(record: Record, sweep: plots.Sweep, timer: str) -> None:
    figure = plots.speedup(record, sweep, "both", "tf32", timer=timer)
    B, D, N = sweep.centre
    expected = []
    for r in record:
        size = {"B": (r.B, D, 10 * r.B), "D": (B, r.D, N), "N": (B, D, r.N)}[sweep.axis]
        if (r.name, r.pass_, r.tier, r.B, r.D, r.N) == ("v3_fused", "both", "tf32", *size):
            eager = record.row("eager", "both", "tf32", r.B, r.N, r.D)
            a, b = (getattr(one, f"{timer}_ms") for one in (eager, r))
            if a and b:
                expected.append((sweep.x(r), a / b))
    assert len(expected) >= 4
    assert np.array(xy(figure, "v3_fused")) == pytest.approx(np.array(sorted(expected)))
    assert {y for _, y in xy(figure, "eager")} == {1.0}


def test_speedup_states_its_finding_and_names_the_baseline() -> None:
    rows = [row("eager", B, 512, 10 * B, ms) for B, ms in ((64, 0.2), (256, 0.263), (16384, 78.0))]
    rows += [row("v3_fused", B, 512, 10 * B, t) for B, t in ((64, 0.03), (256, 0.038), (16384, 60))]
    rows += [row("v2_shared", B, 512, 10 * B, t) for B, t in ((64, 0.1), (256, 0.2), (16384, 400))]
    figure = plots.speedup(small_record(*rows))
    assert plain(figure.finding) == (
        "v3_fused is 6.9x as fast as eager at B = 256 and 1.3x at B = 16,384"
    )
    shown = texts(figure)
    assert "times as fast as eager" in shown and "v3_fused  1.3x" in shown
    assert "v2_shared  0.2x" in shown and "forward  ·  float32  ·  N = 10 B, D = 512" in " ".join(
        shown
    )


def test_another_baseline() -> None:
    rows = [row("strongest", *SMALL, 0.12), row("eager", *SMALL, 0.2), row("v3_fused", *SMALL, 0.1)]
    figure = plots.speedup(small_record(*rows), baseline="strongest")
    assert xy(figure, "v3_fused") == [(256, pytest.approx(1.2))]
    assert xy(figure, "eager") == [(256, pytest.approx(0.6))]
    assert "as fast as strongest at" in plain(figure.finding)


def test_a_failed_row_leaves_a_gap_and_its_reason(record: Record) -> None:
    figure = plots.speedup(record)
    limit = [
        r.B
        for r in plots.batch().select(record, "forward", "ieee")
        if r.name == "v1_naive" and not r.ok
    ]
    assert limit == [8192, 16384]
    assert [x for x, _ in xy(figure, "v1_naive")] == [64, 128, 256, 512, 1024, 2048, 4096]
    assert list(line(figure, "v1_naive failed").get_xdata()) == limit
    assert "v1_naive: over the time limit" in texts(figure)


def test_where_the_baseline_failed_the_figure_says_so(record: Record) -> None:
    figure = plots.speedup(record, plots.negatives("large"), "both")
    assert list(line(figure, "eager failed").get_xdata()) == [1048576]
    assert "eager: out of memory" in texts(figure)
    assert xy(figure, "v3_fused")[-1][0] == 262144


def test_sizes_that_were_skipped_are_dotted(record: Record) -> None:
    figure = plots.speedup(record)
    assert [x for x, _ in xy(figure, "compile")] == [64, 256, 4096, 16384]
    dotted = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [256, 4096]]
    assert len(dotted) == 1
    note = "dotted: sizes in between were not measured"
    assert note in " ".join(texts(figure))
    assert note not in " ".join(texts(plots.speedup(record, names=["v3_fused"])))


def test_what_peers_leave_out_is_said() -> None:
    peers = [
        replace(row(name, *SMALL, 0.1), kind="peer", leaves_out="the own positive")
        for name in ("liger", "inf_cl")
    ]
    rows = small_record(row("eager", *SMALL, 0.2), row("v3_fused", *SMALL, 0.1), *peers)
    one = texts(plots.speedup(rows, names=["v3_fused", "liger"]))
    assert "liger leaves out the own positive" in one
    both = texts(plots.speedup(rows, names=["liger", "inf_cl"]))
    assert "liger, inf_cl leave out the own positive" in both
    assert "inf_cl leaves out the own positive" in texts(plots.roofline(rows, names=["inf_cl"]))
    assert "inf_cl leaves out the own positive" in texts(plots.times(rows, SMALL, ["inf_cl"]))
    assert not any("liger" in text for text in texts(plots.speedup(rows)))


def test_auto_is_drawn_where_its_rung_is_not() -> None:
    auto = row("auto", *SMALL, 0.1, ran="v3_fused")
    both = [row("eager", *SMALL, 0.2), row("v3_fused", *SMALL, 0.1), auto]
    assert not any("auto" in text for text in texts(plots.speedup(small_record(*both))))
    alone = small_record(both[0], auto)
    assert plots.speedup(alone).finding.startswith("auto is 2")


def test_time_lies_above_the_limit() -> None:
    # B = 64: eager's 10 launches take 0.04 ms. B = 4096: 2 * 4096 * 40960 * 512 / 50e12 = 3.44 ms.
    rows = [row("eager", 64, 512, 640, 0.04), row("v3_fused", 64, 512, 640, 0.012)]
    rows += [row("eager", *LARGE, 5.0), row("v3_fused", *LARGE, 3.79)]
    figure = plots.time(small_record(*rows))
    few, many = 2 * 64 * 640 * 512, 2 * 4096 * 40960 * 512
    assert xy(figure, "v3_fused") == [(few, 0.012), (many, 3.79)]
    assert xy(figure, "limit") == [
        (few, pytest.approx(0.004)),
        (many, pytest.approx(3.436, abs=1e-3)),
    ]
    assert plain(figure.finding) == ("v3_fused takes 3x the limit at B = 64 and 1.1x at B = 4096")
    assert any(text.startswith("limit: one launch (4 µs") for text in texts(figure))
    assert "limit  3.44 ms" in texts(figure) and "v3_fused  3.79 ms" in texts(figure)


def test_the_limit_is_that_of_the_bytes_where_they_take_longer() -> None:
    size = (8, 512, 2560)  # 4 * (8 + 8 + 2560) * 512 bytes at 4 TB/s; 0.4 us at 50 TFLOP/s
    rows = [row("eager", *size, 2.0, model_launches=2_000_000), row("v3_fused", *size, 1.0)]
    figure = plots.time(small_record(*rows), plots.Sweep("few", "N", size, "B = 8, D = 512"))
    assert xy(figure, "limit") == [(2 * 8 * 512 * 2560, pytest.approx(1.319e-3, rel=1e-3))]


def test_memory_is_drawn_beside_the_matrix() -> None:
    rows = [
        row("eager", *SMALL, 1.0, peak_bytes=6_000_000),
        row("v3_fused", *SMALL, 1, peak_bytes=0),
    ]
    rows += [row("eager", *LARGE, 9.0, peak_bytes=2_000_000_000)]
    rows += [row("v3_fused", *LARGE, 3.0, peak_bytes=671_000_000)]
    figure = plots.memory(small_record(*rows))
    assert xy(figure, "eager") == [(256, 6e6), (4096, 2e9)]
    assert xy(figure, "v3_fused") == [(4096, 671e6)], "nothing has no place on a logarithmic axis"
    assert xy(figure, "(B, N) matrix") == [(256, 4 * 256 * 2560), (4096, 4 * 4096 * 40960)]
    assert plain(figure.finding) == ("At B = 4096 eager allocates 2 GB, v3_fused 671 MB")


def roofline_rows() -> list[Row]:
    """v3 at 10 FLOPs a byte, below the ridge at 12.5; 2 * 256 * 2560 * 512 FLOPs are 0.671 G."""
    few, many = 2 * 256 * 2560 * 512, 2 * 4096 * 40960 * 512
    return [
        row("v3_fused", *SMALL, few / 16e9, model_bytes=few // 10),
        row("v3_fused", *LARGE, many / 40e9, model_bytes=many // 20),
        row("v2_shared", *SMALL, few / 44e9, model_bytes=few // 10),
        row("v1_naive", *LARGE, None, status="over the time limit: 9.0 s a call"),
        row("eager", *LARGE, many / 20e9, model_bytes=many // 8),
        row("strongest", *LARGE, many / 30e9),
    ]


def test_roofline() -> None:
    figure = plots.roofline(small_record(*roofline_rows()))
    assert xy(figure, "v3_fused") == [
        (pytest.approx(10), pytest.approx(16)), (pytest.approx(20), pytest.approx(40)),
    ]  # fmt: skip
    drawn = {line.get_label() for line in figure.axes[0].lines}
    assert {"v2_shared", "eager"} <= drawn and "strongest" not in drawn
    roof = max(figure.axes[0].lines, key=lambda line: line.get_linewidth())
    corner = list(zip(*roof.get_data(), strict=True))[1]
    assert corner == (12.5, 50.0), "50 TFLOP/s over 4 TB/s"
    assert plain(figure.finding) == ("v2_shared reaches 110% of its roof at B = 256")
    shown = texts(figure)
    assert any(t.endswith("roof, since a cache kept bytes: v2_shared") for t in shown)
    assert any("v1_naive at" in text and "over the time limit" in text for text in shown)
    assert "copy, 4 TB/s" in shown and "TF32 product, 300 TFLOP/s" in shown


def test_roofline_of_some_subjects_at_one_centre() -> None:
    rows = small_record(*roofline_rows())
    figure = plots.roofline(rows, names=["v3_fused", "strongest"], centres=["large"])
    drawn = {line.get_label() for line in figure.axes[0].lines}
    assert {"v3_fused", "strongest"} <= drawn and not {"v2_shared", "eager"} & drawn
    assert xy(figure, "v3_fused") == [(pytest.approx(20), pytest.approx(40))]
    assert not any("small marks" in text for text in texts(figure))


def test_times() -> None:
    rows = [
        row("eager", *SMALL, 0.263),
        row("v1_naive", *SMALL, 1.2),
        row("v3_fused", *SMALL, 0.038),
    ]
    rows += [row("v2_shared", *SMALL, None, status="out of memory"), row("eager", *LARGE, 7.0)]
    figure = plots.times(small_record(*rows), SMALL, ["v1_naive", "v2_shared", "v3_fused"])
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.263, 1.2, 0.038]
    # 2 * 256 * 2560 * 512 / 50e12 s
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines]
    assert marks == pytest.approx([0.01342] * 4, rel=1e-3)
    assert (
        plain(figure.finding) == "v3_fused takes 38 µs, 6.9x as fast as eager; its limit is 13 µs"
    )
    shown = texts(figure)
    assert "38 µs, 6.92x as fast" in shown and "1.2 ms, 4.56x as long" in shown
    assert "out of memory" in shown and "limit 13 µs" in shown


def test_what_was_measured_here_is_drawn_above_the_record(record: Record) -> None:
    run = replace(RUN, gpu="NVIDIA L4")
    measured = [row("eager", *SMALL, 0.6, run=run), row("v3_fused", *SMALL, 0.2, run=run)]
    figure = plots.speedup(record, measured=measured)
    assert xy(figure, "v3_fused") == [(256, pytest.approx(3.0))]
    assert len(xy(figure, "v3_fused (recorded)")) == len(sizes.batch())
    assert plain(figure.finding) == "v3_fused is 3x as fast as eager at B = 256"
    assert figure.stamp == f"measured here, on NVIDIA L4; pale: {STAMP}"
    assert figure.stamp in texts(figure)


@pytest.mark.parametrize("name", FIGURES)
def test_measured_rows_stamp_every_figure(record: Record, name: str) -> None:
    run = replace(RUN, gpu="NVIDIA L4")
    measured = [
        row(name, *size, ms, run=run, peak_bytes=10**6)
        for name, ms in (("eager", 0.6), ("v3_fused", 0.2))
        for size in (SMALL, LARGE)
    ]
    assert "measured here, on NVIDIA L4" in " ".join(
        texts(FIGURES[name](record, measured=measured))
    )


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_to_draw_is_an_error(record: Record, name: str) -> None:
    with pytest.raises(ValueError, match=r"fp16|made-up\.csv"):
        FIGURES[name](record, tier="fp16")


def test_a_tier_without_a_ceiling_has_neither_limit_nor_roof() -> None:
    rows = [row(name, *SMALL, 0.1, tier="fp32", peak_bytes=8) for name in ("eager", "v3_fused")]
    made_up = small_record(*rows)
    assert {name.split("_forward")[0] for name in plots.figures(made_up)} == {
        "speedup_batch", "speedup_batch_wall", "speedup_dim_small", "speedup_negatives_small",
        "memory",
    }  # fmt: skip
    for draw in (plots.time, plots.roofline):
        with pytest.raises(ValueError, match="run 1 measured no matrix rate for tier='fp32'"):
            draw(made_up, tier="fp32")


@pytest.mark.parametrize("name", FIGURES)
def test_a_wrong_result_has_no_time(record: Record, name: str) -> None:
    wrong = small_record(
        *[replace(r, status="wrong: error 1.0") if r.name == "v1_naive" else r for r in record]
    )
    figure = FIGURES[name](wrong)
    assert all(np.isnan(line.get_ydata()).all() for line in figure.axes[0].lines
               if line.get_label() == "v1_naive")  # fmt: skip
    assert "v1_naive" not in [bar.get_label() for bar in figure.axes[0].patches]
    assert "wrong" in " ".join(texts(figure))


def test_an_unknown_timer_is_an_error(record: Record) -> None:
    with pytest.raises(ValueError, match="timer='hot' is not one of cold, graph, wall, sustained"):
        plots.speedup(record, timer="hot")


# ---------------------------------------------------------------------------------- every figure


@pytest.fixture(scope="module")
def all_figures(record: Record) -> dict[str, Plot]:
    return {name: draw() for name, draw in plots.figures(record).items()}


def test_the_list_of_figures(record: Record) -> None:
    expected = {
        f"{name}_{pass_}_{tier}"
        for name in (
            "speedup_batch", "speedup_dim_small", "speedup_dim_large", "speedup_negatives_small",
            "speedup_negatives_large", "speedup_batch_wall", "time", "memory", "roofline",
        )
        for pass_ in ("forward", "both")
        for tier in ("ieee", "tf32", "bf16")
    }  # fmt: skip
    no_rungs = small_record(*[r for r in record if r.kind != "rung" or r.tier != "bf16"])
    assert set(plots.figures(record)) == expected
    assert set(plots.figures(no_rungs)) == {n for n in expected if not n.endswith("bf16")}
    only_small = small_record(row("eager", 256, 64, 2560, 1.0), row("v3_fused", 256, 64, 2560, 1.0))
    assert list(plots.figures(only_small)) == ["speedup_dim_small_forward_ieee"]


def test_no_text_covers_another_or_leaves_its_figure(all_figures: dict[str, Plot]) -> None:
    for name, figure in all_figures.items():
        check_texts(name, figure)


def test_the_same_holds_of_the_record_that_ships() -> None:
    for name, draw in plots.figures(latest()).items():
        if name.endswith("forward_ieee"):
            check_texts(name, draw())


def check_texts(name: str, figure: Plot) -> None:
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in visible(figure)]
    for text, box in boxes:
        inside = figure.bbox.padded(1)
        assert inside.contains(*box.min) and inside.contains(*box.max), (name, text)
    for (a, box), (b, other) in combinations(boxes, 2):
        width, height = np.minimum(box.max, other.max) - np.maximum(box.min, other.min)
        # Boxes of lines of text have a pixel or two to spare above and below the letters.
        assert width <= 0 or height <= 2, (name, a, b)


def test_every_figure_is_stamped_in_its_corner(all_figures: dict[str, Plot]) -> None:
    for figure in all_figures.values():
        (stamp,) = [text for text in figure.texts if text.get_text() == STAMP]
        box = stamp.get_window_extent()
        assert figure.bbox.x1 - 20 < box.x1 <= figure.bbox.x1 and 0 <= box.y0 < 20


def test_titles_name_sizes_of_the_record(all_figures: dict[str, Plot], record: Record) -> None:
    for name, figure in all_figures.items():
        axis = "D" if "_dim" in name else "N" if "_negatives" in name else "B"
        named = re.findall(rf"[Aa]t {axis} = ([\d,]+)(?: |$)", plain(figure.finding))
        known = {getattr(row, axis) for row in record}
        assert named and {int(n.replace(",", "")) for n in named} <= known, figure.finding


def test_write(record: Record, tmp_path: Path) -> None:
    few = small_record(
        *[r for r in record if r in plots.batch() and (r.pass_, r.tier) == ("both", "tf32")]
    )
    first = plots.write(few, tmp_path / "a")
    again = plots.write(few, tmp_path / "b")
    assert [file.stem for file in first] == list(plots.figures(few))
    assert sorted((tmp_path / "a").iterdir()) == sorted(first)
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    assert all(STAMP in file.read_text(encoding="utf-8") for file in first)
    assert plots.write(few, tmp_path / "c", "png")[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="format='gif' is not svg or png"):
        plots.write(few, tmp_path, "gif")


def test_nothing_of_matplotlib_changes(record: Record, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    for draw in FIGURES.values():
        draw(record).save(tmp_path / "a.svg")
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_drawing_takes_neither_pyplot_nor_a_display() -> None:
    code = (
        "import sys; from infonce_kernels import plots; print('matplotlib.pyplot' in sys.modules)"
    )
    environment = {**os.environ, "MPLBACKEND": "tkagg", "DISPLAY": ""}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert found.stdout.strip() == "False"
