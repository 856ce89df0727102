"""Special functions, as ``bringup.special``.

Integers become the default float first; f16 and bf16 are computed in f32.  Accuracy, special values
and derivatives of `erf`, `erfc`, `erfinv`, `lgamma`, `digamma`, `i0e` and `i1e` are those of the
rows of the op table; the others are made of them.  All take real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.api.array import Array, Operand
from bringup.api.axes import integer_of
from bringup.api.boundary import publish
from bringup.api.broadcasting import as_array, convert, float_unary
from bringup.api.creation import asarray
from bringup.api.custom import custom_jvp
from bringup.api.defaults import default_float
from bringup.api.elementwise import (
    abs,
    atanh,
    clip,
    exp,
    floor,
    isfinite,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    pow,
    where,
)
from bringup.api.gathering import take
from bringup.api.portable_math import upper_quantile
from bringup.api.promotion import common
from bringup.dtypes import DType, bf16, f16, f32, i32
from bringup.errors import OpTypeError
from bringup.nn import logistic, logsumexp


def erf(x: Operand) -> Array:
    """The error function.

    >>> bu.special.erf(bu.asarray([bu.inf])).tolist()
    [1.0]
    """
    return float_unary("erf", x)


def erfc(x: Operand) -> Array:
    """``1 - erf(x)``, precise in its tail.

    >>> 0 < bu.special.erfc(bu.asarray([20.0])).item() < 1e-174
    True
    """
    return float_unary("erfc", x)


def erfinv(x: Operand) -> Array:
    """The inverse of `erf`; NaN beyond ±1.

    >>> bu.special.erfinv(bu.asarray([1.0])).tolist()
    [inf]
    """
    return float_unary("erfinv", x)


def lgamma(x: Operand) -> Array:
    """The logarithm of the size of the gamma function; infinite at 0, −1, −2, ….

    >>> bu.special.lgamma(bu.asarray([1.0, 2.0, 0.0])).tolist()
    [0.0, 0.0, inf]
    """
    return float_unary("lgamma", x)


def digamma(x: Operand) -> Array:
    """The derivative of `lgamma`; NaN at −1, −2, ….

    >>> round(bu.special.digamma(bu.asarray([1.0])).item(), 6)
    -0.577216
    """
    return float_unary("digamma", x)


expit = logistic
gammaln = lgamma
psi = digamma


def _floats(name: str, *operands: Operand) -> tuple[list[Array], DType]:
    """Operands in the dtype to work in, and the dtype of the result."""
    dtype, _ = common(operands)
    if dtype.is_complex:
        raise OpTypeError(
            f"{name}: takes real numbers, not {dtype}", fix="take the real part, or the magnitude"
        )
    own = dtype if dtype.is_float else default_float()
    wide = f32 if own in (f16, bf16) else own
    return [convert(as_array(x), wide) for x in operands], own


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """The value of a polynomial, the coefficient of the lowest power first."""
    value: Any = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return as_array(value)


# -- logarithms ------------------------------------------------------------------------------------


def logit(x: Operand, /) -> Array:
    """``log(x / (1 - x))``, precise around 1/2 too; NaN beyond 0 and 1.

    >>> bu.special.logit(bu.asarray([0.0, 0.5, 1.0])).tolist()
    [-inf, 0.0, inf]
    """
    (x,), result_dtype = _floats("logit", x)
    central = abs(x - 0.5) < 0.25
    # The difference is exact where it is used.
    near = 2 * atanh(where(central, 2 * x - 1, 0.0))
    return convert(where(central, near, log(x) - log1p(-x)), result_dtype)


def xlogy(x: Operand, y: Operand, /) -> Array:
    """``x * log(y)``, 0 where x is 0, unless y is NaN.

    Where x is 0 and the logarithm is not finite the derivatives are 0 as well.

    >>> bu.special.xlogy(bu.asarray([0.0, 2.0]), bu.asarray([0.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    (x, y), result_dtype = _floats("xlogy", x, y)
    return convert(x * log(where(_vanishing(x, y), 1.0, y)), result_dtype)


def xlog1py(x: Operand, y: Operand, /) -> Array:
    """``x * log1p(y)``, 0 where x is 0, unless y is NaN; derivatives as of `xlogy`.

    >>> bu.special.xlog1py(bu.asarray([0.0, 2.0]), bu.asarray([-1.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    (x, y), result_dtype = _floats("xlog1py", x, y)
    return convert(x * log1p(where(_vanishing(x, 1 + y), 0.0, y)), result_dtype)


def _vanishing(x: Array, y: Array) -> Array:
    """Where x is 0, and y, which is no NaN, has no finite logarithm."""
    finite = (y > 0) & isfinite(y)
    return (x == 0) & ~(finite | isnan(y))


def entr(x: Operand, /) -> Array:
    """``-x * log(x)``, the part of an entropy: 0 at 0, -inf below; the derivative at 0 counts as 0.

    >>> bu.special.entr(bu.asarray([0.0, 1.0, -1.0])).tolist()
    [0.0, 0.0, -inf]
    """
    (x,), result_dtype = _floats("entr", x)
    inside = where(x < 0, 0.0, x)
    return convert(where(x < 0, -math.inf, 0.0 - xlogy(inside, inside)), result_dtype)


def rel_entr(x: Operand, y: Operand, /) -> Array:
    """``x * log(x / y)``, 0 where x is 0 and y is not negative; inf beyond.

    >>> bu.special.rel_entr(bu.asarray([0.0, 1.0, 1.0]), bu.asarray([0.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, inf]
    """
    (x, y), result_dtype = _floats("rel_entr", x, y)
    both = (x > 0) & (y > 0)
    ratio = where(both, x, 1.0) / where(both, y, 1.0)
    nothing = (x == 0) & (y >= 0)
    result = where(both, x * log(ratio), where(nothing, 0.0, math.inf))
    return convert(where(isnan(x) | isnan(y), math.nan, result), result_dtype)


def kl_div(x: Operand, y: Operand, /) -> Array:
    """``rel_entr(x, y) - x + y``.

    >>> bu.special.kl_div(bu.asarray([0.0, 1.0]), bu.asarray([0.5, 1.0])).tolist()
    [0.5, 0.0]
    """
    (x, y), result_dtype = _floats("kl_div", x, y)
    return convert(rel_entr(x, y) - x + y, result_dtype)


# -- the normal distribution -----------------------------------------------------------------------


def ndtr(x: Operand, /) -> Array:
    """The probability that a standard normal number is at most `x`, precise in the tail.

    >>> bu.special.ndtr(bu.asarray([0.0, bu.inf])).tolist()
    [0.5, 1.0]
    """
    (x,), result_dtype = _floats("ndtr", x)
    return convert(erfc(x * -math.sqrt(0.5)) * 0.5, result_dtype)


#: Coefficients of Mills' ratio in 1/x², by its asymptotic series.
_MILLS = tuple((-1) ** k * math.prod(range(1, 2 * k, 2)) for k in range(9))


def log_ndtr(x: Operand, /) -> Array:
    """The logarithm of `ndtr`, precise in both tails; so is its derivative.

    By `erfc`, and far below 0 by the series of M. Abramowitz and I. Stegun, 26.2.12.

    >>> round(bu.special.log_ndtr(bu.asarray([-1000.0])).item(), 4)
    -500007.8267
    """
    (x,), result_dtype = _floats("log_ndtr", x)
    # From here on down the series is as good as the dtype, and the probability no subnormal number.
    end = -10.0 if x.dtype is f32 else -20.0
    high, low = x > 0, x < end
    above = log1p(-ndtr(-where(high, x, 1.0)))
    middle = log(ndtr(where(high | low, -1.0, x)))
    far = where(low, x, 2 * end)
    series = log(_polynomial(1 / (far * far), _MILLS))
    below = series - log(-far) - 0.5 * math.log(2 * math.pi) - far * far * 0.5
    return convert(where(high, above, where(low, below, middle)), result_dtype)


def ndtri(p: Operand, /) -> Array:
    """The inverse of `ndtr`; NaN beyond 0 and 1, the smallest normal number for subnormal ones.

    By M. Wichura's rational functions (1988): the relative error is below 4e-7 in f32 and 1e-15 in
    f64.

    >>> bu.special.ndtri(bu.asarray([0.0, 0.5, 1.0])).tolist()
    [-inf, 0.0, inf]
    """
    (p,), result_dtype = _floats("ndtri", p)
    result: Array = _normal_quantile(p)
    return convert(result, result_dtype)


@custom_jvp
def _normal_quantile(p: Array) -> Array:
    least = float(np.finfo(p.dtype.numpy).tiny)
    tail = clip(minimum(p, 1 - p), least, 0.5)
    size = upper_quantile(tail, abs(p - 0.5), deep=True)
    result = where(p < 0.5, -size, size)
    result = where(p == 0, -math.inf, where(p == 1, math.inf, result))
    inside = (p >= 0) & (p <= 1)
    return where(inside, result, math.nan)


@_normal_quantile.defjvp
def _normal_quantile_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    x = _normal_quantile(primals[0])
    return x, tangents[0] * (exp(x * x * 0.5) * math.sqrt(2 * math.pi))


# -- the gamma function and its kin ----------------------------------------------------------------


def gamma(x: Operand, /) -> Array:
    """The gamma function, by `lgamma`: its relative error is that function's absolute one.

    Infinite at 0, with the sign of the zero; NaN at −1, −2, ….

    >>> bu.round(bu.special.gamma(bu.asarray([0.5, 5.0])), 9).tolist()
    [1.772453851, 24.0]
    """
    (x,), result_dtype = _floats("gamma", x)
    down = floor(x)
    odd = (x < 0) & (down % 2 == 1)
    size = exp(lgamma(x))
    result = where(odd, -size, size)
    result = where(x == 0, 1 / x, result)
    pole = (x < 0) & (down == x)
    return convert(where(pole, math.nan, result), result_dtype)


_FACTORIALS = tuple(float(math.factorial(n)) for n in range(171))


def factorial(n: Operand, /) -> Array:
    """``gamma(n + 1)`` in a float dtype, correctly rounded for whole numbers; 0 below 0.

    >>> bu.special.factorial(bu.asarray([0, 5, -1])).tolist()
    [1.0, 120.0, 0.0]
    """
    (x,), result_dtype = _floats("factorial", n)
    with np.errstate(over="ignore"):
        held = np.asarray(_FACTORIALS, x.dtype.numpy)
    whole = (x == floor(x)) & (x <= 170)
    place = convert(clip(x, 0, 170), i32)
    result = where(
        whole, take(asarray(held, device=x._device), place), gamma(where(whole, 1.0, x) + 1)
    )
    return convert(where(x < 0, 0.0, result), result_dtype)


#: Of 1/x in Stirling's series: B(2k) / (2k (2k - 1)).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _stirling(x: Array) -> Array:
    """What Stirling's formula for `lgamma` lacks, of numbers of at least 10."""
    return _polynomial(1 / (x * x), _STIRLING) / x


def betaln(a: Operand, b: Operand, /) -> Array:
    """``lgamma(a) + lgamma(b) - lgamma(a + b)`` of positive numbers, without their cancellation.

    By Stirling's formula where a number is at least 10; A. DiDonato and A. Morris, TOMS 708.

    >>> round(bu.special.betaln(bu.asarray([1e9]), 1e9).item(), 2)
    -1386294370.22
    """
    (x, y), result_dtype = _floats("betaln", a, b)
    small, large = minimum(x, y), maximum(x, y)
    first, second = large < 10, small < 10
    a, b = where(first, 1.0, small), where(first, 10.0, large)
    growth, beyond = log1p(a / b), _stirling(b) - _stirling(a + b)
    # One is large: lgamma(b) - lgamma(a + b) in one.
    mixed = lgamma(a) - (a + b - 0.5) * growth + a * (1 - log(b)) + beyond
    # Both are: every term has one sign.
    wide = where(second, 10.0, a)
    both = (wide - 0.5) * log(wide / (wide + b)) - b * log1p(wide / b) - 0.5 * log(b)
    both = both + 0.5 * math.log(2 * math.pi) + _stirling(wide) + _stirling(b) - _stirling(wide + b)
    plain = lgamma(small) + lgamma(large) - lgamma(small + large)
    return convert(where(first, plain, where(second, mixed, both)), result_dtype)


def beta(a: Operand, b: Operand, /) -> Array:
    """The beta function of positive numbers, ``exp(betaln(a, b))``.

    >>> round(bu.special.beta(bu.asarray([2.0]), 3.0).item(), 9)
    0.083333333
    """
    return exp(betaln(a, b))


#: B(2k) / (2k)! for k = 1 …
_BERNOULLI = tuple(
    numerator / denominator / math.factorial(2 * k)
    for k, (numerator, denominator) in enumerate(
        [(1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510),
         (43867, 798), (-174611, 330), (854513, 138), (-236364091, 2730)], 1,
    )
)  # fmt: skip


def zeta(x: Operand, q: Operand = 1, /) -> Array:
    """Hurwitz' zeta function: the sum of ``(q + k) ** -x`` over k = 0, 1 and so on.

    x: above 1; infinite at 1, NaN below.  q: above 0; infinite at 0, NaN below.
    By the formula of Euler and Maclaurin behind ten terms.

    >>> round(bu.special.zeta(bu.asarray([2.0])).item(), 9)
    1.644934067
    """
    (x, q), result_dtype = _floats("zeta", x, q)
    valid = (x > 1) & (q > 0)
    s, first = where(valid, x, 2.0), where(valid, q, 1.0)
    last = first + 10
    tail = pow(last, -s)
    result = tail * (0.5 + last / (s - 1))
    rising = tail * s / last
    for k, coefficient in enumerate(_BERNOULLI, 1):
        result = result + rising * coefficient
        rising = rising * ((s + (2 * k - 1)) / last) * ((s + 2 * k) / last)
    # The smallest terms come first.
    for k in range(9, -1, -1):
        result = result + pow(first + k, -s)
    pole = (x == 1) | (x > 1) & (q == 0)
    return convert(where(valid, result, where(pole, math.inf, math.nan)), result_dtype)


def polygamma(n: int, x: Operand, /) -> Array:
    """Derivative `n` of `digamma`, of numbers above 0; infinite at 0 and NaN below for n > 0.

    n: from 0 to 100.  Raises OpTypeError for others.

    >>> round(bu.special.polygamma(1, bu.asarray([1.0])).item(), 9)
    1.644934067
    """
    order = integer_of("polygamma", "n", n)
    if not 0 <= order <= 100:
        raise OpTypeError(f"polygamma: n is {order}", fix="give an int from 0 to 100")
    (x,), result_dtype = _floats("polygamma", x)
    if not order:
        return convert(digamma(x), result_dtype)
    scale = float(math.factorial(order)) * (-1) ** (order + 1)
    return convert(zeta(float(order + 1), x) * scale, result_dtype)


# -- Bessel functions ------------------------------------------------------------------------------


def i0(x: Operand, /) -> Array:
    """The modified Bessel function of the first kind and order 0.

    >>> round(bu.special.i0(bu.asarray([1.0])).item(), 9)
    1.266065878
    """
    (x,), result_dtype = _floats("i0", x)
    return convert(_bessel_i0(x), result_dtype)


def i0e(x: Operand, /) -> Array:
    """``exp(-|x|) * i0(x)``.

    >>> round(bu.special.i0e(bu.asarray([1.0])).item(), 9)
    0.465759608
    """
    return float_unary("bessel_i0e", x)


def i1(x: Operand, /) -> Array:
    """The modified Bessel function of the first kind and order 1, the derivative of `i0`.

    >>> round(bu.special.i1(bu.asarray([1.0])).item(), 9)
    0.565159104
    """
    (x,), result_dtype = _floats("i1", x)
    return convert(_unscaled(i1e, x), result_dtype)


def i1e(x: Operand, /) -> Array:
    """``exp(-|x|) * i1(x)``.

    >>> round(bu.special.i1e(bu.asarray([1.0])).item(), 9)
    0.207910415
    """
    return float_unary("bessel_i1e", x)


@custom_jvp
def _bessel_i0(x: Array) -> Array:
    return _unscaled(i0e, x)


@_bessel_i0.defjvp
def _bessel_i0_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,) = primals
    return _bessel_i0(x), tangents[0] * i1(x)


def _unscaled(scaled: Callable[[Array], Array], x: Array) -> Array:
    """``exp(|x|) * scaled(x)``, in factors that are finite wherever the product is."""
    near = clip(x, -1500.0, 1500.0)  # infinite at either end; at inf a factor would be 0
    root = exp(abs(near) * 0.5)
    return root * (root * scaled(near))


__all__ = [
    "beta", "betaln", "digamma", "entr", "erf", "erfc", "erfinv", "expit", "factorial", "gamma",
    "gammaln", "i0", "i0e", "i1", "i1e", "kl_div", "lgamma", "log_ndtr", "logit", "logsumexp",
    "ndtr", "ndtri", "polygamma", "psi", "rel_entr", "xlog1py", "xlogy", "zeta",
]  # fmt: skip

publish(globals(), "bringup.special")
