"""Arithmetic on unevaluated sums of two floats, for decompositions that need more than one.

Relies on correctly rounded add, mul and div, which the table demands; no fused multiply-add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graph import Value
from bringup.ops import build
from bringup.ops.build import like, rows
from bringup.records import record

if TYPE_CHECKING:
    from fractions import Fraction

Pair = tuple[Value, Value]


@record
class Format:
    """A binary float format: significant bits and exponent bias."""

    precision: int
    bias: int

    @property
    def stored(self) -> int:
        """Bits of the significand field."""
        return self.precision - 1

    @property
    def least(self) -> int:
        """The exponent of the smallest subnormal."""
        return 1 - self.bias - self.stored


FORMATS = {32: Format(24, 127), 64: Format(53, 1023)}


def format_of(x: Value) -> Format:
    """The format of an f32 or f64 value."""
    return FORMATS[x.dtype.bits]


def upper_half(x: Value) -> Value:
    """`x` with the lower half of its significand cleared; what is left is exact too."""
    low = (format_of(x).precision + 1) // 2
    bits = build.bitcast(x, build.unsigned(x.dtype))
    mask = (1 << x.dtype.bits) - (1 << low)
    return build.bitcast(rows.and_(bits, like(bits, mask)), x.dtype)


def copy_sign(size: Value, sign: Value) -> Value:
    """`size`, which is not negative, with the sign bit of `sign`."""
    bits, signs = (build.bitcast(v, build.unsigned(size.dtype)) for v in (size, sign))
    top = rows.and_(signs, like(signs, 1 << (size.dtype.bits - 1)))
    return build.bitcast(rows.or_(bits, top), size.dtype)


def two_product(x: Value, y: Value) -> Pair:
    """X · y and its rounding error."""
    product = rows.mul(x, y)
    xh, yh = upper_half(x), upper_half(y)
    xl, yl = rows.sub(x, xh), rows.sub(y, yh)
    error = rows.sub(rows.mul(xh, yh), product)
    error = rows.add(rows.add(error, rows.mul(xh, yl)), rows.mul(xl, yh))
    return product, rows.add(error, rows.mul(xl, yl))


def fast_sum(large: Value, small: Value) -> Pair:
    """Large + small and its rounding error, where large is 0 or the larger in size."""
    total = rows.add(large, small)
    return total, rows.sub(small, rows.sub(total, large))


def pair_product(x: Pair, y: Pair) -> Pair:
    """X · y."""
    product, error = two_product(x[0], y[0])
    cross = rows.add(rows.mul(x[0], y[1]), rows.mul(x[1], y[0]))
    return fast_sum(product, rows.add(error, cross))


def pair_sum(large: Pair, small: Pair) -> Pair:
    """Large + small, where large is the larger in size."""
    total, error = fast_sum(large[0], small[0])
    return fast_sum(total, rows.add(error, rows.add(large[1], small[1])))


def pair_constant(x: Value, value: Fraction) -> Pair:
    """A number as a pair of splats of the type of `x`."""
    kind = x.dtype.numpy.type
    high = kind(float(value))
    low = kind(float(value - type(value)(float(high))))
    return like(x, high), like(x, low)
