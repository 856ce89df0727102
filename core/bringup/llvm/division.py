"""Exact division of many elements by one divisor.

One multiplication and two fused multiply-adds give the same result to the bit.  With r = RN(1/y),
q = RN(x·r) and e = RN(x - q·y), RN(q + e·r) is the correctly rounded x/y as long as nothing
overflows or underflows in between: P. Markstein, "Computation of elementary functions on the IBM
RISC System/6000 processor", IBM J. Res. Dev. 34 (1990); N. Brisebarre, J.-M. Muller, S. K. Raina,
"Accelerating correctly rounded floating-point division when the divisor is known in advance",
IEEE Trans. Comput. 53 (2004), section 2.  That holds if the exponents of both operands are within
half the range.  A vector with an element outside is divided as usual.
"""

from __future__ import annotations

import math

from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Type, Val, const, vec
from bringup.records import record

#: Exponents between which operands must lie, and the bits of the magnitudes that have them.
_POWERS = {ir.f32: (-60, 60), ir.f64: (-500, 500)}
_RANGE = {ir.f32: (67 << 23, 187 << 23), ir.f64: (523 << 52, 1523 << 52)}


@record
class Reciprocal:
    """A divisor with what is computed once for it.  usable: whether it lies in the range."""

    divisor: Val
    inverse: Val
    usable: Val


def divides_fast(element: Type) -> bool:
    """Whether elements of this type are divided this way."""
    return element in _RANGE


def reciprocal(b: Builder, divisor: Val) -> Reciprocal:
    """Prepare a scalar divisor."""
    inverse = b.fdiv(const(divisor.type, 1.0), divisor)
    return Reciprocal(divisor, inverse, _in_range(b, divisor))


def divide(b: Builder, x: Val, by: Reciprocal, *, lane_registers: bool = False) -> Val:
    """Every lane of ``x`` over the divisor, rounded once.

    lane_registers: each lane is a register of its own, so that each is tested by itself.
    """
    lanes = x.type.lanes
    y, r = b.splat(by.divisor, lanes), b.splat(by.inverse, lanes)
    in_range = _lanes_in_range(b, x) if lane_registers else _vector_in_range(b, x)
    every = b.and_(in_range, by.usable)

    def fast() -> Val:
        q = b.fmul(x, r)
        e = b.fma(b.fneg(q), y, x)
        return b.fma(e, r, q)

    return b.cond(every, fast, lambda: b.fdiv(x, y), likely=True)[0]


def _vector_in_range(b: Builder, x: Val) -> Val:
    """One test of a vector register.  Zeros count as in range, because their quotient is exact."""
    lanes = x.type.lanes
    bits = b.cast("bitcast", x, vec(ir.integer(x.type.bits), lanes))
    inside = b.or_(_in_range(b, x), b.icmp("eq", bits, const(bits.type, 0)))
    whole = b.cast("bitcast", inside, ir.integer(lanes))
    return b.icmp("eq", whole, const(whole.type, -1))


def _lanes_in_range(b: Builder, x: Val) -> Val:
    """Two tests of each register, which GPUs chain."""
    low, high = (math.ldexp(1.0, n) for n in _POWERS[x.type.scalar])
    every: Val | None = None
    for i in range(x.type.lanes):
        size = b.fabs(b.extractelement(x, i))
        for test in (
            b.fcmp("oge", size, const(size.type, low)),
            b.fcmp("olt", size, const(size.type, high)),
        ):
            every = test if every is None else b.and_(every, test)
    assert every is not None, "vectors have lanes"
    return every


def _in_range(b: Builder, x: Val) -> Val:
    low, high = _RANGE[x.type.scalar]
    lanes = x.type.lanes
    bits = b.cast("bitcast", x, vec(ir.integer(x.type.bits), lanes))
    magnitude = b.and_(bits, const(bits.type, (1 << (x.type.bits - 1)) - 1))
    return b.icmp("ult", b.sub(magnitude, const(bits.type, low)), const(bits.type, high - low))


__all__ = ["Reciprocal", "divide", "divides_fast", "reciprocal"]
