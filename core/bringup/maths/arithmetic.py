"""The interface that definitions are written over, and what follows from its few operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from bringup.records import record

V = TypeVar("V")


@record
class Format:
    """An IEEE binary format.

    mantissa: stored bits of the significand.  bias: of the exponent.
    root_half: the bits of the square root of 1/2, rounded up.
    """

    mantissa: int
    bias: int
    root_half: int

    @property
    def shifter(self) -> float:
        """1.5 · 2^mantissa: the low bits of ``x + shifter`` hold ``round(x)``."""
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


#: By the width of their numbers.
FORMATS = {32: Format(23, 127, 0x3F3504F3), 64: Format(52, 1023, 0x3FE6A09E667F3BCD)}


class Arithmetic(Generic[V]):
    """Arithmetic on values of one float type, f32 or f64, and on integers as wide, which wrap.

    c, i: constants, of floats and of integers.
    add, sub, mul, div, sqrt: correctly rounded.
    fma: ``a * b + c``; the product is exact, and a sum that cancels it is rounded once.
    muladd: ``a * b + c``, rounded once or twice, whichever is faster.
    copysign: a magnitude, whose sign bit is clear, with the sign of the second operand.
    test: float comparison by LLVM's predicate, because what NaN does depends on it.
    and_, or_, xor: of conditions or of bits.
    bits, from_bits: the integers that are the patterns of floats, and back.
    to_float, to_integer: integers as floats, and integral floats as integers.
    shift_left, shift_right: by a constant; to the right with the sign.
    negative: whether integers are below 0.

    has_fma: whether one instruction is an fma.  Without it an exact product takes about twenty, and
    definitions leave out what is not worth them.
    """

    has_fma: ClassVar[bool]

    c: Callable[[float], V]
    i: Callable[[int], V]
    add: Callable[[V, V], V]
    sub: Callable[[V, V], V]
    mul: Callable[[V, V], V]
    div: Callable[[V, V], V]
    fma: Callable[[V, V, V], V]
    muladd: Callable[[V, V, V], V]
    neg: Callable[[V], V]
    abs: Callable[[V], V]
    floor: Callable[[V], V]
    sqrt: Callable[[V], V]
    copysign: Callable[[V, V], V]
    test: Callable[[str, V, V], V]
    select: Callable[[V, V, V], V]
    and_: Callable[[V, V], V]
    or_: Callable[[V, V], V]
    xor: Callable[[V, V], V]
    not_: Callable[[V], V]
    bits: Callable[[V], V]
    from_bits: Callable[[V], V]
    to_float: Callable[[V], V]
    to_integer: Callable[[V], V]
    int_add: Callable[[V, V], V]
    int_sub: Callable[[V, V], V]
    shift_left: Callable[[V, int], V]
    shift_right: Callable[[V, int], V]
    negative: Callable[[V], V]

    def __init__(self, width: int) -> None:
        self.width = width
        self.format = FORMATS[width]

    def at_least(self, x: V, low: float) -> V:
        """``max(x, low)``; NaN stays."""
        bound = self.c(low)
        return self.select(self.test("ogt", bound, x), bound, x)

    def at_most(self, x: V, high: float) -> V:
        """``min(x, high)``; NaN stays."""
        bound = self.c(high)
        return self.select(self.test("olt", bound, x), bound, x)

    def horner(self, x: V, coefficients: Sequence[float]) -> V:
        """The polynomial with these coefficients, lowest power first."""
        total = self.c(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.muladd(total, x, self.c(c))
        return total

    def round(self, x: V, scale: float, more: int = 0) -> tuple[V, V]:
        """The integer n nearest to ``x * scale``: as a float, and as bits whose low end is
        ``n + more``, for an even number that is small beside the shifter.
        """
        shifter = self.c(self.format.shifter + more)
        shifted = self.muladd(x, self.c(scale), shifter)
        return self.sub(shifted, shifter), self.bits(shifted)

    def power_of_two(self, n: V) -> V:
        """Two to the integer in the low bits of ``n``, which is a normal exponent."""
        biased = self.int_add(n, self.i(self.format.bias))
        return self.from_bits(self.shift_left(biased, self.format.mantissa))

    def split(self, x: V, edge: int) -> tuple[V, V]:
        """``x = 2**k * y`` for positive normal x, the bits of y at or just above ``edge``: (k, y).

        k is an integer.
        """
        bits, mantissa = self.bits(x), self.format.mantissa
        k = self.shift_right(self.int_sub(bits, self.i(edge)), mantissa)
        return k, self.from_bits(self.int_sub(bits, self.shift_left(k, mantissa)))

    def normalise(self, x: V) -> tuple[V, V]:
        """(y, e) with ``x = y * 2**e``, y normal if x is positive and e a float, 0 for normal x."""
        lift = self.format.mantissa + 1
        subnormal = self.test("olt", x, self.c(self.format.smallest_normal))
        y = self.select(subnormal, self.mul(x, self.c(2.0**lift)), x)
        return y, self.select(subnormal, self.c(-float(lift)), self.c(0.0))

    def two_sum(self, a: V, b: V) -> tuple[V, V]:
        """``a + b`` rounded, and its rounding error exactly."""
        total = self.add(a, b)
        part = self.sub(total, a)
        return total, self.add(self.sub(a, self.sub(total, part)), self.sub(b, part))

    def fast_two_sum(self, a: V, b: V) -> tuple[V, V]:
        """Like ``two_sum``, for |a| >= |b| or a = 0."""
        total = self.add(a, b)
        return total, self.add(self.sub(a, total), b)

    def two_product(self, a: V, b: V) -> tuple[V, V]:
        """``a * b`` rounded, and its rounding error exactly."""
        product = self.mul(a, b)
        return product, self.fma(a, b, self.neg(product))
