"""Division of many elements by one divisor: a multiplication, two fused multiply-adds, and the same
result to the bit.

With ``r = RN(1/y)``, ``q = RN(x·r)``, ``e = RN(x - q·y)``, the value ``RN(q + e·r)`` is the
correctly rounded ``x/y`` as long as nothing overflows or underflows on the way: P. Markstein,
"Computation of elementary functions on the IBM RISC System/6000 processor", IBM J. Res. Dev. 34
(1990); N. Brisebarre, J.-M. Muller, S. K. Raina, "Accelerating correctly rounded floating-point
division when the divisor is known in advance", IEEE Trans. Comput. 53 (2004), section 2.
Exponents of both operands are kept within half the range, where that holds; a vector with an
element outside is divided as usual.
"""

from __future__ import annotations

import math

from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Type, Val, const, vec
from bringup.records import record

# Exponents between which operands must lie; biased, and shifted to their place.
_POWERS = {ir.f32: (-60, 60), ir.f64: (-500, 500)}
_RANGE = {ir.f32: (67 << 23, 187 << 23), ir.f64: (523 << 52, 1523 << 52)}


@record
class Reciprocal:
    """What is computed once per divisor: itself, its reciprocal, and whether it lies in range."""

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


def divide(b: Builder, x: Val, by: Reciprocal, *, apart: bool = False) -> Val:
    """Every lane of ``x`` over the divisor, rounded once.

    apart: lanes are registers of their own, so that their tests are, too.
    """
    lanes = x.type.lanes
    y, r = b.splat(by.divisor, lanes), b.splat(by.inverse, lanes)
    every = b.and_(_all_between(b, x) if apart else _all_in_range(b, x), by.usable)

    def fast() -> Val:
        q = b.fmul(x, r)
        e = b.fma(b.fneg(q), y, x)
        return b.fma(e, r, q)

    return b.cond(every, fast, lambda: b.fdiv(x, y), likely=True)[0]


def _all_in_range(b: Builder, x: Val) -> Val:
    """By one test of a vector register; zeros, which are exact, count as in range."""
    lanes = x.type.lanes
    bits = b.cast("bitcast", x, vec(ir.integer(x.type.bits), lanes))
    fine = b.or_(_in_range(b, x), b.icmp("eq", bits, const(bits.type, 0)))
    whole = b.cast("bitcast", fine, ir.integer(lanes))
    return b.icmp("eq", whole, const(whole.type, -1))


def _all_between(b: Builder, x: Val) -> Val:
    """By two tests of each register, which machines chain."""
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
