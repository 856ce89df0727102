"""pow: x^y = 2^(y log2 |x|), the logarithm carried to about 1.5 times the working precision.

|x| = 2^k t, sqrt(1/2) <= t < sqrt(2); s = (t - 1)/(t + 1); log2 t = s (c0 + c1 s^2 + …).  The first
terms are unevaluated sums of two floats.  Polynomials by ``core/tests/llvm/derive.py`` (log2_f32,
log2_f64).
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.math.exponential import exp2_sum
from bringup.llvm.math.logarithm import normalise, split
from bringup.llvm.text import Builder, Val

_SQRT_HALF = (0x3F3504F3, 0x3FE6A09E667F3BCD)
# 2 / ((2 i + 1) ln 2) as unevaluated sums, then the tail's polynomial.
_HEAD_32 = (
    (2.885390043258667, 3.851926067000022e-08),
    (0.9617967009544373, -7.028461812552678e-09),
)
_HEAD_64 = (
    (2.8853900817779268, 4.0710547481862066e-17),
    (0.9617966939259756, 5.0577616648125907e-17),
    (0.5770780163555853, 5.2551030481378675e-17),
)
_TAIL_32 = (0.5770802, 0.4118499, 0.337822)
_TAIL_64 = (
    0.41219858311119856,
    0.32059889794346697,
    0.262308195360664,
    0.2219524705455939,
    0.1923943818003322,
    0.16857976339711062,
    0.17183689910892871,
)

#: Exponents for which a square root is as good: common in code, and ten times as fast.
_HALVES = (0.5, -0.5, 1.5, -1.5)

Pair = tuple[Val, Val]


def _times(m: Lanes, a: Pair, b: Pair) -> Pair:
    """The product of two unevaluated sums."""
    high, low = m.two_product(a[0], b[0])
    return high, m.fma(a[0], b[1], m.fma(a[1], b[0], low))


def _plus(m: Lanes, a: tuple[float, float], b: Pair) -> Pair:
    """A constant unevaluated sum plus a smaller one."""
    high, low = m.fast_two_sum(m.c(a[0]), b[0])
    return high, m.add(low, m.add(m.c(a[1]), b[1]))


def _log2(m: Lanes, x: Val) -> Pair:
    """log2 of finite positive x as an unevaluated sum; anything elsewhere."""
    y, shift = normalise(m, x)
    k, t = split(m, y, _SQRT_HALF[0] if m.is_f32 else _SQRT_HALF[1])
    exponent = m.add(m.b.sitofp(k, m.type), shift)
    f, (by, by_low) = m.sub(t, m.c(1.0)), m.two_sum(t, m.c(1.0))
    reciprocal = m.b.fdiv(m.c(1.0), by)
    s = m.mul(f, reciprocal)
    rest = m.fma(m.neg(s), by_low, m.fma(m.neg(s), by, f))
    ratio = (s, m.mul(rest, reciprocal))
    z = _times(m, ratio, ratio)
    head, tail = (_HEAD_32, _TAIL_32) if m.is_f32 else (_HEAD_64, _TAIL_64)
    series: Pair = m.two_product(z[0], m.horner(z[0], tail))
    for constant in reversed(head[1:]):
        series = _times(m, z, _plus(m, constant, series))
    high, low = _times(m, ratio, _plus(m, head[0], series))
    total, error = m.fast_two_sum(exponent, high)
    return m.fast_two_sum(total, m.add(error, low))


def _magnitude(m: Lanes, x: Val, y: Val) -> Val:
    """``x ** y`` for x >= 0 and both not NaN, but for 0 * infinity in the exponent."""
    high, low = _log2(m, x)
    infinite, zero = m.test("oeq", x, m.c(math.inf)), m.test("oeq", x, m.c(0.0))
    high = m.select(infinite, m.c(math.inf), m.select(zero, m.c(-math.inf), high))
    product = m.mul(y, high)
    error = m.fma(y, low, m.fma(y, high, m.neg(product)))
    return exp2_sum(m, product, error)


def _by_root(m: Lanes, x: Val, y: float) -> Val:
    """``x ** y`` for y one of `_HALVES`: three roundings at most, none of them out of range before
    the last.
    """
    b, inf = m.b, m.c(math.inf)
    # -0 and -infinity have the powers of 0 and infinity.
    size = m.select(m.test("oeq", x, m.c(-math.inf)), inf, m.add(x, m.c(0.0)))
    root = b.intrinsic("llvm.sqrt", m.type, (size,))
    if y < 0:
        root = b.fdiv(m.c(1.0), root)
    if y == 1.5:
        return m.mul(size, root)
    return b.fdiv(root, size) if y == -1.5 else root


def power(b: Builder, x: Val, y: Val) -> Val:
    """C99 ``pow``: x^0 = 1^y = 1 even for NaN; NaN for x < 0 and y not an integer."""
    m = Lanes(b, x.type)
    for exponent in _HALVES:
        if y.text == m.c(exponent).text:
            return _by_root(m, x, exponent)
    one, none, inf = m.c(1.0), m.c(0.0), m.c(math.inf)
    size = m.abs(x)
    result = _magnitude(m, size, y)
    half = m.mul(y, m.c(0.5))
    whole = m.test("oeq", b.intrinsic("llvm.floor", m.type, (y,)), y)
    odd = b.and_(whole, m.test("one", b.intrinsic("llvm.floor", m.type, (half,)), half))
    result = m.select(odd, m.copysign(result, x), result)
    below = b.and_(m.test("olt", x, none), m.test("one", size, inf))
    undefined = b.and_(below, b.not_(whole))
    result = m.select(undefined, m.c(math.nan), result)
    result = m.select(m.test("uno", x, y), m.add(x, y), result)
    endless = m.test("oeq", m.abs(y), inf)
    unit = b.or_(m.test("oeq", x, one), b.and_(m.test("oeq", size, one), endless))
    return m.select(b.or_(m.test("oeq", y, none), unit), one, result)
