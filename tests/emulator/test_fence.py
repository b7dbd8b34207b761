"""A fence's copies: where they lie, what they share, what comes back. Launches: tests/build."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from infonce_kernels.emulator import Array, Fence


def array(
    view: np.ndarray, name: str = "x", *, writable: bool = True, alignment: int = 16
) -> Array:
    return Array(name, view.ctypes.data, view.nbytes, view.itemsize, alignment, writable)


def at(address: int, like: np.ndarray) -> np.ndarray:
    """The elements at `address`, as many as `like` has."""
    return np.frombuffer((ctypes.c_char * like.nbytes).from_address(address), like.dtype)


def permissions(address: int) -> str:
    """What the kernel says of the page at `address`: such as "rw-p"."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1]
    return "unmapped"


def test_only_what_may_be_written_comes_back_whatever_happens() -> None:
    x, y = np.arange(5.0), np.arange(5.0)
    for error in (None, RuntimeError("the launch failed")):
        x[:], y[:] = np.arange(5.0), np.arange(5.0)
        try:
            with Fence([array(x, writable=False), array(y)]) as fence:
                for address in fence.addresses:
                    copy = at(address, x)
                    assert copy.tolist() == [0, 1, 2, 3, 4]
                    copy += 10
                assert x[0] == y[0] == 0
                if error:
                    raise error
        except RuntimeError as caught:
            assert caught is error
        assert x.tolist() == [0, 1, 2, 3, 4]
        assert y.tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 8, 15])
@pytest.mark.parametrize("size", [1, 3, 20, 4096, 4099])
@pytest.mark.parametrize("alignment", [1, 4, 16])
def test_the_end_is_at_the_edge_as_far_as_alignment_allows(
    offset: int, size: int, alignment: int
) -> None:
    memory = np.zeros(size + offset + 16, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    view = memory[start : start + size]
    with Fence([array(view, alignment=alignment)]) as fence:
        (copy,) = fence.addresses
        assert (copy - view.ctypes.data) % alignment == 0
        edge = next(a for a in range(copy + size, copy + size + 16) if a % 4096 == 0)
        assert edge - (copy + size) < alignment
        assert permissions(copy) == permissions(copy + size - 1) == "rw-p"
        assert permissions(edge) == permissions(edge + 2**24 - 1) == "---p"
        first_page = copy // 4096 * 4096
        assert permissions(first_page - 1) == permissions(first_page - 2**24) == "---p"


def test_what_overlaps_still_does() -> None:
    base = np.arange(100, dtype=np.float32)
    apart = np.zeros(3, np.float32)
    left, right, within = base[:60], base[40:90], base[45:50]
    views = [right, apart, within, left, left]
    writable = [True, True, True, False, False]
    with Fence([array(v, writable=w) for v, w in zip(views, writable, strict=True)]) as fence:
        starts = fence.addresses
        for start, view in zip(starts, views, strict=True):
            if view is not apart:
                assert start - starts[0] == view.ctypes.data - right.ctypes.data
        at(starts[0], right)[:] = -1
        at(starts[4], left)[:5] = -2  # not through a pointer to const
    assert base.tolist() == [*range(40), *[-1] * 50, *range(90, 100)]


def test_neighbours_are_kept_apart() -> None:
    """A tensor's rows passed one by one: a step from one into the next is an error too."""
    rows = np.zeros((2, 1024), np.float32)
    with Fence([array(rows[0], "first"), array(rows[1], "second")]) as fence:
        end = fence.addresses[0] + 4096
        assert permissions(end) == "---p"
        assert fence.describe(end) == "element 1024 of first (past its end: it has 1024)"


def test_an_address_outside_is_named() -> None:
    x, y = np.zeros(5, np.float64), np.zeros(7, np.int32)
    empty = np.zeros(0, np.float32)
    arrays = [array(x, "x"), array(y, "y"), array(y, "again"), array(empty, "empty")]
    with Fence(arrays) as fence:
        at_x, at_y, _, at_empty = fence.addresses
        assert permissions(at_empty) == permissions(at_empty - 1) == "---p"
    for address, text in (  # also when the copies are gone
        (at_x + 40, "element 5 of x (past its end: it has 5)"),
        (at_x + 8 * 1000, "element 1000 of x (past its end: it has 5)"),
        (at_x - 1, "element -1 of x (before its start)"),
        (at_x - 2**23, "element -1048576 of x (before its start)"),
        (at_y + 31, "element 7 of y, which is also again (past its end: it has 7)"),
        (at_empty + 8, "element 2 of empty (past its end: it has none)"),
        (0, None),
        (at_x + 2**40, None),
    ):
        assert fence.describe(address) == text


@pytest.mark.parametrize("offset", [-1, -20, 20, 27])
def test_what_is_written_beside_an_array_is_noticed(offset: int) -> None:
    memory = np.zeros(16, np.float32)
    start = -memory.ctypes.data % 16 // 4
    x = memory[start : start + 5]  # 20 bytes: with their alignment, 12 are left up to the edge
    for spoils in (False, True):
        with Fence([array(x)]) as fence:
            beside = fence.addresses[0] + offset
            assert np.isnan(at(fence.addresses[0] - 4, x[:1]))
            if spoils:
                ctypes.memset(beside, 0, 1)
            assert fence.spoiled() == (beside if spoils else None)


def test_nothing_is_left_mapped() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    x = np.zeros(5000)

    def use() -> None:
        with Fence([array(x)] * 3):
            pass

    use()
    before = mappings()
    for _ in range(50):
        use()
    assert mappings() < before + 50
    with Fence([]) as fence:
        assert fence.addresses == [] and fence.spoiled() is None


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(OSError, match="no address space for a launch's copies"):
        Fence([Array("x", 4096, 2**60, 4, 4, True)])


@pytest.mark.parametrize("seed", range(20))
def test_any_views_compute_what_they_compute_in_place(seed: int) -> None:
    """Reads and writes through the copies, against the same through the originals."""
    choose = random.Random(seed)
    fenced, plain = np.arange(64.0), np.arange(64.0)

    def views(base: np.ndarray) -> list[np.ndarray]:
        return [base[low : low + size] for low, size in bounds]

    bounds = [(choose.randrange(32), choose.randrange(33)) for _ in range(6)]
    steps: list[Callable[[list[np.ndarray]], None]] = []
    for _ in range(30):
        to, source = choose.sample(range(6), 2)
        count = min(bounds[to][1], bounds[source][1])

        def step(v: list[np.ndarray], to: int = to, source: int = source, n: int = count) -> None:
            v[to][:n] = v[to][:n] + v[source][:n]

        steps.append(step)
    with Fence([array(view) for view in views(fenced)]) as fence:
        copies = [
            at(a, v) if v.size else v for a, v in zip(fence.addresses, views(fenced), strict=True)
        ]
        for step in steps:
            step(copies)
    for step in steps:
        step(views(plain))
    assert fenced.tolist() == plain.tolist()
