"""atan and atan2.

atan t = base + atan r, where r is t, (t − 1)/(t + 1) or −1/t with base 0, π/4 or π/2, so that
|r| <= tan(π/8).  Numerators, denominators and r are unevaluated sums: of two floats, or of one
where exact products are slow; then results are within 2 ULP instead of 1.1.
"""

from __future__ import annotations

import math
from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic

V = TypeVar("V")

# atan t = t + t z p(z), z = t², |t| <= tan(π/8); by ``core/tests/llvm/derive.py`` (atan).
ATAN = {
    32: (-0.33333316, 0.19998528, -0.14244391, 0.105991684, -0.06090052),
    64: (
        -0.333333333333332, 0.19999999999953677, -0.14285714280200462, 0.11111110783558707,
        -0.09090897759889702, 0.07692060259238578, -0.0666310471648081, 0.05847895663155027,
        -0.05039340750903872, 0.03806567117182886, -0.017908639905279616,
    ),
}  # fmt: skip
#: π/2 and what its nearest float lacks, by width.
HALF_PI = {
    32: (1.5707963705062866, -4.371139000186241e-08),
    64: (math.pi / 2, 6.123233995736766e-17),
}
_TAN_PI_8 = math.sqrt(2) - 1
# Where operands are scaled, by what: nothing of a quotient or a sum overflows in between.
_LARGE = {32: (2.0**100, 2.0**-64), 64: (2.0**900, 2.0**-600)}
_SMALL = {32: (2.0**-60, 2.0**64), 64: (2.0**-900, 2.0**600)}


def _base(m: Arithmetic[V], quarters: int) -> tuple[V, V]:
    """A multiple of π/4 as two floats."""
    high, low = HALF_PI[m.width]
    return m.c(high * quarters / 2), m.c(low * quarters / 2)


def _sum(m: Arithmetic[V], high: V, low: V | None = None) -> tuple[V, ...]:
    """An unevaluated sum.  What its low part was computed from is dead where that is left out."""
    if not m.has_fma:
        return (high,)
    return high, m.c(0.0) if low is None else low


def _choose(m: Arithmetic[V], mask: V, a: tuple[V, ...], b: tuple[V, ...]) -> tuple[V, ...]:
    return tuple([m.select(mask, x, y) for x, y in zip(a, b, strict=True)])


def _quotient(m: Arithmetic[V], over: tuple[V, ...], under: tuple[V, ...]) -> tuple[V, ...]:
    """``over / under`` for unevaluated sums."""
    if not m.has_fma:
        return (m.div(over[0], under[0]),)
    reciprocal = m.div(m.c(1.0), under[0])
    quotient = m.mul(over[0], reciprocal)
    against = m.neg(quotient)
    rest = m.add(m.fma(against, under[0], over[0]), over[1])
    return quotient, m.mul(m.muladd(against, under[1], rest), reciprocal)


def _curve(m: Arithmetic[V], r: tuple[V, ...]) -> tuple[V, ...]:
    """Atan of a small number as the unevaluated sum of that number and the rest."""
    high, *low = r
    z = m.mul(high, high)
    p = m.horner(z, ATAN[m.width])
    cube = m.mul(high, z)
    return high, m.muladd(cube, p, low[0]) if low else m.mul(cube, p)


def _plus(m: Arithmetic[V], base: tuple[V, ...], x: tuple[V, ...]) -> V:
    """The sum of two unevaluated sums of two floats each, the first 0 or the larger."""
    high, low = m.fast_two_sum(base[0], x[0])
    return m.add(high, m.add(low, m.add(x[1], base[1])))


def atan(m: Arithmetic[V], x: V) -> V:
    """Inverse tangent; ±π/2 at ±infinity."""
    one, minus_one, none = m.c(1.0), m.c(-1.0), m.c(0.0)
    # Infinity would make the rest of the quotient NaN; so far out the result is π/2.
    size = m.at_most(m.abs(x), 2.0**60)
    middle = m.test("ogt", size, m.c(_TAN_PI_8))
    far = m.test("ogt", size, m.c(1 / _TAN_PI_8))
    less, more = m.fast_two_sum(minus_one, size), m.two_sum(size, one)
    over = _choose(m, middle, _sum(m, *less), _sum(m, size))
    over = _choose(m, far, _sum(m, minus_one), over)
    under = _choose(m, middle, _sum(m, *more), _sum(m, one))
    under = _choose(m, far, _sum(m, size), under)
    base = _choose(m, far, _base(m, 2), _choose(m, middle, _base(m, 1), (none, none)))
    return m.copysign(_plus(m, base, _curve(m, _quotient(m, over, under))), x)


def _scaled(m: Arithmetic[V], small: V, large: V) -> tuple[V, V]:
    """Both times one power of 2."""
    (top, shrink), (bottom, stretch) = _LARGE[m.width], _SMALL[m.width]
    grown = m.select(m.test("olt", large, m.c(bottom)), m.c(stretch), m.c(1.0))
    factor = m.select(m.test("ogt", large, m.c(top)), m.c(shrink), grown)
    return m.mul(small, factor), m.mul(large, factor)


def atan2(m: Arithmetic[V], y: V, x: V) -> V:
    """The angle of (x, y), as C99's Annex F has it."""
    one, none, inf = m.c(1.0), m.c(0.0), m.c(math.inf)
    rise, run = m.abs(y), m.abs(x)
    steep = m.test("ogt", rise, run)
    large, small = m.select(steep, rise, run), m.select(steep, run, rise)
    # A corner of infinities is one of equal sides, and an infinite side beside another has angle 0.
    endless, both = m.test("oeq", large, inf), m.test("oeq", small, inf)
    small = m.select(endless, m.select(both, one, m.mul(small, none)), small)
    large = m.select(m.or_(endless, m.test("oeq", large, none)), one, large)
    small, large = _scaled(m, small, large)
    middle = m.test("ogt", small, m.mul(large, m.c(_TAN_PI_8)))
    over = _choose(m, middle, _sum(m, *m.fast_two_sum(m.neg(large), small)), _sum(m, small))
    under = _choose(m, middle, _sum(m, *m.fast_two_sum(large, small)), _sum(m, large))
    curve = _curve(m, _quotient(m, over, under))
    # base + curve to the right of the diagonal, and its mirror images.
    left = m.negative(m.bits(x))
    mirrored = m.xor(steep, left)
    curve = _choose(m, mirrored, (m.neg(curve[0]), m.neg(curve[1])), curve)
    # Multiples of π/4: 0 1 | 2 1 to the right, 4 3 | 2 3 to the left.
    flat = _choose(m, left, _base(m, 4), (none, none))
    flat = _choose(m, steep, _base(m, 2), flat)
    slanted = _choose(m, left, _base(m, 3), _base(m, 1))
    angle = _plus(m, _choose(m, middle, slanted, flat), curve)
    nan = m.test("uno", x, y)
    return m.select(nan, m.add(x, y), m.copysign(angle, y))
