"""The exact remainder of floats in integer steps, for machines whose LLVM target rounds ``frem``.

A number is an integer times a power of two; the integer of the dividend is shifted up to the power
of the divisor by as many bits at a time as its remainder leaves room for.
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import BINARY32, BINARY64, Format
from bringup.llvm.text import Builder, Val, const, f32, poison


def remainder(b: Builder, x: Val, y: Val) -> Val:
    """``x − y · trunc(x / y)`` of f32 or f64, exact, with the sign of x; lane by lane."""
    if x.type.lanes == 1:
        return _one(b, x, y)
    made = poison(x.type)
    for n in range(x.type.lanes):
        lane = _one(b, b.extractelement(x, n), b.extractelement(y, n))
        made = b.insertelement(made, lane, n)
    return made


def _one(b: Builder, x: Val, y: Val) -> Val:
    form = BINARY32 if x.type is f32 else BINARY64
    word, zero = form.bits, const(form.bits, 0)
    infinity = const(word, (2 * form.bias + 1) << form.mantissa)
    left, right = (b.bitcast(b.fabs(v), word) for v in (x, y))
    small = b.icmp("ult", left, right)
    unknown = b.or_(b.icmp("uge", left, infinity), b.icmp("ugt", right, infinity))
    unknown = b.or_(unknown, b.icmp("eq", right, zero))
    (power, whole), (base, part) = (_parts(b, form, bits) for bits in (left, right))
    part = b.select(b.icmp("eq", part, zero), const(word, 1), part)
    far = b.select(b.or_(small, unknown), zero, b.sub(power, base))
    step = const(word, word.bits - form.mantissa - 1)
    with b.while_loop([far, b.urem(whole, part)], lambda now: b.icmp("ne", now[0], zero)) as loop:
        left_over, rest = loop.carried
        bits = b.intrinsic("llvm.umin", word, (left_over, step))
        loop.next(b.sub(left_over, bits), b.urem(b.shl(rest, bits), part))
    made = b.fmul(b.uitofp(loop.carried[1], x.type), _unit(b, form, base))
    made = b.intrinsic("llvm.copysign", x.type, (made, x))
    made = b.select(small, x, made)
    return b.select(unknown, const(x.type, math.nan), made)


def _parts(b: Builder, form: Format, bits: Val) -> tuple[Val, Val]:
    """The exponent, at least 1, and the integer that it scales."""
    word, hidden = form.bits, 1 << form.mantissa
    exponent = b.lshr(bits, const(word, form.mantissa))
    whole = b.and_(bits, const(word, hidden - 1))
    normal = b.icmp("ne", exponent, const(word, 0))
    return (
        b.select(normal, exponent, const(word, 1)),
        b.select(normal, b.or_(whole, const(word, hidden)), whole),
    )


def _unit(b: Builder, form: Format, exponent: Val) -> Val:
    """What the integer of a number of this exponent counts, which may be subnormal."""
    word, mantissa = form.bits, const(form.bits, form.mantissa)
    low = b.intrinsic("llvm.umin", word, (exponent, mantissa))
    subnormal = b.shl(const(word, 1), b.sub(low, const(word, 1)))
    normal = b.shl(b.sub(exponent, mantissa), mantissa)
    above = b.icmp("ugt", exponent, mantissa)
    return b.bitcast(b.select(above, normal, subnormal), form.real)
