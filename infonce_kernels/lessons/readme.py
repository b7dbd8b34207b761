"""The part of README.md that comes from the record: a figure and two tables between markers.

`make sync` writes it again after a new record; a test finds drift.
"""

from pathlib import Path

from infonce_kernels import plots
from infonce_kernels.bench import records
from infonce_kernels.bench.records import Record, Row
from infonce_kernels.bench.sizes import CENTRES, Size
from infonce_kernels.lessons import ROOT

README = ROOT / "README.md"
FIGURE = records.FOLDER / "speedup.svg"
_BEGIN, _END = "<!-- from the record: make sync -->", "<!-- end -->"
_SIZES: tuple[Size, ...] = (
    CENTRES["small"],
    (1024, 512, 10240),
    CENTRES["large"],
    (16384, 512, 163840),
)
_TIERS = {"ieee": "float32", "tf32": "TF32", "bf16": "bfloat16"}
_PASSES = ("forward", "both")


def update(text: str, record: Record) -> str:
    """README's text with the part between the markers made from `record`.

    Raises ValueError where the markers are not there.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"README.md has no {_BEGIN} ... {_END}")
    return f"{before}{_BEGIN}\n{section(record)}\n{_END}{after}"


def section(record: Record) -> str:
    """The figure and the tables, in Markdown."""
    run = record.rows[-1].run
    stamp = record.stamp[0].upper() + record.stamp[1:]
    return f"""\
![{plots.speedup(record).finding}]({FIGURE.relative_to(ROOT).as_posix()})

{stamp} (driver {run.driver}, torch {run.torch}).
Milliseconds of GPU time, caches cold, median. *Eager* is the original model, *strongest* the best
that plain PyTorch can do (one product, one cross entropy); × is how many times as fast as eager
`info_nce` is.

{_table(record, "cold")}

By the wall clock, what a training loop waits for where the CPU is the slower one:

{_table(record, "wall", _SIZES[:1])}"""


def _table(record: Record, timer: str, sizes: tuple[Size, ...] = _SIZES) -> str:
    lines = [
        "| B, D, N | precision | forward: eager | strongest | `info_nce` | × "
        "| forward + backward: eager | strongest | `info_nce` | × |",
        "| --- | --- " + "| ---: " * 8 + "|",
    ]
    for size in sizes:
        for tier, precision in _TIERS.items():
            cells = [cell for pass_ in _PASSES for cell in _cells(record, size, pass_, tier, timer)]
            lines.append(f"| {', '.join(map(str, size))} | {precision} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(record: Record, size: Size, pass_: str, tier: str, timer: str) -> list[str]:
    B, D, N = size
    rows = [record.row(name, pass_, tier, B, N, D) for name in ("eager", "strongest", "auto")]
    eager, _, auto = (_ms(row, timer) for row in rows)
    return [*(_text(row, timer) for row in rows), f"{eager / auto:.2g}" if eager and auto else "–"]


def _ms(row: Row | None, timer: str) -> float | None:
    return getattr(row, f"{timer}_ms") if row and row.ok else None


def _text(row: Row | None, timer: str) -> str:
    """A time; why there is none; or a dash for what the record does not have."""
    ms = _ms(row, timer)
    if ms is not None:
        return f"{ms:.3g}"
    return row.status.split(":")[0] if row and not row.ok else "–"


def write(record: Record) -> list[Path]:
    """Writes the figure and README.md; returns those that changed."""
    before = {path: path.read_bytes() if path.exists() else b"" for path in (FIGURE, README)}
    plots.speedup(record).save(FIGURE)
    README.write_text(update(README.read_text("utf-8"), record), "utf-8")
    return [path for path, content in before.items() if path.read_bytes() != content]
