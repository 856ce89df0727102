"""sin, cos and tan for every argument.

|x| = n pi/2 + r, |r| <= pi/4: near 0 as `bringup.maths.circular` has it; far out, in a branch taken
only if some lane needs it, by the bits of 2/pi that matter.
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Function, Val, const, f64, i1, i64, i128, poison, struct_type
from bringup.maths.arctangent import HALF_PI
from bringup.maths.circular import LIMIT, cosine, reduce_near, sine, words_of


def any_lane(b: Builder, mask: Val) -> Val:
    """Whether some lane of an i1 vector is set."""
    return b.reduce("or", mask)


def _reduce(m: Lanes, size: Val) -> tuple[Val, Val, Val]:
    """``size = n pi/2 + r + low``: (integer with n at the low end, r, low)."""
    b = m.b
    small = reduce_near(m, size)
    large = m.test("oge", size, m.c(LIMIT[m.width]))

    def far() -> list[Val]:
        return [
            m.select(large, new, old)
            for new, old in zip(reduce_large(m, size, large), small, strict=True)
        ]

    n, r, low = b.cond(any_lane(b, large), far, lambda: small, likely=False)
    return n, r, low


def _circular(b: Builder, x: Val, quarter: int) -> Val:
    """sin(x + quarter pi/2); for 0 the result is odd in x, for 1 it is even."""
    m = Lanes(b, x.type)
    size = m.abs(x)
    n, r, low = _reduce(m, size)
    n = b.add(n, m.i(quarter)) if quarter else n
    z = m.mul(r, r)
    flipped = b.icmp("ne", b.and_(n, m.i(1)), m.i(0))
    value = m.select(flipped, cosine(m, r, low, z), sine(m, r, low, z))
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
    over, under = sine(m, r, low, z), cosine(m, r, low, z)
    odd = b.icmp("ne", b.and_(n, m.i(1)), m.i(0))
    value = b.fdiv(m.select(odd, under, over), m.select(odd, over, under))
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


def reduce_large(m: Lanes, size: Val, large: Val) -> tuple[Val, Val, Val]:
    """``size = n pi/2 + r + low`` in the lanes ``large``: (n as integer, r, low)."""
    return _reduce_32(m, size) if m.is_f32 else _reduce_64(m, size, large)


def _reduce_32(m: Lanes, size: Val) -> tuple[Val, Val, Val]:
    """All lanes at once; the words are chosen by selects, so there is no table in memory."""
    b = m.b
    bits = m.bits(size)
    mantissa = b.or_(b.and_(bits, m.i(0x7FFFFF)), m.i(0x800000))
    start = b.sub(b.lshr(bits, m.i(23)), m.i(152 - 32))
    index, shift = b.lshr(start, m.i(5)), b.and_(start, m.i(31))
    words = words_of(32, 8)
    near = [m.i(w) for w in words[:4]]
    for step in range(1, 5):
        here = b.icmp("eq", index, m.i(step))
        near = [b.select(here, m.i(words[step + k]), old) for k, old in enumerate(near)]
    window = [b.intrinsic("llvm.fshl", m.int, (near[k], near[k + 1], shift)) for k in range(3)]
    wide = i64.with_lanes(size.type.lanes)
    factor = b.zext(mantissa, wide)
    parts = [b.mul(factor, b.zext(w, wide)) for w in window]
    total = b.add(b.shl(parts[0], const(wide, 32)), parts[1])
    total = b.add(total, b.lshr(parts[2], const(wide, 32)))
    n = b.lshr(b.add(total, const(wide, 1 << 61)), const(wide, 62))
    fraction = b.sub(total, b.shl(n, const(wide, 62)))
    high = b.sitofp(fraction, m.type)
    low = b.sitofp(b.sub(fraction, b.fptosi(high, wide)), m.type)
    scale = 2.0**-62
    half_pi, half_pi_low = (m.c(part * scale) for part in HALF_PI[32])
    r, r_low = m.two_product(high, half_pi)
    r_low = m.add(r_low, m.fma(high, half_pi_low, m.mul(low, half_pi)))
    return b.trunc(n, m.int), r, r_low


def _reduce_64(m: Lanes, size: Val, large: Val) -> tuple[Val, Val, Val]:
    """Lane by lane, through a function of its own."""
    b = m.b
    function = b.module.functions.get(_NAME) or _define_reduction(b)
    lanes = size.type.lanes
    if lanes == 1:
        return _call(b, function, size)
    zeros = (const(m.int, 0), m.c(0.0), m.c(0.0))
    rolled = b.module.loop_hints("llvm.loop.unroll.disable")
    with b.loop(const(i64, 0), const(i64, lanes), carried=zeros, meta=rolled) as loop:
        lane = loop.index

        def compute() -> list[Val]:
            reduced = _call(b, function, b.extractelement(size, lane))
            return [
                b.insertelement(old, new, lane)
                for old, new in zip(loop.carried, reduced, strict=True)
            ]

        loop.next(*b.cond(b.extractelement(large, lane), compute, lambda: loop.carried))
    n, r, low = loop.carried
    return n, r, low


_NAME = "bringup.reduce_half_pi.f64"


def _call(b: Builder, function: Function, x: Val) -> tuple[Val, Val, Val]:
    reduced = b.call(function, [x])
    return b.extractvalue(reduced, 0), b.extractvalue(reduced, 1), b.extractvalue(reduced, 2)


def _define_reduction(outer: Builder) -> Function:
    """``{i64 n, double r, double low} f(double x)`` for 2^20 < x < infinity."""
    result = struct_type(i64, f64, f64)
    function = outer.module.function(
        _NAME, result, [("x", f64)], "noinline cold nounwind", linkage="internal"
    )
    table = outer.module.global_constant(f"{_NAME}.bits", i64, words_of(64, 20))
    b = Builder(function.block("entry"))
    m = Lanes(b, f64)
    bits = m.bits(function.args[0])
    mantissa = b.or_(b.and_(bits, m.i((1 << 52) - 1)), m.i(1 << 52))
    # Infinity and NaN come here too: their exponent must not lead outside the table.
    start = b.sub(b.and_(b.lshr(bits, m.i(52)), m.i(2047)), m.i(1077 - 64))
    index, shift = b.lshr(start, m.i(6)), b.and_(start, m.i(63))
    words = [b.load(i64, b.gep(table, b.add(index, m.i(k)), i64), 8) for k in range(4)]
    window = [b.intrinsic("llvm.fshl", i64, (words[k], words[k + 1], shift)) for k in range(3)]
    factor = b.zext(mantissa, i128)
    parts = [b.mul(factor, b.zext(w, i128)) for w in window]
    total = b.add(b.shl(parts[0], const(i128, 64)), parts[1])
    total = b.add(total, b.lshr(parts[2], const(i128, 64)))
    n, r, low = _fixed_to_radians(m, total)
    value = poison(result)
    for k, v in enumerate((n, r, low)):
        value = b.insertvalue(value, v, k)
    b.ret(value)
    return function


def _fixed_to_radians(m: Lanes, total: Val) -> tuple[Val, Val, Val]:
    """Split a fixed-point number with 126 fraction bits: (n, r, low) in units of pi/2 and 1."""
    b = m.b
    n = b.lshr(b.add(total, const(i128, 1 << 125)), const(i128, 126))
    fraction = b.sub(total, b.shl(n, const(i128, 126)))
    size = b.intrinsic("llvm.abs", i128, (fraction, const(i1, 0)), (i128,))
    zeros = b.intrinsic("llvm.ctlz", i128, (size, const(i1, 0)), (i128,))
    normal = b.shl(size, zeros)
    top = b.trunc(b.lshr(normal, const(i128, 75)), i64)
    bottom = b.trunc(b.and_(b.lshr(normal, const(i128, 22)), const(i128, (1 << 53) - 1)), i64)
    # size = (top + bottom 2^-53) 2^(75 - zeros), to be divided by 2^126
    exponent = b.sub(m.i(75 - 126), b.trunc(zeros, i64))
    scale = m.power_of_two(exponent)
    high = m.mul(b.sitofp(top, f64), scale)
    low = m.mul(m.mul(b.sitofp(bottom, f64), m.c(2.0**-53)), scale)
    half_pi, half_pi_low = (m.c(part) for part in HALF_PI[64])
    r, r_low = m.two_product(high, half_pi)
    r_low = m.add(r_low, m.fma(high, half_pi_low, m.mul(low, half_pi)))
    negative = b.icmp("slt", fraction, const(i128, 0))
    r, r_low = m.select(negative, m.neg(r), r), m.select(negative, m.neg(r_low), r_low)
    return b.trunc(n, i64), r, r_low
