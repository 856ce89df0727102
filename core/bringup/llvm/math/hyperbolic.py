"""tanh and the logistic function.

Both are quotients of exponentials that do not grow.  Numerator and denominator are unevaluated
sums, and one step of correction after the division takes their low parts in.
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.math.exponential import reduce_exp
from bringup.llvm.text import Builder, Val
from bringup.maths.exponential import exp_tail

Pair = tuple[Val, Val]


def _divide(m: Lanes, over: Pair, under: Pair, estimate: Val) -> Val:
    """``over / under`` for unevaluated sums; ``estimate`` is ``over`` in one float."""
    reciprocal = m.div(m.c(1.0), under[0])
    quotient = m.mul(estimate, reciprocal)
    against = m.neg(quotient)
    rest = m.add(m.fma(against, under[0], over[0]), over[1])
    return m.fma(m.fma(against, under[1], rest), reciprocal, quotient)


def tanh(b: Builder, x: Val) -> Val:
    """Hyperbolic tangent; ±1 at ±infinity."""
    m = Lanes(b, x.type)
    two, minus_one = m.c(2.0), m.c(-1.0)
    size = m.at_most(m.abs(x), 10.0 if m.is_f32 else 20.0)
    _, n_bits, r = reduce_exp(m, m.mul(size, m.c(-2.0)))
    tail = m.mul(m.mul(r, r), exp_tail(m, r))
    # E = e^-2|x| - 1 = (2^n - 1) + 2^n r + 2^n tail, and tanh |x| = -E / (2 + E)
    two_n = m.power_of_two(n_bits)
    less, less_low = m.fast_two_sum(minus_one, two_n)
    high = m.fma(two_n, r, less)
    low = m.fma(two_n, r, m.sub(less, high))
    low = m.fma(two_n, tail, m.add(low, less_low))
    total = m.add(high, low)
    result = _divide(m, (high, low), m.fast_two_sum(two, total), total)
    return m.copysign(result, x)


def logistic(b: Builder, x: Val) -> Val:
    """1 / (1 + e^-x); 0 at -infinity, through the subnormals, and 1 at infinity."""
    m = Lanes(b, x.type)
    one, none = m.c(1.0), m.c(0.0)
    y = m.at_least(m.neg(m.abs(x)), -104.0 if m.is_f32 else -746.0)
    _, n_bits, r = reduce_exp(m, y)
    # e^-|x| = 2^n (e + e_low)
    e, e_low = m.fast_two_sum(one, m.fma(m.mul(r, r), exp_tail(m, r), r))
    # Where e^-|x| may be subnormal it adds nothing to 1, and scaling goes by 2^(n+64) and 2^-64.
    subnormal = m.test("olt", y, m.pick(-86.5, -707.5))
    scale = m.power_of_two(b.add(n_bits, b.select(subnormal, m.i(64), m.i(0))))
    two_n = m.select(subnormal, none, scale)
    under = m.fma(two_n, e, one)
    under_low = m.fma(two_n, e_low, m.fma(two_n, e, m.sub(one, under)))
    # 1 / (1 + e^-|x|) on the right, e^-|x| / (1 + e^-|x|) on the left.
    left = m.test("olt", x, none)
    over = m.select(left, e, one)
    result = _divide(m, (over, m.select(left, e_low, none)), (under, under_low), over)
    result = m.mul(result, m.select(left, scale, one))
    return m.select(b.and_(left, subnormal), m.mul(result, m.c(math.ldexp(1.0, -64))), result)
