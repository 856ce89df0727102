"""The functions that `bringup.maths` defines: atan, atan2, erf and pow."""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.math.exponential import exp_in_range
from bringup.llvm.text import Builder, Val
from bringup.maths import arctangent, errorfunction
from bringup.maths import power as definition


def atan(b: Builder, x: Val) -> Val:
    """Inverse tangent; ±π/2 at ±infinity."""
    return arctangent.atan(Lanes(b, x.type), x)


def atan2(b: Builder, y: Val, x: Val) -> Val:
    """The angle of (x, y), as C99's Annex F has it."""
    return arctangent.atan2(Lanes(b, x.type), y, x)


def erf(b: Builder, x: Val) -> Val:
    """The error function; ±1 at ±infinity."""
    m = Lanes(b, x.type)
    return errorfunction.erf(m, x, lambda p: exp_in_range(m, p))


#: Exponents for which a square root is as good: common in code, and ten times as fast.
_HALVES = (0.5, -0.5, 1.5, -1.5)


def power(b: Builder, x: Val, y: Val) -> Val:
    """C99 ``pow``: x^0 = 1^y = 1 even for NaN; NaN for x < 0 and y not an integer."""
    m = Lanes(b, x.type)
    for exponent in _HALVES:
        if y.text == m.c(exponent).text:
            return _by_root(m, x, exponent)
    return definition.power(m, x, y)


def _by_root(m: Lanes, x: Val, y: float) -> Val:
    """``x ** y`` for y one of `_HALVES`: three roundings at most, none of them out of range before
    the last.
    """
    inf = m.c(math.inf)
    # -0 and -infinity have the powers of 0 and infinity.
    size = m.select(m.test("oeq", x, m.c(-math.inf)), inf, m.add(x, m.c(0.0)))
    root = m.sqrt(size)
    if y < 0:
        root = m.div(m.c(1.0), root)
    if y == 1.5:
        return m.mul(size, root)
    return m.div(root, size) if y == -1.5 else root
