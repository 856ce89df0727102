"""Arithmetic as LLVM instructions, for the definitions of `bringup.maths` and those beside it."""

from __future__ import annotations

from typing import ClassVar

from bringup.llvm.text import Builder, Type, Val, const, f32, f64, integer
from bringup.maths.arithmetic import Arithmetic


class Lanes(Arithmetic[Val]):
    """Arithmetic on values of one float type, scalar or vector."""

    has_fma: ClassVar[bool] = True

    def __init__(self, b: Builder, type: Type) -> None:
        assert type.scalar in (f32, f64), f"inline math is for f32 and f64, not {type}"
        super().__init__(type.scalar.bits)
        self.b = b
        self.type = type
        self.int = integer(self.width).with_lanes(type.lanes)
        self.add, self.sub, self.mul, self.div = b.fadd, b.fsub, b.fmul, b.fdiv
        self.fma = self.muladd = b.fma
        self.neg, self.abs = b.fneg, b.fabs
        self.floor = lambda x: b.intrinsic("llvm.floor", type, (x,))
        self.sqrt = lambda x: b.intrinsic("llvm.sqrt", type, (x,))
        self.copysign = lambda x, y: b.intrinsic("llvm.copysign", type, (x, y))
        self.test, self.select = b.fcmp, b.select
        self.and_, self.or_, self.xor, self.not_ = b.and_, b.or_, b.xor, b.not_
        self.bits = lambda x: b.bitcast(x, self.int)
        self.from_bits = lambda n: b.bitcast(n, type)
        self.to_float = lambda n: b.sitofp(n, type)
        self.to_integer = lambda x: b.fptosi(x, self.int)
        self.int_add, self.int_sub = b.add, b.sub
        self.shift_left = lambda n, count: b.shl(n, self.i(count))
        self.shift_right = lambda n, count: b.ashr(n, self.i(count))
        self.negative = lambda n: b.icmp("slt", n, self.i(0))

    @property
    def is_f32(self) -> bool:
        """Whether elements are f32 (f64 otherwise)."""
        return self.width == 32

    def c(self, value: float) -> Val:
        """A float constant."""
        return const(self.type, value)

    def i(self, value: int) -> Val:
        """An integer constant as wide as the float."""
        return const(self.int, value)

    def pick(self, single: float, double: float) -> Val:
        """A float constant that depends on the format."""
        return const(self.type, single if self.is_f32 else double)
