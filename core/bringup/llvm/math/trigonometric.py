"""sin and cos for every argument.

|x| = n pi/2 + r, |r| <= pi/4.  Up to a limit, n pi/2 is subtracted in parts chosen so that the
steps are exact; beyond it, a branch taken only if some lane needs it multiplies by the bits of
2/pi that matter (Payne and Hanek): with x = M 2^e, bits of 2/pi whose product with 2^e is a
multiple of 4 change nothing, so a window of 2/pi starting there, times the integer M, gives x 2/pi
modulo 4 as a fixed-point number.  Polynomials by ``core/tests/llvm/derive.py`` (sin, cos).
"""

from __future__ import annotations

import math

from bringup.llvm.math._lanes import Lanes
from bringup.llvm.text import Builder, Function, Val, const, f64, i1, i64, i128, poison, struct_type
from bringup.maths.arctangent import HALF_PI

_TWO_OVER_PI = 0.6366197723675814
# pi/2 in parts, each cut towards 0: the second so short that its multiples by n are exact.
_PI_32 = (1.570796251296997, 7.549533620476723e-08, 2.5633440682570896e-12, 8.333742566364892e-20)
_PI_64 = (1.5707963267948966, 6.12323399538461e-17, 3.5215598651832e-27)
# n stays below 2^13 and 2^20.
_LIMIT = (12867.0, 1647000.0)

# sin r = r + r z p(z), cos r = 1 - z/2 + z^2 q(z), z = r^2
_SIN_32 = (-0.16666655, 0.008332189, -0.00019518286)
_SIN_64 = (
    -0.1666666666666663, 0.008333333333321842, -0.00019841269829361049, 2.7557313539774737e-06,
    -2.5050734651677078e-08, 1.5895452725058794e-10,
)  # fmt: skip
_COS_32 = (0.041666646, -0.001388731, 2.4432327e-05)
_COS_64 = (
    0.041666666666666595, -0.001388888888887334, 2.480158728899961e-05, -2.755731421605645e-07,
    2.0875705231410305e-09, -1.135873932176557e-11,
)  # fmt: skip


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


# 2/pi cut after 1216 bits.
_TWO_OVER_PI_BITS = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921"
    "cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde0598"
    "0fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5"
    "d0856033046fc7b6bab",
    16,
)


def reduce_large(m: Lanes, size: Val, large: Val) -> tuple[Val, Val, Val]:
    """``size = n pi/2 + r + low`` in the lanes ``large``: (n as integer, r, low)."""
    return _reduce_32(m, size) if m.is_f32 else _reduce_64(m, size, large)


def _words(width: int, count: int) -> list[int]:
    """2/pi cut into ``count`` words, after one word of zeros."""
    bits = _TWO_OVER_PI_BITS >> (1216 - width * (count - 1))
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
