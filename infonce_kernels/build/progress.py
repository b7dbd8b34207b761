"""One line on stderr for whatever really compiles, so that a first run does not look hung."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_shown = True


def show_progress(shown: bool) -> bool:
    """Switch the progress lines of builds on or off; returns what held before.

    The environment variable INFONCE_KERNELS_QUIET (any value) silences them too.
    """
    global _shown
    before, _shown = _shown, shown
    return before


def note(text: str) -> None:
    """One line, unless silenced."""
    _write(text + "\n")


@contextmanager
def progress(text: str) -> Iterator[None]:
    """`building v1_naive for the emulator ... 1.2 s`: the first part at once, the time at the end.

    No carriage return and no escape sequence: the line must look the same in a terminal, in
    Jupyter, where both parts join in one output, and in a log.
    """
    _write(f"{text} ... ")
    start = time.perf_counter()
    try:
        yield
    except BaseException:
        _write("failed\n")
        raise
    _write(f"{time.perf_counter() - start:.1f} s\n")


def _write(text: str) -> None:
    if _shown and "INFONCE_KERNELS_QUIET" not in os.environ:
        sys.stderr.write(text)
        sys.stderr.flush()
