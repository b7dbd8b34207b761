"""`infonce counters`: what the hardware counts in a rung's kernels, beside what was predicted."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from infonce_kernels import ladder
from infonce_kernels.bench import counters, records, sizes, subjects
from infonce_kernels.build import BuildError
from infonce_kernels.commands.bench import parse_size


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "counters",
        help="sectors, wavefronts, DRAM bytes and occupancy of a rung's kernels, counted by ncu",
    )
    parser.add_argument("rung", choices=ladder.names(), metavar="RUNG", help="such as v3_fused")
    parser.add_argument(
        "--pass", dest="pass_", default="forward", choices=subjects.PASSES, help="forward, or both"
    )
    parser.add_argument(
        "--size",
        default=sizes.CENTRES["small"],
        type=parse_size,
        metavar="B,D,N",
        help="default: 256,512,2560",
    )
    parser.add_argument("--tier", default="ieee", choices=("ieee", "tf32"))
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=records.FOLDER,
        metavar="FILE",
        help="keep the counts (default: results/<gpu>-<date>-counters.csv of the package)",
    )
    parser.add_argument("--json", action="store_true", help="for a script to read")
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    B, D, N = options.size
    try:
        with console.status(f"counting {options.rung} under ncu"):
            kernels = counters.count(options.rung, options.pass_, B, N, D, options.tier)
    except (ValueError, RuntimeError, BuildError) as error:
        console.print(f"infonce counters: {error}", markup=False, highlight=False)
        return 2
    if options.json:
        print(json.dumps(counters.to_dicts(kernels), indent=1))
    else:
        Console().print(counters.render(kernels))
    if options.record:
        own = options.record != records.FOLDER
        path = options.record if own else counters.record_path(kernels[0].call)
        counters.write(kernels, path)
        console.print(f"recorded in {path}", highlight=False)
    return 0
