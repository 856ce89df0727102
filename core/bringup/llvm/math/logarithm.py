"""log and log1p.

x = 2^k (1 + f), 2/3 <= 1 + f < 4/3, and log x = k ln 2 + log(1 + f).  k ln2_high is exact, and the
sum with f keeps its rounding error.  Polynomials by ``core/tests/llvm/derive.py`` (log, atanh).
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val

# High parts short enough for exact products with any exponent.
_LN2_32 = (0.693145751953125, 1.428606765330187e-06)
_LN2_64 = (0.6931471805598903, 5.497923018708371e-14)
_TWO_THIRDS = (0x3F2AAAAB, 0x3FE5555555555555)

# log(1 + f) = f - f^2/2 + f^3 p(f)
_LOG_32 = (
    0.33333334, -0.24999887, 0.19999737, -0.16677718, 0.1430218, -0.12212567, 0.1075286,
    -0.12797931, 0.121208414,
)  # fmt: skip
# log((1 + s)/(1 - s)) = 2 s + s z p(z), z = s^2
_ATANH_64 = (
    0.666666666666666, 0.4000000000005668, 0.2857142855582561, 0.2222222429703153,
    0.18181665827180715, 0.15391113979398527, 0.13173558277114725, 0.13843359374928008,
)  # fmt: skip


def _edge(m: Lanes) -> int:
    """The bits of 2/3."""
    return _TWO_THIRDS[0] if m.is_f32 else _TWO_THIRDS[1]


def _curve(m: Lanes, f: Val) -> Val:
    """``log(1 + f) - f``."""
    square = m.mul(f, f)
    if m.is_f32:
        return m.mul(square, m.fma(f, m.horner(f, _LOG_32), m.c(-0.5)))
    s = m.div(f, m.add(f, m.c(2.0)))
    z = m.mul(s, s)
    half = m.mul(square, m.c(0.5))
    rest = m.fma(m.horner(z, _ATANH_64), z, half)
    return m.fma(s, rest, m.neg(half))


def _assemble(m: Lanes, k: Val, f: Val, f_low: Val | None) -> Val:
    """``k ln 2 + log(1 + f + f_low)``, k a float."""
    ln2_high, ln2_low = _LN2_32 if m.is_f32 else _LN2_64
    high, low = m.fast_two_sum(m.mul(k, m.c(ln2_high)), f)
    rest = m.fma(k, m.c(ln2_low), _curve(m, f))
    if f_low is not None:
        # log(1 + f + f_low) - log(1 + f) = f_low / (1 + f)
        rest = m.add(rest, m.fma(m.neg(f_low), f, f_low))
    return m.add(high, m.add(low, rest))


def _outside(m: Lanes, x: Val, result: Val) -> Val:
    """Log's values at 0, below 0, at infinity and NaN."""
    result = m.select(m.test("oeq", x, m.c(0.0)), m.c(-math.inf), result)
    result = m.select(m.test("ult", x, m.c(math.inf)), result, x)
    bad = m.test("ult", x, m.c(0.0))
    return m.select(bad, m.c(math.nan), result)


def log(b: Builder, x: Val) -> Val:
    """Natural logarithm; -inf at ±0, NaN below."""
    m = Lanes(b, x.type)
    y, shift = m.normalise(x)
    k, mantissa = m.split(y, _edge(m))
    exponent = m.add(b.sitofp(k, m.type), shift)
    return _outside(m, x, _assemble(m, exponent, m.sub(mantissa, m.c(1.0)), None))


def log1p(b: Builder, x: Val) -> Val:
    """log(1 + x), without cancellation near 0; -inf at -1, NaN below."""
    m = Lanes(b, x.type)
    one = m.c(1.0)
    u, u_low = m.two_sum(one, x)
    k, mantissa = m.split(u, _edge(m))
    # Far out the rounding error of 1 + x no longer counts, and 2^-k need not exist.
    near = m.test("olt", u, m.c(2.0**60))
    u_low = m.select(near, m.mul(u_low, m.power_of_two(b.sub(m.i(0), k))), m.c(0.0))
    f, f_low = m.fast_two_sum(m.sub(mantissa, one), u_low)
    result = _assemble(m, b.sitofp(k, m.type), f, f_low)
    return m.copysign(_outside(m, u, result), x)
