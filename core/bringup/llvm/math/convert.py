"""Conversions to and from the 16-bit floats, exact in every corner.

LLVM's own ``fptrunc`` to bfloat is not used: where x86 has the instruction it flushes subnormals,
and where it does not, the vector becomes library calls.  ``fptrunc`` from f32 to half and ``fpext``
are right; from f64 to half it is a library call on most x86, and going through f32 rounds twice, so
the first of the two steps rounds to odd.
"""

from __future__ import annotations

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Val, bf16, const, f16, f32, i16, i32


def f32_to_bf16(b: Builder, x: Val) -> Val:
    """Round f32 to bf16, to nearest even; subnormals kept; NaN stays NaN, made quiet."""
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


def f32_to_f16(b: Builder, x: Val) -> Val:
    """Round f32 to half, to nearest even; subnormals kept."""
    return b.fptrunc(x, f16)


def f16_to_f32(b: Builder, x: Val) -> Val:
    """Widen half to f32, exactly."""
    return b.fpext(x, f32)


def f64_to_f16(b: Builder, x: Val) -> Val:
    """Round f64 to half once, to nearest even."""
    return b.fptrunc(f64_to_f32_odd(b, x), f16)
