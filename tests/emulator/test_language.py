"""What a kernel file may say: launches, shared memory, variables, host calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from infonce_kernels.emulator import Runtime

if TYPE_CHECKING:
    from tests.emulator.conftest import Emulator


def test_every_form_of_launch_and_shared_memory(emulator: Emulator) -> None:
    module = emulator.load("language.cu")
    o = np.zeros(512, np.float32)
    x = np.arange(64, dtype=np.float32)
    index = np.arange(32, dtype=np.int32)
    assert module.language(o, x, index) == 0, emulator.runtime.take_error()
    # a + b + dynamic, reversed; grid2d[1][0] = x[1]; tile.v[1][1] = x[5]
    np.testing.assert_array_equal(o[:64], 4 * x[::-1] + 1 + 5)
    assert o[64] == 3 + 4 + 5 + 6 + 0.5 + x[1] + x[1]
    assert o[65] == 0  # the alignments
    assert o[66] == 64 * 4 + 4 * 17 * 4  # sizeof of the arrays
    np.testing.assert_array_equal(o[128:160], 2 * index)
    np.testing.assert_array_equal(o[160:192], index**2)
    np.testing.assert_array_equal(o[192:224], index + 1)
    np.testing.assert_array_equal(o[224:256], 10)
    np.testing.assert_array_equal(o[256:288], 1.5)
    np.testing.assert_array_equal(o[288:320], 9)
    np.testing.assert_array_equal(o[320:352], 11)
    assert not o[352:].any()


def test_indices(emulator: Emulator) -> None:
    o = np.full(12 * 30, -1, np.int32)
    assert emulator.load("language.cu").run_indices(o) == 0
    np.testing.assert_array_equal(o.reshape(12, 30), 1000 * np.arange(12)[:, None] + np.arange(30))


def test_shared_memory_of_functions(emulator: Emulator) -> None:
    o = np.zeros(64, np.float32)
    assert emulator.load("language.cu").run_functions(o) == 0
    t = np.arange(64)
    np.testing.assert_array_equal(o, (t + 1) % 64 + 200 * ((t + 2) % 64))


def test_dynamic_limit(emulator: Emulator) -> None:
    """More than 48 KiB needs the attribute, as on hardware; 227 KiB is the end."""
    module = emulator.load("language.cu")
    o = np.zeros(1, np.float32)
    n = 12 * 1024  # 96 KiB
    error = emulator.error(module.run_large_dynamic(o, n, 0))
    assert error.code == 9
    assert "98304 bytes of dynamic shared memory" in error.message
    assert "cudaFuncSetAttribute" in error.message
    assert module.run_large_dynamic(o, n, 1) == 0
    assert o[0] == n - 1 + 4
    n = 227 * 1024 // 8
    assert module.run_large_dynamic(o, n, 1) == 0
    assert o[0] == n - 1 + 4
    assert "227 KiB" in emulator.error(module.run_large_dynamic(o, n + 4, 1)).message
    assert "227 KiB" in emulator.error(module.run_large_dynamic(o, n + 4, 0)).message


def test_shared_memory_is_poisoned_in_every_block(emulator: Emulator) -> None:
    o = np.zeros(4 * 32 * 2, np.float32)
    with emulator.runtime.settings(threads=1):
        assert emulator.load("language.cu").run_poison(o) == 0
    assert np.isnan(o).all()


def test_constant_and_device_variables(emulator: Emulator) -> None:
    o = np.zeros(64, np.float32)
    count = np.zeros(1, np.int32)
    assert emulator.load("language.cu").run_globals(o, np.array([5, 6], np.float32), count) == 0
    np.testing.assert_array_equal(o, [3, 4] * 16 + [5, 6] * 16)
    assert count[0] == 3


def test_host_calls(emulator: Emulator, runtime: Runtime) -> None:
    o = np.zeros(1000, np.float32)
    x = np.arange(1000, dtype=np.float32)
    assert emulator.load("language.cu").host_calls(o, x, 1000, None) == 0
    np.testing.assert_array_equal(o, x + 1)
    error = runtime.take_error()
    assert error is not None and "one device" in str(error)


def test_printf_comes_in_block_order(emulator: Emulator, capfd: pytest.CaptureFixture[str]) -> None:
    assert emulator.load("language.cu").run_prints() == 0
    expected = "".join(f"block {b} of 4\ndone\n" for b in range(4))
    assert capfd.readouterr().out == expected
