"""pow: x^y = 2^(y log2 |x|), the logarithm carried to about 1.5 times the working precision.

|x| = 2^k t, sqrt(1/2) <= t < sqrt(2); s = (t - 1)/(t + 1); log2 t = s (c0 + c1 s^2 + …).  The first
terms are unevaluated sums of two floats.  Polynomials by ``core/tests/llvm/derive.py`` (log2_f32,
log2_f64, exp2).
"""

from __future__ import annotations

import math
from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic

V = TypeVar("V")

# 2 / ((2 i + 1) ln 2) as unevaluated sums, then the tail's polynomial.
_HEAD = {
    32: (
        (2.885390043258667, 3.851926067000022e-08),
        (0.9617967009544373, -7.028461812552678e-09),
    ),
    64: (
        (2.8853900817779268, 4.0710547481862066e-17),
        (0.9617966939259756, 5.0577616648125907e-17),
        (0.5770780163555853, 5.2551030481378675e-17),
    ),
}
_TAIL = {
    32: (0.5770802, 0.4118499, 0.337822),
    64: (
        0.41219858311119856, 0.32059889794346697, 0.262308195360664, 0.2219524705455939,
        0.1923943818003322, 0.16857976339711062, 0.17183689910892871,
    ),
}  # fmt: skip
# 2^r = 1 + r p(r)
_EXP2 = {
    32: (0.6931472, 0.24022648, 0.05550358, 0.009618424, 0.0013392565, 0.000153844),
    64: (
        0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.00961812910760181,
        0.0013333558146550349, 0.00015403530448582407, 1.5252733615040597e-05,
        1.3215439149790818e-06, 1.0178178963438089e-07, 7.073171300755282e-09,
        4.4339929391038326e-10,
    ),
}  # fmt: skip
# Exponents go through 2^∓64 where results may be subnormal or overflow, so that only the last
# multiplication rounds.
_LIFT = 64


def _times(m: Arithmetic[V], a: tuple[V, V], b: tuple[V, V]) -> tuple[V, V]:
    """The product of two unevaluated sums."""
    high, low = m.two_product(a[0], b[0])
    return high, m.muladd(a[0], b[1], m.muladd(a[1], b[0], low))


def _plus(m: Arithmetic[V], a: tuple[float, float], b: tuple[V, V]) -> tuple[V, V]:
    """A constant unevaluated sum plus a smaller one."""
    high, low = m.fast_two_sum(m.c(a[0]), b[0])
    return high, m.add(low, m.add(m.c(a[1]), b[1]))


def _log2(m: Arithmetic[V], x: V) -> tuple[V, V]:
    """log2 of finite positive x as an unevaluated sum; anything elsewhere."""
    y, shift = m.normalise(x)
    k, t = m.split(y, m.format.root_half)
    exponent = m.add(m.to_float(k), shift)
    f, (by, by_low) = m.sub(t, m.c(1.0)), m.two_sum(t, m.c(1.0))
    reciprocal = m.div(m.c(1.0), by)
    s = m.mul(f, reciprocal)
    rest = m.muladd(m.neg(s), by_low, m.fma(m.neg(s), by, f))
    ratio = (s, m.mul(rest, reciprocal))
    z = _times(m, ratio, ratio)
    head = _HEAD[m.width]
    series = m.two_product(z[0], m.horner(z[0], _TAIL[m.width]))
    for constant in reversed(head[1:]):
        series = _times(m, z, _plus(m, constant, series))
    high, low = _times(m, ratio, _plus(m, head[0], series))
    total, error = m.fast_two_sum(exponent, high)
    return m.fast_two_sum(total, m.add(error, low))


def two_to(m: Arithmetic[V], r: V) -> V:
    """2^r for |r| <= 1/2."""
    return m.muladd(m.horner(r, _EXP2[m.width]), r, m.c(1.0))


def _exp2_sum(m: Arithmetic[V], high: V, low: V) -> V:
    """2^(high + low), down to 0 and up to infinity; ``low`` is at most an ULP of ``high``."""
    mantissa = m.format.mantissa
    end = 160.0 if m.width == 32 else 1080.0
    y = m.at_most(m.at_least(high, -end), end)
    n, n_bits = m.round(y, 1.0)
    exact = m.test("oeq", y, high)
    p = two_to(m, m.add(m.sub(y, n), m.select(exact, low, m.c(0.0))))
    # Away from the ends by 2^∓64 first, so that the last multiplication alone rounds or overflows.
    negative = m.test("olt", y, m.c(0.0))
    lift = m.select(negative, m.i(_LIFT << mantissa), m.i(-_LIFT << mantissa))
    back = m.select(negative, m.c(2.0**-_LIFT), m.c(2.0**_LIFT))
    exponent = m.int_add(m.shift_left(n_bits, mantissa), lift)
    return m.mul(m.from_bits(m.int_add(m.bits(p), exponent)), back)


def _magnitude(m: Arithmetic[V], x: V, y: V) -> V:
    """``x ** y`` for x >= 0 and both not NaN, but for 0 * infinity in the exponent."""
    high, low = _log2(m, x)
    infinite, zero = m.test("oeq", x, m.c(math.inf)), m.test("oeq", x, m.c(0.0))
    high = m.select(infinite, m.c(math.inf), m.select(zero, m.c(-math.inf), high))
    product, error = m.two_product(y, high)
    return _exp2_sum(m, product, m.muladd(y, low, error))


def power(m: Arithmetic[V], x: V, y: V) -> V:
    """C99 ``pow``: x^0 = 1^y = 1 even for NaN; NaN for x < 0 and y not an integer."""
    one, none, inf = m.c(1.0), m.c(0.0), m.c(math.inf)
    size = m.abs(x)
    result = _magnitude(m, size, y)
    half = m.mul(y, m.c(0.5))
    whole = m.test("oeq", m.floor(y), y)
    odd = m.and_(whole, m.test("one", m.floor(half), half))
    result = m.select(odd, m.copysign(result, x), result)
    below = m.and_(m.test("olt", x, none), m.test("one", size, inf))
    undefined = m.and_(below, m.not_(whole))
    result = m.select(undefined, m.c(math.nan), result)
    result = m.select(m.test("uno", x, y), m.add(x, y), result)
    endless = m.test("oeq", m.abs(y), inf)
    unit = m.or_(m.test("oeq", x, one), m.and_(m.test("oeq", size, one), endless))
    return m.select(m.or_(m.test("oeq", y, none), unit), one, result)
