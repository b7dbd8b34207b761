"""`infonce bench`: sweeps over sizes, as tables, as JSON or into a record."""

import argparse
import datetime
import json
import sys

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from infonce_kernels.bench import peers, records, report, run, sizes, subjects
from infonce_kernels.bench.timing import Timer
from infonce_kernels.build import backends
from infonce_kernels.commands.arguments import (
    add_json,
    add_record,
    choices,
    positive,
    record_path,
    size,
)

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
        type=choices(sizes.SWEEPS),
        help=f"which sizes, of {', '.join(sizes.SWEEPS)} (default: batch)",
    )
    parser.add_argument(
        "--centre",
        default=tuple(sizes.CENTRES),
        type=choices(tuple(sizes.CENTRES)),
        help="what the sweeps over dim and negatives go around: small, large (default: both)",
    )
    parser.add_argument(
        "--size",
        action="append",
        type=size,
        metavar="B,D,N",
        help="this size instead of a sweep",
    )
    names = tuple(subject.name for subject in _RUNGS)
    parser.add_argument(
        "--rungs", default=names, type=choices(names), help=f"of {', '.join(names)} (default: all)"
    )
    parser.add_argument(
        "--tiers",
        default=("ieee", "tf32"),
        type=choices(("ieee", "tf32", "bf16")),
        help="precisions, of ieee, tf32, bf16 (default: ieee,tf32)",
    )
    parser.add_argument(
        "--passes",
        default=("forward",),
        type=choices(subjects.PASSES),
        help="of forward, both (forward + backward) (default: forward)",
    )
    parser.add_argument(
        "--baselines",
        default=("eager", "strongest"),
        type=choices(tuple(_BASELINES)),
        help="of eager (the original model), compile (the same under torch.compile, at the centres "
        "and ends of the sweeps), strongest (one product, one cross entropy), peers (other "
        "packages) (default: eager,strongest)",
    )
    parser.add_argument(
        "--budget",
        default=0.25,
        type=positive,
        metavar="SECONDS",
        help="how long each of the three clocks may look at an entry (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        default=1.0,
        type=positive,
        metavar="SECONDS",
        help="the longest call; what takes longer is not measured (default: %(default)s)",
    )
    parser.add_argument(
        "--sustained", action="store_true", help="also one second of back-to-back calls"
    )
    add_record(parser, "append to a record")
    parser.add_argument("--commit", default="", help="the commit, where this is no checkout of git")
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    if reason := backends()["cuda"]:
        return _refuse(
            f"{reason}\nThere is nothing to time here; `infonce plot` draws what was recorded on a "
            "GPU."
        )
    todo = _entries(options)
    if not todo:
        return _refuse("these rungs, baselines and tiers leave nothing to measure")
    gpu = torch.cuda.get_device_name()
    path = record_path(options.record, gpu, datetime.date.today().isoformat())
    try:
        if path:
            records.prepare(path, gpu)
    except (OSError, ValueError) as error:
        return _refuse(str(error))
    with console.status("measuring what this GPU can do at best"):
        settings = f"{options.budget} s a column, calls of up to {options.limit} s"
        this_run = run.start_run(options.commit, settings)
    console.print(report.describe(this_run), markup=False, highlight=False, soft_wrap=True)
    writer = records.Writer(path, this_run) if path else None
    rows: list[records.Row] = []
    try:
        _measure(todo, writer.run if writer else this_run, options, rows, writer, console)
    except run.GpuLost as lost:
        console.print(f"infonce bench: {lost}", markup=False, highlight=False, soft_wrap=True)
    finally:  # stopped or not, what was measured is shown
        _print_rows(rows, options.json)
        if writer:
            console.print(f"{len(rows)} rows appended to {path}", highlight=False)
    failed = any(row.status.startswith(("wrong", "failed", "not checked")) for row in rows)
    return 1 if failed or len(rows) < len(todo) else 0


def _refuse(why: str) -> int:
    print(f"infonce bench: {why}", file=sys.stderr)
    return 2


def _entries(options: argparse.Namespace) -> list[run.Entry]:
    """What to measure; `compile` only at the centres and ends of the sweeps, if it is a sweep."""
    chosen = [subject for subject in _RUNGS if subject.name in options.rungs]
    chosen += [subject for name in options.baselines for subject in _BASELINES[name]]
    swept = options.size or _swept(options.sweep, options.centre)
    compile_at = None if options.size else sizes.landmarks()
    return run.entries(chosen, options.tiers, options.passes, swept, compile_at=compile_at)


def _swept(names: tuple[str, ...], centres: tuple[str, ...]) -> list[sizes.Size]:
    """The sizes of several sweeps, each once."""
    return list(dict.fromkeys(size for name in names for size in sizes.sweep(name, centres)))


def _measure(
    todo: list[run.Entry],
    this_run: records.Run,
    options: argparse.Namespace,
    rows: list[records.Row],
    writer: records.Writer | None,
    console: Console,
) -> None:
    """Measures all entries into `rows`, and into the record as they come."""
    timer = Timer(options.budget, options.limit)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=sum(run.weight(entry) for entry in todo))
        for entry, row in zip(
            todo, run.sweep(todo, this_run, timer, options.sustained), strict=True
        ):
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
