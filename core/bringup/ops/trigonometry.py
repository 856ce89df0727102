"""Composite rows: tan, and the inverse functions of the circle.

The polynomials were derived by ``core/tests/llvm/derive.py`` (asin); the bounds are what the
decompositions keep when every op below is as far off as its row allows, on f32 and f64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.graph import Value
from bringup.maths import arctangent
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._numeric import via_wider
from bringup.ops.build import compare, copy_sign, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic, polynomial
from bringup.ops.special_values import Special, cells
from bringup.ops.table import Cotangents, Domain, Trait, within

# asin t = t + t z p(z), z = t², |t| <= 1/2.
ASIN = {
    32: (0.16666752, 0.074953094, 0.045469154, 0.024184745, 0.04215838),
    64: (
        0.1666666666666676, 0.07499999999970863, 0.044642857174564565, 0.030381942709673045,
        0.022372214941518354, 0.01735161275118475, 0.013980812529452054, 0.011398972508068718,
        0.010779939278759516, 0.0037075159264296307, 0.02170491237511562, -0.02099566927110499,
        0.03262660710848965,
    ),
}  # fmt: skip
_QUARTER, _HALF = "0.7853981633974483", "1.5707963267948966"
_PI, _THREE_QUARTERS = "3.141592653589793", "2.356194490192345"


def odd_polynomial(x: Value, terms: Mapping[int, Sequence[float]]) -> Value:
    """``x + x z p(z)``, z = x²; the coefficients, lowest power first, for f32 and f64."""
    square = rows.mul(x, x)
    curve = polynomial(square, terms[x.dtype.bits])
    return rows.add(x, rows.mul(rows.mul(x, square), curve))


def _half_pi(x: Value, times: float) -> tuple[Value, Value]:
    high, low = arctangent.HALF_PI[x.dtype.bits]
    return like(x, times * high), like(x, times * low)


def _plus(base: tuple[Value, Value], x: Value) -> Value:
    """A constant of two floats plus a smaller number."""
    return rows.add(base[0], rows.add(x, base[1]))


@in_f32
def _tan_decompose(x: Value) -> Value:
    return rows.div(rows.sin(x), rows.cos(x))


tan = composite(
    "tan",
    doc=(
        "The tangent of x in radians, for every finite x. tan(±0) is ±0; ±inf and NaN give NaN. "
        "Decomposed, the last binade of the dtype is right to an absolute error only, as cos is."
    ),
    reference=via_wider(elementary.tan),
    vjp=slope(lambda result, _x: rows.add(rows.mul(result, result), build.ones_like(result))),
    domain=Domain(((-1.7e38, 1.7e38),)),
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE}),
    # 2 of sin, 2 of cos, and the quotient's rounding.
    accuracy=within(5.0),
    decompose=_tan_decompose,
)


def _atan_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.div(ct, rows.add(rows.mul(x, x), build.ones_like(x))),)


@in_f32
def _atan_decompose(x: Value) -> Value:
    return arctangent.atan(GraphArithmetic(x), x)


atan = composite(
    "atan",
    doc="The inverse tangent, in [−π/2, π/2]. atan(±0) is ±0, atan(±inf) is ±π/2, NaN gives NaN.",
    reference=via_wider(elementary.atan),
    vjp=_atan_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> 1.5707963267948966; "
        "-inf -> -1.5707963267948966; -MAX -> -1.5707963267948966; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE, Trait.MONOTONE}),
    # 1.6 of the reduced argument where the result is smallest, the polynomial and two sums.
    accuracy=within(3.0),
    decompose=_atan_decompose,
)


def _atan2_vjp(ct: Value, _result: Value, y: Value, x: Value) -> Cotangents:
    size = rows.hypot(y, x)
    none = compare("eq", size, build.zeros_like(size))
    size = rows.select(none, build.ones_like(size), size)
    scaled = rows.div(ct, size)
    return (
        rows.mul(scaled, rows.div(x, size)),
        rows.neg(rows.mul(scaled, rows.div(y, size))),
    )


@in_f32
def _atan2_decompose(y: Value, x: Value) -> Value:
    return arctangent.atan2(GraphArithmetic(x), y, x)


def _atan2_cells() -> tuple[Special, ...]:
    """C99, Annex F.9.1.4."""
    cells = {
        ("0.0", "-0.0"): _PI,
        ("0.0", "0.0"): "0.0",
        ("0.0", "-1"): _PI,
        ("0.0", "1"): "0.0",
        ("1", "0.0"): _HALF,
        ("1", "-0.0"): _HALF,
        ("SUBNORMAL", "0.0"): _HALF,
        ("1", "-inf"): _PI,
        ("MAX", "inf"): "0.0",
        ("0.0", "inf"): "0.0",
        ("inf", "1"): _HALF,
        ("inf", "-MAX"): _HALF,
        ("inf", "-inf"): _THREE_QUARTERS,
        ("inf", "inf"): _QUARTER,
        ("MAX", "MAX"): _QUARTER,
    }
    both = [
        Special((sign + y, x), sign + result)
        for (y, x), result in cells.items()
        for sign in ("", "-")
    ]
    undefined = (("nan", "1"), ("1", "nan"), ("nan", "inf"), ("inf", "nan"), ("0.0", "nan"))
    return (*both, *(Special(pair, "nan") for pair in undefined))


atan2 = composite(
    "atan2",
    arity=2,
    doc=(
        "The angle of the point (x, y), from operands y and x, in [−π, π]; zeros and infinities as "
        "in C99's Annex F: the sign of y is that of the result, also of zeros, and x = −0 lies to "
        "the left. NaN gives NaN. The gradient at the origin is 0."
    ),
    reference=via_wider(elementary.atan2),
    vjp=_atan2_vjp,
    special=_atan2_cells(),
    traits=frozenset({Trait.EXPENSIVE}),
    # As atan, of a quotient that is half an ULP off itself.
    accuracy=within(4.0),
    decompose=_atan2_decompose,
)


def _cosine_of(x: Value) -> Value:
    """Sqrt(1 − x²), accurate near ±1."""
    one = build.ones_like(x)
    return rows.sqrt(rows.mul(rows.sub(one, x), rows.add(one, x)))


def _asin_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.div(ct, _cosine_of(x)),)


def _acos_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.neg(rows.div(ct, _cosine_of(x))),)


def _asin_parts(x: Value) -> tuple[Value, Value]:
    """Where |x| <= 1/2, and asin |x| there, asin sqrt((1 − |x|)/2) elsewhere."""
    size = rows.abs(x)
    half = like(x, 0.5)
    near = compare("le", size, half)
    root = rows.sqrt(rows.mul(rows.sub(build.ones_like(x), size), half))
    return near, odd_polynomial(rows.select(near, size, root), ASIN)


@in_f32
def _asin_decompose(x: Value) -> Value:
    near, angle = _asin_parts(x)
    far = _plus(_half_pi(x, 1), rows.neg(rows.add(angle, angle)))
    return copy_sign(rows.select(near, angle, far), x)


@in_f32
def _acos_decompose(x: Value) -> Value:
    near, angle = _asin_parts(x)
    below = compare("lt", x, build.zeros_like(x))
    middle = _plus(_half_pi(x, 1), rows.select(below, angle, rows.neg(angle)))
    twice = rows.add(angle, angle)
    far = rows.select(below, _plus(_half_pi(x, 2), rows.neg(twice)), twice)
    return rows.select(near, middle, far)


asin = composite(
    "asin",
    doc="The inverse sine, in [−π/2, π/2]. asin(±0) is ±0; |x| > 1 and NaN give NaN.",
    reference=via_wider(elementary.asin),
    vjp=_asin_vjp,
    domain=Domain(((-1.0, 1.0),)),
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; 1 -> 1.5707963267948966; "
        "-1 -> -1.5707963267948966; 1.5 -> nan; inf -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE}),
    # 1 of the root where the result is π/6, as much of the polynomial, and two sums.
    accuracy=within(3.0),
    decompose=_asin_decompose,
)

acos = composite(
    "acos",
    doc="The inverse cosine, in [0, π]. acos(1) is +0; |x| > 1 and NaN give NaN.",
    reference=via_wider(elementary.acos),
    vjp=_acos_vjp,
    domain=Domain(((-1.0, 1.0),)),
    special=cells(
        "1 -> 0.0; -1 -> 3.141592653589793; 0.0 -> 1.5707963267948966; "
        "-0.0 -> 1.5707963267948966; 1.5 -> nan; inf -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    # The root's half and the polynomial's; sums add one where they are taken.
    accuracy=within(3.0),
    decompose=_acos_decompose,
)
