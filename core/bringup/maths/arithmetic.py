"""The interface that definitions are written over, and what follows from its few operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from bringup.records import record

V = TypeVar("V")


@record
class Format:
    """An IEEE binary format.

    width: bits in all.  mantissa: stored bits of the significand.  bias: of the exponent.
    root_half: the bits of the square root of 1/2, rounded up.
    """

    width: int
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


BINARY32 = Format(32, 23, 127, 0x3F3504F3)
BINARY64 = Format(64, 52, 1023, 0x3FE6A09E667F3BCD)


class Arithmetic(ABC, Generic[V]):
    """Arithmetic on values of one float type, f32 or f64.

    Sums, products, quotients and roots are correctly rounded.  Integers are as wide as the float
    and wrap.

    has_fma: whether one instruction gives ``a * b + c`` with one rounding.  Without it, exact
    products take about twenty, and definitions leave out what is not worth them.
    """

    __slots__ = ("format",)

    has_fma: ClassVar[bool]

    def __init__(self, format: Format) -> None:
        self.format = format

    @property
    def width(self) -> int:
        """The bits of the float type: what tables of coefficients are keyed by."""
        return self.format.width

    @abstractmethod
    def c(self, value: float) -> V:
        """A float constant."""

    @abstractmethod
    def i(self, value: int) -> V:
        """An integer constant as wide as the float."""

    @abstractmethod
    def add(self, a: V, b: V) -> V:
        """Float sum."""

    @abstractmethod
    def sub(self, a: V, b: V) -> V:
        """Float difference."""

    @abstractmethod
    def mul(self, a: V, b: V) -> V:
        """Float product."""

    @abstractmethod
    def div(self, a: V, b: V) -> V:
        """Float quotient."""

    @abstractmethod
    def fma(self, a: V, b: V, c: V) -> V:
        """``a * b + c``: the product is exact, and a sum that cancels it is rounded once."""

    @abstractmethod
    def muladd(self, a: V, b: V, c: V) -> V:
        """``a * b + c``, rounded once or twice, whichever is faster."""

    @abstractmethod
    def neg(self, a: V) -> V:
        """Negation."""

    @abstractmethod
    def abs(self, a: V) -> V:
        """Magnitude."""

    @abstractmethod
    def floor(self, a: V) -> V:
        """The largest integral value that is not above ``a``."""

    @abstractmethod
    def sqrt(self, a: V) -> V:
        """Square root."""

    @abstractmethod
    def copysign(self, magnitude: V, sign: V) -> V:
        """``magnitude``, whose sign bit is clear, with the sign of ``sign``."""

    @abstractmethod
    def test(self, predicate: str, a: V, b: V) -> V:
        """Float comparison: LLVM's predicate, because what NaN does depends on it."""

    @abstractmethod
    def select(self, condition: V, a: V, b: V) -> V:
        """``a`` where the condition holds, ``b`` elsewhere."""

    @abstractmethod
    def and_(self, a: V, b: V) -> V:
        """Conjunction of conditions or of bits."""

    @abstractmethod
    def or_(self, a: V, b: V) -> V:
        """Disjunction of conditions or of bits."""

    @abstractmethod
    def xor(self, a: V, b: V) -> V:
        """Where just one of two conditions or bits is set."""

    @abstractmethod
    def not_(self, condition: V) -> V:
        """Negation of a condition."""

    @abstractmethod
    def bits(self, x: V) -> V:
        """The bit pattern, as integers."""

    @abstractmethod
    def from_bits(self, n: V) -> V:
        """The floats with these bit patterns."""

    @abstractmethod
    def to_float(self, n: V) -> V:
        """Integers as floats."""

    @abstractmethod
    def to_integer(self, x: V) -> V:
        """Integral floats as integers."""

    @abstractmethod
    def int_add(self, a: V, b: V) -> V:
        """Sum of integers."""

    @abstractmethod
    def int_sub(self, a: V, b: V) -> V:
        """Difference of integers."""

    @abstractmethod
    def shift_left(self, n: V, count: int) -> V:
        """Integers times a power of two."""

    @abstractmethod
    def shift_right(self, n: V, count: int) -> V:
        """Signed integers over a power of two, rounded down."""

    @abstractmethod
    def is_negative(self, n: V) -> V:
        """Whether the sign bit of integers is set."""

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
