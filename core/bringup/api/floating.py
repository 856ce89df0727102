"""Functions of floats: exponentials, logarithms, roots, trigonometry.

Integers become the default float first.  Functions that are one op have the accuracy of its row.
Those composed here (tan, the hyperbolic ones, hypot, logaddexp, log2, log10) are within a few ULP;
f16 and bf16 are composed in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from bringup.api.array import Array
from bringup.api.broadcasting import as_float, convert, float_unary
from bringup.api.elementwise import (
    abs,
    add,
    copysign,
    divide,
    equal,
    less,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    subtract,
    where,
)
from bringup.api.promotion import Operand, common, is_weak
from bringup.dtypes import bf16, f16, f32


def _composed(function: Callable[..., Array]) -> Callable[..., Array]:
    """A composition: operands promoted to one float dtype, f16 and bf16 widened meanwhile."""

    @wraps(function)
    def wrapper(*operands: Operand) -> Array:
        dtype, weak = common(operands)
        arrays = [as_float(x) for x in operands]
        if not dtype.is_float:
            dtype = arrays[0].dtype
        wide = f32 if dtype in (f16, bf16) else dtype
        result = function(*(convert(x, wide, weak=is_weak(x)) for x in arrays))
        return convert(result, dtype, weak=weak)

    return wrapper


def exp(x: Array) -> Array:
    """``e ** x``.

    >>> bu.exp(bu.asarray([0.0])).tolist()
    [1.0]
    """
    return float_unary("exp", x)


def expm1(x: Array) -> Array:
    """``exp(x) - 1``, precise near 0.

    >>> bu.expm1(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("expm1", x)


def log(x: Array) -> Array:
    """The natural logarithm; NaN below 0.

    >>> bu.log(bu.asarray([1.0])).tolist()
    [0.0]
    """
    return float_unary("log", x)


def log1p(x: Array) -> Array:
    """``log(1 + x)``, precise near 0.

    >>> bu.log1p(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("log1p", x)


@_composed
def log2(x: Array) -> Array:
    """The logarithm to base 2.

    >>> bu.log2(bu.asarray([8.0])).tolist()
    [3.0]
    """
    return divide(log(x), math.log(2))


@_composed
def log10(x: Array) -> Array:
    """The logarithm to base 10.

    >>> bu.log10(bu.asarray([100.0])).tolist()
    [2.0]
    """
    return divide(log(x), math.log(10))


@_composed
def logaddexp(x1: Array, x2: Array) -> Array:
    """``log(exp(x1) + exp(x2))`` without overflow.

    >>> bu.logaddexp(bu.asarray([-bu.inf]), bu.asarray([1.0])).tolist()
    [1.0]
    """
    # Equal operands, infinities among them, must not be subtracted: inf - inf is NaN.
    distance = where(equal(x1, x2), 0.0, subtract(x1, x2))
    return add(maximum(x1, x2), log1p(exp(negative(abs(distance)))))


def sqrt(x: Array) -> Array:
    """The square root; NaN below 0.

    >>> bu.sqrt(bu.asarray([9.0])).tolist()
    [3.0]
    """
    return float_unary("sqrt", x)


def rsqrt(x: Array) -> Array:
    """``1 / sqrt(x)``.

    >>> bu.rsqrt(bu.asarray([4.0])).tolist()
    [0.5]
    """
    return float_unary("rsqrt", x)


@_composed
def hypot(x1: Array, x2: Array) -> Array:
    """``sqrt(x1² + x2²)`` without overflow on the way.

    >>> bu.hypot(bu.asarray([3.0]), bu.asarray([4.0])).tolist()
    [5.0]
    """
    a, b = abs(x1), abs(x2)
    large, small = maximum(a, b), minimum(a, b)
    # 0/0 and inf/inf are kept out of the quotient, and out of its derivative.
    plain = where(equal(large, 0), True, equal(large, math.inf))
    ratio = divide(where(plain, 0.0, small), where(plain, 1.0, large))
    result = multiply(large, sqrt(add(multiply(ratio, ratio), 1.0)))
    infinite = where(equal(a, math.inf), True, equal(b, math.inf))
    return where(infinite, math.inf, result)


def sin(x: Array) -> Array:
    """The sine of radians.

    >>> bu.sin(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("sin", x)


def cos(x: Array) -> Array:
    """The cosine of radians.

    >>> bu.cos(bu.asarray([0.0])).tolist()
    [1.0]
    """
    return float_unary("cos", x)


@_composed
def tan(x: Array) -> Array:
    """The tangent of radians.

    >>> bu.tan(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return divide(sin(x), cos(x))


@_composed
def sinh(x: Array) -> Array:
    """The hyperbolic sine.

    >>> bu.sinh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    a = abs(x)
    near = expm1(minimum(a, 1.0))
    small = multiply(add(near, divide(near, add(near, 1.0))), 0.5)
    half = exp(multiply(a, 0.5))
    large = subtract(multiply(multiply(half, 0.5), half), divide(divide(0.5, half), half))
    return copysign(where(less(a, 1.0), small, large), x)


@_composed
def cosh(x: Array) -> Array:
    """The hyperbolic cosine.

    >>> bu.cosh(bu.asarray([0.0])).tolist()
    [1.0]
    """
    half = exp(multiply(abs(x), 0.5))
    return add(multiply(multiply(half, 0.5), half), divide(divide(0.5, half), half))


def tanh(x: Array) -> Array:
    """The hyperbolic tangent.

    >>> bu.tanh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("tanh", x)


@_composed
def asinh(x: Array) -> Array:
    """The inverse hyperbolic sine.

    >>> bu.asinh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    a = abs(x)
    near = minimum(a, _HUGE)
    square = multiply(near, near)
    root = sqrt(add(square, 1.0))
    small = log1p(add(near, divide(square, add(root, 1.0))))
    return copysign(where(less(a, _HUGE), small, add(log(maximum(a, 1.0)), math.log(2))), x)


@_composed
def acosh(x: Array) -> Array:
    """The inverse hyperbolic cosine; NaN below 1.

    >>> bu.acosh(bu.asarray([1.0])).tolist()
    [0.0]
    """
    above = subtract(minimum(x, _HUGE), 1.0)
    small = log1p(add(above, sqrt(multiply(above, add(above, 2.0)))))
    result = where(less(x, _HUGE), small, add(log(maximum(x, 1.0)), math.log(2)))
    # Below -1 the root is real again.
    return where(less(x, 1.0), math.nan, where(not_equal(x, x), x, result))


@_composed
def atanh(x: Array) -> Array:
    """The inverse hyperbolic tangent; NaN beyond ±1.

    >>> bu.atanh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    a = abs(x)
    return copysign(multiply(log1p(divide(multiply(a, 2.0), subtract(1.0, a))), 0.5), x)


# Beyond it x² + 1 rounds to x² in f32 and f64, and x² is still finite.
_HUGE = 1e10
