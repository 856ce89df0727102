"""Composite rows: cbrt and hypot."""

from __future__ import annotations

import numpy as np

from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite
from bringup.ops._numeric import via_wider
from bringup.ops.build import compare, copy_sign, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic, polynomial
from bringup.ops.special_values import cells
from bringup.ops.table import Cotangents, Trait, within

# By width: from where on squares are scaled, how, and back; all powers of 2.
_LARGE = {32: (2.0**62, 2.0**-66, 2.0**66), 64: (2.0**510, 2.0**-520, 2.0**520)}
_SMALL = {32: (2.0**-40, 2.0**100, 2.0**-100), 64: (2.0**-400, 2.0**700, 2.0**-700)}


def _hypot_vjp(ct: Value, result: Value, x: Value, y: Value) -> Cotangents:
    none = compare("eq", result, build.zeros_like(result))
    size = rows.select(none, build.ones_like(result), result)
    return rows.mul(ct, rows.div(x, size)), rows.mul(ct, rows.div(y, size))


@in_f32
def _hypot_decompose(x: Value, y: Value) -> Value:
    """The squares of both, scaled by one power of 2: the larger neither overflows nor vanishes."""
    a, b, one = rows.abs(x), rows.abs(y), build.ones_like(x)
    large = rows.max(a, b)
    top, shrink, unshrink = _LARGE[x.dtype.bits]
    bottom, stretch, unstretch = _SMALL[x.dtype.bits]
    high, low = compare("gt", large, like(x, top)), compare("lt", large, like(x, bottom))
    factor = rows.select(high, like(x, shrink), rows.select(low, like(x, stretch), one))
    back = rows.select(high, like(x, unshrink), rows.select(low, like(x, unstretch), one))
    a, b = rows.mul(a, factor), rows.mul(b, factor)
    result = rows.mul(rows.sqrt(rows.add(rows.mul(a, a), rows.mul(b, b))), back)
    endless = like(x, np.inf)
    infinite = rows.or_(compare("eq", a, endless), compare("eq", b, endless))
    return rows.select(infinite, endless, result)


hypot = composite(
    "hypot",
    arity=2,
    doc=(
        "sqrt(x² + y²) without overflow on the way. An infinite operand gives inf, even beside "
        "NaN; else NaN gives NaN. The gradient at the origin is 0."
    ),
    reference=via_wider(elementary.hypot),
    vjp=_hypot_vjp,
    special=cells(
        "3, -4 -> 5; 0.0, -0.0 -> 0.0; -0.0, -0.0 -> 0.0; -0.0, -2 -> 2; "
        "SUBNORMAL, 0.0 -> SUBNORMAL; MAX, 0.0 -> MAX; MAX, MAX -> inf; inf, nan -> inf; "
        "nan, -inf -> inf; -inf, 1 -> inf; nan, 1 -> nan; 0.0, nan -> nan",
    ),
    traits=frozenset({Trait.COMMUTATIVE, Trait.EXPENSIVE}),
    # Half of 1.5 roundings of the sum of squares, that of the root, and of a subnormal result.
    accuracy=within(2.0),
    decompose=_hypot_decompose,
)

# A cubic near the root of 1 <= x <= 8, by ``core/tests/llvm/derive.py`` (cbrt).
_START = (0.6816972, 0.3645163, -0.04330733, 0.0023130325)
# By width: a factor that makes subnormals normal, the root of its inverse, the rest of the bias
# by 3, and how often the start is improved.
_LIFT = {32: (2.0**24, 2.0**-8, 2, 1), 64: (2.0**54, 2.0**-18, 0, 2)}


def _halley(y: Value, x: Value) -> Value:
    """A better cube root: an error e becomes 2/3 e³."""
    cube = rows.mul(rows.mul(y, y), y)
    twice = rows.add(x, x)
    return rows.mul(y, rows.div(rows.add(cube, twice), rows.add(rows.add(cube, cube), x)))


def _polished(y: Value, x: Value) -> Value:
    """One step of Newton's with an exact residue: all but correctly rounded."""
    m = GraphArithmetic(x)
    square, error = m.two_product(y, y)
    cube, low = m.two_product(square, y)
    residue = rows.sub(rows.sub(rows.sub(x, cube), low), rows.mul(error, y))
    return rows.add(y, rows.div(residue, rows.mul(square, like(x, 3.0))))


def _cbrt_vjp(ct: Value, result: Value, _x: Value) -> Cotangents:
    return (rows.div(ct, rows.mul(rows.mul(result, result), like(result, 3.0))),)


@in_f32
def _cbrt_decompose(x: Value) -> Value:
    """X = 8^q m with 1 <= m < 8, and the root of m by iteration."""
    layout, bits = GraphArithmetic(x).format, build.unsigned(x.dtype)
    lift, unlift, rest, times = _LIFT[x.dtype.bits]
    size, one = rows.abs(x), build.ones_like(x)
    least = compare("lt", size, like(x, layout.smallest_normal))
    raised = build.bitcast(rows.mul(size, rows.select(least, like(x, lift), one)), bits)
    stored = like(raised, layout.mantissa)
    exponent = rows.shr(raised, stored, kind="logical")
    # q plus an offset that keeps it from being negative.
    thirds = rows.div(rows.add(exponent, like(exponent, rest)), like(exponent, 3))
    offset = (layout.bias + rest) // 3
    taken = rows.shl(rows.sub(rows.mul(thirds, like(thirds, 3)), like(thirds, 3 * offset)), stored)
    m = build.bitcast(rows.sub(raised, taken), x.dtype)
    y = polynomial(m, _START)
    for _ in range(times):
        y = _halley(y, m)
    y = build.bitcast(_polished(y, m), bits)
    back = rows.shl(rows.sub(thirds, like(thirds, offset)), stored)
    root = build.bitcast(rows.add(y, back), x.dtype)
    root = rows.mul(root, rows.select(least, like(x, unlift), one))
    plain = rows.or_(
        compare("eq", x, build.zeros_like(x)), build.not_(compare("lt", size, like(x, np.inf)))
    )
    return rows.select(plain, x, copy_sign(root, x))


cbrt = composite(
    "cbrt",
    doc="The real cube root. cbrt(±0) is ±0, cbrt(±inf) is ±inf, NaN gives NaN.",
    reference=via_wider(elementary.cbrt),
    vjp=_cbrt_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; -8 -> -2; 27 -> 3; inf -> inf; -inf -> -inf; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.MONOTONE, Trait.EXPENSIVE}),
    accuracy=within(1.0),
    decompose=_cbrt_decompose,
)
