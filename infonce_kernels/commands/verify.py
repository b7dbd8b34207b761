"""`infonce verify`: every rung, backend and pass that can run here, against float64."""

import argparse
import json

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infonce_kernels import ladder
from infonce_kernels.commands.arguments import add_json
from infonce_kernels.verify import LIMITS, Report, verify


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "verify", help="every rung, backend and pass that can run here, against float64"
    )
    parser.add_argument("--rung", choices=ladder.names(), help="only this one")
    parser.add_argument(
        "--backend", default="auto", choices=["auto", "pytorch", "emulator", "cuda"]
    )
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    try:
        with console.status("verifying") as status:
            report = verify(options.rung, options.backend, progress=status.update)
    except ValueError as error:
        console.print(f"infonce verify: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    if options.json:
        print(json.dumps({"passed": report.passed, "checks": report.to_dicts()}, indent=2))
    else:
        _print_report(report)
    return 0 if report.passed else 1


def _print_report(report: Report) -> None:
    console = Console()
    limits = ", ".join(f"{pass_} {limit:.0e}" for pass_, limit in LIMITS.items())
    console.print(f"Largest error against float64 (limits: {limits}):", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("rung", "backend", "pass", "max error", "worst at"):
        table.add_column(heading, no_wrap=True)
    table.add_column("verdict")
    for check in report:
        verdict = f"[{'green' if check.passed else 'red'}]{escape(check.verdict)}[/]"
        error = f"{check.error:.1e}"
        table.add_row(check.rung, check.backend, check.pass_, error, check.problem, verdict)
    console.print(table)
    failed = sum(not check.passed for check in report)
    console.print(f"{failed} of {len(report)} wrong" if failed else f"all {len(report)} right")
