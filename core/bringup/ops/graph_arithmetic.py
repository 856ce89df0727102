"""Arithmetic as ops of tier 0, for the definitions of `bringup.maths` and for decompositions.

Relies on correctly rounded add, mul and div, which the table demands; there is no op that fuses a
product with a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bringup.graph import Value
from bringup.maths.arithmetic import Arithmetic
from bringup.ops import build
from bringup.ops.build import compare, like, rows

_OPPOSITE = {"lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}


class GraphArithmetic(Arithmetic[Value]):
    """Arithmetic on values of the type of `x`, which is f32 or f64."""

    has_fma: ClassVar[bool] = False

    def __init__(self, x: Value) -> None:
        super().__init__(x.dtype.bits)
        signed = x.type.with_dtype(build.signed(x.dtype))
        self.c = lambda value: like(x, value)
        self.i = lambda value: build.splat(value, signed)
        self.add, self.sub, self.mul, self.div = rows.add, rows.sub, rows.mul, rows.div
        self.muladd = lambda a, b, c: rows.add(rows.mul(a, b), c)
        self.neg, self.abs = rows.neg, rows.abs
        self.floor, self.sqrt = rows.floor, rows.sqrt
        self.copysign = build.copy_sign
        self.select = rows.select
        self.and_, self.or_, self.xor, self.not_ = rows.and_, rows.or_, rows.xor, build.not_
        self.bits = lambda v: build.bitcast(v, signed.dtype)
        self.from_bits = lambda n: build.bitcast(n, x.dtype)
        self.to_float = lambda n: build.convert(n, x.dtype)
        self.to_integer = lambda v: build.convert(v, signed.dtype)
        self.int_add, self.int_sub = rows.add, rows.sub
        self.shift_left = lambda n, count: rows.shl(n, like(n, count))
        self.shift_right = lambda n, count: rows.shr(n, like(n, count), kind="arithmetic")
        self.negative = lambda n: compare("lt", n, build.zeros_like(n))

    def test(self, predicate: str, a: Value, b: Value) -> Value:
        """Float comparison by LLVM's predicate."""
        if predicate == "uno":
            return rows.or_(build.is_nan(a), build.is_nan(b))
        if predicate == "one":
            return rows.or_(compare("lt", a, b), compare("gt", a, b))
        kind, direction = predicate[0], predicate[1:]
        if kind == "o":
            return compare(direction, a, b)
        return build.not_(compare(_OPPOSITE[direction], a, b))

    def upper_half(self, x: Value) -> Value:
        """`x` with the lower half of its significand cleared; what is left is exact too."""
        low = (self.format.mantissa + 2) // 2
        bits = build.bitcast(x, build.unsigned(x.dtype))
        mask = (1 << self.width) - (1 << low)
        return build.bitcast(rows.and_(bits, like(bits, mask)), x.dtype)

    def two_product(self, a: Value, b: Value) -> tuple[Value, Value]:
        """``a * b`` rounded, and its rounding error: the products of halves are exact."""
        product = rows.mul(a, b)
        a_high, b_high = self.upper_half(a), self.upper_half(b)
        a_low, b_low = rows.sub(a, a_high), rows.sub(b, b_high)
        error = rows.sub(rows.mul(a_high, b_high), product)
        error = rows.add(rows.add(error, rows.mul(a_high, b_low)), rows.mul(a_low, b_high))
        return product, rows.add(error, rows.mul(a_low, b_low))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c``, exact but for the last rounding where the sum cancels the product."""
        product, error = self.two_product(a, b)
        return rows.add(rows.add(product, c), error)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial of `x`, f32 or f64, with these coefficients, lowest power first."""
    return GraphArithmetic(x).horner(x, coefficients)
