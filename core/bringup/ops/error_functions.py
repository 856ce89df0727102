"""Composite rows: erfc and erfinv."""

from __future__ import annotations

import math

import numpy as np

from bringup.graph import Value
from bringup.maths.errorfunction import erf_near_0
from bringup.maths.quantile import PRECISE, Region, upper_quantile
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._numeric import Array, via_wider
from bringup.ops.build import compare, copy_sign, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic, polynomial
from bringup.ops.special_values import cells
from bringup.ops.table import Cotangents, Domain, Trait, within

# erfc x = exp(−x²) p(x − 1/2) for 1/2 <= x <= 1; by ``core/tests/llvm/derive.py`` (erfcx).
ERFCX = {
    32: (
        0.61569035, -0.51268995, 0.3593789, -0.22237168, 0.12601045, -0.068445675, 0.034681324,
        -0.011352223,
    ),
    64: (
        0.6156903441929259, -0.5126888229026043, 0.3593459327438666, -0.22201057113311998,
        0.12417032654889965, -0.06397020980948032, 0.03072888434299624, -0.01389067522297293,
        0.005961914898818426, -0.002478928284656345, 0.001074246785735081, -0.000563000490984438,
        0.0003484030933814565, -0.0001785363064999814, 4.6600025278250224e-05,
    ),
}  # fmt: skip
# Cephes (S. Moshier, 1984–2000): erfc x = exp(−x²) · P(x) / Q(x) for 1 <= x <= 8.
_P = (
    5.57535335369399327526e2, 1.02755188689515710272e3, 9.34528527171957607540e2,
    5.26445194995477358631e2, 1.96520832956077098242e2, 4.86371970985681366614e1,
    7.46321056442269912687e0, 5.64189564831068821977e-1, 2.46196981473530512524e-10,
)  # fmt: skip
_Q = (
    5.57535340817727675546e2, 1.65666309194161350182e3, 2.24633760818710981792e3,
    1.82390916687909736289e3, 9.75708501743205489753e2, 3.54937778887819891062e2,
    8.67072140885989742329e1, 1.32281951154744992508e1, 1.0,
)  # fmt: skip
# erfc x = exp(−x²) · R(x) / S(x) for x >= 8.
_R = (
    2.97886665372100240670e0, 7.40974269950448939160e0, 6.16021097993053585195e0,
    5.01905042251180477414e0, 1.27536670759978104416e0, 5.64189583547755073984e-1,
)  # fmt: skip
_S = (
    3.36907645100081516050e0, 9.60896809063285878198e0, 1.70814450747565897222e1,
    1.20489539808096656605e1, 9.39603524938001434673e0, 2.26052863220117276590e0, 1.0,
)  # fmt: skip
_ROOT_PI = math.sqrt(math.pi)


def _bell(x: Value) -> Value:
    """``exp(−x²)``: the square of the upper half of x is exact, and the rest is small."""
    upper = GraphArithmetic(x).upper_half(x)
    rest = rows.mul(rows.sub(upper, x), rows.add(upper, x))
    return rows.mul(rows.exp(rows.neg(rows.mul(upper, upper))), rows.exp(rest))


@in_f32
def _erfc_decompose(x: Value) -> Value:
    one = build.ones_like(x)
    # Beyond 30 the result is 0 in f64 too.
    size = rows.min(rows.abs(x), like(x, 30.0))
    middle = polynomial(rows.sub(size, like(x, 0.5)), ERFCX[x.dtype.bits])
    wide = compare("lt", size, like(x, 8.0))
    over = rows.select(wide, polynomial(size, _P), polynomial(size, _R))
    under = rows.select(wide, polynomial(size, _Q), polynomial(size, _S))
    scaled = rows.select(compare("lt", size, one), middle, rows.div(over, under))
    tail = rows.mul(_bell(size), scaled)
    left = compare("lt", x, build.zeros_like(x))
    far = rows.select(left, rows.sub(like(x, 2.0), tail), tail)
    near = erf_near_0(GraphArithmetic(x), x)
    return rows.select(compare("lt", size, like(x, 0.5)), rows.sub(one, near), far)


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

    def ratio(at: Array, region: Region) -> Array:
        over, under = (np.polyval(np.array(row[::-1], x.dtype), at) for row in region)
        return np.asarray(over / under)

    half = x / 2
    inside, outside, beyond = PRECISE
    near = half * ratio(x.dtype.type("0.180625") - half * half, inside)
    root = np.sqrt(-elementary.log((1 - np.abs(x)) / 2))
    value = ratio(root - x.dtype.type("1.6"), outside)
    value = np.where(root <= 5, value, ratio(root - 5, beyond))
    value = np.where(np.isinf(root), root, value)
    value = np.where(np.abs(half) <= 0.425, near, np.copysign(value, x))
    start = value / np.sqrt(x.dtype.type(2))
    found = (np.abs(x) < 1) & (x != 0)
    half = x.dtype.type(0.5)
    better = elementary.erfinv(np.where(found, x, half), np.where(found, start, half))
    return np.where(found, better, start)


def _erfinv_vjp(ct: Value, result: Value, x: Value) -> Cotangents:
    slope = rows.mul(like(x, _ROOT_PI / 2), rows.exp(rows.mul(result, result)))
    return (rows.mul(ct, slope),)


@in_f32
def _erfinv_decompose(x: Value) -> Value:
    """The quantile of (1 + x)/2, divided by sqrt(2)."""
    size, half = rows.abs(x), like(x, 0.5)
    tail = rows.mul(rows.sub(build.ones_like(x), size), half)
    m = GraphArithmetic(x)
    # In f32 no tail but 0 is below 2^-25.
    quantile = upper_quantile(
        m, tail, rows.mul(size, half), rows.log, PRECISE, deep=x.dtype.bits == 64
    )
    value = rows.select(compare("eq", tail, build.zeros_like(x)), like(x, np.inf), quantile)
    return copy_sign(rows.mul(value, like(x, math.sqrt(0.5))), x)


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
