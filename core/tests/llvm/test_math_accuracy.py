"""Inline math against wider references: f32 against f64, f64 against extended precision."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from accuracy import BINARY, REFERENCE, ulp_error
from jit_helper import Array, Elementwise, elementwise

import bringup as bu
from bringup.api import portable_math
from bringup.dtypes import DType, f32, f64
from bringup.graph import Builder
from bringup.llvm.math import MATH
from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import const
from bringup.maths import portable
from bringup.ops.evaluate import evaluate
from bringup.ops.table import lookup

UNARY = sorted(set(MATH) - BINARY)
# Largest errors allowed, in ULPs; what was measured over all 2^32 floats is a little less.
LIMIT_32 = {
    "atan": 0.9,
    "atan2": 1.1,
    "cos": 0.85,
    "erf": 1.0,
    "exp": 0.95,
    "exp2": 0.9,
    "expm1": 0.85,
    "log": 0.9,
    "log1p": 0.95,
    "logistic": 1.0,
    "pow": 1.0,
    "sin": 0.85,
    "tan": 2.2,
    "tanh": 1.1,
}
LIMIT_64 = {
    "atan": 0.9,
    "atan2": 1.1,
    "cos": 0.9,
    "erf": 1.1,
    "exp": 1.0,
    "exp2": 1.0,
    "expm1": 1.1,
    "log": 0.95,
    "log1p": 1.0,
    "logistic": 1.1,
    "pow": 1.1,
    "sin": 0.9,
    "tan": 2.3,
    "tanh": 1.3,
}
needs_extended = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
)


@cache
def compiled(name: str, dtype: str, lanes: int) -> Elementwise:
    return elementwise(MATH[name], dtype, lanes, operands=2 if name in BINARY else 1)


def worst(name: str, *operands: Array, wide: Any, lanes: int) -> tuple[float, str]:
    got = compiled(name, operands[0].dtype.name, lanes)(*operands)
    with np.errstate(all="ignore"):
        reference = REFERENCE[name](*(x.astype(wide) for x in operands))
    error = ulp_error(got, reference)
    k = int(error.argmax())
    at = ", ".join(float(x[k]).hex() for x in operands)
    return float(error[k]), f"{name}({at}) gave {got[k]}, not {reference[k]}"


@pytest.mark.parametrize("name", UNARY)
def test_f32_over_all_exponents(name: str) -> None:
    """Every 4093rd bit pattern: a million floats, all exponents, infinities and NaNs."""
    x = np.arange(0, 2**32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    error, what = worst(name, x, wide=np.float64, lanes=16)
    assert error <= LIMIT_32[name], what


def _near(points: list[float], dtype: Any, radius: int) -> Array:
    """The floats within ``radius`` steps of the points and of their negatives."""
    centre = np.array(points, dtype).view(f"i{np.dtype(dtype).itemsize}")
    bits = (centre[:, None] + np.arange(-radius, radius + 1)[None]).ravel()
    x = bits[bits >= 0].view(dtype)
    return np.concatenate([x, -x])


#: Of the approximations themselves.
_THRESHOLDS = (
    3.8, 4.0, 5.9, 6.0, 8.6, 9.0, 10.0, 16.6, 17.3, 18.7, 20.0, 37.0, 40.0, 12867.0, 1647000.0,
)  # fmt: skip


def _edges(dtype: Any) -> list[float]:
    """Where some function changes its formula, overflows or underflows."""
    info, half_pi = np.finfo(dtype), np.pi / 2
    logs = [
        np.log(float(info.max)),
        -np.log(float(info.tiny)),
        -np.log(float(info.smallest_subnormal)),
    ]
    powers = np.ldexp(1.0, [-60, -30, -24, -12, -3, -1, 0, 1, 2, 13, 20, 24, 30, 53, 60, 100])
    return [
        0.0,
        float(info.max),
        float(info.tiny),
        *logs,
        *(2 * v for v in logs),
        *(v / np.log(2) for v in logs),
        *powers,
        2 / 3,
        4 / 3,
        0.5**0.5,
        1 / 3,
        *(np.log(2) * k / 2 for k in range(1, 12)),
        *(half_pi * k for k in range(1, 40)),
        *(half_pi * k / 2 for k in range(1, 40, 2)),
        *(half_pi * 10.0**k for k in range(2, 9)),
        *_THRESHOLDS,
    ]


@pytest.mark.parametrize("name", UNARY)
def test_f32_at_the_edges(name: str) -> None:
    error, what = worst(name, _near(_edges(np.float32), np.float32, 300), wide=np.float64, lanes=16)
    assert error <= LIMIT_32[name], what


@needs_extended
@pytest.mark.parametrize("name", UNARY)
def test_f64(name: str) -> None:
    rng = np.random.default_rng(7)
    x = np.concatenate(
        [
            rng.integers(0, 2**64, 60_000, dtype=np.uint64).view(np.float64),
            rng.normal(size=60_000) * np.exp(3 * rng.normal(size=60_000)),
            rng.uniform(-760, 760, 60_000),
            rng.uniform(-2, 2, 60_000),
            _near(_edges(np.float64), np.float64, 40),
            [0.0, -0.0, np.inf, -np.inf, np.nan],
        ]
    )
    assert x.size > 200_000
    error, what = worst(name, x, wide=np.longdouble, lanes=8)
    assert error <= LIMIT_64[name], what


def _power_operands(dtype: Any, n: int) -> tuple[Array, Array]:
    """Random bits; results over the whole range from near and far bases; integer exponents."""
    rng = np.random.default_rng(11)
    bits = f"u{np.dtype(dtype).itemsize}"
    patterns = [rng.integers(0, np.iinfo(bits).max, n, dtype=bits).view(dtype) for _ in range(2)]
    far = np.exp(8 * rng.normal(size=n)).astype(dtype)
    near = (1 + rng.uniform(-1, 1, n) * 10.0 ** rng.uniform(-6, -0.5, n)).astype(dtype)
    range_ = 1.05 * np.log(float(np.finfo(dtype).max))
    with np.errstate(all="ignore"):
        wanted = [
            (rng.uniform(-range_, range_, n) / np.log(x.astype(np.float64))).astype(dtype)
            for x in (far, near)
        ]
    signed, whole = rng.uniform(-20, 20, n).astype(dtype), rng.integers(-40, 40, n).astype(dtype)
    return (
        np.concatenate([patterns[0], far, near, signed]),
        np.concatenate([patterns[1], *wanted, whole]),
    )


def test_pow_f32() -> None:
    error, what = worst("pow", *_power_operands(np.float32, 2**20), wide=np.float64, lanes=16)
    assert error <= LIMIT_32["pow"], what


@needs_extended
def test_pow_f64() -> None:
    error, what = worst("pow", *_power_operands(np.float64, 60_000), wide=np.longdouble, lanes=8)
    assert error <= LIMIT_64["pow"], what


@needs_extended
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("exponent", "roundings"), [(0.5, 1), (-0.5, 2), (1.5, 2), (-1.5, 3)])
def test_pow_of_constant_halves(exponent: float, roundings: int, dtype: Any) -> None:
    """By a square root: each rounding is off by an ULP of the result at most, the last by half."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}").type
    step = 4093 << (0 if dtype is np.float32 else 34)
    patterns = np.arange(0, np.iinfo(bits).max, step, dtype=bits)
    special = np.array([0.0, 1.0, np.inf, np.nan, np.finfo(dtype).tiny, 4.0], dtype)
    x = np.concatenate([patterns.view(dtype), special, -special, _near(_edges(dtype), dtype, 20)])
    power = elementwise(lambda b, x: MATH["pow"](b, x, const(x.type, exponent)), dtype, 4)
    assert "llvm.sqrt" in str(power.module)
    got, general = power(x), compiled("pow", np.dtype(dtype).name, 4)(x, np.full_like(x, exponent))
    end = np.isnan(general) | np.isinf(general) | (general == 0)
    np.testing.assert_array_equal(got[end], general[end])
    np.testing.assert_array_equal(np.signbit(got)[end & (got == 0)], False)
    with np.errstate(all="ignore"):
        wide = x[~end].astype(np.longdouble)
        error = ulp_error(got[~end], REFERENCE["pow"](wide, np.longdouble(exponent)))
    assert error.max() <= roundings - 0.5


def _angle_operands(dtype: Any, n: int) -> tuple[Array, Array]:
    """Random bits; sides of like size; sides beside the diagonals and the octants' edges."""
    rng = np.random.default_rng(13)
    bits = f"u{np.dtype(dtype).itemsize}"
    patterns = [rng.integers(0, np.iinfo(bits).max, n, dtype=bits).view(dtype) for _ in range(2)]
    like = rng.normal(size=n).astype(dtype), rng.normal(size=n).astype(dtype)
    run = np.exp2(rng.uniform(-150 if dtype is np.float32 else -1070, 100, n)).astype(dtype)
    slopes = rng.choice([1.0, 2**0.5 - 1, 2**0.5 + 1], n) * rng.choice([-1, 1], n)
    rise = (run * slopes * (1 + rng.normal(size=n) * 1e-5)).astype(dtype)
    return np.concatenate([patterns[0], like[0], rise]), np.concatenate([patterns[1], like[1], run])


def test_atan2_f32() -> None:
    error, what = worst("atan2", *_angle_operands(np.float32, 2**19), wide=np.float64, lanes=16)
    assert error <= LIMIT_32["atan2"], what


@needs_extended
def test_atan2_f64() -> None:
    error, what = worst("atan2", *_angle_operands(np.float64, 60_000), wide=np.longdouble, lanes=8)
    assert error <= LIMIT_64["atan2"], what


#: Of the same definitions as graphs of ops, which round products and keep no low parts of angles.
#: What was measured over 70 million floats is a little less.
GRAPH_LIMIT = {"atan": 1.9, "atan2": 2.0, "erf": 1.25, "pow": 1.25}


@needs_extended
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", GRAPH_LIMIT)
def test_definitions_as_graphs(name: str, dtype: DType) -> None:
    kind = dtype.numpy.type
    rng = np.random.default_rng(17)
    operands: tuple[Array, ...]
    if name == "pow":
        operands = _power_operands(kind, 30_000)
    elif name == "atan2":
        operands = _angle_operands(kind, 30_000)
    else:
        drawn = [rng.uniform(-4, 4, 60_000), np.exp2(rng.uniform(-100, 100, 20_000))]
        drawn += [np.array([0.0, -0.0, np.inf, -np.inf, np.nan])]
        operands = (np.concatenate([*drawn, _near(_edges(kind), kind, 20)]).astype(kind),)
    with Builder() as b:
        values = [b.input(dtype[x.size]) for x in operands]
        graph = b.build([lookup(name).decompose(*values)])
    with np.errstate(all="ignore"):
        got = np.asarray(evaluate(graph, list(operands))[0])
        reference = REFERENCE[name](*(x.astype(np.longdouble) for x in operands))
    error = ulp_error(got, reference)
    k = int(error.argmax())
    assert error[k] <= GRAPH_LIMIT[name], [float(x[k]).hex() for x in operands]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["log", "exp"])
def test_portable_functions_have_the_same_bits_as_instructions_and_as_graphs(
    name: str, dtype: Any
) -> None:
    """Though instructions here have an fma."""
    rng = np.random.default_rng(19)
    largest = float(np.log(np.finfo(dtype).max))
    x = rng.uniform(-1.2 * largest, 1.2 * largest, 100_000).astype(dtype)
    if name == "log":
        x = np.abs(np.concatenate([x, 1 + rng.normal(size=50_000).astype(dtype) / 8]))
    native = elementwise(lambda b, v: getattr(portable, name)(Lanes(b, v.type), v), dtype, 4)
    by_ops = np.asarray(getattr(portable_math, name)(bu.asarray(x)))
    np.testing.assert_array_equal(native(x), by_ops)


def test_the_measure_sees_one_ulp() -> None:
    """The ruler itself: one step off is one ULP, a lost sign of zero or NaN is infinite."""
    reference = np.array([1.5, 2.0**-149, -0.0, np.nan, np.inf, 1.0])
    got = np.array(
        [np.nextafter(np.float32(1.5), np.float32(2)), 2.0**-148, 0.0, 1.0, 3.4e38, np.nan],
        np.float32,
    )
    assert ulp_error(got, reference).tolist() == [1.0, 1.0] + [np.inf] * 4
    assert not ulp_error(reference.astype(np.float32), reference).any()
