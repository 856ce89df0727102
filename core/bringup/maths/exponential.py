"""e^x: ``x = n ln 2 + r``, |r| <= ln 2 / 2, and ``e^x = 2^n e^r``.

Polynomials by ``core/tests/llvm/derive.py`` (exp, expm1).
"""

from __future__ import annotations

from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic

V = TypeVar("V")

LOG2_E = 1.4426950408889634
#: ln 2 in two parts, by width.  Products with the first ones have to be exact: by fma; or, as
#: their last bits are 0, by n.
FUSED_LN2 = {
    32: (0.6931471824645996, -1.9046542121259336e-09),
    64: (0.6931471805599453, 2.3190468138462996e-17),
}
SPLIT_LN2 = {
    32: (6.9313812256e-01, 9.0580006145e-06),
    64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}

# e^r = 1 + r + r^2 p(r); the longer one for f32 is good for e^r - 1 too.
_EXP_32 = (0.49999994, 0.16666521, 0.041668184, 0.008369324, 0.0013833714)
_EXPM1_32 = (0.5, 0.16666666, 0.041666497, 0.008333531, 0.0013932885, 0.00019778534)
_EXPM1_64 = (
    0.5, 0.16666666666666677, 0.04166666666666669, 0.00833333333332181, 0.0013888888888884253,
    0.00019841269884795186, 2.4801587286277462e-05, 2.7557246161583516e-06, 2.7557339204221596e-07,
    2.5108217701805253e-08, 2.088581406236401e-09,
)  # fmt: skip


def exp_tail(m: Arithmetic[V], r: V) -> V:
    """``p(r)`` in ``e**r = 1 + r + r**2 p(r)``, good for ``e**r - 1`` too."""
    return m.horner(r, _EXPM1_32 if m.width == 32 else _EXPM1_64)


def remainder(m: Arithmetic[V], x: V, n: V, ln2: tuple[float, float]) -> V:
    """``x - n ln2``.  ln2: its parts."""
    high, low = ln2
    return m.muladd(n, m.c(-low), m.muladd(n, m.c(-high), x))


def _one_plus(m: Arithmetic[V], r: V) -> V:
    """``e**r``."""
    tail = m.horner(r, _EXP_32 if m.width == 32 else _EXPM1_64)
    one = m.c(1.0)
    return m.muladd(m.muladd(tail, r, one), r, one)


def times_two_to(m: Arithmetic[V], p: V, n: V) -> V:
    """``p * 2**k`` rounded once, be it subnormal or infinite, where ``n`` has ``k`` and twice the
    bias at the low end.  p: normal, within [1/2, 2]; NaN stays, whatever ``n`` is then.
    """
    mantissa = m.format.mantissa
    half = m.and_(m.shift_left(n, mantissa - 1), m.i(-1 << mantissa))
    rest = m.int_sub(m.shift_left(n, mantissa), half)
    return m.mul(m.mul(p, m.from_bits(half)), m.from_bits(rest))


def exp(m: Arithmetic[V], x: V, ln2: tuple[float, float]) -> V:
    """e^x; subnormal results included; overflow gives infinity, -inf gives 0."""
    # At the lower end both powers of two are 0: products that underflow cost machines many cycles,
    # and -infinity is what masked scores are.
    lowest, highest = (-176.0, 89.0) if m.width == 32 else (-1418.0, 710.0)
    y = m.at_most(m.at_least(x, lowest), highest)
    n, n_bits = m.round(y, LOG2_E, 2 * m.format.bias)
    return times_two_to(m, _one_plus(m, remainder(m, y, n, ln2)), n_bits)


def exp_in_range(m: Arithmetic[V], x: V, ln2: tuple[float, float]) -> V:
    """``e**x`` where the result is known to be normal."""
    n, n_bits = m.round(x, LOG2_E)
    p = _one_plus(m, remainder(m, x, n, ln2))
    return m.from_bits(m.int_add(m.bits(p), m.shift_left(n_bits, m.format.mantissa)))


__all__ = [
    "FUSED_LN2",
    "LOG2_E",
    "SPLIT_LN2",
    "exp",
    "exp_in_range",
    "exp_tail",
    "remainder",
    "times_two_to",
]
