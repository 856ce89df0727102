"""Conversions that are instructions of the GPU."""

from __future__ import annotations

from bringup.llvm.host.emit import Emit
from bringup.llvm.math import f32_to_bf16
from bringup.llvm.text import Val, bf16, const, f32, i32, poison, vec
from bringup_cuda_emulator.shims import Call, shim


def _one(b: Emit, call: Call) -> Val:
    return f32_to_bf16(b, call.args[0])


def _two(b: Emit, call: Call) -> Val:
    """The first argument goes to the upper half."""
    high, low = (f32_to_bf16(b, x) for x in call.args)
    made = b.insertelement(poison(vec(bf16, 2)), low, 0)
    return b.insertelement(made, high, 1)


def _tf32(b: Emit, call: Call) -> Val:
    """Half of the last bit that is kept is added, unless to an infinity or NaN, and what is behind
    that bit is cut off, as the assembler has it for sm_80 to sm_120: ties go away from zero, and a
    NaN by its last 13 bits alone becomes an infinity.
    """
    bits = b.bitcast(call.args[0], i32)
    size = b.and_(bits, const(i32, 0x7FFFFFFF))
    finite = b.icmp("ult", size, const(i32, 0x7F800000))
    rounded = b.select(finite, b.add(bits, const(i32, 1 << 12)), bits)
    return b.and_(rounded, const(i32, -(1 << 13)))


SHIMS = (
    shim("llvm.nvvm.f2bf16.rn", bf16, (f32,), _one),
    shim("llvm.nvvm.f2tf32.rna", i32, (f32,), _tf32),
    shim("llvm.nvvm.ff2bf16x2.rn", vec(bf16, 2), (f32, f32), _two),
)
