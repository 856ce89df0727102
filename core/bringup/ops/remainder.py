"""The rem row."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import NUMERIC
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._elementwise import elementwise
from bringup.ops._numeric import Array, exactly, is_float
from bringup.ops.arithmetic import truncated_quotient
from bringup.ops.build import copy_sign, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic
from bringup.ops.special_values import cells
from bringup.ops.table import Cotangents, Trait


def _remainder(x: Array, y: Array) -> Array:
    if is_float(np.asarray(x).dtype):
        return np.fmod(x, y)
    return np.asarray(x - truncated_quotient(x, y) * y)


def _rem_vjp(ct: Value, result: Value, x: Value, y: Value) -> Cotangents:
    quotient = rows.round(rows.div(rows.sub(x, result), y))
    return (ct, rows.neg(rows.mul(ct, quotient)))


@in_f32
def _float_decompose(x: Value, y: Value) -> Value:
    """Long division by |y| · 2^k for falling k, a few quotient bits at a time, each step exact.

    Either half of y has half the bits of the format, so its product with a quotient of as many
    bits is exact; the differences are multiples of the last bit of y · 2^k and no wider than it.
    NaN, x = ±inf and y = 0 become NaN on the way, and y = ±inf never divides.
    """
    m = GraphArithmetic(x)
    form, bits = m.format, (m.format.mantissa + 1) // 2
    size, top = rows.abs(y), m.upper_half(rows.abs(y))
    parts = (size, top, rows.sub(size, top))
    # 2^k overflows for large k although |y| · 2^k need not: scale from a few bases.
    stride = form.bias // bits * bits
    span = 2 * form.bias + form.mantissa
    bases = [parts]
    while len(bases) * stride < span:
        bases.append(_scaled(bases[-1], stride))
    rest = rows.abs(x)
    for k in reversed(range(0, span, bits)):
        rest = _divide_once(rest, *_scaled(bases[k // stride], k % stride))
    return copy_sign(rest, x)


Parts = tuple[Value, Value, Value]


def _scaled(parts: Parts, exponent: int) -> Parts:
    factor = like(parts[0], 2.0**exponent)
    size, top, bottom = (rows.mul(part, factor) for part in parts)
    return size, top, bottom


def _divide_once(rest: Value, size: Value, top: Value, bottom: Value) -> Value:
    quotient = rows.floor(rows.div(rest, size))
    less = rows.sub(rows.sub(rest, rows.mul(quotient, top)), rows.mul(quotient, bottom))
    # A quotient just below an integer may have been rounded up to it.
    negative = build.compare("lt", less, build.zeros_like(less))
    less = rows.select(negative, rows.add(less, size), less)
    return rows.select(build.compare("lt", rest, size), rest, less)


def _rem_decompose(x: Value, y: Value) -> Value:
    if x.dtype.is_float:
        return _float_decompose(x, y)
    return rows.sub(x, rows.mul(rows.div(x, y), y))


rem = elementwise(
    "rem",
    arity=2,
    doc=(
        "x − y · trunc(x / y), exact, with the sign of x. Floats: x = ±inf, y = 0 and NaN give "
        "NaN; y = ±inf gives x; a zero result has the sign of x. Integers: x rem 0 is x and "
        "INT_MIN rem −1 is 0, as in the RISC-V M extension."
    ),
    reference=exactly(_remainder),
    vjp=_rem_vjp,
    dtypes=NUMERIC,
    special=cells(
        "5.5, 2 -> 1.5; -5.5, 2 -> -1.5; 5.5, -2 -> 1.5; -4, 2 -> -0.0; -0.0, 1 -> -0.0; "
        "1, inf -> 1; -1, inf -> -1; inf, 1 -> nan; 1, 0.0 -> nan; 0.0, 0.0 -> nan; "
        "1, nan -> nan; nan, inf -> nan; SUBNORMAL, MAX -> SUBNORMAL; MAX, SUBNORMAL -> 0.0; "
        "5, 0 -> 5 (int uint); INT_MIN, 0 -> INT_MIN (int); INT_MIN, -1 -> 0 (int); "
        "-7, 2 -> -1 (int); 7, -2 -> 1 (int)",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    decompose=_rem_decompose,
)
