"""Composite rows: the exponentially scaled modified Bessel functions of order 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from bringup.graph import Value
from bringup.ops import _doubled as dd
from bringup.ops import build
from bringup.ops._doubled import Doubled, exactly, two_product
from bringup.ops._elementary import exp_sum
from bringup.ops._elementwise import composite
from bringup.ops._numeric import Array, NpDType, via_wider
from bringup.ops.build import compare, copy_sign, in_f32, like, rows
from bringup.ops.graph_arithmetic import polynomial
from bringup.ops.special_values import cells
from bringup.ops.table import Cotangents, Trait, within

# By ``core/tests/llvm/derive.py`` (bessel_i0, bessel_i0_far and so on), lowest power first.
# I0(x) = p(x²/4) and I1(x) = x/2 p(x²/4), |x| <= 8.
NEAR: tuple[dict[int, tuple[float, ...]], ...] = (
    {
        32: (
            1.0, 1.0000001, 0.2499994, 0.027778635, 0.0017355693, 6.962355e-05, 1.8954008e-06,
            4.3050324e-08, 3.8496895e-10, 1.4928928e-11,
        ),
        64: (
            1.0, 1.0, 0.2499999999999999, 0.027777777777778335, 0.0017361111111100476,
            6.944444444551209e-05, 1.9290123450307963e-06, 3.9367599148613585e-08,
            6.151186627805014e-10, 7.59407180999971e-12, 7.59387529289146e-14,
            6.277877554610974e-16, 4.3458942100674675e-18, 2.638879474926465e-20,
            1.128679953681827e-22, 9.188301327178718e-25,
        ),
    },
    {
        32: (
            1.0, 0.5, 0.0833333, 0.0069445116, 0.00034717566, 1.1589974e-05, 2.7256158e-07,
            5.250896e-09, 4.778847e-11, 1.4139563e-12,
        ),
        64: (
            1.0, 0.5, 0.08333333333333333, 0.0069444444444444735, 0.00034722222222216163,
            1.157407407413713e-05, 2.7557319220104863e-07, 4.9209498768719536e-09,
            6.834652166465851e-11, 7.594066410501147e-13, 6.9035808319874324e-15,
            5.231127586822358e-17, 3.345271788852274e-19, 1.87714106123603e-21,
            7.68110909616732e-24, 5.601701050516384e-26,
        ),
    },
)  # fmt: skip
# The same functions over e^x/√x are p(8/x), x >= 8.
FAR: tuple[dict[int, tuple[float, ...]], ...] = (
    {
        32: (
            0.3989423, 0.0062330393, 0.00044081628, 5.296995e-05, 1.0925937e-05, 6.2876074e-06,
        ),
        64: (
            0.39894228040143265, 0.006233473131310604, 0.00043829107330687006,
            5.7069543074188096e-05, 1.0910483266526754e-05, 3.023339136102693e-06,
            -2.559305850960409e-06, 3.230222252871217e-05, -0.00021714847584404411,
            0.0011055636010709245, -0.004286701670985939, 0.01281761818968423,
            -0.02974095942375813, 0.05364002315351318, -0.07497387847150651, 0.08056226606840854,
            -0.06561312655977318, 0.03959184554177652, -0.01706763393453638, 0.0049434539123536965,
            -0.0008561211819415024, 6.635071792773671e-05,
        ),
    },
    {
        32: (
            0.3989423, -0.01870107, -0.00072445517, -9.978604e-05, 1.380373e-05, -1.852753e-05,
        ),
        64: (
            0.3989422804014327, -0.01870041939385543, -0.0007304851261720134,
            -7.989721689325822e-05, -1.4030972827148332e-05, -3.6475552237695395e-06,
            2.5290521865460373e-06, -3.3509949046863734e-05, 0.00022464067173459567,
            -0.0011416137935080862, 0.004416769985750184, -0.013173933009934375,
            0.03048290934289904, -0.05480604504012982, 0.07633024742471801, -0.08168145714460587,
            0.06620232954362298, -0.039715610650931585, 0.016999221193496172, -0.00487939719579547,
            0.000835039009379203, -6.365296614430987e-05,
        ),
    },
)  # fmt: skip
_EDGE = 8.0
# The reference takes the power series to here, and Hankel's asymptotic series beyond, whose
# smallest term is about e^(−2x).
_SERIES_EDGE = 48.0
_SERIES_TERMS = 100
# x²/4 is at most 24² in the power series; of its 2^10th part the powers fit any float.
_SCALE = 10
# Below it the derivative of the function of order 1 is ½ to the last place.
_SMALL = {16: 2.0**-13, 32: 2.0**-30, 64: 2.0**-60}


@cache
def _series(dtype: NpDType, order: int) -> list[Doubled]:
    """Coefficients of the power series in (x²/4) / 2^10, lowest power first."""
    factors = [math.factorial(k) * math.factorial(k + order) for k in range(_SERIES_TERMS)]
    integers = [(1 << dd.BITS + _SCALE * k) // factor for k, factor in enumerate(factors)]
    return [dd.from_integers(value, dd.BITS, dtype) for value in integers]


def _scaled(order: int) -> Callable[..., Array]:
    """The reference of one order: e^(−|x|) times the function."""

    @via_wider
    @dd.elementwise
    def reference(x: Array) -> Array:
        size = np.abs(x)
        close = size <= _SERIES_EDGE
        half = np.where(close, size, 0).astype(x.dtype) / 2
        square = two_product(half, half).scaled(-_SCALE)
        total = exactly(np.zeros_like(x))
        for coefficient in reversed(_series(x.dtype, order)):
            total = total * square + coefficient
        power, exponent = exp_sum(exactly(-2 * half))
        near = np.ldexp(
            (total * power * exactly(half if order else np.ones_like(x))).value(), exponent
        )
        beyond = np.where(close | ~np.isfinite(x), _SERIES_EDGE, size).astype(x.dtype)
        result = np.where(close, near, np.where(np.isinf(x), 0, _hankel(beyond, order)))
        signed = np.copysign(result, x) if order else result
        return np.where(np.isnan(x), x, signed)

    return reference


def _hankel(x: Array, order: int) -> Array:
    """Hankel's series over √(2πx), x >= 48."""
    total = np.zeros_like(x)
    for k in range(60, 0, -1):
        total = (total + 1) * ((((2 * k - 1) ** 2 - 4 * order) / (8 * k)) / x)
    # Of an even exponent and a significand, so that no product overflows.
    exponent = np.frexp(x)[1] // 2 * 2
    circle = dd.constants(x.dtype)["pi"].scaled(1)
    root = (circle * exactly(np.ldexp(x, -exponent))).sqrt()
    quotient = exactly(np.ones_like(x)).plus(total) / root
    return np.asarray(np.ldexp(quotient.value(), -exponent // 2))


def _decompose(order: int) -> Callable[..., Value]:
    """e^(−|x|) times a polynomial in x²/4 up to 8, and one in 8/x over √x beyond."""

    @in_f32
    def decompose(x: Value) -> Value:
        size, edge = rows.abs(x), like(x, _EDGE)
        close = compare("le", size, edge)
        near = rows.select(close, size, build.zeros_like(x))
        half = rows.mul(near, like(x, 0.5))
        powers, inverses = (t[order][x.dtype.bits] for t in (NEAR, FAR))
        series = polynomial(rows.mul(half, half), powers)
        series = rows.mul(series, half) if order else series
        near = rows.mul(series, rows.exp(rows.neg(near)))
        far = rows.select(close, edge, size)
        beyond = rows.div(polynomial(rows.div(edge, far), inverses), rows.sqrt(far))
        result = rows.select(close, near, beyond)
        return copy_sign(result, x) if order else result

    return decompose


def _i0e_vjp(ct: Value, result: Value, x: Value) -> Cotangents:
    slope = rows.sub(rows.bessel_i1e(x), rows.mul(rows.sign(x), result))
    return (rows.mul(ct, slope),)


def _i1e_vjp(ct: Value, result: Value, x: Value) -> Cotangents:
    small = compare("le", rows.abs(x), like(x, _SMALL[x.dtype.bits]))
    ratio = rows.div(result, rows.select(small, build.ones_like(x), x))
    slope = rows.sub(rows.sub(rows.bessel_i0e(x), ratio), rows.mul(rows.sign(x), result))
    return (rows.mul(ct, rows.select(small, like(x, 0.5), slope)),)


bessel_i0e = composite(
    "bessel_i0e",
    doc=(
        "e^(−|x|) I0(x), I0 the modified Bessel function of the first kind and order 0. ±0 gives "
        "1, ±inf gives +0, NaN gives NaN."
    ),
    reference=_scaled(0),
    vjp=_i0e_vjp,
    special=cells(
        "0.0 -> 1; -0.0 -> 1; SUBNORMAL -> 1; inf -> 0.0; -inf -> 0.0; nan -> nan",
    ),
    traits=frozenset({Trait.EVEN, Trait.EXPENSIVE}),
    # In halves of an ULP of numbers just above a power of 2: 9 of Horner's rule, whose terms are
    # positive, 4 of the rounding of x²/4, 4 of the exponential, 1 of the product.
    accuracy=within(18.0),
    decompose=_decompose(0),
)

bessel_i1e = composite(
    "bessel_i1e",
    doc=(
        "e^(−|x|) I1(x), I1 the modified Bessel function of the first kind and order 1, the "
        "derivative of I0. ±0 and ±inf give ±0, NaN gives NaN."
    ),
    reference=_scaled(1),
    vjp=_i1e_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; inf -> 0.0; -inf -> -0.0; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE}),
    # As above, less of the polynomial, with another product.
    accuracy=within(18.0),
    decompose=_decompose(1),
)
