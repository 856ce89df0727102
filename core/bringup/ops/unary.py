"""Elementwise rows of one operand: neg, abs, floor, exp, log, sqrt, sin, cos, tanh."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import FLOATS, NUMERIC
from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import elementwise, slope
from bringup.ops._numeric import Array, exactly, is_float, sign_bit, unsigned, via_wider
from bringup.ops.build import copy_sign, in_f32, like, rows
from bringup.ops.graph_arithmetic import polynomial
from bringup.ops.special_values import cells
from bringup.ops.table import (
    ROUNDED,
    TWO_ULP,
    Cotangents,
    Domain,
    Trait,
    within,
)


def _neg_reference(x: Array) -> Array:
    x = np.asarray(x)
    if not is_float(x.dtype) or x.dtype.itemsize > 8:
        return np.asarray(np.negative(x))
    # numpy leaves the sign of a negated bfloat16 NaN to the host's conversion.
    return np.asarray(unsigned(x) ^ sign_bit(x.dtype)).view(x.dtype)


def _neg_vjp(ct: Value, _result: Value, _x: Value) -> Cotangents:
    return (rows.neg(ct),)


def _neg_decompose(x: Value) -> Value:
    if x.dtype.is_float:
        bits = build.bitcast(x, build.unsigned(x.dtype))
        flipped = rows.xor(bits, like(bits, 1 << (x.dtype.bits - 1)))
        return build.bitcast(flipped, x.dtype)
    return rows.add(build.not_(x), build.ones_like(x))


neg = elementwise(
    "neg",
    doc=(
        "−x. Floats: the sign bit is flipped, of zeros and NaNs too. "
        "Integers wrap: −INT_MIN is INT_MIN, and an unsigned x gives 2^width − x."
    ),
    reference=_neg_reference,
    vjp=_neg_vjp,
    linear=((0,),),
    dtypes=NUMERIC,
    special=cells(
        "0.0 -> -0.0; -0.0 -> 0.0; inf -> -inf; -inf -> inf; +nan -> -nan; -nan -> +nan; "
        "SUBNORMAL -> -SUBNORMAL; INT_MIN -> INT_MIN (int); 1 -> INT_MAX (uint); "
        "0 -> 0 (int uint)",
    ),
    traits=frozenset({Trait.INVOLUTION, Trait.ODD, Trait.PIECEWISE_MONOTONE}),
    decompose=_neg_decompose,
)


def _abs_reference(x: Array) -> Array:
    x = np.asarray(x)
    if not is_float(x.dtype) or x.dtype.itemsize > 8:
        return np.asarray(np.abs(x))
    return np.asarray(unsigned(x) & ~sign_bit(x.dtype)).view(x.dtype)


def _abs_decompose(x: Value) -> Value:
    if x.dtype.is_float:
        bits = build.bitcast(x, build.unsigned(x.dtype))
        cleared = rows.and_(bits, like(bits, (1 << (x.dtype.bits - 1)) - 1))
        return build.bitcast(cleared, x.dtype)
    if not x.dtype.is_signed:
        return x
    return rows.select(build.compare("lt", x, build.zeros_like(x)), rows.neg(x), x)


abs_ = elementwise(
    "abs",
    doc=(
        "|x|. Floats: the sign bit is cleared, of zeros and NaNs too. "
        "Integers wrap: |INT_MIN| is INT_MIN. The gradient at 0 is 0."
    ),
    reference=_abs_reference,
    vjp=slope(lambda _result, x: rows.sign(x)),
    dtypes=NUMERIC,
    special=cells(
        "-0.0 -> 0.0; -inf -> inf; 0.0 -> 0.0; inf -> inf; -nan -> +nan; +nan -> +nan; "
        "-SUBNORMAL -> SUBNORMAL; -TINY -> TINY; INT_MIN -> INT_MIN (int uint); "
        "-1 -> 1 (int); INT_MAX -> INT_MAX (int uint)",
    ),
    traits=frozenset({Trait.IDEMPOTENT, Trait.EVEN, Trait.PIECEWISE_MONOTONE}),
    decompose=_abs_decompose,
)

floor = elementwise(
    "floor",
    doc=(
        "The largest integral value not above x. Keeps ±0, ±inf and NaN; values in (−1, 0) give −1."
    ),
    reference=exactly(np.floor),
    dtypes=FLOATS,
    special=cells(
        "-0.0 -> -0.0; 0.0 -> 0.0; -SUBNORMAL -> -1; SUBNORMAL -> 0.0; -1.5 -> -2; "
        "inf -> inf; -inf -> -inf; nan -> nan; MAX -> MAX",
    ),
    traits=frozenset({Trait.IDEMPOTENT, Trait.MONOTONE}),
    tier=0,
)


exp = elementwise(
    "exp",
    doc=(
        "e^x. exp(±0) is 1, exp(−inf) is +0, exp(inf) is inf, NaN gives NaN; "
        "overflow gives inf and results below the normal range are subnormal, not 0."
    ),
    reference=via_wider(elementary.exp),
    vjp=slope(lambda result, _x: result),
    dtypes=FLOATS,
    special=cells(
        "0.0 -> 1; -0.0 -> 1; SUBNORMAL -> 1; inf -> inf; -inf -> 0.0; MAX -> inf; "
        "-MAX -> 0.0; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    accuracy=TWO_ULP,
    tier=0,
)


def _log_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.div(ct, x),)


log = elementwise(
    "log",
    doc=(
        "The natural logarithm. log(±0) is −inf, log(1) is +0, log(inf) is inf; "
        "x < 0, −inf and NaN give NaN; subnormal x are as any other."
    ),
    reference=via_wider(elementary.log),
    vjp=_log_vjp,
    dtypes=FLOATS,
    special=cells(
        "0.0 -> -inf; -0.0 -> -inf; 1 -> 0.0; inf -> inf; -1 -> nan; -SUBNORMAL -> nan; "
        "-inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    accuracy=TWO_ULP,
    tier=0,
)


def _sqrt_vjp(ct: Value, result: Value, _x: Value) -> Cotangents:
    return (rows.div(ct, rows.add(result, result)),)


sqrt = elementwise(
    "sqrt",
    doc=(
        "The square root, correctly rounded. sqrt(−0) is −0, sqrt(inf) is inf; "
        "x < 0 and NaN give NaN."
    ),
    reference=exactly(np.sqrt),
    vjp=_sqrt_vjp,
    dtypes=FLOATS,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; 4 -> 2; inf -> inf; -1 -> nan; -SUBNORMAL -> nan; "
        "-inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.MONOTONE, Trait.EXPENSIVE}),
    accuracy=ROUNDED,
    tier=0,
)


sin = elementwise(
    "sin",
    doc=(
        "The sine of x in radians, for every finite x: large arguments are reduced exactly. "
        "sin(±0) is ±0; ±inf and NaN give NaN."
    ),
    reference=via_wider(elementary.sin),
    vjp=slope(lambda _result, x: rows.cos(x)),
    dtypes=FLOATS,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE}),
    accuracy=TWO_ULP,
    tier=0,
)


def _cos_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.neg(rows.mul(ct, rows.sin(x))),)


@in_f32
def _cos_decompose(x: Value) -> Value:
    """The quotient sin 2x / (2 sin x): accurate near the zeros of cos too, since 2x is exact.

    1 − 2 sin² (x/2) takes over where the quotient is 0/0 or 2x overflows.
    """
    sine = rows.sin(x)
    quotient = rows.div(rows.sin(rows.add(x, x)), rows.add(sine, sine))
    half = rows.sin(rows.mul(x, like(x, 0.5)))
    other = rows.sub(build.ones_like(x), rows.mul(rows.add(half, half), half))
    size = rows.abs(x)
    low = build.compare("lt", size, like(x, 2.0**-20))
    high = build.compare("ge", size, like(x, {32: 2.0**127, 64: 2.0**1023}[x.dtype.bits]))
    return rows.select(rows.or_(low, high), other, quotient)


cos = elementwise(
    "cos",
    doc=(
        "The cosine of x in radians, for every finite x: large arguments are reduced exactly. "
        "cos(±0) is 1; ±inf and NaN give NaN. "
        "Decomposed, the last binade of the dtype is right to an absolute error only."
    ),
    reference=via_wider(elementary.cos),
    vjp=_cos_vjp,
    dtypes=FLOATS,
    domain=Domain(((-1.7e38, 1.7e38),)),
    special=cells(
        "0.0 -> 1; -0.0 -> 1; SUBNORMAL -> 1; inf -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.EVEN, Trait.EXPENSIVE}),
    # What the decomposition keeps when sin is 2 ULP off both times.
    accuracy=within(9.0),
    decompose=_cos_decompose,
)


def _tanh_vjp(ct: Value, result: Value, _x: Value) -> Cotangents:
    one = build.ones_like(result)
    slope = rows.mul(rows.sub(one, result), rows.add(one, result))
    return (rows.mul(ct, slope),)


# x·z·P(z)/Q(z) with z = x², |x| < 0.625: the coefficients of Cephes (S. Moshier, 1984–2000).
_TANH_P = (-1.61468768441708447952e3, -9.92877231001918586564e1, -9.64399179425052238628e-1)
_TANH_Q = (4.84406305325125486048e3, 2.23548839060100448583e3, 1.12811678491632931402e2, 1.0)


@in_f32
def _tanh_decompose(x: Value) -> Value:
    square = rows.mul(x, x)
    ratio = rows.div(polynomial(square, _TANH_P), polynomial(square, _TANH_Q))
    size = rows.abs(x)
    small = rows.add(size, rows.mul(rows.mul(size, square), ratio))
    one, two = build.ones_like(x), like(x, 2.0)
    large = rows.sub(one, rows.div(two, rows.add(rows.exp(rows.add(size, size)), one)))
    return copy_sign(rows.select(build.compare("lt", size, like(x, 0.625)), small, large), x)


tanh = elementwise(
    "tanh",
    doc="The hyperbolic tangent. tanh(±0) is ±0, tanh(±inf) is ±1, NaN gives NaN.",
    reference=via_wider(elementary.tanh),
    vjp=_tanh_vjp,
    dtypes=FLOATS,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> 1; -inf -> -1; MAX -> 1; "
        "nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE, Trait.MONOTONE}),
    # What the decomposition keeps when exp is 2 ULP off.
    accuracy=within(4.0),
    decompose=_tanh_decompose,
)
