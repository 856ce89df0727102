"""The pow row."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import NUMERIC
from bringup.graph import Value
from bringup.maths.power import power
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import elementwise
from bringup.ops._numeric import Array, is_float, via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic
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


@in_f32
def _float_decompose(x: Value, y: Value) -> Value:
    return power(GraphArithmetic(x), x, y)


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
    # The decomposition keeps less than 1.25; the rest is for a device's own.
    accuracy=within(6.0),
    decompose=_pow_decompose,
)
