"""Elementwise rows of two numbers: add, sub, mul, div, max, min; rem and pow stand apart."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import NUMERIC
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._elementwise import elementwise
from bringup.ops._numeric import Array, exactly, is_float, total_max, total_min
from bringup.ops.build import like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import ROUNDED, Cotangents, Trait

INTEGERS = ("int", "uint")
_SYMMETRIC = frozenset({Trait.COMMUTATIVE, Trait.ASSOCIATIVE, Trait.PIECEWISE_MONOTONE})


def _add_vjp(ct: Value, _result: Value, _x: Value, _y: Value) -> Cotangents:
    return (ct, ct)


add = elementwise(
    "add",
    arity=2,
    doc=(
        "x + y, correctly rounded. Integers wrap. inf + −inf and NaN give NaN; "
        "a sum of zeros is −0 only if both are."
    ),
    reference=exactly(np.add),
    vjp=_add_vjp,
    linear=((0, 1),),
    dtypes=NUMERIC,
    special=cells(
        "0.0, -0.0 -> 0.0; -0.0, -0.0 -> -0.0; 1, -1 -> 0.0; inf, -inf -> nan; "
        "inf, -MAX -> inf; MAX, MAX -> inf; SUBNORMAL, -0.0 -> SUBNORMAL; nan, 1 -> nan; "
        "1, nan -> nan; INT_MAX, 1 -> INT_MIN (int uint)",
    ),
    traits=_SYMMETRIC,
    accuracy=ROUNDED,
    tier=0,
)


def _sub_vjp(ct: Value, _result: Value, _x: Value, _y: Value) -> Cotangents:
    return (ct, rows.neg(ct))


def _sub_decompose(x: Value, y: Value) -> Value:
    return rows.add(x, rows.neg(y))


sub = elementwise(
    "sub",
    arity=2,
    doc=("x − y, correctly rounded. Integers wrap. inf − inf and NaN give NaN; x − x is +0."),
    reference=exactly(np.subtract),
    vjp=_sub_vjp,
    linear=((0, 1),),
    dtypes=NUMERIC,
    special=cells(
        "0.0, 0.0 -> 0.0; -0.0, 0.0 -> -0.0; -0.0, -0.0 -> 0.0; inf, inf -> nan; "
        "-inf, -MAX -> -inf; -MAX, MAX -> -inf; nan, 1 -> nan; 1, nan -> nan; "
        "INT_MIN, 1 -> INT_MAX (int uint); 0, INT_MIN -> INT_MIN (int uint)",
    ),
    traits=frozenset({Trait.PIECEWISE_MONOTONE}),
    accuracy=ROUNDED,
    decompose=_sub_decompose,
)


def _mul_vjp(ct: Value, _result: Value, x: Value, y: Value) -> Cotangents:
    return (rows.mul(ct, y), rows.mul(ct, x))


mul = elementwise(
    "mul",
    arity=2,
    doc="x · y, correctly rounded. Integers wrap. 0 · ±inf and NaN give NaN; signs multiply.",
    reference=exactly(np.multiply),
    vjp=_mul_vjp,
    linear=((0,), (1,)),
    dtypes=NUMERIC,
    special=cells(
        "0.0, -1 -> -0.0; -0.0, -1 -> 0.0; 0.0, inf -> nan; -inf, 2 -> -inf; MAX, -2 -> -inf; "
        "SUBNORMAL, 1 -> SUBNORMAL; SUBNORMAL, 0.5 -> 0.0; nan, 0.0 -> nan; 0.0, nan -> nan; "
        "INT_MIN, -1 -> INT_MIN (int); INT_MAX, 2 -> -2 (int); "
        "INT_MAX, INT_MAX -> 1 (int uint)",
    ),
    traits=_SYMMETRIC,
    accuracy=ROUNDED,
    tier=0,
)


def _divide(x: Array, y: Array) -> Array:
    if is_float(np.asarray(x).dtype):
        return np.divide(x, y)
    return truncated_quotient(x, y)


def truncated_quotient(x: Array, y: Array) -> Array:
    """Integer x / y by the rules of the RISC-V M extension (see the row of div)."""
    dtype = np.asarray(x).dtype
    zero = y == 0
    if dtype.kind == "u":
        quotient = np.floor_divide(x, np.where(zero, dtype.type(1), y))
        return np.where(zero, np.iinfo(dtype).max, quotient).astype(dtype)
    minus = y == -1  # INT_MIN / -1 overflows; wrapping negation is the same and does not
    safe = np.where(zero | minus, dtype.type(1), y)
    down = np.floor_divide(x, safe)
    inexact = down * safe != x
    quotient = down + (inexact & ((x < 0) != (safe < 0))).astype(dtype)
    quotient = np.where(minus, np.negative(x), quotient)
    return np.where(zero, dtype.type(-1), quotient)


def _div_vjp(ct: Value, result: Value, _x: Value, y: Value) -> Cotangents:
    scaled = rows.div(ct, y)
    return (scaled, rows.neg(rows.mul(scaled, result)))


div = elementwise(
    "div",
    arity=2,
    doc=(
        "x / y. Floats: correctly rounded; 0/0 and inf/inf give NaN, x/0 an infinity with the "
        "product of the signs. Integers truncate towards zero; x / 0 has every bit set "
        "(−1, or the largest unsigned) and INT_MIN / −1 is INT_MIN, as in the RISC-V M "
        "extension."
    ),
    reference=exactly(_divide),
    vjp=_div_vjp,
    linear=((0,),),
    dtypes=NUMERIC,
    special=cells(
        "1, 0.0 -> inf; 1, -0.0 -> -inf; -1, 0.0 -> -inf; 0.0, 0.0 -> nan; -0.0, 2 -> -0.0; "
        "inf, inf -> nan; 1, -inf -> -0.0; MAX, 0.5 -> inf; SUBNORMAL, 1 -> SUBNORMAL; "
        "nan, 1 -> nan; 1, nan -> nan; 5, 0 -> -1 (int); 0, 0 -> -1 (int); "
        "INT_MIN, 0 -> -1 (int); 5, 0 -> INT_MAX (uint); INT_MIN, -1 -> INT_MIN (int); "
        "-7, 2 -> -3 (int); 7, -2 -> -3 (int); INT_MAX, INT_MAX -> 1 (int uint)",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.PIECEWISE_MONOTONE}),
    accuracy=ROUNDED,
    tier=0,
)


def _extremum_vjp(ct: Value, result: Value, x: Value, y: Value) -> Cotangents:
    """Equal operands share the cotangent, so that max(x, x) has the gradient of x."""
    half = rows.mul(ct, like(ct, 0.5))
    shared = rows.select(build.compare("eq", x, y), half, ct)
    nothing = build.zeros_like(ct)
    from_x = rows.select(build.compare("eq", x, result), shared, nothing)
    from_y = rows.select(build.compare("eq", y, result), shared, nothing)
    return (from_x, from_y)


_LATTICE = frozenset({Trait.COMMUTATIVE, Trait.ASSOCIATIVE, Trait.IDEMPOTENT, Trait.MONOTONE})

max_ = elementwise(
    "max",
    arity=2,
    doc=(
        "The larger of x and y. NaN if either is NaN; −0 < +0. "
        "Equal operands share the gradient half and half."
    ),
    reference=exactly(total_max),
    vjp=_extremum_vjp,
    dtypes=NUMERIC,
    special=cells(
        "0.0, -0.0 -> 0.0; -0.0, 0.0 -> 0.0; -0.0, -0.0 -> -0.0; -0.0, -SUBNORMAL -> -0.0; "
        "nan, inf -> nan; -inf, nan -> nan; -inf, -MAX -> -MAX; inf, MAX -> inf; "
        "INT_MIN, INT_MAX -> INT_MAX (int uint)",
    ),
    traits=_LATTICE,
    tier=0,
)


def opposite(x: Value) -> Value:
    """The map that turns the order of a dtype round exactly: negation, or every bit inverted."""
    return rows.neg(x) if x.dtype.is_float else build.not_(x)


def _min_decompose(x: Value, y: Value) -> Value:
    return opposite(rows.max(opposite(x), opposite(y)))


min_ = elementwise(
    "min",
    arity=2,
    doc=(
        "The smaller of x and y. NaN if either is NaN; −0 < +0. "
        "Equal operands share the gradient half and half."
    ),
    reference=exactly(total_min),
    vjp=_extremum_vjp,
    dtypes=NUMERIC,
    special=cells(
        "0.0, -0.0 -> -0.0; -0.0, 0.0 -> -0.0; 0.0, 0.0 -> 0.0; 0.0, SUBNORMAL -> 0.0; "
        "nan, -inf -> nan; inf, nan -> nan; inf, MAX -> MAX; -inf, -MAX -> -inf; "
        "INT_MIN, INT_MAX -> INT_MIN (int uint)",
    ),
    traits=_LATTICE,
    decompose=_min_decompose,
)
