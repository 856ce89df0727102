"""Composite rows: cbrt and hypot."""

from __future__ import annotations

import numpy as np

from bringup.graph import Value
from bringup.ops import build
from bringup.ops._composite import composite
from bringup.ops._numeric import Array, via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.table import Special, Trait, within

Cotangents = tuple[Value | None, ...]

# By width: from where on squares are scaled, how, and back; all powers of 2.
_LARGE = {32: (2.0**62, 2.0**-66, 2.0**66), 64: (2.0**510, 2.0**-520, 2.0**520)}
_SMALL = {32: (2.0**-40, 2.0**100, 2.0**-100), 64: (2.0**-400, 2.0**700, 2.0**-700)}


@via_wider
def _hypot_reference(x: Array, y: Array) -> Array:
    return np.asarray(np.hypot(x, y))


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
    reference=_hypot_reference,
    vjp=_hypot_vjp,
    special=(
        Special(("3", "-4"), "5"),
        Special(("0.0", "-0.0"), "0.0"),
        Special(("-0.0", "-0.0"), "0.0"),
        Special(("-0.0", "-2"), "2"),
        Special(("SUBNORMAL", "0.0"), "SUBNORMAL"),
        Special(("MAX", "0.0"), "MAX"),
        Special(("MAX", "MAX"), "inf"),
        Special(("inf", "nan"), "inf"),
        Special(("nan", "-inf"), "inf"),
        Special(("-inf", "1"), "inf"),
        Special(("nan", "1"), "nan"),
        Special(("0.0", "nan"), "nan"),
    ),
    traits=frozenset({Trait.COMMUTATIVE, Trait.EXPENSIVE}),
    # Half of 1.5 roundings of the sum of squares, that of the root, and of a subnormal result.
    accuracy=within(2.0),
    decompose=_hypot_decompose,
)
