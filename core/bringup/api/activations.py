"""Activation functions made of elementwise ones; `bringup.nn` hands them on.

Integers become the default float first, but for `relu6`.
"""

from __future__ import annotations

from bringup.api.array import Array, Axis, Operand
from bringup.api.axes import axis_of, number_of
from bringup.api.broadcasting import as_array, as_float, float_unary
from bringup.api.elementwise import (
    abs,
    add,
    clip,
    divide,
    expm1,
    greater,
    multiply,
    rsqrt,
    sqrt,
    tanh,
    where,
)
from bringup.api.reductions import mean as _mean
from bringup.api.reductions import var
from bringup.errors import OpTypeError


def identity(x: Operand) -> Array:
    """`x` itself.

    >>> bu.nn.identity(bu.asarray([-1.0])).tolist()
    [-1.0]
    """
    return as_array(x)


def leaky_relu(x: Operand, negative_slope: Operand = 0.01) -> Array:
    """`x` above 0, ``negative_slope * x`` below.

    >>> bu.nn.leaky_relu(bu.asarray([-1.0, 2.0]), 0.5).tolist()
    [-0.5, 2.0]
    """
    x = as_float(x)
    return where(greater(x, 0), x, multiply(x, negative_slope))


def elu(x: Operand, alpha: Operand = 1.0) -> Array:
    """`x` above 0, ``alpha * expm1(x)`` below.

    >>> bu.nn.elu(bu.asarray([-bu.inf, 2.0])).tolist()
    [-1.0, 2.0]
    """
    x = as_float(x)
    above = greater(x, 0)
    return where(above, x, multiply(alpha, expm1(where(above, 0.0, x))))


def celu(x: Operand, alpha: Operand = 1.0) -> Array:
    """`x` above 0, ``alpha * expm1(x / alpha)`` below.

    >>> bu.nn.celu(bu.asarray([-bu.inf, 2.0]), 3.0).tolist()
    [-3.0, 2.0]
    """
    x = as_float(x)
    above = greater(x, 0)
    return where(above, x, multiply(alpha, expm1(divide(where(above, 0.0, x), alpha))))


def selu(x: Operand) -> Array:
    """`elu` with the factors of G. Klambauer (2017), which keep mean 0 and variance 1.

    >>> bu.nn.selu(bu.asarray([0.0, 1.0])).tolist()
    [0.0, 1.0507009873554805]
    """
    return multiply(elu(x, 1.6732632423543772), 1.0507009873554805)


def relu6(x: Operand) -> Array:
    """`x` limited to 0 … 6.

    >>> bu.nn.relu6(bu.asarray([-1.0, 2.0, 7.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return clip(x, 0, 6)


def hard_tanh(x: Operand) -> Array:
    """`x` limited to -1 … 1.

    >>> bu.nn.hard_tanh(bu.asarray([-2.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    return clip(as_float(x), -1.0, 1.0)


def hard_sigmoid(x: Operand) -> Array:
    """``relu6(x + 3) / 6``.

    >>> bu.nn.hard_sigmoid(bu.asarray([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return divide(relu6(as_float(x) + 3.0), 6.0)


def hard_swish(x: Operand) -> Array:
    """``x * hard_sigmoid(x)``.

    >>> bu.nn.hard_swish(bu.asarray([-3.0, 3.0])).tolist()
    [-0.0, 3.0]
    """
    x = as_float(x)
    return multiply(x, hard_sigmoid(x))


def mish(x: Operand) -> Array:
    """``x * tanh(softplus(x))``.

    >>> bu.nn.mish(bu.asarray([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    x = as_float(x)
    return multiply(x, tanh(float_unary("softplus", x)))


def soft_sign(x: Operand) -> Array:
    """``x / (1 + |x|)``.

    >>> bu.nn.soft_sign(bu.asarray([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    x = as_float(x)
    return divide(x, 1 + abs(x))


def squareplus(x: Operand, b: Operand = 4.0) -> Array:
    """``(x + sqrt(x * x + b)) / 2``.

    >>> bu.nn.squareplus(bu.asarray([0.0])).tolist()
    [1.0]
    """
    x = as_float(x)
    return (x + sqrt(add(x * x, b))) / 2


def glu(x: Operand, axis: int = -1) -> Array:
    """The first half of an axis times the sigmoid of the second.

    Raises OpTypeError for an odd size.

    >>> bu.nn.glu(bu.asarray([4.0, 0.0])).tolist()
    [2.0]
    """
    x = as_float(x)
    dim = axis_of("glu", axis, x.ndim)
    half, odd = divmod(x.shape[dim], 2) if x.ndim else (0, 1)
    if odd:
        raise OpTypeError(
            f"glu: axis {dim} of {x.type} has no halves", fix="give an axis of even size"
        )
    before = (slice(None),) * dim
    gate = float_unary("logistic", x[(*before, slice(half, None))])
    return multiply(x[(*before, slice(0, half))], gate)


def standardize(
    x: Operand,
    axis: Axis = -1,
    mean: Operand | None = None,
    variance: Operand | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """``(x - mean) / sqrt(variance + epsilon)``, both by default those of `x` over axes.

    >>> bu.nn.standardize(bu.asarray([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    x, least = as_float(x), number_of("standardize", "epsilon", epsilon)
    middle = _mean(x, axis, keepdims=True) if mean is None else as_array(mean)
    spread = var(x, axis, keepdims=True) if variance is None else as_array(variance)
    return (x - middle) * rsqrt(spread + least)
