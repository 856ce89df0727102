"""Special values of inline math: C99's table for pow, zeros, infinities, NaN, lane counts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from accuracy import BINARY
from jit_helper import Array, elementwise

from bringup.llvm.math import MATH

INF, NAN = np.inf, np.nan
DTYPES = [np.float32, np.float64]
# (x, f(x)) where the result is exact.
EXACT: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e30, INF), (-1e30, 0.0)],
    "exp2": [
        (0.0, 1.0),
        (10.0, 1024.0),
        (-3.0, 0.125),
        (INF, INF),
        (-INF, 0.0),
        (1e30, INF),
        (-1e30, 0.0),
    ],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e30, INF), (-1e30, -1.0)],
    "log": [
        (0.0, -INF),
        (-0.0, -INF),
        (1.0, 0.0),
        (INF, INF),
        (-1.0, NAN),
        (-INF, NAN),
        (-1e-40, NAN),
    ],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-2.0, NAN), (-INF, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e30, 1.0)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, np.pi / 2), (-INF, -np.pi / 2), (1e30, np.pi / 2)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (-1e30, -1.0)],
    "logistic": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e30, 1.0), (-1e30, 0.0)],
}
SMALLEST = {np.float32: 2.0**-149, np.float64: 2.0**-1074}


def same_bits(got: Array, want: Array) -> bool:
    """Equal values and signs of zero; any NaN equals any other."""
    both_nan = np.isnan(got) & np.isnan(want)
    return bool(np.all(both_nan | (got == want) & (np.signbit(got) == np.signbit(want))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_exact_values_and_nan(name: str, dtype: Any) -> None:
    x, want = np.array([*EXACT[name], (NAN, NAN)], dtype).T
    got = elementwise(MATH[name], dtype, 4)(x)
    assert same_bits(got, want), (x, got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_any_nan_gives_nan(name: str, dtype: Any) -> None:
    """The low bits of a NaN are like those of a number that was rounded to an integer."""
    width = np.dtype(dtype).itemsize * 8
    unsigned = np.dtype(f"u{width // 8}").type
    infinity = np.array(INF, dtype).view(unsigned)
    low, sign = np.arange(1, 1024).astype(unsigned), unsigned(1) << unsigned(width - 1)
    x = np.concatenate([infinity | low, infinity | low | sign]).view(dtype)
    assert np.isnan(x).all()
    assert np.isnan(elementwise(MATH[name], dtype, 4)(x)).all()


def test_every_unary_function_has_exact_values() -> None:
    assert set(EXACT) == set(MATH) - BINARY


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["atan", "expm1", "log1p", "sin", "tan", "tanh"])
def test_identity_on_subnormals(name: str, dtype: Any) -> None:
    """These functions are x near 0: a flushed subnormal would give 0."""
    tiny = SMALLEST[dtype] * np.array([1, -1, 2, 3, -1000, 2**20], np.float64)
    x = tiny.astype(dtype)
    assert same_bits(elementwise(MATH[name], dtype, 4)(x), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_reach_the_subnormals(dtype: Any) -> None:
    smallest = SMALLEST[dtype]
    half = np.log2(smallest) - 1
    x = np.array([half + 1, half + 0.01, half, half - 1], dtype)
    want = np.array([smallest, smallest, 0.0, 0.0], dtype)
    assert same_bits(elementwise(MATH["exp2"], dtype, 4)(x), want)
    twos = np.full(4, 2.0, dtype)
    assert same_bits(elementwise(MATH["pow"], dtype, 4, operands=2)(twos, x), want)


def _power_table() -> list[tuple[float, float, float]]:
    """C99 7.12.7.4 and F.9.4.4."""
    rows = [(x, y, 1.0) for x in (0.0, -0.0, 1.0, -2.5, INF, -INF, NAN) for y in (0.0, -0.0)]
    rows += [(1.0, y, 1.0) for y in (NAN, INF, -INF, 0.5, -3.0)]
    rows += [(-1.0, y, 1.0) for y in (INF, -INF, 2.0)] + [(-1.0, 3.0, -1.0)]
    rows += [
        (0.0, -3.0, INF), (-0.0, -3.0, -INF), (0.0, -2.0, INF), (-0.0, -2.0, INF),
        (-0.0, -2.5, INF), (0.0, -INF, INF), (-0.0, -INF, INF), (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0),
        (0.0, 2.0, 0.0), (-0.0, 2.0, 0.0), (-0.0, 2.5, 0.0), (-0.0, INF, 0.0),
    ]  # fmt: skip
    rows += [
        (sign * x, y, INF if (x > 1) == (y > 0) else 0.0)
        for x, y, sign in itertools.product((0.5, 2.0), (INF, -INF), (1, -1))
    ]
    rows += [
        (-INF, -3.0, -0.0), (-INF, -2.0, 0.0), (-INF, -0.5, 0.0), (-INF, 3.0, -INF),
        (-INF, 2.0, INF), (-INF, 0.5, INF), (INF, 1e-30, INF), (INF, -1e-30, 0.0),
    ]  # fmt: skip
    rows += [(-INF, INF, INF), (-INF, -INF, 0.0), (INF, INF, INF), (INF, -INF, 0.0)]
    rows += [
        (-2.0, 0.5, NAN), (-1e-30, -1.5, NAN), (NAN, 1.0, NAN), (2.0, NAN, NAN), (-1.0, NAN, NAN),
        (0.0, NAN, NAN),
    ]  # fmt: skip
    rows += [
        (-2.0, 3.0, -8.0), (-2.0, -2.0, 0.25), (3.0, 2.0, 9.0), (-10.0, 1e30, INF),
        (-10.0, -1e30, 0.0),
    ]  # fmt: skip
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_table(dtype: Any) -> None:
    rows = _power_table()
    x, y, _ = np.array(rows, dtype).T
    got = elementwise(MATH["pow"], dtype, 4, operands=2)(x, y)
    wrong = [
        (row, g)
        for row, g in zip(rows, got, strict=True)
        if not same_bits(np.array([g]), np.array([row[2]], dtype))
    ]
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_knows_the_largest_odd_integers(dtype: Any) -> None:
    odd = 2.0 ** (np.finfo(dtype).nmant + 1) - 1
    x, y = np.full(4, -1.0, dtype), np.array([odd, odd + 1, -odd, odd * 4], dtype)
    got = elementwise(MATH["pow"], dtype, 4, operands=2)(x, y)
    assert got.tolist() == [-1.0, 1.0, -1.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(MATH))
def test_every_lane_count_gives_the_same_bits(name: str, dtype: Any) -> None:
    """Large and small arguments mixed, so that the branches are taken for some lanes."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=480) * 10.0 ** rng.uniform(-5, 20, 480)).astype(dtype)
    operands = [x, rng.normal(size=480).astype(dtype)][: 2 if name in BINARY else 1]
    results = [
        elementwise(MATH[name], dtype, lanes, operands=len(operands))(*operands)
        for lanes in (1, 3, 16)
    ]
    assert all(same_bits(results[0], other) for other in results[1:])
