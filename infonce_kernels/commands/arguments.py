"""Arguments that several commands take."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from infonce_kernels.bench import records
from infonce_kernels.bench.sizes import Size

# Not the package's own folder: what ships there is what lessons and README show.
RECORDS = Path("build/records")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for a script to read")


def add_record(parser: argparse.ArgumentParser, what: str, suffix: str = "") -> None:
    """`--record [FILE]`; without FILE its value is the folder `RECORDS`, for `record_path`."""
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=RECORDS,
        metavar="FILE",
        help=f"{what} (default: {RECORDS}/<gpu>-<date>{suffix}.csv)",
    )


def record_path(given: Path | None, gpu: str, date: str, suffix: str = "") -> Path | None:
    """The file that `--record` means, or None where it was not given."""
    return RECORDS / records.name(gpu, date, suffix) if given == RECORDS else given


def choices(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Parses a list with commas; every item must be one of `allowed`."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",") if item.strip())
        for item in items:
            if item not in allowed:
                raise argparse.ArgumentTypeError(f"{item!r} is not one of {', '.join(allowed)}")
        return items

    return parse


def size(text: str) -> Size:
    """Parses B,D,N."""
    try:
        B, D, N = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not B,D,N, such as 256,512,2560") from None
    if min(B, D, N) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes are positive")
    return (B, D, N)


def positive(text: str) -> float:
    """Parses a positive number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not positive and finite")
    return value
