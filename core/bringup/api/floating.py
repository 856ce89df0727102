"""Functions of floats: exponentials, logarithms, roots, trigonometry.

Integers become the default float first.  Each is one op and has the accuracy of its row.
"""

from __future__ import annotations

from bringup.api.array import Array, Operand
from bringup.api.broadcasting import binary, float_unary
from bringup.api.defaults import default_float
from bringup.api.promotion import common


def _binary(name: str, x1: Operand, x2: Operand) -> Array:
    """An elementwise op of two operands in a float dtype."""
    dtype, _ = common((x1, x2))
    return binary(name, x1, x2, dtype=None if dtype.is_inexact else default_float())


def exp(x: Operand) -> Array:
    """``e ** x``.

    >>> bu.exp(bu.asarray([0.0])).tolist()
    [1.0]
    """
    return float_unary("exp", x)


def expm1(x: Operand) -> Array:
    """``exp(x) - 1``, precise near 0.

    >>> bu.expm1(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("expm1", x)


def log(x: Operand) -> Array:
    """The natural logarithm; NaN below 0.

    >>> bu.log(bu.asarray([1.0])).tolist()
    [0.0]
    """
    return float_unary("log", x)


def log1p(x: Operand) -> Array:
    """``log(1 + x)``, precise near 0.

    >>> bu.log1p(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("log1p", x)


def log2(x: Operand) -> Array:
    """The logarithm to base 2; NaN below 0.

    >>> bu.log2(bu.asarray([8.0])).tolist()
    [3.0]
    """
    return float_unary("log2", x)


def log10(x: Operand) -> Array:
    """The logarithm to base 10; NaN below 0.

    >>> bu.log10(bu.asarray([1000.0])).tolist()
    [3.0]
    """
    return float_unary("log10", x)


def logaddexp(x1: Operand, x2: Operand) -> Array:
    """``log(exp(x1) + exp(x2))`` without overflow.

    >>> bu.logaddexp(bu.asarray([-bu.inf]), bu.asarray([1.0])).tolist()
    [1.0]
    """
    return _binary("logaddexp", x1, x2)


def sqrt(x: Operand) -> Array:
    """The square root; NaN below 0.

    >>> bu.sqrt(bu.asarray([9.0])).tolist()
    [3.0]
    """
    return float_unary("sqrt", x)


def cbrt(x: Operand) -> Array:
    """The real cube root.

    >>> bu.cbrt(bu.asarray([-27.0])).tolist()
    [-3.0]
    """
    return float_unary("cbrt", x)


def rsqrt(x: Operand) -> Array:
    """``1 / sqrt(x)``.

    >>> bu.rsqrt(bu.asarray([4.0])).tolist()
    [0.5]
    """
    return float_unary("rsqrt", x)


def hypot(x1: Operand, x2: Operand) -> Array:
    """``sqrt(x1² + x2²)`` without overflow on the way.

    >>> bu.hypot(bu.asarray([3.0]), bu.asarray([4.0])).tolist()
    [5.0]
    """
    return _binary("hypot", x1, x2)


def sin(x: Operand) -> Array:
    """The sine of radians.

    >>> bu.sin(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("sin", x)


def cos(x: Operand) -> Array:
    """The cosine of radians.

    >>> bu.cos(bu.asarray([0.0])).tolist()
    [1.0]
    """
    return float_unary("cos", x)


def tan(x: Operand) -> Array:
    """The tangent of radians.

    >>> bu.tan(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("tan", x)


def asin(x: Operand) -> Array:
    """The inverse sine in [−π/2, π/2]; NaN beyond ±1.

    >>> bu.asin(bu.asarray([1.0])).item() == bu.pi / 2
    True
    """
    return float_unary("asin", x)


def acos(x: Operand) -> Array:
    """The inverse cosine in [0, π]; NaN beyond ±1.

    >>> bu.acos(bu.asarray([1.0])).tolist()
    [0.0]
    """
    return float_unary("acos", x)


def atan(x: Operand) -> Array:
    """The inverse tangent in [−π/2, π/2].

    >>> bu.atan(bu.asarray([bu.inf])).item() == bu.pi / 2
    True
    """
    return float_unary("atan", x)


def atan2(x1: Operand, x2: Operand) -> Array:
    """The angle of the points (`x2`, `x1`) in [−π, π]; the sign of a zero tells its side.

    >>> bu.atan2(bu.asarray([0.0, -0.0]), -1.0).tolist() == [bu.pi, -bu.pi]
    True
    """
    return _binary("atan2", x1, x2)


def sinh(x: Operand) -> Array:
    """The hyperbolic sine.

    >>> bu.sinh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("sinh", x)


def cosh(x: Operand) -> Array:
    """The hyperbolic cosine.

    >>> bu.cosh(bu.asarray([0.0])).tolist()
    [1.0]
    """
    return float_unary("cosh", x)


def tanh(x: Operand) -> Array:
    """The hyperbolic tangent.

    >>> bu.tanh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("tanh", x)


def asinh(x: Operand) -> Array:
    """The inverse hyperbolic sine.

    >>> bu.asinh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("asinh", x)


def acosh(x: Operand) -> Array:
    """The inverse hyperbolic cosine; NaN below 1.

    >>> bu.acosh(bu.asarray([1.0])).tolist()
    [0.0]
    """
    return float_unary("acosh", x)


def atanh(x: Operand) -> Array:
    """The inverse hyperbolic tangent; NaN beyond ±1.

    >>> bu.atanh(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("atanh", x)
