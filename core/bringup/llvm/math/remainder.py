"""The exact remainder of floats in integer steps, for machines whose LLVM target rounds ``frem``.

A number is an integer times a power of two; the integer of the dividend is shifted up to the power
of the divisor by as many bits at a time as its remainder leaves room for.
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val, poison


def remainder(b: Builder, x: Val, y: Val) -> Val:
    """``x − y · trunc(x / y)`` of f32 or f64, exact, with the sign of x; lane by lane."""
    if x.type.lanes == 1:
        return _one(b, x, y)
    result = poison(x.type)
    for n in range(x.type.lanes):
        lane = _one(b, b.extractelement(x, n), b.extractelement(y, n))
        result = b.insertelement(result, lane, n)
    return result


def _one(b: Builder, x: Val, y: Val) -> Val:
    m = Lanes(b, x.type)
    word, zero, mantissa = m.int, m.i(0), m.format.mantissa
    infinity = m.i((2 * m.format.bias + 1) << mantissa)
    left, right = (m.bits(m.abs(v)) for v in (x, y))
    small = b.icmp("ult", left, right)
    unknown = b.or_(b.icmp("uge", left, infinity), b.icmp("ugt", right, infinity))
    unknown = b.or_(unknown, b.icmp("eq", right, zero))
    (power, whole), (base, part) = (_parts(m, bits) for bits in (left, right))
    part = b.select(b.icmp("eq", part, zero), m.i(1), part)
    far = b.select(b.or_(small, unknown), zero, b.sub(power, base))
    step = m.i(m.width - mantissa - 1)
    with b.while_loop([far, b.urem(whole, part)], lambda now: b.icmp("ne", now[0], zero)) as loop:
        left_over, rest = loop.carried
        bits = b.intrinsic("llvm.umin", word, (left_over, step))
        loop.next(b.sub(left_over, bits), b.urem(b.shl(rest, bits), part))
    result = b.fmul(b.uitofp(loop.carried[1], x.type), _unit(m, base))
    result = b.select(small, x, m.copysign(result, x))
    return b.select(unknown, m.c(math.nan), result)


def _parts(m: Lanes, bits: Val) -> tuple[Val, Val]:
    """The exponent, at least 1, and the integer that it scales."""
    b, hidden = m.b, 1 << m.format.mantissa
    exponent = b.lshr(bits, m.i(m.format.mantissa))
    whole = b.and_(bits, m.i(hidden - 1))
    normal = b.icmp("ne", exponent, m.i(0))
    return (
        b.select(normal, exponent, m.i(1)),
        b.select(normal, b.or_(whole, m.i(hidden)), whole),
    )


def _unit(m: Lanes, exponent: Val) -> Val:
    """What the integer of a number of this exponent counts, which may be subnormal."""
    b, mantissa = m.b, m.i(m.format.mantissa)
    low = b.intrinsic("llvm.umin", m.int, (exponent, mantissa))
    subnormal = b.shl(m.i(1), b.sub(low, m.i(1)))
    normal = b.shl(b.sub(exponent, mantissa), mantissa)
    above = b.icmp("ugt", exponent, mantissa)
    return m.from_bits(b.select(above, normal, subnormal))
