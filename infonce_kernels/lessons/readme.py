"""The part of README.md that comes from the record: a figure and two tables between markers.

`make sync` writes it again after a new record; a test finds drift.
"""

from pathlib import Path

from infonce_kernels import plots
from infonce_kernels.bench import records
from infonce_kernels.bench.records import Record, Row
from infonce_kernels.bench.sizes import CENTRES, Size
from infonce_kernels.bench.subjects import PASSES, TIER_NAMES
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
_TIERS = ("ieee", "tf32", "bf16")
_NAMES = ("eager", "compile", "strongest", "auto")


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
Milliseconds of GPU time, caches cold, median. *Eager* is the original model, *compile* the same
under `torch.compile` (measured at some sizes), *strongest* one product and one cross entropy in
plain PyTorch; × is how many times as fast as each of them `info_nce` is.

Forward:

{_table(record, "forward")}

Forward and backward:

{_table(record, "both")}

By the wall clock, which a training loop waits for where the CPU is the slower one (in brackets the
20th and 80th percentile; what the CPU takes varies from run to run by tens of percent):

{_wall_table(record)}"""


def _table(record: Record, pass_: str) -> str:
    lines = [
        "| B, D, N | precision | eager | compile | strongest | `info_nce` "
        "| × eager | × compile | × strongest |",
        "| --- | --- " + "| ---: " * 7 + "|",
    ]
    for B, D, N in _SIZES:
        for tier in _TIERS:
            rows = [record.row(name, pass_, tier, B, N, D) for name in _NAMES]
            *others, own = (row.cold_ms if row and row.ok else None for row in rows)
            ratios = (f"{other / own:.2g}" if other and own else "–" for other in others)
            cells = [f"{B}, {D}, {N}", TIER_NAMES[tier], *map(_text, rows), *ratios]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _wall_table(record: Record) -> str:
    lines = [
        "| B, D, N | pass | precision | eager | compile | strongest | `info_nce` |",
        "| --- | --- | --- " + "| ---: " * 4 + "|",
    ]
    B, D, N = CENTRES["small"]
    for pass_ in PASSES:
        for tier in _TIERS:
            rows = (record.row(name, pass_, tier, B, N, D) for name in _NAMES)
            cells = [f"{B}, {D}, {N}", pass_, TIER_NAMES[tier], *map(_wall, rows)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(row: Row | None) -> str:
    """A time; why there is none; or a dash for what the record does not have."""
    if row is None:
        return "–"
    return f"{row.cold_ms:.3g}" if row.ok else row.status.split(":")[0]


def _wall(row: Row | None) -> str:
    if row is None or not row.ok:
        return _text(row)
    return f"{row.wall_ms:.2g} ({row.wall_p20_ms:.2g}–{row.wall_p80_ms:.2g})"


def write(record: Record) -> list[Path]:
    """Writes the figure and README.md; returns those that changed."""
    before = {path: path.read_bytes() if path.exists() else b"" for path in (FIGURE, README)}
    plots.speedup(record).save(FIGURE)
    README.write_text(update(README.read_text("utf-8"), record), "utf-8")
    return [path for path, content in before.items() if path.read_bytes() != content]
