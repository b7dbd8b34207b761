"""Mathematical functions against float64, integers against Python's, half types against PyTorch."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.emulator.conftest import Emulator, Module

F = np.float64


@pytest.fixture
def module(emulator: Emulator) -> Module:
    return emulator.load("numbers.cu")


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "f_exp": np.exp,
    "f_fast_exp": np.exp,
    "f_exp2": np.exp2,
    "f_exp10": lambda x: 10.0**x,
    "f_expm1": np.expm1,
    "f_log": np.log,
    "f_fast_log": np.log,
    "f_fast_log2": np.log2,
    "f_log1p": np.log1p,
    "f_sqrt": np.sqrt,
    "f_rsqrt": lambda x: 1 / np.sqrt(x),
    "f_rsqrt_overload": lambda x: 1 / np.sqrt(x),
    "f_rcbrt": lambda x: 1 / np.cbrt(x),
    "f_rcp": lambda x: 1 / x,
    "f_sin": np.sin,
    "f_cos": np.cos,
    "f_tanh": np.tanh,
    "f_erf": np.vectorize(math.erf),
    "f_sinpi": lambda x: np.sin(np.pi * x),
    "f_normcdf": np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
    "f_pow": lambda x: x**1.5,
    "f_fdividef": lambda x: 1 / x,
    "f_saturate": lambda x: np.clip(x, 0, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float_function(module: Module, name: str) -> None:
    x = np.linspace(0.01, 9.5, 1000).astype(np.float32)
    o = np.zeros_like(x)
    assert getattr(module, name)(x, o, x.size) == 0
    np.testing.assert_allclose(o, FUNCTIONS[name](x.astype(F)), rtol=1e-6, atol=2e-7)


def test_double_functions(module: Module) -> None:
    x = np.linspace(0.01, 9.5, 1000)
    o = np.zeros_like(x)
    assert module.d_exp(x, o, x.size) == 0
    np.testing.assert_allclose(o, np.exp(x), rtol=1e-14)
    assert module.d_rsqrt(x, o, x.size) == 0
    np.testing.assert_allclose(o, x**-0.5, rtol=1e-14)


def test_sincos(module: Module) -> None:
    x = np.linspace(-7, 7, 500).astype(np.float32)
    s, c = np.zeros_like(x), np.zeros_like(x)
    assert module.f_sincos(x, s, c, x.size) == 0
    np.testing.assert_allclose(s, np.sin(x.astype(F)), atol=1e-6)
    np.testing.assert_allclose(c, np.cos(x.astype(F)), atol=1e-6)


def test_fused_and_not_fused(module: Module) -> None:
    """x * x - 1 near 1, where a fused multiply-add and two roundings differ."""
    x = (1 + np.arange(1, 1000) * 2.0**-23).astype(np.float32)
    exact = (x.astype(F) ** 2 - 1).astype(np.float32)  # x * x is exact in float64
    rounded = (x * x - np.float32(1)).astype(np.float32)
    assert (exact != rounded).any()
    for name, expected in (("f_fma", exact), ("contracted", exact), ("f_not_fused", rounded)):
        o = np.zeros_like(x)
        assert getattr(module, name)(x, o, x.size) == 0
        np.testing.assert_array_equal(o, expected, err_msg=name)


def test_minima_and_maxima(module: Module) -> None:
    """A NaN is ignored; mixed signs compare as unsigned, as CUDA's overloads do."""
    o = np.zeros(12)
    assert module.run_minima(o) == 0
    expected = [1, 1, 2, 2, np.nan, 0xFFFFFFFF, -1, 4, -(2.0**41), 2.5, -3, 2.5]
    np.testing.assert_array_equal(o, expected)


def test_integer_intrinsics(module: Module) -> None:
    o = np.zeros(37, np.int64)
    assert module.run_integers(o) == 0
    low, high = -(2**63), 2**31 - 1
    expected = [8, 64, 31, 32, 23, 4, 0, 41, 1 << 31, 4, 256, 0xFFFFFFFE, -(2**16), -15]
    expected += [0x77221100, 3, 0x10000000, 13, 20, 3, 4]
    expected += [0x3F800000, 0x80000000, 3, 0x3FF0000000000000]
    expected += [2, 4, -2, 3, -3, high, 0, 0, low, 1, 0x3FF00000, 1]
    np.testing.assert_array_equal(o, expected)


def test_vector_types(module: Module) -> None:
    o = np.zeros(51, np.int32)
    assert module.run_vectors(o) == 0
    sizes = [4, 4, 4, 8, 8, 12, 16, 8, 12, 16, 8, 12, 16, 16, 16, 16, 12]
    alignments = [4, 4, 4, 8, 8, 4, 16, 8, 4, 16, 8, 4, 16, 16, 16, 16, 4]
    values = [4, 3, 2, 4, 2, 3, 4, 1, 3, 2, 2, 3, 4, 2, 1, 2, 1]
    expected = np.stack([sizes, alignments, values], 1)
    np.testing.assert_array_equal(o.reshape(17, 3), expected)


def test_cached_loads_and_stores(module: Module) -> None:
    a = torch.arange(128, dtype=torch.float32).numpy().reshape(32, 4)
    o = torch.zeros(32, 4).numpy()
    assert module.run_cached(a, o) == 0
    np.testing.assert_array_equal(o[:, 0], 6 * a[:, 0])
    np.testing.assert_array_equal(o[:, 1:], a[:, 1:])


# ---- half types ----------------------------------------------------------------------------------

SMALL = {"half": torch.float16, "bfloat": torch.bfloat16}
each_small = pytest.mark.parametrize("prefix", SMALL)


def bits(values: torch.Tensor) -> np.ndarray:
    return values.contiguous().view(torch.int16).numpy()


def tensor(raw: np.ndarray, prefix: str) -> torch.Tensor:
    return torch.from_numpy(raw).view(SMALL[prefix])


@each_small
def test_every_small_number_decodes(module: Module, prefix: str) -> None:
    a = np.arange(65536, dtype=np.uint16).view(np.int16)
    o = np.zeros(65536, np.float32)
    assert getattr(module, f"{prefix}_decode")(a, o) == 0
    np.testing.assert_array_equal(o, tensor(a, prefix).float().numpy())


@each_small
def test_encoding_rounds_to_nearest_even(module: Module, prefix: str) -> None:
    every = tensor(np.arange(65536, dtype=np.uint16).view(np.int16), prefix).double()
    finite = every[every.isfinite()].sort().values.unique()
    middles = (finite[1:] + finite[:-1]) / 2  # the ties
    random = torch.randn(20000, dtype=torch.float64, generator=torch.manual_seed(0))
    scaled = random * 10.0 ** torch.linspace(-40, 38, 20000, dtype=torch.float64)
    x = torch.cat([finite, middles, middles * (1 + 1e-7), middles * (1 - 1e-7), scaled]).float()
    x = torch.cat([x, torch.tensor([math.inf, -math.inf, 65504.0, 65519.99, 65520.0, -0.0])])
    o = np.zeros(x.numel(), np.int16)
    assert getattr(module, f"{prefix}_encode")(x.numpy(), o, x.numel()) == 0
    np.testing.assert_array_equal(o, bits(x.to(SMALL[prefix])))


@each_small
def test_small_arithmetic_rounds_once(module: Module, prefix: str) -> None:
    n = 50000
    generator = torch.manual_seed(1)
    scale = 10.0 ** torch.linspace(-4, 2, n)
    a, b, c = ((torch.randn(n, generator=generator) * scale).to(SMALL[prefix]) for _ in range(3))
    o = np.zeros((10, n), np.int16)
    assert getattr(module, f"{prefix}_arithmetic")(bits(a), bits(b), bits(c), o, n) == 0
    x, y, z = a.double().numpy(), b.double().numpy(), c.double().numpy()
    # float64 holds all but the fused sum exactly, or far beyond 16 bits.
    with np.errstate(divide="ignore"):
        quotient = x / y
    roots, largest = np.sqrt(abs(x)), np.maximum(x, y)
    exact = [x + y, x - y, x * y, quotient, None, roots, largest, x * y, y * z, z - x]
    for row, expected in zip(o, exact, strict=True):
        if expected is not None:
            want = torch.from_numpy(expected).to(SMALL[prefix])
            assert torch.equal(tensor(row, prefix), want)
    fused = [round_fraction(Fraction(i) * Fraction(j) + Fraction(k), prefix)
             for i, j, k in zip(x[:4000], y[:4000], z[:4000], strict=True)]  # fmt: skip
    np.testing.assert_array_equal(tensor(o[4], prefix).double().numpy()[:4000], fused)


def round_fraction(exact: Fraction, prefix: str) -> float:
    """The nearest 16-bit number, ties to even, found without any rounding on the way."""
    near = torch.tensor(float(exact), dtype=torch.float64).to(SMALL[prefix])
    around = [near, torch.nextafter(near, near * 0 + 1e4), torch.nextafter(near, near * 0 - 1e4)]
    return min(
        (abs(Fraction(c.item()) - exact), int(bits(c.reshape(1))[0]) & 1, c.item()) for c in around
    )[2]


@each_small
def test_fused_multiply_add_does_not_round_twice(module: Module, prefix: str) -> None:
    """The tie between 1 and 1 + eps goes down to 1, but a little more must go up."""
    eps = torch.finfo(SMALL[prefix]).eps
    a = torch.tensor([1.0 + eps, 1.0, 1.0 - eps], dtype=SMALL[prefix])
    b = torch.full((3,), eps / 2, dtype=SMALL[prefix])
    c = torch.ones(3, dtype=SMALL[prefix])
    o = np.zeros((10, 3), np.int16)
    assert getattr(module, f"{prefix}_arithmetic")(bits(a), bits(b), bits(c), o, 3) == 0
    assert tensor(o[4], prefix).tolist() == [1.0 + eps, 1.0, 1.0]


@each_small
def test_small_types_in_shuffles_shared_memory_and_atomics(module: Module, prefix: str) -> None:
    a = torch.ones(32, dtype=SMALL[prefix])
    o = np.zeros(2, np.int16)
    assert getattr(module, f"{prefix}_sum")(bits(a), o) == 0
    assert tensor(o, prefix).tolist() == [32.0, 32.0]
