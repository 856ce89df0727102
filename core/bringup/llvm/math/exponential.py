"""exp, exp2 and expm1.

x = n ln 2 + r, |r| <= ln 2 / 2, and e^x = 2^n e^r.  The reduction subtracts ln 2 in two parts by
fma; the first step is exact.  Polynomials by ``core/tests/llvm/derive.py`` (exp, expm1).
"""

from __future__ import annotations

import math
from functools import reduce

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val, const
from bringup.maths.power import two_to

_LOG2_E = 1.4426950408889634
_LN2_32 = (0.6931471824645996, -1.9046542121259336e-09)
_LN2_64 = (0.6931471805599453, 2.3190468138462996e-17)

# e^r = 1 + r + r^2 p(r); the longer one for f32 is good for e^r - 1 too.
_EXP_32 = (0.49999994, 0.16666521, 0.041668184, 0.008369324, 0.0013833714)
_EXPM1_32 = (0.5, 0.16666666, 0.041666497, 0.008333531, 0.0013932885, 0.00019778534)
_EXPM1_64 = (
    0.5, 0.16666666666666677, 0.04166666666666669, 0.00833333333332181, 0.0013888888888884253,
    0.00019841269884795186, 2.4801587286277462e-05, 2.7557246161583516e-06, 2.7557339204221596e-07,
    2.5108217701805253e-08, 2.088581406236401e-09,
)  # fmt: skip
# Above this the result of the f32 function is normal.
_SUBNORMAL_FROM = -86.5


def reduce_exp(m: Lanes, x: Val) -> tuple[Val, Val, Val]:
    """``x = n ln2 + r``: (n, bits with n at the low end, r)."""
    n, n_bits = m.round(x, _LOG2_E)
    return n, n_bits, _remainder(m, x, n)


def _remainder(m: Lanes, x: Val, n: Val) -> Val:
    """``x - n ln2``."""
    high, low = _LN2_32 if m.is_f32 else _LN2_64
    return m.fma(n, m.c(-low), m.fma(n, m.c(-high), x))


def _reduce_exactly(m: Lanes, x: Val) -> tuple[Val, Val, Val]:
    """``x = n ln2 + r + r_low``: (n, r, r_low)."""
    high, low = _LN2_32 if m.is_f32 else _LN2_64
    n, _ = m.round(x, _LOG2_E)
    exact = m.fma(n, m.c(-high), x)
    r = m.fma(n, m.c(-low), exact)
    return n, r, m.fma(n, m.c(-low), m.sub(exact, r))


def _times_two_to(m: Lanes, p: Val, n: Val) -> Val:
    """``p * 2**k`` rounded once, be it subnormal or infinite, where ``n`` has ``k`` and twice the
    bias at the low end.  p: normal, within [1/2, 2]; NaN stays, whatever ``n`` is then.
    """
    b, mantissa = m.b, m.format.mantissa
    half = b.and_(b.shl(n, m.i(mantissa - 1)), m.i(-1 << mantissa))
    rest = b.sub(b.shl(n, m.i(mantissa)), half)
    return m.mul(m.mul(p, m.from_bits(half)), m.from_bits(rest))


def exp_tail(m: Lanes, r: Val) -> Val:
    """``p(r)`` in ``e**r = 1 + r + r**2 p(r)``, good for ``e**r - 1`` too."""
    return m.horner(r, _EXPM1_32 if m.is_f32 else _EXPM1_64)


def exp_in_range(m: Lanes, x: Val) -> Val:
    """``e**x`` where the result is known to be normal."""
    _, n_bits, r = reduce_exp(m, x)
    p = _one_plus(m, r)
    return m.from_bits(m.b.add(m.bits(p), m.b.shl(n_bits, m.i(m.format.mantissa))))


def _one_plus(m: Lanes, r: Val) -> Val:
    tail = m.horner(r, _EXP_32 if m.is_f32 else _EXPM1_64)
    one = m.c(1.0)
    return m.fma(m.fma(tail, r, one), r, one)


def exp(b: Builder, x: Val) -> Val:
    """e^x; subnormal results included; overflow gives infinity, -inf gives 0."""
    m = Lanes(b, x.type)
    # At the lower end both powers of two are 0: products that underflow cost machines many cycles,
    # and -infinity is what masked scores are.
    y = m.at_most(m.at_least(x, -176.0 if m.is_f32 else -1418.0), 89.0 if m.is_f32 else 710.0)
    n, n_bits = m.round(y, _LOG2_E, 2 * m.format.bias)
    return _times_two_to(m, _one_plus(m, _remainder(m, y, n)), n_bits)


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
    return _times_two_to(m, two_to(m, m.sub(y, n)), n_bits)


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
