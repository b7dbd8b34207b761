"""Running a compiler."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import BuildError

# Compilers translate their messages; `errors` reads the English ones.
LOCALE = {"LC_ALL": "C"}
# What changes a compiler's output beside its arguments: part of the keys.
INCLUDE_PATHS = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
NVCC_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


def environment(names: Sequence[str]) -> dict[str, str | None]:
    """The values of environment variables."""
    return {name: os.environ.get(name) for name in names}


def run(command: Sequence[str | Path], cwd: Path | None = None) -> tuple[int, str]:
    """Exit status and all output of `command`, without a shell, so that blanks need no quoting.

    Raises BuildError naming the program where it cannot be started.
    """
    arguments = [str(argument) for argument in command]
    try:
        done = subprocess.run(
            arguments,
            cwd=cwd,
            env=os.environ | LOCALE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        raise BuildError(
            f"cannot run the compiler {arguments[0]}: {error.strerror}", compiler=arguments[0]
        ) from error
    return done.returncode, done.stdout.decode(errors="replace")
