"""Rows as tables for a terminal: one a size, tier and pass, rivals side by side.

"±" is half the distance from the 20th to the 80th percentile; "of limit" is the least time that
anyone needs at this run's ceilings over the time measured; "TB/s" is of the bytes that the rung is
predicted to move.
"""

from collections.abc import Iterable, Iterator

from rich import box
from rich.markup import escape
from rich.table import Table

from infonce_kernels.bench.ceilings import DATASHEET
from infonce_kernels.bench.records import Row, Run
from infonce_kernels.bench.subjects import PASS_NAMES


def describe(run: Run) -> str:
    """The machine and its ceilings in a few lines."""
    datasheet = DATASHEET.get(run.gpu, {})
    rates = ", ".join(
        f"{tier} {rate:.0f}" + (f" (datasheet {datasheet[tier]})" if tier in datasheet else "")
        for tier, rate in run.matrix_tflops.items()
    )
    return (
        f"{run.gpu}, driver {run.driver}, CUDA {run.cuda}, torch {run.torch}, {run.clocks}\n"
        f"ceilings of this run: copy {run.copy_tbps:.2f} TB/s (pins {run.peak_tbps:.2f}); "
        f"matrix product {rates} TFLOP/s"
    )


def tables(rows: Iterable[Row]) -> Iterator[Table]:
    """A table for each size, tier and pass, in the order of the rows."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.B, row.D, row.N, row.tier, row.pass_), []).append(row)
    for group in groups.values():
        yield _table(group)


def _table(rows: list[Row]) -> Table:
    first = rows[0]
    table = Table(
        title=f"B {first.B}, D {first.D}, N {first.N}, {first.tier}, {PASS_NAMES[first.pass_]}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    headings = ("cold ms", "±", "graph", "wall", "x eager", "TB/s", "TFLOP/s", "of limit", "MB")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    eager = next((row for row in rows if row.name == "eager" and row.cold_ms), None)
    for row in rows:
        if row.cold_ms is not None:
            mark = " *" if row.leaves_out else ""
            table.add_row(row.name + mark, *_figures(row, eager), style="" if row.ok else "red")
    notes = [f"* {row.name} leaves out {row.leaves_out}" for row in rows if row.leaves_out]
    notes += [f"{row.name}: {row.status}" for row in rows if not row.ok]
    notes += [f"{row.name}: {row.note}" for row in rows if row.note]
    table.caption = escape("\n".join(notes)) or None
    table.caption_justify = "left"
    return table


def _figures(row: Row, eager: Row | None) -> list[str]:
    spread = (row.cold_p80_ms - row.cold_p20_ms) / 2 / row.cold_ms
    ratio = f"{eager.cold_ms / row.cold_ms:.2f}" if eager else ""
    return [
        _ms(row.cold_ms),
        f"{spread:.0%}",
        _ms(row.graph_ms),
        _ms(row.wall_ms),
        ratio,
        _bandwidth(row),
        f"{row.tflops:.1f}",
        "" if row.fraction is None else f"{row.fraction:.0%}",
        f"{row.peak_bytes / 1e6:.0f}",
    ]


def _bandwidth(row: Row) -> str:
    if row.tbps is not None:
        return f"{row.tbps:.2f}"
    return "" if row.model_bytes is None else "caches"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
