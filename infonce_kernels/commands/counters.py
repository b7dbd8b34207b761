"""`infonce counters`: what the hardware counts in a rung's kernels, beside what was predicted."""

import argparse
import json

from rich.console import Console

from infonce_kernels import ladder
from infonce_kernels.bench import counters, sizes, subjects
from infonce_kernels.build import BuildError
from infonce_kernels.commands.arguments import add_json, add_record, record_path, size


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
        type=size,
        metavar="B,D,N",
        help="default: 256,512,2560",
    )
    parser.add_argument("--tier", default="ieee", choices=("ieee", "tf32"))
    add_record(parser, "keep the counts", counters.SUFFIX)
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    B, D, N = options.size
    if options.tier not in ladder.rung(options.rung).tiers:
        tiers = ", ".join(ladder.rung(options.rung).tiers)
        console.print(f"infonce counters: {options.rung} has no tier of its own but {tiers}")
        return 2
    try:
        with console.status(f"counting {options.rung} under ncu"):
            kernels = counters.count(options.rung, options.pass_, B, N, D, options.tier)
    except (ValueError, RuntimeError, BuildError) as error:
        console.print(f"infonce counters: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    if options.json:
        print(json.dumps(counters.to_dicts(kernels), indent=1))
    else:
        Console().print(counters.render(kernels))
    if options.record:
        call = kernels[0].call
        path = record_path(options.record, call.gpu, call.date, counters.SUFFIX)
        counters.write(kernels, path)
        console.print(f"recorded in {path}", highlight=False)
    return 0
