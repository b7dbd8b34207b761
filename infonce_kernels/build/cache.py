"""Where built libraries live: one folder a content hash, published whole or not at all.

Nothing is written outside this folder. An entry appears by a rename, so a reader never sees half of
one. Builders of the same entry take turns by a file lock that the operating system releases when
its holder dies, however it dies.
"""

import json
import os
import re
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from .errors import BuildError
from .progress import note, progress

Value = TypeVar("Value")

LOCK_TIMEOUT_S = 600.0
_PATIENCE_S = 1.0  # after that long a line says whom one waits for
_STAGING = ".building-"
_SIZES = "sizes.json"  # of an entry's files, by name
_NAME_LENGTH = 40  # a file system takes 255 bytes a name, some encrypted ones 143; a key has 64


def root() -> Path:
    """The cache folder, made if absent: `$TORCH_EXTENSIONS_DIR/infonce_kernels`, else
    `$XDG_CACHE_HOME/infonce_kernels`, else `~/.cache/infonce_kernels`. Where that cannot be
    written, a folder of this user's own in the temporary folder, with one warning."""
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    home = extensions or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _writable(Path(os.path.expanduser(home)).absolute() / "infonce_kernels")


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _fallback(folder, str(error))
    if not os.access(folder, os.W_OK | os.X_OK):
        return _fallback(folder, "no permission to write there")
    return folder


@lru_cache
def _fallback(folder: Path, reason: str) -> Path:
    """Cached, so that the warning comes once a process."""
    temporary = Path(tempfile.gettempdir()) / f"infonce_kernels-{os.getuid()}"
    temporary.mkdir(mode=0o700, exist_ok=True)
    # Anyone may have made that name in a shared /tmp, and what is loaded from there runs as us.
    if temporary.is_symlink() or temporary.stat().st_uid != os.getuid():
        raise BuildError(
            f"cannot write the cache folder {folder} ({reason}), and {temporary} belongs to "
            "someone else. Set TORCH_EXTENSIONS_DIR to a folder of yours."
        )
    warnings.warn(
        f"cannot write the cache folder {folder} ({reason}); using {temporary} instead. "
        "Set TORCH_EXTENSIONS_DIR to a folder of yours to keep built kernels.",
        stacklevel=2,
    )
    return temporary


def entry(name: str, key: str, description: str, build: Callable[[Path], None]) -> Path:
    """The folder of the entry for `name` and `key`, built first if absent or damaged.

    `build` fills an empty staging folder. It runs in one process at a time; if it raises, nothing
    of it stays. name: any text; the folder has its letters and digits. description: e.g. "v1_naive
    for the emulator", for the progress line.
    Raises BuildError where another process holds the lock for LOCK_TIMEOUT_S.
    """
    cache = root()
    folder = cache / f"{_plain(name)}-{key}"
    if _is_whole(folder):
        return folder
    with _lock(cache, key, description):
        if not _is_whole(folder):
            staging = cache / (_STAGING + folder.name)
            for remains in (staging, folder):  # of a builder that was killed; a damaged entry
                shutil.rmtree(remains, ignore_errors=True)
            staging.mkdir()
            try:
                with progress(f"building {description}"):
                    build(staging)
                sizes = {path.name: path.stat().st_size for path in staging.iterdir()}
                (staging / _SIZES).write_text(json.dumps(sizes))
                staging.rename(folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return folder


def use(
    name: str,
    key: str,
    description: str,
    build: Callable[[Path], None],
    load: Callable[[Path], Value],
) -> Value:
    """What `load` makes of the entry's folder. Where it raises OSError, as the dynamic loader does
    for a file that is no library, the entry is built anew, once."""
    folder = entry(name, key, description, build)
    try:
        return load(folder)
    except OSError:
        # An entry without its list is damaged. Two processes that find it so may both build it.
        (folder / _SIZES).unlink(missing_ok=True)
        return load(entry(name, key, description, build))


def _plain(name: str) -> str:
    """`name` as part of a folder's name. Entries are told apart by their keys."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_NAME_LENGTH].lstrip(".") or "kernel"


def _is_whole(folder: Path) -> bool:
    """Whether every file of an entry has the size that it was built with. A library that was cut
    off must not reach the dynamic loader: it would end the process by SIGBUS."""
    try:
        sizes = json.loads((folder / _SIZES).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextmanager
def _lock(cache: Path, key: str, description: str) -> Iterator[None]:
    """The lock for entry `key`. There are 16 locks, by the first digit of the key, so that edits
    do not pile up lock files; two different kernels that share one merely take turns."""
    locks = cache / "locks"
    locks.mkdir(exist_ok=True)
    path = locks / key[0]
    holder = locks / f"{key[0]}.holder"
    lock = FileLock(str(path))
    try:
        _acquire(lock, holder)
    except Timeout:
        raise BuildError(
            f"waited {LOCK_TIMEOUT_S:.0f} s to build {description}: the lock {path} is held by "
            f"{_describe(holder)}. Wait for it or end it."
        ) from None
    try:
        _remove_dead_staging(cache, key[0])
        record = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "building": description,
        }
        holder.write_text(json.dumps(record))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, holder: Path) -> None:
    try:
        lock.acquire(timeout=min(_PATIENCE_S, LOCK_TIMEOUT_S), poll_interval=0.02)
    except Timeout:
        if LOCK_TIMEOUT_S <= _PATIENCE_S:
            raise
        note(f"waiting for {_describe(holder)}")
        lock.acquire(timeout=LOCK_TIMEOUT_S - _PATIENCE_S, poll_interval=0.1)


def _describe(holder: Path) -> str:
    try:
        record = json.loads(holder.read_text())
    except (OSError, ValueError):  # it has the lock, and is about to write or to remove its record
        return "another process"
    return (
        f"process {record['pid']} on {record['host']}, "
        f"which builds {record['building']} since {record['since']}"
    )


def _remove_dead_staging(cache: Path, digit: str) -> None:
    """Staging folders under this lock belong to builders that were killed, since we hold it."""
    for staging in cache.glob(f"{_STAGING}*"):
        if staging.name.rpartition("-")[2].startswith(digit):
            shutil.rmtree(staging, ignore_errors=True)
