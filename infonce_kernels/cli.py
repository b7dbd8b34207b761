"""The console script `infonce`: `doctor` says what can run here, `verify` what is right."""

import argparse
import json
import platform
import sys
from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infonce_kernels import ladder
from infonce_kernels.build import backends
from infonce_kernels.verify import LIMITS, Report, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0 where all is right, 1 where something failed, 2 for a bad call."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "command"):
        parser.print_help()
        return 2
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="infonce", description="InfoNCE kernels, from naive to the speed of light"
    )
    commands = parser.add_subparsers(metavar="COMMAND")

    doctor = commands.add_parser(
        "doctor", help="what can run here, what is missing, and the command that mends it"
    )
    doctor.set_defaults(command=_doctor)

    check = commands.add_parser(
        "verify", help="every rung, backend and pass that can run here, against float64"
    )
    check.add_argument(
        "--rung", choices=[rung.name for rung in ladder.LADDER], help="only this one"
    )
    check.add_argument("--backend", default="auto", choices=["auto", "pytorch", "emulator", "cuda"])
    check.set_defaults(command=_verify)

    for command in (doctor, check):
        command.add_argument("--json", action="store_true", help="for a script to read")
    return parser


def _doctor(options: argparse.Namespace) -> int:
    reasons = backends()
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda of torch": torch.version.cuda or "none",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
    if options.json:
        print(json.dumps({"facts": facts, "backends": reasons}, indent=2))
    else:
        console = Console()
        for name, value in facts.items():
            console.print(f"{name:14} {value}", highlight=False)
        table = Table("backend", "here", "what is missing, and what mends it", box=box.SIMPLE_HEAD)
        table.add_row("pytorch", "[green]ready[/]", "")
        for backend, reason in reasons.items():
            table.add_row(
                backend, "[yellow]no[/]" if reason else "[green]ready[/]", escape(reason or "")
            )
        console.print(table)
    # Lessons need kernels that run somewhere; plain PyTorch alone would teach nothing.
    return 0 if reasons["cuda"] is None or reasons["emulator"] is None else 1


def _verify(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    try:
        with console.status("verifying") as status:
            report = verify(options.rung, options.backend, progress=status.update)
    except ValueError as error:
        console.print(f"infonce verify: {error}", markup=False, highlight=False)
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
