"""Payne and Hanek: reduce huge arguments by pi/2 with the bits of 2/pi that matter.

x = M 2^e.  Bits of 2/pi whose product with 2^e is a multiple of 4 change nothing, so a window of
2/pi starting there, times the integer M, gives x 2/pi modulo 4 as a fixed-point number.
"""

from __future__ import annotations

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Function, Val, const, f64, i1, i64, i128, poison, struct_type

# 2/pi cut after 1216 bits.
_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921"
    "cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde0598"
    "0fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5"
    "d0856033046fc7b6bab",
    16,
)
_HALF_PI_32 = (1.5707963705062866, -4.371138828673793e-08)
_HALF_PI_64 = (1.5707963267948966, 6.123233995736766e-17)


def reduce_large(m: Lanes, size: Val, large: Val) -> tuple[Val, Val, Val]:
    """``size = n pi/2 + r + low`` in the lanes ``large``: (n as integer, r, low)."""
    return _reduce_32(m, size) if m.is_f32 else _reduce_64(m, size, large)


def _words(width: int, count: int) -> list[int]:
    """2/pi cut into ``count`` words, after one word of zeros."""
    bits = _TWO_OVER_PI >> (1216 - width * (count - 1))
    return [bits >> (width * (count - 1 - k)) & ((1 << width) - 1) for k in range(count)]


def _reduce_32(m: Lanes, size: Val) -> tuple[Val, Val, Val]:
    """All lanes at once; the words are chosen by selects, so there is no table in memory."""
    b = m.b
    bits = m.bits(size)
    mantissa = b.or_(b.and_(bits, m.i(0x7FFFFF)), m.i(0x800000))
    start = b.sub(b.lshr(bits, m.i(23)), m.i(152 - 32))
    index, shift = b.lshr(start, m.i(5)), b.and_(start, m.i(31))
    words = _words(32, 8)
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
    half_pi, half_pi_low = (m.c(part * scale) for part in _HALF_PI_32)
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
            made = _call(b, function, b.extractelement(size, lane))
            return [
                b.insertelement(old, new, lane) for old, new in zip(loop.carried, made, strict=True)
            ]

        loop.next(*b.cond(b.extractelement(large, lane), compute, lambda: loop.carried))
    n, r, low = loop.carried
    return n, r, low


_NAME = "bringup.reduce_half_pi.f64"


def _call(b: Builder, function: Function, x: Val) -> tuple[Val, Val, Val]:
    made = b.call(function, [x])
    return b.extractvalue(made, 0), b.extractvalue(made, 1), b.extractvalue(made, 2)


def _define_reduction(outer: Builder) -> Function:
    """``{i64 n, double r, double low} f(double x)`` for 2^20 < x < infinity."""
    result = struct_type(i64, f64, f64)
    function = outer.module.function(
        _NAME, result, [("x", f64)], "noinline cold nounwind", linkage="internal"
    )
    table = outer.module.global_constant(f"{_NAME}.bits", i64, _words(64, 20))
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
    made = poison(result)
    for k, v in enumerate((n, r, low)):
        made = b.insertvalue(made, v, k)
    b.ret(made)
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
    half_pi, half_pi_low = (m.c(part) for part in _HALF_PI_64)
    r, r_low = m.two_product(high, half_pi)
    r_low = m.add(r_low, m.fma(high, half_pi_low, m.mul(low, half_pi)))
    negative = b.icmp("slt", fraction, const(i128, 0))
    r, r_low = m.select(negative, m.neg(r), r), m.select(negative, m.neg(r_low), r_low)
    return b.trunc(n, i64), r, r_low
