"""`infonce export`: a submission for a benchmark harness, complete in one folder."""

import argparse
import sys
from pathlib import Path

from infonce_kernels import export, ladder


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "export", help="write a rung as a submission for KernelBench or GPUCodeForces"
    )
    parser.add_argument("harness", choices=sorted(export.HARNESSES))
    parser.add_argument("folder", type=Path, metavar="DIR", help="new or empty")
    parser.add_argument(
        "--rung", default=export.DEFAULT_RUNG, choices=ladder.names(), help="default: %(default)s"
    )
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        written = export.write(options.harness, options.folder, options.rung)
    except ValueError as error:
        print(f"infonce export: {error}", file=sys.stderr)
        return 2
    print("wrote", *written, sep="\n  ")
    return 0
