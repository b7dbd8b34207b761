"""`make lab`: opens JupyterLab on working copies of the lessons in build/lab/.

The copies are the reader's: they are never overwritten. New lessons are added; where a committed
lesson has moved on since it was copied, a line says so.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from infonce_kernels.lessons import NOTEBOOKS, OUTPUT, committed
from infonce_kernels.lessons.kernel import ThisInterpreter


def copy_new(lessons: Sequence[Path], folder: Path) -> list[str]:
    """Copy the lessons that `folder` does not have yet.

    Returns:
        a line for each lesson that was copied, and for each that has moved on since its copy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / ".copied.json"
    copied = json.loads(record.read_text("utf-8")) if record.exists() else {}
    messages = []
    for lesson in lessons:
        copy = folder / lesson.name
        digest = hashlib.sha256(lesson.read_bytes()).hexdigest()
        if not copy.exists():
            shutil.copyfile(lesson, copy)
            copied[lesson.name] = digest
            messages.append(f"{lesson.name}: copied")
        elif copied.get(lesson.name) != digest:
            messages.append(
                f"{lesson.name}: the lesson has moved on since your copy was made; "
                f"rename or delete {copy} to get the new one"
            )
    record.write_text(json.dumps(copied, indent=1), "utf-8")
    return messages


def command(folder: Path, extra: Sequence[str] = ()) -> list[str]:
    """Return the command line that serves JupyterLab on `folder`."""
    return [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.kernel_spec_manager_class={ThisInterpreter.__module__}.ThisInterpreter",
        # It would save an opened notebook into its paired source as well (its name changed once).
        "--ServerApp.jpserver_extensions={'jupytext': False, 'jupyterlab_jupytext': False}",
        *(["--allow-root"] if os.geteuid() == 0 else []),
        *extra,
    ]


def main() -> int:
    lessons = committed()
    if not lessons:
        print(f"No notebooks in {NOTEBOOKS}: run this from a checkout.", file=sys.stderr)
        return 1
    folder = OUTPUT / "lab"
    for message in copy_new(lessons, folder):
        print(message)
    print(f"Your copies are in {folder}", flush=True)
    try:
        return subprocess.call(command(folder, sys.argv[1:]))
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
