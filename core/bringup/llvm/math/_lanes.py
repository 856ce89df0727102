"""Arithmetic as LLVM instructions, for the definitions of `bringup.maths` and those beside it."""

from __future__ import annotations

from typing import ClassVar

from bringup.llvm.text import Builder, Type, Val, const, f32, f64, integer
from bringup.maths.arithmetic import BINARY32, BINARY64, Arithmetic


class Lanes(Arithmetic[Val]):
    """Arithmetic on values of one float type, scalar or vector."""

    __slots__ = ("b", "int", "type")

    has_fma: ClassVar[bool] = True

    def __init__(self, b: Builder, type: Type) -> None:
        assert type.scalar in (f32, f64), f"inline math is for f32 and f64, not {type}"
        super().__init__(BINARY32 if type.scalar is f32 else BINARY64)
        self.b = b
        self.type = type
        self.int = integer(self.width).with_lanes(type.lanes)

    @property
    def is_f32(self) -> bool:
        """Whether elements are f32 (f64 otherwise)."""
        return self.width == 32

    def pick(self, single: float, double: float) -> Val:
        """A float constant that depends on the format."""
        return const(self.type, single if self.is_f32 else double)

    def c(self, value: float) -> Val:
        return const(self.type, value)

    def i(self, value: int) -> Val:
        return const(self.int, value)

    def add(self, a: Val, b: Val) -> Val:
        return self.b.fadd(a, b)

    def sub(self, a: Val, b: Val) -> Val:
        return self.b.fsub(a, b)

    def mul(self, a: Val, b: Val) -> Val:
        return self.b.fmul(a, b)

    def div(self, a: Val, b: Val) -> Val:
        return self.b.fdiv(a, b)

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        return self.b.fma(a, b, c)

    muladd = fma

    def neg(self, a: Val) -> Val:
        return self.b.fneg(a)

    def abs(self, a: Val) -> Val:
        return self.b.fabs(a)

    def floor(self, a: Val) -> Val:
        return self.b.intrinsic("llvm.floor", self.type, (a,))

    def sqrt(self, a: Val) -> Val:
        return self.b.intrinsic("llvm.sqrt", self.type, (a,))

    def copysign(self, magnitude: Val, sign: Val) -> Val:
        return self.b.intrinsic("llvm.copysign", self.type, (magnitude, sign))

    def test(self, predicate: str, a: Val, b: Val) -> Val:
        return self.b.fcmp(predicate, a, b)

    def select(self, condition: Val, a: Val, b: Val) -> Val:
        return self.b.select(condition, a, b)

    def and_(self, a: Val, b: Val) -> Val:
        return self.b.and_(a, b)

    def or_(self, a: Val, b: Val) -> Val:
        return self.b.or_(a, b)

    def xor(self, a: Val, b: Val) -> Val:
        return self.b.xor(a, b)

    def not_(self, condition: Val) -> Val:
        return self.b.not_(condition)

    def bits(self, x: Val) -> Val:
        return self.b.bitcast(x, self.int)

    def from_bits(self, n: Val) -> Val:
        return self.b.bitcast(n, self.type)

    def to_float(self, n: Val) -> Val:
        return self.b.sitofp(n, self.type)

    def to_integer(self, x: Val) -> Val:
        return self.b.fptosi(x, self.int)

    def int_add(self, a: Val, b: Val) -> Val:
        return self.b.add(a, b)

    def int_sub(self, a: Val, b: Val) -> Val:
        return self.b.sub(a, b)

    def shift_left(self, n: Val, count: int) -> Val:
        return self.b.shl(n, self.i(count))

    def shift_right(self, n: Val, count: int) -> Val:
        return self.b.ashr(n, self.i(count))

    def is_negative(self, n: Val) -> Val:
        return self.b.icmp("slt", n, self.i(0))
