"""Arithmetic as ops of tier 0, for the definitions of `bringup.maths` and for decompositions.

Relies on correctly rounded add, mul and div, which the table demands; there is no op that fuses a
product with a sum.
"""

# ruff: noqa: D102 — the interface documents the methods
from __future__ import annotations

from typing import ClassVar

from bringup.graph import Value
from bringup.maths.arithmetic import BINARY32, BINARY64, Arithmetic
from bringup.ops import build
from bringup.ops.build import rows

_OPPOSITE = {"lt": "ge", "gt": "le", "le": "gt", "ge": "lt", "ne": "eq"}


class GraphArithmetic(Arithmetic[Value]):
    """Arithmetic on values of the type of `x`, which is f32 or f64."""

    __slots__ = ("x",)

    has_fma: ClassVar[bool] = False

    def __init__(self, x: Value) -> None:
        super().__init__(BINARY32 if x.dtype.bits == 32 else BINARY64)
        self.x = x

    def c(self, value: float) -> Value:
        return build.like(self.x, value)

    def i(self, value: int) -> Value:
        return build.splat(value, self.x.type.with_dtype(build.signed(self.x.dtype)))

    def add(self, a: Value, b: Value) -> Value:
        return rows.add(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return rows.sub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return rows.mul(a, b)

    def div(self, a: Value, b: Value) -> Value:
        return rows.div(a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        product, error = self.two_product(a, b)
        return rows.add(rows.add(product, c), error)

    def muladd(self, a: Value, b: Value, c: Value) -> Value:
        return rows.add(rows.mul(a, b), c)

    def neg(self, a: Value) -> Value:
        return rows.neg(a)

    def abs(self, a: Value) -> Value:
        return rows.abs(a)

    def floor(self, a: Value) -> Value:
        return rows.floor(a)

    def sqrt(self, a: Value) -> Value:
        return rows.sqrt(a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return build.copy_sign(magnitude, sign)

    def test(self, predicate: str, a: Value, b: Value) -> Value:
        if predicate == "uno":
            return rows.or_(build.is_nan(a), build.is_nan(b))
        if predicate == "one":
            return rows.or_(build.compare("lt", a, b), build.compare("gt", a, b))
        kind, direction = predicate[0], predicate[1:]
        if kind == "o":
            return build.compare(direction, a, b)
        return build.not_(build.compare(_OPPOSITE[direction], a, b))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return rows.select(condition, a, b)

    def and_(self, a: Value, b: Value) -> Value:
        return rows.and_(a, b)

    def or_(self, a: Value, b: Value) -> Value:
        return rows.or_(a, b)

    def xor(self, a: Value, b: Value) -> Value:
        return rows.xor(a, b)

    def not_(self, condition: Value) -> Value:
        return build.not_(condition)

    def bits(self, x: Value) -> Value:
        return build.bitcast(x, build.signed(x.dtype))

    def from_bits(self, n: Value) -> Value:
        return build.bitcast(n, self.x.dtype)

    def to_float(self, n: Value) -> Value:
        return build.convert(n, self.x.dtype)

    def to_integer(self, x: Value) -> Value:
        return build.convert(x, build.signed(x.dtype))

    def int_add(self, a: Value, b: Value) -> Value:
        return rows.add(a, b)

    def int_sub(self, a: Value, b: Value) -> Value:
        return rows.sub(a, b)

    def shift_left(self, n: Value, count: int) -> Value:
        return rows.shl(n, build.like(n, count))

    def shift_right(self, n: Value, count: int) -> Value:
        return rows.shr(n, build.like(n, count), kind="arithmetic")

    def is_negative(self, n: Value) -> Value:
        return build.compare("lt", n, build.zeros_like(n))

    def upper_half(self, x: Value) -> Value:
        """`x` with the lower half of its significand cleared; what is left is exact too."""
        low = (self.format.mantissa + 2) // 2
        bits = build.bitcast(x, build.unsigned(x.dtype))
        mask = (1 << self.width) - (1 << low)
        return build.bitcast(rows.and_(bits, build.like(bits, mask)), x.dtype)

    def two_product(self, a: Value, b: Value) -> tuple[Value, Value]:
        """``a * b`` rounded, and its rounding error: the products of halves are exact."""
        product = rows.mul(a, b)
        a_high, b_high = self.upper_half(a), self.upper_half(b)
        a_low, b_low = rows.sub(a, a_high), rows.sub(b, b_high)
        error = rows.sub(rows.mul(a_high, b_high), product)
        error = rows.add(rows.add(error, rows.mul(a_high, b_low)), rows.mul(a_low, b_high))
        return product, rows.add(error, rows.mul(a_low, b_low))
