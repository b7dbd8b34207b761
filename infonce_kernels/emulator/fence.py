"""Memory for one launch, fenced: a kernel that leaves its arrays faults and harms nothing.

On a GPU an index out of bounds hits whatever the driver has put there, often nothing that shows.
On the CPU it hits the C library's heap, and the process dies later, somewhere else. So a launch
gets copies of its arrays, each with its end at the edge of pages that nobody can access.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

_GUARD = 16 << 20  # bytes before and after: an index that is off by a few rows stays inside
_BLANK = b"\xff"  # what lies between an array and the edges of its pages: NaN to whoever reads it
_PROT_NONE = 0  # the mmap module does not name it
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a launch may access.

    name: of the parameter; address, size: where it is, and its bytes; element: bytes of one
    element; alignment: the power of two modulo which the copy's address equals the original's;
    writable: whether what the launch wrote is copied back.
    """

    name: str
    address: int
    size: int
    element: int
    alignment: int
    writable: bool

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(slots=True)
class _Region:
    """Arrays that overlap, and their one copy: `pages` to `edge` can be accessed."""

    arrays: list[Array]
    start: int
    end: int
    pages: int = 0
    edge: int = 0
    shift: int = 0  # from an original address to its copy's

    def room(self) -> int:
        """The copy's bytes, and the few between it and the edge that its alignment costs."""
        return self.end - self.start + -self.end % max(array.alignment for array in self.arrays)

    def extent(self) -> int:
        return _GUARD + _whole_pages(self.room()) + _GUARD

    def place(self, base: int) -> None:
        self.pages = base + _GUARD
        self.edge = base + self.extent() - _GUARD
        self.shift = self.edge - self.room() - self.start

    def gaps(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The accessible bytes before and after the copy, as (address, size)."""
        first, last = self.start + self.shift, self.end + self.shift
        return (self.pages, first - self.pages), (last, self.edge - last)


class Fence:
    """Copies of `arrays` for the time of a `with` block, at `addresses`, in the same order.

    Arrays that overlap share one copy, so that they overlap as before. When the block is left,
    however that is, the writable arrays are copied back. An array without elements gets an address
    that nobody can access. Raises OSError where there is no memory.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._regions = list(_regions(arrays))
        self._extent = sum(region.extent() for region in self._regions)
        self._base = next_base = _map(self._extent) if self._regions else 0
        for region in self._regions:
            region.place(next_base)
            next_base += region.extent()
        copies = {id(array): array.address + r.shift for r in self._regions for array in r.arrays}
        self.addresses = [copies[id(array)] for array in arrays]

    def __enter__(self) -> Fence:
        for region in self._regions:
            size = region.edge - region.pages
            if size and _libc.mprotect(region.pages, size, mmap.PROT_READ | mmap.PROT_WRITE):
                error = ctypes.get_errno()
                self._unmap()
                raise OSError(error, f"no memory for a launch's copies: {os.strerror(error)}")
            ctypes.memmove(region.start + region.shift, region.start, region.end - region.start)
            for address, gap in region.gaps():
                ctypes.memset(address, _BLANK[0], gap)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for region in self._regions:
            for array in region.arrays:
                if array.writable:
                    ctypes.memmove(array.address, array.address + region.shift, array.size)
        self._unmap()

    def _unmap(self) -> None:
        if self._regions:
            _libc.munmap(self._base, self._extent)

    def spoiled(self) -> int | None:
        """An address next to an array that has been written without a fault: the bytes up to the
        edge of the first page, which no hardware can watch. Call it inside the `with` block."""
        for region in self._regions:
            (before, size), (after, rest) = region.gaps()
            kept = ctypes.string_at(before, size).rstrip(_BLANK)
            if kept:
                return before + len(kept) - 1
            kept = ctypes.string_at(after, rest).lstrip(_BLANK)
            if kept:
                return after + rest - len(kept)
        return None

    def describe(self, address: int) -> str | None:
        """Which element of which array would be at an address outside; None if it is far away."""
        for region in self._regions:
            if not region.pages - _GUARD <= address < region.edge + _GUARD:
                continue
            original = address - region.shift
            past = original >= region.end
            if past:
                nearest = [array for array in region.arrays if array.end == region.end]
            else:
                nearest = [array for array in region.arrays if array.address == region.start]
            return _describe(nearest, original)
        return None


def _regions(arrays: Sequence[Array]) -> Iterator[_Region]:
    """The arrays, those that overlap together."""
    region: _Region | None = None
    for array in sorted(arrays, key=lambda array: (array.address, array.end)):
        if array.size == 0:
            yield _Region([array], array.address, array.end)
        elif region is not None and array.address < region.end:
            region.arrays.append(array)
            region.end = max(region.end, array.end)
        else:
            if region is not None:
                yield region
            region = _Region([array], array.address, array.end)
    if region is not None:
        yield region


def _describe(arrays: Sequence[Array], address: int) -> str:
    array = arrays[0]
    count = array.size // array.element
    index = (address - array.address) // array.element
    others = [other.name for other in arrays[1:]]
    same = f", which is also {' and '.join(others)}" if others else ""
    where = "before its start" if index < 0 else f"past its end: it has {count or 'none'}"
    return f"element {index} of {array.name}{same} ({where})"


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _map(size: int) -> int:
    """Address space without access, which takes no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, size, _PROT_NONE, flags, -1, 0)
    if address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"no address space for a launch's copies: {os.strerror(error)}")
    return int(address)
