"""The pow row."""

from __future__ import annotations

import math

import numpy as np

from bringup.dtypes import NUMERIC
from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import elementwise
from bringup.ops._numeric import Array, is_float, via_wider
from bringup.ops._pairs import (
    Pair,
    fast_sum,
    format_of,
    pair_constant,
    pair_product,
    pair_sum,
    two_product,
)
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.special_values import Special, cells
from bringup.ops.table import Cotangents, Trait, within

_float_power = via_wider(elementary.power)


def _integer_power(x: Array, y: Array) -> Array:
    result = np.asarray(np.power(x, np.maximum(y, 0)))
    if x.dtype.kind == "u":
        return result
    inverse = np.where(x == 1, x, np.where(x == -1, 1 - 2 * (y & 1), 0))
    return np.where(y < 0, inverse, result).astype(x.dtype)


def _pow_reference(x: Array, y: Array) -> Array:
    x, y = np.asarray(x), np.asarray(y)
    return _float_power(x, y) if is_float(x.dtype) else _integer_power(x, y)


def _pow_vjp(ct: Value, result: Value, x: Value, y: Value) -> Cotangents:
    """At y = 0 the slope in x is 0, and at x = 0 the slope in y, not the NaN of the formulas."""
    zero, one = build.zeros_like(x), build.ones_like(x)
    flat = compare("eq", y, zero)
    lowered = rows.pow(x, rows.select(flat, one, rows.sub(y, one)))
    by_x = rows.select(flat, zero, rows.mul(y, lowered))
    base = rows.select(compare("eq", x, zero), one, x)
    by_y = rows.mul(rows.log(base), result)
    return (rows.mul(ct, by_x), rows.mul(ct, by_y))


def _integer_decompose(x: Value, y: Value) -> Value:
    """Square and multiply over every bit of the exponent."""
    zero, one = build.zeros_like(x), build.ones_like(x)
    result, square = one, x
    for bit in range(x.dtype.bits - x.dtype.is_signed):
        clear = compare("eq", rows.and_(y, like(y, 1 << bit)), zero)
        result = rows.select(clear, result, rows.mul(result, square))
        square = rows.mul(square, square)
    if not x.dtype.is_signed:
        return result
    even = compare("eq", rows.and_(y, one), zero)
    minus = rows.select(even, one, like(x, -1))
    inverse = rows.select(compare("eq", x, like(x, -1)), minus, zero)
    inverse = rows.select(compare("eq", x, one), one, inverse)
    return rows.select(compare("lt", y, zero), inverse, result)


def split_exponent(size: Value) -> tuple[Value, Value]:
    """K and m with size = m · 2^k and √½ <= m < √2, for finite size > 0."""
    form, integer = format_of(size), build.signed(size.dtype)
    tiny = compare("lt", size, like(size, 2.0 ** (1 - form.bias)))
    normal = rows.select(tiny, rows.mul(size, like(size, 2.0**form.precision)), size)
    bits = build.bitcast(normal, integer)
    root = size.dtype.numpy.type(math.sqrt(0.5)).view(integer.numpy)
    stored = like(bits, form.stored)
    k = rows.shr(rows.sub(bits, like(bits, root)), stored, kind="arithmetic")
    m = build.bitcast(rows.sub(bits, rows.shl(k, stored)), size.dtype)
    k = rows.sub(k, rows.select(tiny, like(k, form.precision), build.zeros_like(k)))
    return build.convert(k, size.dtype), m


def _ratio(m: Value) -> Pair:
    """(m − 1) / (m + 1) as a pair."""
    one = build.ones_like(m)
    top, bottom = rows.sub(m, one), rows.add(m, one)
    dropped = rows.sub(m, rows.sub(bottom, one))
    high = rows.div(top, bottom)
    product, error = two_product(high, bottom)
    rest = rows.sub(rows.sub(rows.sub(top, product), error), rows.mul(high, dropped))
    return high, rows.div(rest, bottom)


# 1/7, 1/9, …: enough terms of the area tangent's series for |s| < 0.1716 and f64.
_TAIL = tuple(1.0 / n for n in range(27, 6, -2))


def _log2(size: Value) -> Pair:
    """Log2 as a pair, from 2 · artanh((m − 1) / (m + 1)) + k."""
    from fractions import Fraction

    # To 40 digits: a pair of f64 holds 32 of them.
    two_over_ln2 = Fraction("2.8853900817779268147198493620037842348923")
    k, m = split_exponent(size)
    s = _ratio(m)
    z = pair_product(s, s)
    tail = rows.mul(z[0], build.polynomial(z[0], _TAIL))
    inner = pair_sum(pair_constant(size, Fraction(1, 5)), (tail, build.zeros_like(size)))
    inner = pair_sum(pair_constant(size, Fraction(1, 3)), pair_product(z, inner))
    series = pair_sum(s, pair_product(s, pair_product(z, inner)))
    scaled = pair_product(series, pair_constant(size, two_over_ln2))
    return pair_sum((k, build.zeros_like(k)), scaled)


def _exp2(power: Pair) -> Value:
    """2^(high + low), overflowing to inf and 0."""
    high, low = power
    form, integer = format_of(high), build.signed(high.dtype)
    limit = like(high, form.bias + form.precision + 10.0)
    high = rows.select(compare("lt", limit, high), limit, high)
    high = rows.select(compare("lt", high, rows.neg(limit)), rows.neg(limit), high)
    whole = rows.floor(rows.add(high, like(high, 0.5)))
    rest = rows.add(rows.sub(high, whole), low)
    near = rows.exp(rows.mul(rest, like(rest, math.log(2.0))))
    n = build.convert(whole, integer)
    first = rows.shr(n, build.ones_like(n), kind="arithmetic")
    for part in (first, rows.sub(n, first)):
        biased = rows.add(part, like(part, form.bias))
        factor = rows.shl(biased, like(part, form.stored))
        near = rows.mul(near, build.bitcast(factor, near.dtype))
    return near


def _finite_power(size: Value, y: Value) -> Value:
    high, low = _log2(size)
    product, error = two_product(y, high)
    error = rows.add(error, rows.mul(y, low))
    # Where the product is far out of range, so is the result, and the error may be NaN.
    near = compare("lt", rows.abs(product), like(product, 2.0**12))
    total = fast_sum(product, rows.select(near, error, build.zeros_like(error)))
    return _exp2((rows.select(near, total[0], product), rows.select(near, total[1], like(y, 0))))


def _either_nan(x: Value, y: Value) -> Value:
    return rows.or_(build.is_nan(x), build.is_nan(y))


@in_f32
def _float_decompose(x: Value, y: Value) -> Value:
    zero, one, infinite = build.zeros_like(x), build.ones_like(x), like(x, np.inf)
    size = rows.abs(x)
    at_edge = rows.or_(compare("eq", size, zero), compare("eq", size, infinite))
    at_edge = rows.or_(at_edge, compare("eq", rows.abs(y), infinite))
    shrinks = rows.xor(compare("lt", one, size), compare("lt", zero, y))
    edge = rows.select(shrinks, zero, infinite)
    result = rows.select(at_edge, edge, _finite_power(size, y))
    result = rows.select(compare("eq", size, one), one, result)
    half = rows.mul(y, like(y, 0.5))
    fractional = compare("ne", rows.floor(y), y)
    odd = rows.and_(build.not_(fractional), compare("ne", rows.floor(half), half))
    bits = build.bitcast(x, build.signed(x.dtype))
    negative = compare("lt", bits, build.zeros_like(bits))
    result = rows.select(rows.and_(negative, odd), rows.neg(result), result)
    below = rows.and_(compare("lt", x, zero), compare("lt", size, infinite))
    undefined = rows.or_(rows.and_(below, fractional), _either_nan(x, y))
    result = rows.select(undefined, like(x, np.nan), result)
    return rows.select(rows.or_(compare("eq", y, zero), compare("eq", x, one)), one, result)


def _pow_decompose(x: Value, y: Value) -> Value:
    return _float_decompose(x, y) if x.dtype.is_float else _integer_decompose(x, y)


#: Exponents round the last odd number of each dtype, and past those of counters of 24 to 64 bits,
#: with the power of −1 and the dtypes that hold them.
_PARITIES = (
    ("2047", "-1", ("f16",)),
    ("2048", "1", ("f16",)),
    ("255", "-1", ("bf16",)),
    ("256", "1", ("bf16",)),
    ("16777215", "-1", ("f32", "f64")),
    ("16777217", "-1", ("f64",)),
    ("16777216", "1", ("bf16", "f32", "f64")),
    ("2147483647", "-1", ("f64",)),
    ("2147483648", "1", ("bf16", "f32", "f64")),
    ("2147483649", "-1", ("f64",)),
    ("4294967297", "-1", ("f64",)),
    ("9007199254740991", "-1", ("f64",)),
    ("9007199254740992", "1", ("bf16", "f32", "f64")),
    ("18446744073709551616", "1", ("bf16", "f32", "f64")),
)

pow_ = elementwise(
    "pow",
    arity=2,
    doc=(
        "x to the power y. Floats as in IEEE 754: 1 if y is ±0 or x is 1, NaN or not; "
        "(−1)^±inf is 1; x < 0 needs an integral y, else NaN; odd y keep the sign of ±0 and "
        "±inf. Integers wrap; a negative y gives 1 for x = 1, ±1 for x = −1, else 0, also for "
        "x = 0. The gradient in x at y = 0, and in y at x = 0, is 0."
    ),
    reference=_pow_reference,
    vjp=_pow_vjp,
    dtypes=NUMERIC,
    special=(
        *(Special((x, y), "1") for x in ("nan", "inf", "0.0", "-1") for y in ("0.0", "-0.0")),
        *(Special(("1", y), "1") for y in ("nan", "inf", "-inf", "MAX")),
        *(Special(("-1", y), "1") for y in ("inf", "-inf", "2")),
        *cells(
            "0.0, 3 -> 0.0; -0.0, 3 -> -0.0; -0.0, 2 -> 0.0; -0.0, 0.5 -> 0.0; "
            "0.0, -1 -> inf; -0.0, -1 -> -inf; -0.0, -2 -> inf; -0.0, -0.5 -> inf; "
            "0.0, inf -> 0.0; -0.0, -inf -> inf; -inf, 3 -> -inf; -inf, 2 -> inf; "
            "-inf, 0.5 -> inf; -inf, -1 -> -0.0; -inf, -0.5 -> 0.0; inf, -1 -> 0.0; "
            "inf, 0.5 -> inf; 0.5, inf -> 0.0; 0.5, -inf -> inf; -2, inf -> inf; "
            "-2, -inf -> 0.0; -2, 3 -> -8; -2, -2 -> 0.25; -2, 0.5 -> nan; nan, 1 -> nan; "
            "2, nan -> nan; MAX, 2 -> inf; -MAX, 3 -> -inf",
        ),
        *(Special(("-1", y), sign, kinds) for y, sign, kinds in _PARITIES),
        *(Special(("-0.0", y), sign.replace("1", "0.0"), kinds) for y, sign, kinds in _PARITIES),
        *cells(
            "0, 0 -> 1 (int uint); 2, BITS -> 0 (int uint); -2, 3 -> -8 (int); "
            "INT_MIN, 1 -> INT_MIN (int uint); 1, -5 -> 1 (int); -1, -5 -> -1 (int); "
            "-1, INT_MIN -> 1 (int); 2, -1 -> 0 (int); 0, -1 -> 0 (int)",
        ),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    # What the decomposition keeps when exp is 2 ULP off.
    accuracy=within(6.0),
    decompose=_pow_decompose,
)
