"""Short names for float arithmetic on one type, and error-free transformations on top."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm.text import Builder, Type, Val, const, f32, f64, i32, i64
from bringup.records import record


@record
class Format:
    """An IEEE binary format.  mantissa: stored bits.  shifter: adding it rounds to an integer."""

    real: Type
    bits: Type
    mantissa: int
    bias: int

    @property
    def shifter(self) -> float:
        """1.5 · 2^mantissa: the low bits of ``x + shifter`` hold ``round(x)``."""
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


BINARY32 = Format(f32, i32, 23, 127)
BINARY64 = Format(f64, i64, 52, 1023)


class Lanes:
    """Arithmetic on values of one float type, scalar or vector.

    Comparisons name the LLVM predicate, because what NaN does depends on it.
    """

    __slots__ = ("b", "format", "int", "type")

    def __init__(self, b: Builder, type: Type) -> None:
        assert type.scalar in (f32, f64), f"inline math is for f32 and f64, not {type}"
        self.b = b
        self.type = type
        self.format = BINARY32 if type.scalar is f32 else BINARY64
        self.int = self.format.bits.with_lanes(type.lanes)

    @property
    def is_f32(self) -> bool:
        """Whether elements are f32 (f64 otherwise)."""
        return self.format is BINARY32

    def pick(self, single: float, double: float) -> Val:
        """A float constant that depends on the format."""
        return const(self.type, single if self.is_f32 else double)

    def c(self, value: float) -> Val:
        """A float constant."""
        return const(self.type, value)

    def i(self, value: int) -> Val:
        """An integer constant as wide as the float."""
        return const(self.int, value)

    def add(self, a: Val, b: Val) -> Val:
        """Float sum."""
        return self.b.fadd(a, b)

    def sub(self, a: Val, b: Val) -> Val:
        """Float difference."""
        return self.b.fsub(a, b)

    def mul(self, a: Val, b: Val) -> Val:
        """Float product."""
        return self.b.fmul(a, b)

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """``a * b + c``, rounded once."""
        return self.b.fma(a, b, c)

    def neg(self, a: Val) -> Val:
        """Negation."""
        return self.b.fneg(a)

    def abs(self, a: Val) -> Val:
        """Magnitude."""
        return self.b.fabs(a)

    def copysign(self, magnitude: Val, sign: Val) -> Val:
        """``magnitude`` with the sign of ``sign``."""
        return self.b.intrinsic("llvm.copysign", self.type, (magnitude, sign))

    def test(self, predicate: str, a: Val, b: Val) -> Val:
        """Float comparison."""
        return self.b.fcmp(predicate, a, b)

    def select(self, condition: Val, a: Val, b: Val) -> Val:
        """``a`` where the condition holds."""
        return self.b.select(condition, a, b)

    def at_least(self, x: Val, low: float) -> Val:
        """``max(x, low)``; NaN stays."""
        bound = self.c(low)
        return self.select(self.test("ogt", bound, x), bound, x)

    def at_most(self, x: Val, high: float) -> Val:
        """``min(x, high)``; NaN stays."""
        bound = self.c(high)
        return self.select(self.test("olt", bound, x), bound, x)

    def bits(self, x: Val) -> Val:
        """The bit pattern, as integers."""
        return self.b.bitcast(x, self.int)

    def from_bits(self, n: Val) -> Val:
        """The floats with these bit patterns."""
        return self.b.bitcast(n, self.type)

    def horner(self, x: Val, coefficients: Sequence[float]) -> Val:
        """The polynomial with these coefficients, lowest power first."""
        total = self.c(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.c(c))
        return total

    def round(self, x: Val, scale: float, more: int = 0) -> tuple[Val, Val]:
        """The integer n nearest to ``x * scale``: as a float, and as bits whose low end is
        ``n + more``, for an even number that is small beside the shifter.
        """
        shifter = self.c(self.format.shifter + more)
        shifted = self.fma(x, self.c(scale), shifter)
        return self.sub(shifted, shifter), self.bits(shifted)

    def power_of_two(self, n: Val) -> Val:
        """Two to the integer in the low bits of ``n``, which is a normal exponent."""
        biased = self.b.add(n, self.i(self.format.bias))
        return self.from_bits(self.b.shl(biased, self.i(self.format.mantissa)))

    def two_sum(self, a: Val, b: Val) -> tuple[Val, Val]:
        """``a + b`` rounded, and its rounding error exactly."""
        total = self.add(a, b)
        part = self.sub(total, a)
        return total, self.add(self.sub(a, self.sub(total, part)), self.sub(b, part))

    def fast_two_sum(self, a: Val, b: Val) -> tuple[Val, Val]:
        """Like ``two_sum``, for |a| >= |b| or a = 0."""
        total = self.add(a, b)
        return total, self.add(self.sub(a, total), b)

    def two_product(self, a: Val, b: Val) -> tuple[Val, Val]:
        """``a * b`` rounded, and its rounding error exactly."""
        product = self.mul(a, b)
        return product, self.fma(a, b, self.neg(product))
