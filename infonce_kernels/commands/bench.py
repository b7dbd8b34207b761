"""`infonce bench`: sweeps over sizes, as tables, as JSON or into a record."""

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from infonce_kernels.bench import peers, records, report, run, sizes, subjects
from infonce_kernels.bench.timing import Timer
from infonce_kernels.build import backends

_RUNGS = (*subjects.RUNGS, subjects.AUTO)
_BASELINES = {
    "eager": (subjects.EAGER,),
    "compile": (subjects.COMPILE,),
    "strongest": (subjects.STRONGEST,),
    "peers": peers.PEERS,
}


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench", help="time rungs and baselines on this GPU, each checked against float64"
    )
    parser.add_argument(
        "--sweep",
        default=("batch",),
        type=_choices(sizes.SWEEPS),
        help=f"which sizes, of {', '.join(sizes.SWEEPS)} (default: batch)",
    )
    parser.add_argument(
        "--centre",
        default=tuple(sizes.CENTRES),
        type=_choices(tuple(sizes.CENTRES)),
        help="what the sweeps over dim and negatives go around: small, large (default: both)",
    )
    parser.add_argument(
        "--size",
        action="append",
        type=parse_size,
        metavar="B,D,N",
        help="this size instead of a sweep",
    )
    names = tuple(subject.name for subject in _RUNGS)
    parser.add_argument(
        "--rungs", default=names, type=_choices(names), help=f"of {', '.join(names)} (default: all)"
    )
    parser.add_argument(
        "--tiers",
        default=("ieee", "tf32"),
        type=_choices(("ieee", "tf32", "bf16")),
        help="precisions, of ieee, tf32, bf16 (default: ieee,tf32)",
    )
    parser.add_argument(
        "--passes",
        default=("forward",),
        type=_choices(subjects.PASSES),
        help="of forward, both (forward + backward) (default: forward)",
    )
    parser.add_argument(
        "--baselines",
        default=("eager", "strongest"),
        type=_choices(tuple(_BASELINES)),
        help="of eager (the original model), compile (the same under torch.compile, at the centres "
        "and ends of the sweeps), strongest (one product, one cross entropy), peers (other "
        "packages) (default: eager,strongest)",
    )
    parser.add_argument("--budget", default=0.25, type=float, help="seconds a column of an entry")
    parser.add_argument("--limit", default=1.0, type=float, help="longest call, in seconds")
    parser.add_argument(
        "--sustained", action="store_true", help="also one second of back-to-back calls"
    )
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=records.FOLDER,
        metavar="FILE",
        help="append to a record (default: results/<gpu>-<date>.csv of the package)",
    )
    parser.add_argument("--commit", default="", help="the commit, where this is no checkout of git")
    parser.add_argument("--json", action="store_true", help="for a script to read")
    parser.set_defaults(command=_run)


def _choices(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Parses a list with commas; every item must be one of `allowed`."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item for item in text.split(",") if item)
        for item in items:
            if item not in allowed:
                raise argparse.ArgumentTypeError(f"{item!r} is not one of {', '.join(allowed)}")
        return items

    return parse


def parse_size(text: str) -> sizes.Size:
    try:
        B, D, N = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not B,D,N, such as 256,512,2560") from None
    if min(B, D, N) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes are positive")
    return (B, D, N)


def _run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    if reason := backends()["cuda"]:
        console.print(
            f"infonce bench: {reason}\nThere is nothing to time here; `infonce plot` draws what "
            "was recorded on a GPU.",
            markup=False,
            highlight=False,
        )
        return 2
    chosen = [subject for subject in _RUNGS if subject.name in options.rungs]
    chosen += [subject for name in options.baselines for subject in _BASELINES[name]]
    todo = run.entries(
        chosen,
        options.tiers,
        options.passes,
        options.size or _swept(options.sweep, options.centre),
    )
    timer = Timer(options.budget, options.limit)
    date = datetime.date.today().isoformat()
    path = _record_path(options.record, date)
    number = 1 + max((r.number for r in records.read_runs(path)), default=0) if path else 1
    with console.status("measuring what this GPU can do at best"):
        this_run = run.start_run(number, date, timer, options.commit)
    console.print(report.describe(this_run), markup=False, highlight=False)
    writer = records.Writer(path, this_run) if path else None
    rows: list[records.Row] = []
    try:
        _measure(todo, this_run, timer, options.sustained, rows, writer, console)
    finally:  # stopped or not, what was measured is shown
        _print_rows(rows, options.json)
        if path:
            console.print(f"{len(rows)} rows appended to {path}", highlight=False)
    wrong = [row for row in rows if row.status.startswith(("wrong", "failed"))]
    return 1 if wrong else 0


def _swept(names: tuple[str, ...], centres: tuple[str, ...]) -> list[sizes.Size]:
    """The sizes of several sweeps, each once."""
    return list(dict.fromkeys(size for name in names for size in sizes.sweep(name, centres)))


def _record_path(record: Path | None, date: str) -> Path | None:
    if record != records.FOLDER:
        return record
    gpu = torch.cuda.get_device_name().lower().replace(" ", "-")
    return records.FOLDER / f"{gpu}-{date}.csv"


def _measure(
    todo: list[run.Entry],
    this_run: records.Run,
    timer: Timer,
    sustained: bool,
    rows: list[records.Row],
    writer: records.Writer | None,
    console: Console,
) -> None:
    """Measures all entries into `rows`, and into the record as they come."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=sum(run.weight(entry) for entry in todo))
        for entry, row in zip(todo, run.sweep(todo, this_run, timer, sustained), strict=True):
            rows.append(row)
            if writer:
                writer.write(row)
            bar.update(
                task, advance=run.weight(entry), description=f"B {row.B} D {row.D} N {row.N}"
            )


def _print_rows(rows: list[records.Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps([row.to_dict() for row in rows], indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 100)
    for table in report.tables(rows):
        console.print(table)
