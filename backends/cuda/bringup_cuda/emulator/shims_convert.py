"""Conversions that are instructions of the GPU."""

from __future__ import annotations

from bringup.llvm.host.emit import Emit
from bringup.llvm.math import f32_to_bf16
from bringup.llvm.text import Val, bf16, f32, poison, vec
from bringup_cuda.emulator.shims import Call, shim


def _one(b: Emit, call: Call) -> Val:
    return f32_to_bf16(b, call.args[0])


def _two(b: Emit, call: Call) -> Val:
    """The first argument goes to the upper half."""
    high, low = (f32_to_bf16(b, x) for x in call.args)
    made = b.insertelement(poison(vec(bf16, 2)), low, 0)
    return b.insertelement(made, high, 1)


SHIMS = (
    shim("llvm.nvvm.f2bf16.rn", bf16, (f32,), _one),
    shim("llvm.nvvm.ff2bf16x2.rn", vec(bf16, 2), (f32, f32), _two),
)
