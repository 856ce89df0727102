"""sin and cos for every argument.

|x| = n pi/2 + r, |r| <= pi/4.  Up to a limit, n pi/2 is subtracted in parts chosen so that the
steps are exact; beyond it, a branch taken only if some lane needs it multiplies by the bits of
2/pi that matter (Payne and Hanek).  Polynomials by ``core/tests/llvm/derive.py`` (sin, cos).
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.math._reduction import reduce_large
from bringup.llvm.text import Builder, Val

_TWO_OVER_PI = 0.6366197723675814
# pi/2 in parts, each cut towards 0: the second so short that its multiples by n are exact.
_PI_32 = (1.570796251296997, 7.549533620476723e-08, 2.5633440682570896e-12, 8.333742566364892e-20)
_PI_64 = (1.5707963267948966, 6.12323399538461e-17, 3.5215598651832e-27)
# n stays below 2^13 and 2^20.
_LIMIT = (12867.0, 1647000.0)

# sin r = r + r z p(z), cos r = 1 - z/2 + z^2 q(z), z = r^2
_SIN_32 = (-0.16666655, 0.008332189, -0.00019518286)
_SIN_64 = (
    -0.1666666666666663,
    0.008333333333321842,
    -0.00019841269829361049,
    2.7557313539774737e-06,
    -2.5050734651677078e-08,
    1.5895452725058794e-10,
)
_COS_32 = (0.041666646, -0.001388731, 2.4432327e-05)
_COS_64 = (
    0.041666666666666595,
    -0.001388888888887334,
    2.480158728899961e-05,
    -2.755731421605645e-07,
    2.0875705231410305e-09,
    -1.135873932176557e-11,
)


def any_lane(b: Builder, mask: Val) -> Val:
    """Whether some lane of an i1 vector is set."""
    return b.reduce("or", mask)


def _reduce_small(m: Lanes, size: Val) -> tuple[Val, Val, Val]:
    first, second, *rest = _PI_32 if m.is_f32 else _PI_64
    n, n_bits = m.round(size, _TWO_OVER_PI)
    start = m.fma(n, m.c(-first), size)
    r = m.fma(n, m.c(-second), start)
    low = m.fma(n, m.c(-second), m.sub(start, r))
    for part in rest:
        low = m.fma(n, m.c(-part), low)
    return n_bits, r, low


def _reduce(m: Lanes, size: Val) -> tuple[Val, Val, Val]:
    """``size = n pi/2 + r + low``: (integer with n at the low end, r, low)."""
    b = m.b
    small = _reduce_small(m, size)
    large = m.test("oge", size, m.pick(*_LIMIT))

    def far() -> list[Val]:
        return [
            m.select(large, new, old)
            for new, old in zip(reduce_large(m, size, large), small, strict=True)
        ]

    n, r, low = b.cond(any_lane(b, large), far, lambda: small, likely=False)
    return n, r, low


def _sine(m: Lanes, r: Val, low: Val, z: Val) -> Val:
    p = m.horner(z, _SIN_32 if m.is_f32 else _SIN_64)
    # sin(r + low) = sin r + low cos r
    correction = m.mul(low, m.fma(z, m.c(-0.5), m.c(1.0)))
    return m.add(r, m.fma(m.mul(r, z), p, correction))


def _cosine(m: Lanes, r: Val, low: Val, z: Val) -> Val:
    p = m.horner(z, _COS_32 if m.is_f32 else _COS_64)
    half = m.mul(z, m.c(0.5))
    high, high_low = m.fast_two_sum(m.c(1.0), m.neg(half))
    # cos(r + low) = cos r - low sin r
    rest = m.fma(m.mul(z, z), p, m.mul(m.neg(r), low))
    return m.add(high, m.add(high_low, rest))


def _circular(b: Builder, x: Val, quarter: int) -> Val:
    """sin(x + quarter pi/2); for 0 the result is odd in x, for 1 it is even."""
    m = Lanes(b, x.type)
    size = m.abs(x)
    n, r, low = _reduce(m, size)
    n = b.add(n, m.i(quarter)) if quarter else n
    z = m.mul(r, r)
    flipped = b.icmp("ne", b.and_(n, m.i(1)), m.i(0))
    value = m.select(flipped, _cosine(m, r, low, z), _sine(m, r, low, z))
    width = m.int.bits
    sign = b.shl(b.and_(n, m.i(2)), m.i(width - 2))
    if quarter == 0:
        sign = b.xor(sign, b.and_(m.bits(x), m.i(1 << (width - 1))))
    value = m.from_bits(b.xor(m.bits(value), sign))
    return m.select(m.test("one", size, m.c(math.inf)), value, m.sub(x, x))


def tan(b: Builder, x: Val) -> Val:
    """Tangent of x in radians; NaN at ±infinity."""
    m = Lanes(b, x.type)
    size = m.abs(x)
    n, r, low = _reduce(m, size)
    z = m.mul(r, r)
    sine, cosine = _sine(m, r, low, z), _cosine(m, r, low, z)
    odd = b.icmp("ne", b.and_(n, m.i(1)), m.i(0))
    value = b.fdiv(m.select(odd, cosine, sine), m.select(odd, sine, cosine))
    # tan(r + π/2) = −cos r / sin r
    width = m.int.bits
    sign = b.xor(b.shl(b.and_(n, m.i(1)), m.i(width - 1)), b.and_(m.bits(x), m.i(1 << (width - 1))))
    value = m.from_bits(b.xor(m.bits(value), sign))
    return m.select(m.test("one", size, m.c(math.inf)), value, m.sub(x, x))


def sin(b: Builder, x: Val) -> Val:
    """Sine of x in radians; NaN at ±infinity."""
    return _circular(b, x, 0)


def cos(b: Builder, x: Val) -> Val:
    """Cosine of x in radians; NaN at ±infinity."""
    return _circular(b, x, 1)
