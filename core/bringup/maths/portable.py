"""Logarithm and exponential for samplers, made of correctly rounded operations alone.

What the table lets a device's own `exp` and `log` be off would show in random numbers, and in
which proposals are accepted.  Of sums, products, quotients and moves of bits every device makes the
same bits; so no product here is fused with a sum.  Reductions and coefficients as in FreeBSD's libm
(Sun Microsystems, 1993; I. Taylor, 1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from bringup.maths.arithmetic import Arithmetic
from bringup.maths.exponential import SPLIT_LN2

V = TypeVar("V")

# log((1 + s)/(1 - s)) = 2 s + s z p(z), z = s^2
_LOG = {
    32: (0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
    64: (
        6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
        2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
        1.479819860511658591e-01,
    ),
}  # fmt: skip
# r (e^r + 1)/(e^r - 1) = 2 + z p(z), z = r^2
_EXP = {
    32: (1.6666625440e-1, -2.7667332906e-3),
    64: (
        1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05,
        -1.65339022054652515390e-06, 4.13813679705723846039e-08,
    ),
}  # fmt: skip


def polynomial(m: Arithmetic[V], x: V, coefficients: Sequence[float]) -> V:
    """The polynomial with these coefficients, lowest power first, with two roundings a step."""
    total = m.c(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = m.add(m.mul(total, x), m.c(coefficient))
    return total


def log(m: Arithmetic[V], x: V, above: V | None = None) -> V:
    """The natural logarithm of positive normal numbers, within 1 ULP.

    above: ``1 - x``, where that is known better than `x` tells; then within 3 ULP.
    """
    k, y = m.split(x, m.format.root_half)
    power, f = m.to_float(k), m.sub(y, m.c(1.0))
    if above is not None:
        f = m.select(m.test("oeq", power, m.c(0.0)), m.neg(above), f)
    s = m.div(f, m.add(f, m.c(2.0)))
    square = m.mul(s, s)
    series = m.mul(square, polynomial(m, square, _LOG[m.width]))
    half = m.mul(m.mul(f, f), m.c(0.5))
    high, low = SPLIT_LN2[m.width]
    rest = m.add(m.mul(s, m.add(half, series)), m.mul(power, m.c(low)))
    return m.sub(m.mul(power, m.c(high)), m.sub(m.sub(half, rest), f))


def exp(m: Arithmetic[V], x: V) -> V:
    """The exponential function, within 1 ULP where the result is normal; 0 far below."""
    bias, (high, low) = m.format.bias, SPLIT_LN2[m.width]
    x = m.at_most(m.at_least(x, -1.3 * bias), float(bias))
    # Round to the nearest integer: add 1/2 to the magnitude, and cut the fraction off.
    size = m.add(m.mul(m.abs(x), m.c(1 / (high + low))), m.c(0.5))
    near = m.copysign(m.floor(size), x)
    top, rest = m.sub(x, m.mul(near, m.c(high))), m.mul(near, m.c(low))
    r = m.sub(top, rest)
    square = m.mul(r, r)
    c = m.sub(r, m.mul(square, polynomial(m, square, _EXP[m.width])))
    quotient = m.div(m.mul(r, c), m.sub(m.c(2.0), c))
    value = m.add(m.c(1.0), m.sub(top, m.sub(rest, quotient)))
    # Multiply by two powers of two: one alone may not be a normal number.
    power = m.to_integer(near)
    half = m.shift_right(power, 1)
    for part in (half, m.int_sub(power, half)):
        value = m.mul(value, m.power_of_two(part))
    return value
