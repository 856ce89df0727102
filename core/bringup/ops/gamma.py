"""Composite rows: the logarithm of the gamma function, and its derivative."""

from __future__ import annotations

import math

import numpy as np

from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._numeric import Array, via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.graph_arithmetic import polynomial
from bringup.ops.special_values import cells
from bringup.ops.table import DERIVED, Trait

# By ``core/tests/llvm/derive.py`` (lgamma, stirling), lowest power first.
# log Γ(2 + s) = s (1 − γ) + s² p(s + 1/2), |s| <= 1/2.
LGAMMA = {
    32: (
        0.36243972, -0.095418654, 0.038169995, -0.018136453, 0.009233162, -0.0044411384,
        0.0016148175, -0.00029864325,
    ),
    64: (
        0.3624397196559534, -0.09541856585574987, 0.03817125904248268, -0.018171796555538678,
        0.009476283002983341, -0.005216004289339651, 0.0029727291767934695, -0.0017350196663406601,
        0.0010292823409320335, -0.0006154529897745932, 0.00036476148112276686,
        -0.00020695761841724479, 0.00010607396088443876, -4.537866491431375e-05,
        1.4656827526450276e-05, -3.092045492311364e-06, 3.1389163111909934e-07,
    ),
}  # fmt: skip
# log Γ(x) = (x − 1/2)(log x − 1) + (log 2π − 1)/2 + p(1/x²)/x, x >= 8.
STIRLING = {
    32: (0.08333324, -0.002759802),
    64: (
        0.08333333333333331, -0.0027777777777506585, 0.0007936507796860586, -0.0005952346012418143,
        0.0008412736821054394, -0.0018808595243876563, 0.004886004155112248,
    ),
}  # fmt: skip
_LEFT_OVER = (math.log(2 * math.pi) - 1) / 2
_ONE_LESS_EULER = 0.42278433509846713
# Of the asymptotic series of ψ: Bernoulli's numbers B(2k) / 2k, k = 1 … 8.
_BERNOULLI = (
    1 / 12,
    -1 / 120,
    1 / 252,
    -1 / 240,
    1 / 132,
    -691 / 32760,
    1 / 12,
    -3617 / 8160,
)
_SHIFTS, _ASYMPTOTIC = 10, 10.0
# Below it log Γ(x) is −log |x| on either side of 0.
_TINY = {32: 2.0**-40, 64: 2.0**-70}


def _near(s: Value) -> Value:
    """Log Γ(2 + s), |s| <= 1/2."""
    curve = polynomial(rows.add(s, like(s, 0.5)), LGAMMA[s.dtype.bits])
    return rows.add(rows.mul(s, like(s, _ONE_LESS_EULER)), rows.mul(rows.mul(s, s), curve))


def _small(x: Value) -> Value:
    """Log Γ of 0 < x < 8: by its recurrence to 3/2 … 5/2, where it is near a polynomial."""
    one, edge = build.ones_like(x), like(x, 2.5)
    product, y = one, x
    for _ in range(6):
        beyond = compare("ge", y, edge)
        y = rows.select(beyond, rows.sub(y, one), y)
        product = rows.select(beyond, rows.mul(product, y), product)
    below, tiny = compare("lt", x, like(x, 1.5)), compare("lt", x, like(x, 0.5))
    s = rows.select(tiny, x, rows.sub(rows.select(below, rows.add(y, one), y), like(x, 2.0)))
    # Not (x + 1) − 2, which has lost the low bits of x.
    s = rows.select(rows.and_(below, build.not_(tiny)), rows.sub(x, one), s)
    factor = rows.select(tiny, rows.mul(x, rows.add(x, one)), rows.select(below, x, product))
    logarithm = rows.log(factor)
    return rows.add(_near(s), rows.select(below, rows.neg(logarithm), logarithm))


def _stirling(x: Value) -> Value:
    """Log Γ of x >= 8."""
    one = build.ones_like(x)
    inverse = rows.div(one, x)
    rest = rows.mul(polynomial(rows.mul(inverse, inverse), STIRLING[x.dtype.bits]), inverse)
    main = rows.mul(rows.sub(x, like(x, 0.5)), rows.sub(rows.log(x), one))
    return rows.add(main, rows.add(rest, like(x, _LEFT_OVER)))


def _positive(x: Value) -> Value:
    edge = like(x, 8.0)
    small = compare("lt", x, edge)
    # Either formula sees arguments of its own alone: derivatives of the other must stay finite.
    low, high = rows.select(small, x, like(x, 2.0)), rows.select(small, edge, x)
    return rows.select(small, _small(low), _stirling(high))


def _off_integer(x: Value) -> Value:
    """``x − round(x)``, exact."""
    return rows.sub(x, rows.round(x))


@in_f32
def _lgamma_decompose(x: Value) -> Value:
    """Euler's reflection for x < 0: log π/|x sin πx| − log Γ(−x).

    So far left that log Γ(−x) overflows, every number is a pole.
    """
    size = rows.abs(x)
    positive = _positive(size)
    sine = rows.sin(rows.mul(_off_integer(x), like(x, math.pi)))
    pole = rows.div(like(x, math.pi), rows.abs(rows.mul(x, sine)))
    negative = rows.sub(rows.log(pole), positive)
    left = compare("lt", x, rows.neg(like(x, _TINY[x.dtype.bits])))
    result = rows.select(left, negative, positive)
    endless = like(x, np.inf)
    return rows.select(compare("eq", positive, endless), endless, result)


def _host_positive(x: Array) -> Array:
    """Log Γ of x > 0 by the host, whose own is off beside 1 and 2; see `_positive`."""
    kind = x.dtype.type
    y, product = x, np.ones_like(x)
    for _ in range(6):
        beyond = (y >= 2.5) & (y < 8.5)
        y = np.where(beyond, y - 1, y)
        product = np.where(beyond, product * y, product)
    s = np.where(x < 0.5, x, np.where(x < 1.5, x - 1, y - 2))
    curve = np.polyval(np.array(LGAMMA[64][::-1], x.dtype), s + kind(0.5))
    near = s * kind("0.422784335098467139393487909918") + s * s * curve
    factor = np.where(x < 0.5, x * (1 + x), np.where(x < 1.5, x, product))
    small = near + np.where(x < 1.5, -elementary.log(factor), elementary.log(factor))
    series = np.polyval(np.array(STIRLING[64][::-1], x.dtype), 1 / (x * x)) / x
    left_over = kind("0.418938533204672741780329736406")
    large = (x - kind(0.5)) * (elementary.log(x) - 1) + left_over + series
    return np.asarray(np.where(x < 8, small, large))


@via_wider
def _lgamma_reference(x: Array) -> Array:
    kind, size = x.dtype.type, np.abs(x)
    pi = kind("3.141592653589793238462643383280")
    positive = _host_positive(size)
    sine = elementary.sin(pi * (x - np.rint(x)))
    result = np.where(
        x < -kind(2.0**-80), elementary.log(pi / np.abs(x * sine)) - positive, positive
    )
    return np.asarray(np.where(np.isinf(positive), kind(np.inf), result))


lgamma = composite(
    "lgamma",
    doc=(
        "log |Γ(x)|. Poles, at ±0 and the negative integers, and ±inf give inf; 1 and 2 give +0; "
        "NaN gives NaN. Beside its roots left of 0 it is right to an absolute error only."
    ),
    reference=_lgamma_reference,
    vjp=slope(lambda _result, x: rows.digamma(x)),
    special=cells(
        "0.0 -> inf; -0.0 -> inf; 1 -> 0.0; 2 -> 0.0; -1 -> inf; -4 -> inf; inf -> inf; "
        "-inf -> inf; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_lgamma_decompose,
)


def _asymptotic(x: Value) -> Value:
    """ψ of x >= 10."""
    one = build.ones_like(x)
    inverse = rows.div(one, x)
    square = rows.mul(inverse, inverse)
    series = rows.mul(square, polynomial(square, _BERNOULLI))
    return rows.sub(rows.log(x), rows.add(rows.mul(inverse, like(x, 0.5)), series))


@in_f32
def _digamma_decompose(x: Value) -> Value:
    """By the recurrence to 10 and beyond; ψ(x) = ψ(1 − x) − π/tan πx for x < 0."""
    one, zero = build.ones_like(x), build.zeros_like(x)
    left = compare("lt", x, zero)
    y = rows.select(left, rows.sub(one, x), x)
    total = zero
    for _ in range(_SHIFTS):
        below = compare("lt", y, like(x, _ASYMPTOTIC))
        step = rows.div(one, rows.select(below, y, one))
        total = rows.select(below, rows.add(total, step), total)
        y = rows.select(below, rows.add(y, one), y)
    result = rows.sub(_asymptotic(y), total)
    # A quarter where it is not used, so that no derivative divides by 0.
    off = rows.select(left, _off_integer(x), like(x, 0.25))
    turned = rows.div(like(x, math.pi), rows.tan(rows.mul(off, like(x, math.pi))))
    pole = compare("eq", off, zero)
    reflected = rows.select(pole, like(x, np.nan), rows.sub(result, turned))
    return rows.select(left, reflected, result)


@via_wider
def _digamma_reference(x: Array) -> Array:
    kind = x.dtype.type
    left = x < 0
    y = np.where(left, 1 - x, x)
    total = np.zeros_like(y)
    # So far that the series is right to the last place of the host's long double.
    for _ in range(20):
        below = y < 20
        total = total + np.where(below, 1 / np.where(below, y, 1), 0)
        y = np.where(below, y + 1, y)
    square = 1 / (y * y)
    numbers = [(1, 12), (-1, 120), (1, 252), (-1, 240), (1, 132), (-691, 32760), (1, 12)]
    terms = [kind(a) / kind(b) for a, b in [*numbers, (-3617, 8160), (43867, 14364)]]
    series = square * np.polyval(np.array(terms[::-1], x.dtype), square)
    result = elementary.log(y) - 1 / (2 * y) - series - total
    off = x - np.rint(x)
    pi = kind("3.141592653589793238462643383280")
    reflected = np.where(off == 0, kind(np.nan), result - pi / elementary.tan(pi * off))
    return np.asarray(np.where(left, reflected, result))


digamma = composite(
    "digamma",
    doc=(
        "The derivative of lgamma. ±0 gives ∓inf, inf gives inf; negative integers, −inf and NaN "
        "give NaN. Beside its roots it is right to an absolute error only."
    ),
    reference=_digamma_reference,
    special=cells(
        "0.0 -> -inf; -0.0 -> inf; -1 -> nan; -4 -> nan; inf -> inf; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_digamma_decompose,
)
