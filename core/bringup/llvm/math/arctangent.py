"""atan and atan2.

atan t = base + atan r, where r is t, (t − 1)/(t + 1) or −1/t with base 0, π/4 or π/2, so that
|r| <= tan(π/8).  The quotient keeps what its rounding lost.  Polynomials as in the op table's rows.
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val
from bringup.ops.trigonometry import ATAN_32, ATAN_64, HALF_PI

_TAN_PI_8 = math.sqrt(2) - 1
# Where operands are scaled, by what: nothing of a quotient or a sum overflows in between.
_LARGE = ((2.0**100, 2.0**-64), (2.0**900, 2.0**-600))
_SMALL = ((2.0**-60, 2.0**64), (2.0**-900, 2.0**600))

Pair = tuple[Val, Val]


def _base(m: Lanes, quarters: int) -> Pair:
    """A multiple of π/4 as two floats."""
    high, low = HALF_PI[32 if m.is_f32 else 64]
    return m.c(high * quarters / 2), m.c(low * quarters / 2)


def _choose(m: Lanes, mask: Val, a: Pair, b: Pair) -> Pair:
    return m.select(mask, a[0], b[0]), m.select(mask, a[1], b[1])


def _quotient(m: Lanes, over: Pair, under: Pair) -> Pair:
    """``over / under`` for unevaluated sums."""
    reciprocal = m.b.fdiv(m.c(1.0), under[0])
    quotient = m.mul(over[0], reciprocal)
    against = m.neg(quotient)
    rest = m.add(m.fma(against, under[0], over[0]), over[1])
    return quotient, m.mul(m.fma(against, under[1], rest), reciprocal)


def _curve(m: Lanes, r: Pair) -> Pair:
    """Atan of a small number, less that number, and the number: an unevaluated sum."""
    z = m.mul(r[0], r[0])
    p = m.horner(z, ATAN_32 if m.is_f32 else ATAN_64)
    return r[0], m.fma(m.mul(r[0], z), p, r[1])


def _plus(m: Lanes, base: Pair, x: Pair) -> Val:
    high, low = m.fast_two_sum(base[0], x[0])
    return m.add(high, m.add(low, m.add(x[1], base[1])))


def atan(b: Builder, x: Val) -> Val:
    """Inverse tangent; ±π/2 at ±infinity."""
    m = Lanes(b, x.type)
    one, none = m.c(1.0), m.c(0.0)
    # Infinity would make the rest of the quotient NaN; so far out the result is π/2.
    size = m.at_most(m.abs(x), 2.0**60)
    middle = m.test("ogt", size, m.c(_TAN_PI_8))
    far = m.test("ogt", size, m.c(1 / _TAN_PI_8))
    round_one = m.fast_two_sum(m.c(-1.0), size), m.two_sum(size, one)
    over = _choose(m, far, (m.c(-1.0), none), _choose(m, middle, round_one[0], (size, none)))
    under = _choose(m, far, (size, none), _choose(m, middle, round_one[1], (one, none)))
    base = _choose(m, far, _base(m, 2), _choose(m, middle, _base(m, 1), (none, none)))
    return m.copysign(_plus(m, base, _curve(m, _quotient(m, over, under))), x)


def _scaled(m: Lanes, rise: Val, run: Val, large: Val) -> Pair:
    """Both times one power of 2."""
    at = 0 if m.is_f32 else 1
    (top, shrink), (bottom, stretch) = _LARGE[at], _SMALL[at]
    grown = m.select(m.test("olt", large, m.c(bottom)), m.c(stretch), m.c(1.0))
    factor = m.select(m.test("ogt", large, m.c(top)), m.c(shrink), grown)
    return m.mul(rise, factor), m.mul(run, factor)


def atan2(b: Builder, y: Val, x: Val) -> Val:
    """The angle of (x, y), as C99's Annex F has it."""
    m = Lanes(b, x.type)
    one, none, inf = m.c(1.0), m.c(0.0), m.c(math.inf)
    rise, run = m.abs(y), m.abs(x)
    steep = m.test("ogt", rise, run)
    large, small = m.select(steep, rise, run), m.select(steep, run, rise)
    # A corner of infinities is one of equal sides, and an infinite side beside another has angle 0.
    endless, both = m.test("oeq", large, inf), m.test("oeq", small, inf)
    small = m.select(endless, m.select(both, one, m.mul(small, none)), small)
    large = m.select(m.b.or_(endless, m.test("oeq", large, none)), one, large)
    small, large = _scaled(m, small, large, large)
    middle = m.test("ogt", small, m.mul(large, m.c(_TAN_PI_8)))
    over = _choose(m, middle, m.fast_two_sum(m.neg(large), small), (small, none))
    under = _choose(m, middle, m.fast_two_sum(large, small), (large, none))
    curve = _curve(m, _quotient(m, over, under))
    # base + curve to the right of the diagonal, and its mirror images.
    left = b.icmp("slt", m.bits(x), m.i(0))
    mirrored = b.xor(steep, left)
    curve = _choose(m, mirrored, (m.neg(curve[0]), m.neg(curve[1])), curve)
    # Multiples of π/4: 0 1 | 2 1 to the right, 4 3 | 2 3 to the left.
    flat = _choose(m, left, _base(m, 4), (none, none))
    flat = _choose(m, steep, _base(m, 2), flat)
    slanted = _choose(m, left, _base(m, 3), _base(m, 1))
    angle = _plus(m, _choose(m, middle, slanted, flat), curve)
    nan = m.test("uno", x, y)
    return m.select(nan, m.add(x, y), m.copysign(angle, y))
