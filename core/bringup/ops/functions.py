"""Composite rows: sign, round, clamp and functions near exp, log, sqrt and products."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import NUMERIC
from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._numeric import Array, exactly, total_max, total_min, via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import (
    ROUNDED,
    TWO_ULP,
    Cotangents,
    Trait,
    within,
)


@exactly
def _sign_reference(x: Array) -> Array:
    one = x.dtype.type(1)
    minus = -one if x.dtype.kind != "u" else one
    return np.where(x > 0, one, np.where(x < 0, minus, x))


def _sign_decompose(x: Value) -> Value:
    zero = build.zeros_like(x)
    if x.dtype.kind == "uint":
        return rows.min(x, build.ones_like(x))
    below = rows.select(compare("lt", x, zero), like(x, -1), x)
    return rows.select(compare("gt", x, zero), build.ones_like(x), below)


sign = composite(
    "sign",
    doc="−1, 0 or 1. ±0 and NaN give themselves. The gradient is 0.",
    dtypes=NUMERIC,
    reference=_sign_reference,
    vjp=build.no_gradient,
    special=cells(
        "nan -> nan; 0.0 -> 0.0; -0.0 -> -0.0; -SUBNORMAL -> -1; SUBNORMAL -> 1; -inf -> -1; "
        "inf -> 1; INT_MIN -> -1 (int); INT_MAX -> 1 (int uint)",
    ),
    traits=frozenset({Trait.IDEMPOTENT, Trait.MONOTONE, Trait.ODD}),
    decompose=_sign_decompose,
)

# From here on every float is integral, and adding it rounds to an integer below.
_INTEGRAL = {"f16": 2.0**10, "bf16": 2.0**7, "f32": 2.0**23, "f64": 2.0**52}


def _round_decompose(x: Value) -> Value:
    size, limit = rows.abs(x), like(x, _INTEGRAL[x.dtype.name])
    whole = rows.sub(rows.add(size, limit), limit)
    rounded = rows.select(compare("lt", size, limit), whole, size)
    bits = build.unsigned(x.dtype)
    top = like(build.bitcast(x, bits), 1 << (x.dtype.bits - 1))
    signed = rows.or_(build.bitcast(rounded, bits), rows.and_(build.bitcast(x, bits), top))
    return build.bitcast(signed, x.dtype)


round_ = composite(
    "round",
    doc=(
        "The nearest integral value, halves to the even one. Keeps the sign of x, also of a zero "
        "result, and ±inf and NaN. The gradient is 0."
    ),
    reference=exactly(np.rint),
    vjp=build.no_gradient,
    special=cells(
        "0.5 -> 0.0; 1.5 -> 2; 2.5 -> 2; -0.4 -> -0.0; -0.5 -> -0.0; -1.5 -> -2; -0.0 -> -0.0; "
        "0.0 -> 0.0; inf -> inf; SUBNORMAL -> 0.0; MAX -> MAX; -inf -> -inf; nan -> nan",
    ),
    traits=frozenset({Trait.IDEMPOTENT, Trait.MONOTONE, Trait.ODD}),
    decompose=_round_decompose,
)


@exactly
def _clamp_reference(x: Array, low: Array, high: Array) -> Array:
    return total_min(total_max(x, low), high)


def _clamp_decompose(x: Value, low: Value, high: Value) -> Value:
    return rows.min(rows.max(x, low), high)


clamp = composite(
    "clamp",
    doc=(
        "min(max(x, low), high), so high where low > high. NaN in any operand gives NaN. "
        "At a bound the gradient is shared half and half, as in max and min."
    ),
    dtypes=NUMERIC,
    arity=3,
    reference=_clamp_reference,
    special=cells(
        "nan, 0.0, 1 -> nan; 0.5, nan, 1 -> nan; 0.5, 0.0, nan -> nan; inf, 0.0, 1 -> 1; "
        "-inf, 0.0, 1 -> 0.0; -0.0, 0.0, 1 -> 0.0; 5, 3, 1 -> 1; "
        "INT_MIN, 0, INT_MAX -> 0 (int uint); 5, 3, 1 -> 1 (int uint)",
    ),
    traits=frozenset({Trait.MONOTONE}),
    decompose=_clamp_decompose,
)


@in_f32
def _rsqrt_decompose(x: Value) -> Value:
    return rows.div(build.ones_like(x), rows.sqrt(x))


rsqrt = composite(
    "rsqrt",
    doc="1 / sqrt(x). ±0 gives ±inf, inf gives 0; x < 0 and NaN give NaN.",
    reference=via_wider(lambda x: 1 / np.sqrt(x)),
    vjp=slope(lambda result, x: rows.div(rows.mul(result, like(x, -0.5)), x)),
    special=cells(
        "0.0 -> inf; -0.0 -> -inf; 4 -> 0.5; inf -> 0.0; -1 -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.PIECEWISE_MONOTONE}),
    accuracy=TWO_ULP,
    decompose=_rsqrt_decompose,
)


def _log1p_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.div(ct, rows.add(x, build.ones_like(x))),)


@in_f32
def _log1p_decompose(x: Value) -> Value:
    """Log(u) · x / (u − 1), u = 1 + x rounded: the errors of u cancel (W. Kahan)."""
    one = build.ones_like(x)
    u = rows.add(one, x)
    off = rows.sub(u, one)
    scaled = rows.mul(rows.log(u), rows.div(x, off))
    plain = rows.or_(compare("eq", off, build.zeros_like(x)), compare("eq", x, like(x, np.inf)))
    return rows.select(plain, x, scaled)


log1p = composite(
    "log1p",
    doc=(
        "log(1 + x), accurate near 0. ±0 gives ±0, −1 gives −inf, inf gives inf; "
        "x < −1 and NaN give NaN."
    ),
    reference=via_wider(elementary.log1p),
    vjp=_log1p_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; -1 -> -inf; -2 -> nan; inf -> inf; "
        "-inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    # What the decomposition keeps when log is 2 ULP off.
    accuracy=within(6.0),
    decompose=_log1p_decompose,
)


@in_f32
def _expm1_decompose(x: Value) -> Value:
    """(u − 1) · x / log(u), u = e^x rounded, up to |x| = 1: the errors of u cancel (W. Kahan)."""
    one = build.ones_like(x)
    u = rows.exp(x)
    off = rows.sub(u, one)
    near = rows.mul(off, rows.div(x, rows.log(u)))
    near = rows.select(compare("eq", off, build.zeros_like(x)), x, near)
    return rows.select(compare("lt", rows.abs(x), one), near, off)


expm1 = composite(
    "expm1",
    doc="e^x − 1, accurate near 0. ±0 gives ±0, −inf gives −1, inf gives inf, NaN gives NaN.",
    reference=via_wider(elementary.expm1),
    vjp=slope(lambda result, _x: rows.add(result, build.ones_like(result))),
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> inf; -inf -> -1; MAX -> inf; "
        "nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    # What the decomposition keeps when exp and log are 2 ULP off.
    accuracy=within(8.0),
    decompose=_expm1_decompose,
)


def _square_decompose(x: Value) -> Value:
    return rows.mul(x, x)


square = composite(
    "square",
    doc="x · x, correctly rounded. Integers wrap.",
    dtypes=NUMERIC,
    reference=exactly(np.square),
    vjp=slope(lambda _result, x: rows.add(x, x)),
    special=cells(
        "-0.0 -> 0.0; 0.0 -> 0.0; inf -> inf; -inf -> inf; -MAX -> inf; nan -> nan; "
        "INT_MIN -> 0 (int uint); INT_MAX -> 1 (int uint)",
    ),
    traits=frozenset({Trait.EVEN, Trait.PIECEWISE_MONOTONE}),
    accuracy=ROUNDED,
    decompose=_square_decompose,
)


def _reciprocal_vjp(ct: Value, result: Value, _x: Value) -> Cotangents:
    return (rows.neg(rows.mul(rows.mul(ct, result), result)),)


def _reciprocal_decompose(x: Value) -> Value:
    return rows.div(build.ones_like(x), x)


reciprocal = composite(
    "reciprocal",
    doc="1 / x, correctly rounded. ±0 gives ±inf, ±inf gives ±0, NaN gives NaN.",
    reference=exactly(np.reciprocal),
    vjp=_reciprocal_vjp,
    special=cells(
        "0.0 -> inf; -0.0 -> -inf; inf -> 0.0; -inf -> -0.0; 0.5 -> 2; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE, Trait.PIECEWISE_MONOTONE}),
    accuracy=ROUNDED,
    decompose=_reciprocal_decompose,
)
