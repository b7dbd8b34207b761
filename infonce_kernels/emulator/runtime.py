"""The emulator's runtime library, seen from Python: its settings, errors and warnings."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from infonce_kernels.emulator.toolchain import FOLDER

Index = tuple[int, int, int]
# What addr2line writes; the line is "?" where it does not know.
_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+)(?: \(discriminator \d+\))?")


class EmulatorWarning(UserWarning):
    """A kernel did something that is allowed, but seldom meant."""


class EmulatorError(RuntimeError):
    """A launch failed.

    Attributes:
        code: CUDA's number for the error (700 an illegal address, 719 a launch failure, ...).
        message: what happened.
        kernel: the kernel as the launch names it; empty for an error of a host call.
        file, line: where it happened: in the kernel if known, else the launch; empty, 0 if unknown.
        launch_file, launch_line: the launch.
        block, thread: who, as (x, y, z); None where the error concerns no single one.
        address: of an illegal access, where the processor tells it; else None.
    """

    def __init__(
        self,
        *,
        code: int,
        message: str,
        kernel: str,
        file: str,
        line: int,
        launch_file: str,
        launch_line: int,
        block: Index | None,
        thread: Index | None,
        address: int | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.kernel = kernel
        self.file = file
        self.line = line
        self.launch_file = launch_file
        self.launch_line = launch_line
        self.block = block
        self.thread = thread
        self.address = address
        super().__init__(self._text())

    def _text(self) -> str:
        first, *rest = self.message.split("\n")
        place = f" at {self.file}:{self.line}" if self.file else ""
        if self.block is not None:
            place += f", block {_show(self.block)}"
        if self.thread is not None:
            place += f", thread {_show(self.thread)}"
        who = f"kernel {self.kernel}: " if self.kernel else ""
        launch = f"\n  launched at {self.launch_file}:{self.launch_line}" if self.kernel else ""
        return "\n".join([f"{who}{first}{place}", *rest]) + launch


def _show(index: Index) -> str:
    return "({},{},{})".format(*index)


class _Frame(ctypes.Structure):
    _fields_ = [("object", ctypes.c_char_p), ("offset", ctypes.c_uint64)]


class _Error(ctypes.Structure):  # cuemu_error in src/api.cpp
    _fields_ = [
        ("code", ctypes.c_int),
        ("text", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("launch_file", ctypes.c_char_p),
        ("launch_line", ctypes.c_int),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int),
        ("has_block", ctypes.c_int),
        ("has_thread", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("frame_count", ctypes.c_int),
        ("frames", _Frame * 32),
        ("has_address", ctypes.c_int),
        ("address", ctypes.c_uint64),
    ]


class Runtime:
    """The one runtime library of the process, for each version of its text.

    Kernel modules are loaded after it. Settings hold for the whole process; errors and warnings
    belong to the OS thread that launched.
    """

    _loaded: ClassVar[dict[bytes, Runtime]] = {}
    _lock = threading.Lock()

    def __init__(self, path: Path, library: ctypes.CDLL) -> None:
        library.cuemu_set_timeout.argtypes = [ctypes.c_double]
        library.cuemu_set_timeout.restype = ctypes.c_double
        library.cuemu_set_threads.argtypes = [ctypes.c_uint]
        library.cuemu_set_threads.restype = ctypes.c_uint
        library.cuemu_set_seed.argtypes = [ctypes.c_uint64]
        library.cuemu_set_seed.restype = ctypes.c_uint64
        library.cuemu_take_warnings.restype = ctypes.c_char_p
        library.cuemu_take_error.argtypes = [ctypes.POINTER(_Error)]
        self.path = path
        self._library = library

    @classmethod
    def load(cls, path: Path) -> Runtime:
        """The runtime at ``path``, or its copy that the process has loaded already.

        Modules find the runtime by its version, so all use the copy that was loaded first, wherever
        (in another cache, say) a later one lies. Raises OSError if it cannot be loaded.
        """
        path = Path(path).resolve()
        with cls._lock:
            library = ctypes.CDLL(str(path))
            library.cuemu_version.restype = ctypes.c_char_p
            version = library.cuemu_version()
            if version not in cls._loaded:
                cls._loaded[version] = cls(path, library)
            return cls._loaded[version]

    def take_error(
        self, describe: Callable[[int], str | None] = lambda address: None
    ) -> EmulatorError | None:
        """The error of this thread's last failed launch, once; None if there is none.

        describe: says what lies at an illegal address, or None if it does not know.
        """
        raw = _Error()
        if not self._library.cuemu_take_error(ctypes.byref(raw)):
            return None
        launch_file, file = _decode(raw.launch_file), _decode(raw.file)
        line = raw.line
        if not file:
            frames = [(_decode(f.object), f.offset) for f in raw.frames[: raw.frame_count]]
            file, line = find_line(frames, launch_file) or (launch_file, raw.launch_line)
        address = raw.address if raw.has_address else None
        known = describe(address) if address is not None else None
        return EmulatorError(
            code=raw.code,
            message=_message(_decode(raw.text), raw.address, known),
            kernel=_decode(raw.kernel),
            file=file,
            line=line,
            launch_file=launch_file,
            launch_line=raw.launch_line,
            block=_index(raw.block) if raw.has_block else None,
            thread=_index(raw.thread) if raw.has_thread else None,
            address=address,
        )

    def pending_error(self) -> int:
        """The code of an error of this thread's launches that nobody has been told; 0 for none.

        cudaGetLastError tells an error, but those that ruin a CUDA context (700 and above) stay.
        """
        return int(self._library.cuemu_pending_error())

    def warnings(self) -> list[str]:
        """What this thread's launches did that is legal but worth a look; cleared by the call."""
        return _decode(self._library.cuemu_take_warnings()).splitlines()

    def set_timeout(self, seconds: float) -> float:
        """The longest that a launch may run, in seconds (60 at first). Returns the old value."""
        if not seconds > 0:
            raise ValueError(f"a time limit must be positive, not {seconds}")
        return float(self._library.cuemu_set_timeout(seconds))

    def set_threads(self, count: int) -> int:
        """How many OS threads run blocks; 0 (as at first) is one for each processor, at most 16."""
        if count < 0:
            raise ValueError(f"a number of threads must not be negative, as {count} is")
        return int(self._library.cuemu_set_threads(count))

    def set_lane_order(self, seed: int) -> int:
        """Shuffles the order in which blocks, warps and lanes run; 0 (as at first) is their own.

        A kernel without races gives the same result for every seed. Returns the old seed.
        """
        if seed < 0:
            raise ValueError(f"a seed must not be negative, as {seed} is")
        return int(self._library.cuemu_set_seed(seed))

    @contextlib.contextmanager
    def settings(
        self,
        *,
        timeout: float | None = None,
        threads: int | None = None,
        lane_order: int | None = None,
    ) -> Iterator[None]:
        """The given settings inside a ``with`` block, the old ones after it."""
        with contextlib.ExitStack() as stack:
            if timeout is not None:
                stack.callback(self.set_timeout, self.set_timeout(timeout))
            if threads is not None:
                stack.callback(self.set_threads, self.set_threads(threads))
            if lane_order is not None:
                stack.callback(self.set_lane_order, self.set_lane_order(lane_order))
            yield


def _decode(text: bytes | None) -> str:
    return (text or b"").decode("utf-8", "replace")


def _message(text: str, address: int, known: str | None) -> str:
    """The text of an error, with what lies at its address in place of the number."""
    if known is None:
        return text
    if "host code" in text:
        return text.replace(f"address {address:#x}", known)
    return f"illegal address: {known}"


def _index(values: ctypes.Array[ctypes.c_uint]) -> Index:
    return (values[0], values[1], values[2])


def find_line(frames: Sequence[tuple[str, int]], launch_file: str) -> tuple[str, int] | None:
    """The innermost place in the learner's files: of a fault's (library, offset) frames.

    Frames in the C library or in the emulator's own headers are passed over; inlined functions
    count. None if there is no such place or no ``addr2line``.
    """
    tool = shutil.which("addr2line")
    if tool is None:
        return None
    for library, offset in frames:
        done = subprocess.run(
            [tool, "-i", "-e", library, hex(offset)], capture_output=True, text=True, check=False
        )
        for place in done.stdout.splitlines():
            match = _PLACE.fullmatch(place)
            if match is None or int(match["line"]) == 0 or _is_foreign(match["file"]):
                continue
            file = match["file"]
            is_launch_file = os.path.basename(file) == os.path.basename(launch_file)
            return (launch_file if is_launch_file else file), int(match["line"])
    return None


def _is_foreign(file: str) -> bool:
    if file.startswith("?") or file.startswith(("/usr/", "./", "../sysdeps")):
        return True
    return FOLDER in Path(os.path.normpath(file)).parents
