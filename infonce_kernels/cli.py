"""The console script `infonce`. Its commands are in `infonce_kernels.commands`."""

import argparse
import sys
from collections.abc import Sequence

from infonce_kernels.commands import bench, counters, doctor, export, plot, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0 where all is right, 1 where something failed, 2 for a bad call."""
    parser = argparse.ArgumentParser(
        prog="infonce", description="InfoNCE kernels, from naive to the speed of light"
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in (doctor, verify, bench, plot, counters, export):
        command.add(commands)
    options = parser.parse_args(arguments)
    if not hasattr(options, "command"):
        parser.print_help()
        return 2
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
