"""Composite rows: sinh, cosh, and the inverse functions of the hyperbola.

The polynomials were derived by ``core/tests/llvm/derive.py`` (sinh, asinh, atanh_wide); the bounds
are what the decompositions keep when every op below is as far off as its row allows.
"""

from __future__ import annotations

import math

from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._numeric import via_wider
from bringup.ops.build import compare, copy_sign, in_f32, like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import Cotangents, Domain, Trait, within
from bringup.ops.trigonometry import odd_polynomial

# sinh t = t + t z p(z), z = t², |t| <= 1.
SINH = {
    32: (0.16666667, 0.0083333105, 0.00019842896, 2.7822132e-06),
    64: (
        0.16666666666666666, 0.008333333333333573, 0.00019841269841061157, 2.7557319310094173e-06,
        2.505208941114946e-08, 1.6061339510190488e-10, 7.503230966423466e-13, 6.476644853687622e-15,
    ),
}  # fmt: skip
# asinh t = t + t z p(z), z = t², |t| <= 1/2.
ASINH = {
    32: (-0.16666643, 0.074986406, -0.044382934, 0.028160695, -0.013222221),
    64: (
        -0.16666666666666663, 0.07499999999998827, -0.044642857141556344, 0.030381944371672024,
        -0.022372156684021757, 0.017352713102098193, -0.013964101070175906, 0.01154428172796457,
        -0.009707507547255908, 0.00811264229113458, -0.006303053899790579, 0.0038933745783134564,
        -0.0013444856305092313,
    ),
}  # fmt: skip
# atanh t = t + t z p(z), z = t², |t| <= 1/2.
ATANH = {
    32: (0.33333302, 0.20002453, 0.14223784, 0.1181641, 0.05160313, 0.17638056),
    64: (
        0.3333333333333328, 0.20000000000018558, 0.14285714283388257, 0.11111111258239648,
        0.09090903584298471, 0.07692440725538847, 0.06664482236255986, 0.05907481014123969,
        0.05057639512909609, 0.05958344993622004, -0.005396710270637568, 0.17507362959268122,
        -0.19628895867993448, 0.24122490497214122,
    ),
}  # fmt: skip
# From here on e^t is taken from an exponent less by as much, which is exact, and put back.
_FAR = {32: 88.0, 64: 709.0}
# From here on t² + 1 rounds to t², which is still finite.
_HUGE = {32: 2.0**40, 64: 2.0**400}


def _exponentials(size: Value) -> tuple[Value, Value]:
    """``e^t / 2`` and ``e^−t / 2``, the first as far as it is finite."""
    limit = _FAR[size.dtype.bits]
    far = compare("gt", size, like(size, limit))
    power = rows.exp(rows.select(far, rows.sub(size, like(size, limit)), size))
    grown = rows.mul(power, rows.select(far, like(size, math.exp(limit) / 2), like(size, 0.5)))
    shrunk = rows.select(far, build.zeros_like(size), rows.div(like(size, 0.5), power))
    return grown, shrunk


@in_f32
def _sinh_decompose(x: Value) -> Value:
    size, one = rows.abs(x), build.ones_like(x)
    near = compare("lt", size, one)
    grown, shrunk = _exponentials(size)
    small = odd_polynomial(rows.min(size, one), SINH)
    return copy_sign(rows.select(near, small, rows.sub(grown, shrunk)), x)


sinh = composite(
    "sinh",
    doc="The hyperbolic sine. sinh(±0) is ±0, sinh(±inf) is ±inf, NaN gives NaN.",
    reference=via_wider(elementary.sinh),
    vjp=slope(lambda _result, x: rows.cosh(x)),
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> inf; -inf -> -inf; "
        "-MAX -> -inf; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE, Trait.MONOTONE}),
    # 2 of exp, which e^−t may make 2.6 where sinh is least, and three roundings.
    accuracy=within(5.0),
    decompose=_sinh_decompose,
)


@in_f32
def _cosh_decompose(x: Value) -> Value:
    return rows.add(*_exponentials(rows.abs(x)))


cosh = composite(
    "cosh",
    doc="The hyperbolic cosine. cosh(±0) is 1, cosh(±inf) is inf, NaN gives NaN.",
    reference=via_wider(elementary.cosh),
    vjp=slope(lambda _result, x: rows.sinh(x)),
    special=cells(
        "0.0 -> 1; -0.0 -> 1; inf -> inf; -inf -> inf; MAX -> inf; nan -> nan",
    ),
    traits=frozenset({Trait.EVEN, Trait.EXPENSIVE, Trait.PIECEWISE_MONOTONE}),
    # 2 of exp and up to three roundings.
    accuracy=within(4.0),
    decompose=_cosh_decompose,
)


def _asinh_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    return (rows.div(ct, rows.hypot(x, build.ones_like(x))),)


def _asinh_size(size: Value) -> Value:
    """Asinh of a number that is not negative."""
    one, two = build.ones_like(size), like(size, 2.0)
    huge = _HUGE[size.dtype.bits]
    within_ = rows.min(size, like(size, huge))
    square = rows.mul(within_, within_)
    root = rows.sqrt(rows.add(square, one))
    # log u + (1 + t − u)/u, u = 1 + t rounded, for t = x + x²/(1 + sqrt(1 + x²)).
    excess = rows.add(within_, rows.div(square, rows.add(root, one)))
    u = rows.add(one, excess)
    rest = rows.div(rows.sub(excess, rows.sub(u, one)), u)
    far = compare("gt", size, like(size, huge))
    logarithm = rows.log(rows.select(far, size, u))
    middle = rows.add(logarithm, rows.select(far, like(size, math.log(2)), rest))
    near = compare("lt", size, like(size, 0.5))
    small = odd_polynomial(rows.min(size, two), ASINH)
    return rows.select(near, small, middle)


@in_f32
def _asinh_decompose(x: Value) -> Value:
    return copy_sign(_asinh_size(rows.abs(x)), x)


asinh = composite(
    "asinh",
    doc="The inverse hyperbolic sine. asinh(±0) is ±0, asinh(±inf) is ±inf, NaN gives NaN.",
    reference=via_wider(elementary.asinh),
    vjp=_asinh_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; inf -> inf; -inf -> -inf; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE, Trait.MONOTONE}),
    # 2 of log, 2 of its argument where the result is 1/2, and a sum.
    accuracy=within(5.0),
    decompose=_asinh_decompose,
)


def _acosh_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    one = build.ones_like(x)
    roots = (rows.sqrt(rows.sub(x, one)), rows.sqrt(rows.add(x, one)))
    return (rows.div(rows.div(ct, roots[0]), roots[1]),)


@in_f32
def _acosh_decompose(x: Value) -> Value:
    """Twice asinh of sqrt((x − 1)/2): x − 1 loses nothing that counts."""
    half = rows.sqrt(rows.mul(rows.sub(x, build.ones_like(x)), like(x, 0.5)))
    angle = _asinh_size(half)
    return rows.add(angle, angle)


acosh = composite(
    "acosh",
    doc="The inverse hyperbolic cosine. acosh(1) is +0, acosh(inf) is inf; x < 1 and NaN give NaN.",
    reference=via_wider(elementary.acosh),
    vjp=_acosh_vjp,
    domain=Domain(((1.0, 1e30),)),
    special=cells(
        "1 -> 0.0; inf -> inf; 0.5 -> nan; 0.0 -> nan; -0.0 -> nan; -2 -> nan; -inf -> nan; "
        "nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    # As asinh, of an argument that is 1.5 roundings off.
    accuracy=within(6.0),
    decompose=_acosh_decompose,
)


def _atanh_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    one = build.ones_like(x)
    return (rows.div(ct, rows.mul(rows.sub(one, x), rows.add(one, x))),)


@in_f32
def _atanh_decompose(x: Value) -> Value:
    """Half of log((1 + t)/(1 − t)) from 1/2 on, where 1 − t is exact."""
    size, one, half = rows.abs(x), build.ones_like(x), like(x, 0.5)
    near = compare("lt", size, half)
    ratio = rows.div(rows.add(one, size), rows.sub(one, size))
    far = rows.mul(rows.log(ratio), half)
    small = odd_polynomial(rows.min(size, one), ATANH)
    return copy_sign(rows.select(near, small, far), x)


atanh = composite(
    "atanh",
    doc="The inverse hyperbolic tangent. atanh(±0) is ±0, atanh(±1) is ±inf; |x| > 1 gives NaN.",
    reference=via_wider(elementary.atanh),
    vjp=_atanh_vjp,
    domain=Domain(((-1.0, 1.0),)),
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; SUBNORMAL -> SUBNORMAL; 1 -> inf; -1 -> -inf; 1.5 -> nan; "
        "inf -> nan; -inf -> nan; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE}),
    # 2 of log and 2 of its argument where the result is 0.55.
    accuracy=within(5.0),
    decompose=_atanh_decompose,
)
