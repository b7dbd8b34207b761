"""`infonce doctor`: what can run here, what is missing, and the command that mends it."""

import argparse
import json
import platform

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infonce_kernels.build import backends
from infonce_kernels.commands.arguments import add_json


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "doctor", help="what can run here, what is missing, and the command that mends it"
    )
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
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
