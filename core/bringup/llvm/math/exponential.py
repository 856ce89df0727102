"""exp, exp2 and expm1: `bringup.maths.exponential` by fma."""

from __future__ import annotations

import math
from functools import reduce

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val, const
from bringup.maths import exponential
from bringup.maths.exponential import FUSED_LN2, LOG2_E, exp_tail, remainder, times_two_to
from bringup.maths.power import two_to

# Above this the result of the f32 function is normal.
_SUBNORMAL_FROM = -86.5


def reduce_exp(m: Lanes, x: Val) -> tuple[Val, Val, Val]:
    """``x = n ln2 + r``: (n, bits with n at the low end, r)."""
    n, n_bits = m.round(x, LOG2_E)
    return n, n_bits, remainder(m, x, n, FUSED_LN2[m.width])


def _reduce_exactly(m: Lanes, x: Val) -> tuple[Val, Val, Val]:
    """``x = n ln2 + r + r_low``: (n, r, r_low)."""
    high, low = FUSED_LN2[m.width]
    n, _ = m.round(x, LOG2_E)
    exact = m.fma(n, m.c(-high), x)
    r = m.fma(n, m.c(-low), exact)
    return n, r, m.fma(n, m.c(-low), m.sub(exact, r))


def exp_in_range(m: Lanes, x: Val) -> Val:
    """``e**x`` where the result is known to be normal."""
    return exponential.exp_in_range(m, x, FUSED_LN2[m.width])


def exp(b: Builder, x: Val) -> Val:
    """e^x; subnormal results included; overflow gives infinity, -inf gives 0."""
    m = Lanes(b, x.type)
    return exponential.exp(m, x, FUSED_LN2[m.width])


def exp_by_branch(b: Builder, x: Val) -> Val:
    """The bits of `exp`, in fewer instructions where no result is subnormal or infinite: for
    machines whose lanes are registers of their own, where a test of each takes one instruction
    and choosing among results takes several.
    """
    m = Lanes(b, x.type)
    if not m.is_f32:
        return exp(b, x)
    sizes = [b.fabs(b.extractelement(x, i)) for i in range(x.type.lanes)]
    tests = [b.fcmp("ole", size, const(size.type, -_SUBNORMAL_FROM)) for size in sizes]
    every = reduce(b.and_, tests)
    return b.cond(every, lambda: exp_in_range(m, x), lambda: exp(b, x), likely=True)[0]


def exp2(b: Builder, x: Val) -> Val:
    """2^x; exact for integers, subnormal results included."""
    m = Lanes(b, x.type)
    y = m.at_most(m.at_least(x, -254.0 if m.is_f32 else -2046.0), 129.0 if m.is_f32 else 1025.0)
    n, n_bits = m.round(y, 1.0, 2 * m.format.bias)
    return times_two_to(m, two_to(m, m.sub(y, n)), n_bits)


def _expm1_scaled(m: Lanes, n: Val, r: Val, r_low: Val) -> Val:
    """``2**n e**(r + r_low) - 1`` for n within the normal exponents."""
    shifted = m.add(n, m.c(m.format.shifter))
    two_n = m.power_of_two(m.bits(shifted))
    square, square_low = m.two_product(r, r)
    tail = m.fma(square, exp_tail(m, r), m.fma(square_low, m.c(0.5), r_low))
    less, less_low = m.two_sum(two_n, m.c(-1.0))
    high, low = m.fast_two_sum(less, m.mul(two_n, r))
    return m.add(high, m.fma(two_n, tail, m.add(low, less_low)))


def expm1(b: Builder, x: Val) -> Val:
    """e^x - 1, without cancellation near 0."""
    m = Lanes(b, x.type)
    y = m.at_most(m.at_least(x, -40.0), 88.8 if m.is_f32 else 709.8)
    n, r, r_low = _reduce_exactly(m, y)
    # 2^n itself would overflow for the last n: halve, and double at the end.
    within = m.at_most(n, 127.0 if m.is_f32 else 1023.0)
    total = m.mul(_expm1_scaled(m, within, r, r_low), m.add(m.sub(n, within), m.c(1.0)))
    largest = m.pick(float.fromhex("0x1.62e42ep6"), float.fromhex("0x1.62e42fefa39efp9"))
    total = m.select(m.test("ugt", x, largest), m.add(x, m.c(math.inf)), total)
    return m.copysign(total, x)
