"""Conversions to and from the floats of 16 and 8 bits, exact in every corner.

LLVM's own ``fptrunc`` to bfloat is not used: where x86 has the instruction it flushes subnormals,
and where it does not, the vector becomes library calls.  ``fptrunc`` from f32 to half and ``fpext``
are right; from f64 to half it is a library call on most x86, and going through f32 rounds twice, so
the first of the two steps rounds to odd.
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val, bf16, const, f16, f32, i8, i16, i32


def f32_to_bf16(b: Builder, x: Val) -> Val:
    """Round f32 to bf16, to nearest even; subnormals kept; NaN stays NaN, bits_out quiet."""
    native = b.module.native.get("f32_to_bf16")
    if native is not None:
        return native(b, x)
    m = Lanes(b, x.type)
    bits = m.bits(x)
    lowest = b.and_(b.lshr(bits, m.i(16)), m.i(1))
    rounded = b.add(b.add(bits, m.i(0x7FFF)), lowest)
    quiet = b.or_(bits, m.i(0x400000))
    chosen = m.select(m.test("uno", x, x), quiet, rounded)
    return b.bitcast(b.trunc(b.lshr(chosen, m.i(16)), i16), bf16)


def bf16_to_f32(b: Builder, x: Val) -> Val:
    """Widen bf16 to f32, exactly."""
    wide = b.zext(b.bitcast(x, i16), i32)
    return b.bitcast(b.shl(wide, const(wide.type, 16)), f32)


def f64_to_f32_odd(b: Builder, x: Val) -> Val:
    """Round f64 to f32, inexact results to the neighbour with odd last bit.

    Rounding that once more, to 22 bits or fewer, gives what one rounding would have.
    """
    nearest = b.fptrunc(x, f32)
    m = Lanes(b, nearest.type)
    back, wide = b.fpext(nearest, x.type.scalar), Lanes(b, x.type)
    bits = m.bits(nearest)
    even = b.icmp("eq", b.and_(bits, m.i(1)), m.i(0))
    inexact = b.and_(even, wide.test("one", back, x))
    too_far = wide.test("ogt", wide.abs(back), wide.abs(x))
    step = m.select(too_far, m.i(-1), m.i(1))
    return m.from_bits(b.add(bits, m.select(inexact, step, m.i(0))))


def f64_to_bf16(b: Builder, x: Val) -> Val:
    """Round f64 to bf16 once, to nearest even."""
    return f32_to_bf16(b, f64_to_f32_odd(b, x))


def f64_to_f16(b: Builder, x: Val) -> Val:
    """Round f64 to half once, to nearest even."""
    return b.fptrunc(f64_to_f32_odd(b, x), f16)


# Stored bits of the significand, exponent bias, the largest f32 that rounds to a finite number, the
# bits of what is beyond, and of NaN.
_E4M3FN = (3, 7, 464.0, 0x7F, 0x7F)
_E5M2 = (2, 15, math.nextafter(61440.0, 0), 0x7C, 0x7E)


def _f32_to_f8(b: Builder, x: Val, layout: tuple[int, int, float, int, int]) -> Val:
    """Round f32 to the bits of an 8-bit float, to nearest even."""
    stored, bias, top, beyond, quiet = layout
    m = Lanes(b, x.type)
    size = m.abs(x)
    bits, lost = m.bits(size), 23 - stored
    lowest = b.and_(b.lshr(bits, m.i(lost)), m.i(1))
    rounded = b.add(b.add(bits, m.i((1 << (lost - 1)) - 1)), lowest)
    normal = b.lshr(b.sub(rounded, m.i((127 - bias) << 23)), m.i(lost))
    # Below the normal range adding a number of the right size rounds at the last bit that is kept.
    shifter = 2.0 ** (1 - bias - stored + 23)
    tiny = b.sub(m.bits(m.add(size, m.c(shifter))), m.bits(m.c(shifter)))
    bits_out = m.select(m.test("olt", size, m.c(2.0 ** (1 - bias))), tiny, normal)
    bits_out = m.select(m.test("ogt", size, m.c(top)), m.i(beyond), bits_out)
    bits_out = m.select(m.test("uno", x, x), m.i(quiet), bits_out)
    sign = b.and_(b.lshr(m.bits(x), m.i(24)), m.i(0x80))
    return b.trunc(b.or_(bits_out, sign), i8)


def f32_to_f8e4m3fn(b: Builder, x: Val) -> Val:
    """Round f32 to the bits of f8e4m3fn, to nearest even; NaN beyond 464 and for infinity."""
    return _f32_to_f8(b, x, _E4M3FN)


def f32_to_f8e5m2(b: Builder, x: Val) -> Val:
    """Round f32 to the bits of f8e5m2, to nearest even; infinity from 61440 on."""
    return _f32_to_f8(b, x, _E5M2)


def f8e4m3fn_to_f32(b: Builder, x: Val) -> Val:
    """Widen the bits of f8e4m3fn, exactly: as a half whose exponent is 8 less."""
    wide = b.zext(x, i16)
    sign = b.shl(b.and_(wide, const(wide.type, 0x80)), const(wide.type, 8))
    size = b.and_(wide, const(wide.type, 0x7F))
    half = b.bitcast(b.or_(sign, b.shl(size, const(wide.type, 7))), f16)
    m = Lanes(b, b.fpext(half, f32).type)
    value = m.mul(b.fpext(half, f32), m.c(256.0))
    return m.select(b.icmp("eq", size, const(wide.type, 0x7F)), m.c(math.nan), value)


def f8e5m2_to_f32(b: Builder, x: Val) -> Val:
    """Widen the bits of f8e5m2, exactly: they are the upper ones of a half."""
    wide = b.zext(x, i16)
    return b.fpext(b.bitcast(b.shl(wide, const(wide.type, 8)), f16), f32)
