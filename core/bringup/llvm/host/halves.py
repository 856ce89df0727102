"""Conversions of f16 for CPUs without instructions for them.

LLVM calls them by the names of the compiler's support library, which no process is sure to have.
They work on bits, exactly as the instructions do: to nearest even, NaNs quiet.
"""

from __future__ import annotations

from bringup.llvm.host.emit import define
from bringup.llvm.host.engine import Code, Engine
from bringup.llvm.text import Module, Val, const, const_bits, f16, f32, i16, i32

#: Functions here, and the names LLVM gives them.
HALVES = {"half_extend": "__extendhfsf2", "half_truncate": "__truncsfhf2"}

_SIGN, _REST = 0x8000, 0x7FFF
_INFINITY, _QUIET = 0x7F800000, 0x400000
#: From 65520 on, f32 rounds to infinity; below 2**-14 the result is subnormal.
_OVERFLOW, _NORMAL = 0x477FF000, 0x38800000


def provide_halves(engine: Engine) -> Code:
    """Compile the functions of `HALVES`, and make them known to what is loaded from now on."""
    module = Module()
    define_extend(module, "half_extend")
    define_truncate(module, "half_truncate")
    code = engine.compile_native(str(module), tuple(HALVES), 0)
    for name, symbol in HALVES.items():
        engine.symbol(symbol, code.addresses[name])
    return code


def _word(value: int) -> Val:
    return const(i32, value)


def define_extend(module: Module, name: str) -> None:
    """Define ``float name(half)``."""
    b, (half,) = define(module, name, f32, [("x", f16)], internal=False)
    bits = b.zext(b.bitcast(half, i16), i32)
    sign = b.shl(b.and_(bits, _word(_SIGN)), _word(16))
    rest = b.and_(bits, _word(_REST))
    shifted = b.shl(rest, _word(13))
    # The product moves the exponent to its place and makes subnormals normal, exactly.
    scaled = b.fmul(b.bitcast(shifted, f32), const_bits(f32, (127 + 112) << 23))
    special = b.or_(shifted, _word(_INFINITY))
    special = b.select(b.icmp("ugt", rest, _word(0x7C00)), b.or_(special, _word(_QUIET)), special)
    is_special = b.icmp("uge", rest, _word(0x7C00))
    magnitude = b.select(is_special, special, b.bitcast(scaled, i32))
    b.ret(b.bitcast(b.or_(magnitude, sign), f32))


def define_truncate(module: Module, name: str) -> None:
    """Define ``half name(float)``, to nearest even."""
    b, (x,) = define(module, name, f16, [("x", f32)], internal=False)
    bits = b.bitcast(x, i32)
    sign = b.and_(b.lshr(bits, _word(16)), _word(_SIGN))
    rest = b.and_(bits, _word(0x7FFFFFFF))
    # Adding just under half a unit, and the last kept bit, rounds ties to even.
    odd = b.and_(b.lshr(rest, _word(13)), _word(1))
    rounded = b.add(b.add(rest, odd), _word(0xFFF - (112 << 23)))
    normal = b.lshr(rounded, _word(13))
    # The sum with 1/2 has its last bit where the subnormal result has its own.
    sum_ = b.fadd(b.bitcast(rest, f32), const(f32, 0.5))
    subnormal = b.sub(b.bitcast(sum_, i32), _word(0x3F000000))
    magnitude = b.select(b.icmp("ult", rest, _word(_NORMAL)), subnormal, normal)
    magnitude = b.select(b.icmp("uge", rest, _word(_OVERFLOW)), _word(0x7C00), magnitude)
    payload = b.and_(b.lshr(rest, _word(13)), _word(0x3FF))
    nan = b.or_(payload, _word(0x7E00))
    magnitude = b.select(b.icmp("ugt", rest, _word(_INFINITY)), nan, magnitude)
    b.ret(b.bitcast(b.trunc(b.or_(magnitude, sign), i16), f16))
