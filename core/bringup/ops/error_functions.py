"""Composite rows: erfc and erfinv."""

from __future__ import annotations

import math

import numpy as np

from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._erf import P, Q, erf_near
from bringup.ops._numeric import Array, via_wider
from bringup.ops._pairs import copy_sign, upper_half
from bringup.ops.build import compare, in_f32, like, polynomial, rows
from bringup.ops.special_values import cells
from bringup.ops.table import Cotangents, Domain, Trait, within

# erfc x = exp(−x²) p(x − 1/2) for 1/2 <= x <= 1; by ``core/tests/llvm/derive.py`` (erfcx).
ERFCX_32 = (
    0.61569035,
    -0.51268995,
    0.3593789,
    -0.22237168,
    0.12601045,
    -0.068445675,
    0.034681324,
    -0.011352223,
)
ERFCX_64 = (
    0.6156903441929259,
    -0.5126888229026043,
    0.3593459327438666,
    -0.22201057113311998,
    0.12417032654889965,
    -0.06397020980948032,
    0.03072888434299624,
    -0.01389067522297293,
    0.005961914898818426,
    -0.002478928284656345,
    0.001074246785735081,
    -0.000563000490984438,
    0.0003484030933814565,
    -0.0001785363064999814,
    4.6600025278250224e-05,
)
# erfc x = exp(−x²) · R(x) / S(x) for x >= 8; Cephes (S. Moshier, 1984–2000), as in ``_erf``.
_R = (
    5.64189583547755073984e-1,
    1.27536670759978104416e0,
    5.01905042251180477414e0,
    6.16021097993053585195e0,
    7.40974269950448939160e0,
    2.97886665372100240670e0,
)
_S = (
    1.0,
    2.26052863220117276590e0,
    9.39603524938001434673e0,
    1.20489539808096656605e1,
    1.70814450747565897222e1,
    9.60896809063285878198e0,
    3.36907645100081516050e0,
)
# The quantile of the normal distribution, highest power first: M. J. Wichura, algorithm AS 241,
# Applied Statistics 37 (1988).  Middle, tail and far tail.
_CENTRE = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
        4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
        1.3314166789178437745e2, 3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
        2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
        4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
        1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
        4.63033784615654529590e0, 1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
        1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
        2.05319162663775882187e0, 1.0,
    ),
)  # fmt: skip
_FAR_TAIL = (
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
        2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
        5.46378491116411436990e0, 6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
        7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
        5.99832206555887937690e-1, 1.0,
    ),
)  # fmt: skip
#: Of each the numerator and the denominator, in the centre, the tail and the far tail.
NORMAL_QUANTILE = (_CENTRE, _TAIL, _FAR_TAIL)
_ROOT_PI = math.sqrt(math.pi)


def _bell(x: Value) -> Value:
    """``exp(−x²)``: the square of the upper half of x is exact, and the rest is small."""
    upper = upper_half(x)
    rest = rows.mul(rows.sub(upper, x), rows.add(upper, x))
    return rows.mul(rows.exp(rows.neg(rows.mul(upper, upper))), rows.exp(rest))


@in_f32
def _erfc_decompose(x: Value) -> Value:
    one = build.ones_like(x)
    # Beyond 30 the result is 0 in f64 too.
    size = rows.min(rows.abs(x), like(x, 30.0))
    terms = ERFCX_32 if x.dtype.bits == 32 else ERFCX_64
    middle = polynomial(rows.sub(size, like(x, 0.5)), tuple(reversed(terms)))
    wide = compare("lt", size, like(x, 8.0))
    over = rows.select(wide, polynomial(size, P), polynomial(size, _R))
    under = rows.select(wide, polynomial(size, Q), polynomial(size, _S))
    scaled = rows.select(compare("lt", size, one), middle, rows.div(over, under))
    tail = rows.mul(_bell(size), scaled)
    left = compare("lt", x, build.zeros_like(x))
    far = rows.select(left, rows.sub(like(x, 2.0), tail), tail)
    return rows.select(compare("lt", size, like(x, 0.5)), rows.sub(one, erf_near(x)), far)


erfc = composite(
    "erfc",
    doc=(
        "The complementary error function 1 − erf(x), accurate in its tail. erfc(inf) is +0, "
        "erfc(−inf) is 2, NaN gives NaN."
    ),
    reference=via_wider(elementary.erfc),
    vjp=slope(
        lambda _result, x: rows.mul(like(x, -2 / _ROOT_PI), rows.exp(rows.neg(rows.mul(x, x))))
    ),
    special=cells(
        "0.0 -> 1; -0.0 -> 1; SUBNORMAL -> 1; inf -> 0.0; -inf -> 2; MAX -> 0.0; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.PIECEWISE_MONOTONE}),
    # 9 of a quotient of polynomials of degree 8 and of products, and 2 of either exponential.
    accuracy=within(14.0),
    decompose=_erfc_decompose,
)


@via_wider
def _erfinv_reference(x: Array) -> Array:
    """AS 241 at (1 + x)/2, divided by sqrt(2), and one step towards the root of erf."""

    def evaluate(at: Array, terms: tuple[float, ...]) -> Array:
        return np.asarray(np.polyval(np.array(terms, x.dtype), at))

    half = x / 2
    central = x.dtype.type("0.180625") - half * half
    near = half * evaluate(central, _CENTRE[0]) / evaluate(central, _CENTRE[1])
    root = np.sqrt(-elementary.log((1 - np.abs(x)) / 2))
    tail, far = root - x.dtype.type("1.6"), root - 5
    value = evaluate(tail, _TAIL[0]) / evaluate(tail, _TAIL[1])
    value = np.where(root <= 5, value, evaluate(far, _FAR_TAIL[0]) / evaluate(far, _FAR_TAIL[1]))
    value = np.where(np.isinf(root), root, value)
    value = np.where(np.abs(half) <= 0.425, near, np.copysign(value, x))
    start = value / np.sqrt(x.dtype.type(2))
    inside = (np.abs(x) < 1) & (x != 0)
    half = x.dtype.type(0.5)
    better = elementary.erfinv(np.where(inside, x, half), np.where(inside, start, half))
    return np.where(inside, better, start)


def _erfinv_vjp(ct: Value, result: Value, x: Value) -> Cotangents:
    slope = rows.mul(like(x, _ROOT_PI / 2), rows.exp(rows.mul(result, result)))
    return (rows.mul(ct, slope),)


def _ratio(x: Value, terms: tuple[tuple[float, ...], tuple[float, ...]]) -> Value:
    return rows.div(polynomial(x, terms[0]), polynomial(x, terms[1]))


@in_f32
def _erfinv_decompose(x: Value) -> Value:
    one, half = build.ones_like(x), rows.mul(x, like(x, 0.5))
    near = rows.mul(half, _ratio(rows.sub(like(x, 0.180625), rows.mul(half, half)), _CENTRE))
    left_over = rows.mul(rows.sub(one, rows.abs(x)), like(x, 0.5))
    root = rows.sqrt(rows.neg(rows.log(left_over)))
    tail = _ratio(rows.sub(root, like(x, 1.6)), _TAIL)
    far = _ratio(rows.sub(root, like(x, 5.0)), _FAR_TAIL)
    value = rows.select(compare("le", root, like(x, 5.0)), tail, far)
    value = rows.select(compare("eq", root, like(x, np.inf)), root, value)
    central = compare("le", rows.abs(half), like(x, 0.425))
    value = rows.select(central, near, copy_sign(value, x))
    return rows.mul(value, like(x, math.sqrt(0.5)))


erfinv = composite(
    "erfinv",
    doc="The inverse of erf. erfinv(±0) is ±0, erfinv(±1) is ±inf; |x| > 1 and NaN give NaN.",
    reference=_erfinv_reference,
    vjp=_erfinv_vjp,
    domain=Domain(((-1.0, 1.0),)),
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; 1 -> inf; -1 -> -inf; 1.5 -> nan; inf -> nan; -inf -> nan; "
        "nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE}),
    # 7 of a quotient of polynomials of degree 7 and of products; in the tails 2 of log, halved.
    accuracy=within(8.0),
    decompose=_erfinv_decompose,
)
