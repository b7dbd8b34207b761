"""`infonce plot`: the figures of a record, as files."""

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from infonce_kernels.bench import records


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "plot", help="draw speed-up, time, roofline and memory of a record"
    )
    parser.add_argument(
        "folder",
        nargs="?",
        default=Path("build/plots"),
        type=Path,
        metavar="DIR",
        help="where the figures go (default: %(default)s)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="default: the newest that ships with the package",
    )
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        from infonce_kernels import plots
    except ModuleNotFoundError as missing:
        remedy = "pip install 'infonce_kernels[notebooks]'"
        print(f"infonce plot: {missing.name} is not installed: {remedy}", file=sys.stderr)
        return 2
    try:
        record = records.read(options.record) if options.record else records.latest()
        if not len(record):
            raise ValueError(f"{record.path} holds no measurement")
        bar = partial(track, description="drawing", console=Console(stderr=True))
        written = plots.write(record, options.folder, options.format, bar)
        if not written:
            raise ValueError(f"{record.path} has nothing to draw: a figure needs rungs and eager")
    except (OSError, ValueError) as error:
        print(f"infonce plot: {error}", file=sys.stderr)
        return 2
    print(f"{record.stamp}: {len(written)} figures in {options.folder}")
    return 0
