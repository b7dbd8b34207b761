"""Barriers, warp operations, atomics and cooperative groups, against their definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from infonce_kernels.emulator import Runtime

if TYPE_CHECKING:
    from tests.emulator.conftest import Emulator, Module

LANE = np.arange(32)


@pytest.fixture
def module(emulator: Emulator) -> Module:
    return emulator.load("warp.cu")


def test_shuffles(module: Module) -> None:
    o = np.zeros((4, 5, 4, 32), np.int32)
    assert module.run_shuffles(o) == 0
    for w, width in enumerate((4, 8, 16, 32)):
        first = LANE // width * width
        for d in range(5):
            down, up, xor = LANE + d, LANE - d, LANE ^ d
            sources = (
                first + d % width,
                np.where(up >= first, up, LANE),
                np.where(down < first + width, down, LANE),
                np.where(xor < first + width, xor, LANE),
            )
            for got, source in zip(o[w, d], sources, strict=True):
                np.testing.assert_array_equal(got, 100 + source)


def test_shuffled_types(module: Module) -> None:
    o = np.zeros(32)
    assert module.run_shuffle_types(o) == 0
    other = LANE ^ 1
    expected = 0.1 + other + 0.5 + other + 2.0**other - np.minimum(LANE + 1, 31)
    np.testing.assert_allclose(o, expected, rtol=1e-15)


def test_half_warps_on_their_own_masks(module: Module) -> None:
    o = np.zeros(32, np.int32)
    assert module.run_half_warps(o) == 0
    np.testing.assert_array_equal(o, [sum(range(16))] * 16 + [31] * 16)


def test_votes_matches_and_reductions(module: Module) -> None:
    o = np.zeros((6, 32), np.uint32)
    assert module.run_votes(o) == 0
    np.testing.assert_array_equal(o[0], sum(1 << i for i in range(0, 32, 3)))
    np.testing.assert_array_equal(o[1], 1 + 4)
    same = [sum(1 << i for i in range(32) if i // 5 == lane // 5) for lane in range(32)]
    np.testing.assert_array_equal(o[2], same)
    np.testing.assert_array_equal(o[3], 0)  # 0xffffffff + 0 + 1 + 0
    np.testing.assert_array_equal(o[4], sum(range(32)) + 31 * 1000 + 3 * 100000)
    np.testing.assert_array_equal(o[5], 0xFFFFFFFF)


def test_active_mask(module: Module) -> None:
    o = np.zeros((4, 32), np.uint32)
    assert module.run_active_masks(o) == 0
    odd = LANE % 2 == 1
    np.testing.assert_array_equal(o[0], 0xFFFFFFFF)
    np.testing.assert_array_equal(o[1], np.where(odd, 0xAAAAAAAA, 0x55555555))
    np.testing.assert_array_equal(o[2][odd], sum(range(1, 32, 2)) * 100 + np.arange(16))
    np.testing.assert_array_equal(o[3][odd], 5 + 1600 + 10000 * 0xFF00)


def test_block_votes(module: Module) -> None:
    o = np.zeros((2, 64), np.int32)
    assert module.run_block_votes(o) == 0
    np.testing.assert_array_equal(o[0], 22)
    np.testing.assert_array_equal(o[1], 1 + 4)


def test_cooperative_groups(module: Module) -> None:
    o = np.zeros(264, np.float32)
    assert module.run_groups(o) == 0
    t = np.arange(64)
    eights = t.reshape(8, 8)
    np.testing.assert_array_equal(o[:64], np.repeat(eights.sum(1), 8))
    np.testing.assert_array_equal(o[64:128], t // 32 * 32 + 31 + 100 * (t // 8 * 8))
    np.testing.assert_array_equal(o[128:192], t % 8 + 10 * (t // 8) + 800 + 1000 + (t < 8))
    np.testing.assert_array_equal(o[192:194], 64 + 2)
    np.testing.assert_array_equal(o[200:264], t)


def test_partial_warp(module: Module, runtime: Runtime) -> None:
    """Lanes that do not exist give no value, which is told, and do not hang the others."""
    o = np.zeros(40, np.float32)
    assert module.run_partial_warp(o) == 0
    assert o[0] == 32 and o[32] == 8
    assert any("takes no part" in warning for warning in runtime.warnings())


def test_integer_atomics(module: Module) -> None:
    i = np.zeros(6, np.int32)
    u = np.array([0xFFFFFFFF, 0, 5, 0, 0, 0, 0, 0], np.uint32)
    w = np.array([0, 0, 5], np.uint64)
    assert module.run_integer_atomics(i, u, w) == 0
    n = 256
    total = n * (n - 1) // 2
    np.testing.assert_array_equal(i, [total, -total, n - 51, 21 - n, n, 2 * n])
    # 0..9 wraps after ten steps; xor with each bit eight times changes nothing
    np.testing.assert_array_equal(
        u, [0, 0xFFFFFFFF, 5, n % 10, (-n) % 10, 0x80000000 + n - 1, n - 1, n]
    )
    np.testing.assert_array_equal(w, [n << 40, (n - 1) << 33, 6])


def test_float_atomics_are_reproducible(module: Module) -> None:
    """Blocks add in their order, whichever worker is faster: the same bits in every run."""
    x = np.random.default_rng(0).standard_normal(64 * 64).astype(np.float32)
    results = []
    for _ in range(5):
        f, d = np.zeros(2 + 64, np.float32), np.zeros(1)
        assert module.run_float_atomics(f, d, x, 64) == 0
        results.append((f.tobytes(), d.tobytes()))
        np.testing.assert_allclose(d[0], x.sum(dtype=np.float64), rtol=1e-12)
        np.testing.assert_allclose(f[0], d[0], rtol=1e-4)
        np.testing.assert_allclose(f[2:], x.reshape(64, 64).sum(1), rtol=1e-4, atol=1e-5)
        assert f[1] == 4.5
    assert len(set(results)) == 1


def test_last_block(module: Module) -> None:
    a = np.arange(16, dtype=np.float32)
    parts, count, o = np.zeros(16, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    assert module.run_last_block(a, parts, count, o) == 0
    assert o[0] == a.sum()


def test_spinning_on_an_atomic_ends(module: Module) -> None:
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    assert module.run_spin_lock(lock, count) == 0
    assert count[0] == 2 * 128


def test_nanosleep_lets_others_run(module: Module) -> None:
    assert module.run_sleeps(np.zeros(1, np.int32)) == 0


def test_seeds_change_the_order_of_lanes_warps_and_blocks(module: Module, runtime: Runtime) -> None:
    def order(seed: int) -> tuple[int, ...]:
        o = np.zeros(1 + 5 * 64, np.int32)
        with runtime.settings(lane_order=seed):
            assert module.run_order(o) == 0
        assert sorted(o[1:]) == list(range(5 * 64))
        return tuple(o[1:])

    assert order(0) == tuple(range(5 * 64))
    assert order(1) == order(1)
    assert order(1) != order(2)
    first = np.array(order(3)).reshape(5, 64)
    blocks = first[:, 0] // 64
    assert (first // 64 == blocks[:, None]).all()  # one block after the other, in another order
    assert list(blocks) != [0, 1, 2, 3, 4]
    assert (first[0].reshape(2, 32) % 32 != LANE).any()


def test_a_race_shows_under_some_seed(module: Module, runtime: Runtime) -> None:
    results = set()
    for seed in range(4):
        o = np.zeros(64, np.float32)
        with runtime.settings(lane_order=seed):
            assert module.run_racy(o) == 0
        results.add(o.tobytes())
        assert np.isnan(o).any()  # who reads too early reads the poison
    assert len(results) > 1


def test_a_healthy_kernel_gives_the_same_under_every_seed(module: Module, runtime: Runtime) -> None:
    x = np.random.default_rng(1).standard_normal(8 * 256).astype(np.float32)
    results = set()
    for seed in range(6):
        o = np.zeros(8, np.float32)
        with runtime.settings(lane_order=seed):
            assert module.run_tree(x, o) == 0
        results.add(o.tobytes())
    assert len(results) == 1
    np.testing.assert_allclose(o, x.reshape(8, 256).sum(1), atol=1e-4)
