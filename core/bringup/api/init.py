"""First values of weights, as ``bringup.nn.init``: spreads that keep signals of one size.

shape: of the weight.  in_axis, out_axis: its dimensions of inputs and outputs, by default those of
``x @ w``; the sizes of all others, such as a window's, multiply both.
dtype: the default float by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.api.array import Array
from bringup.api.axes import axis_of, shape_of
from bringup.api.boundary import publish
from bringup.api.keys import Key
from bringup.api.samplers import normal, uniform
from bringup.errors import OpTypeError


def _fans(
    name: str, shape: Sequence[int], in_axis: int, out_axis: int
) -> tuple[tuple[int, ...], int, int]:
    """The shape, how many inputs an output sums, and how many outputs an input goes to."""
    sizes = shape_of(name, shape)
    if len(sizes) < 2:
        raise OpTypeError(
            f"{name}: shape {sizes} has no inputs and outputs",
            fix="give at least two dimensions; biases start as zeros",
        )
    first, last = (axis_of(name, axis, len(sizes)) for axis in (in_axis, out_axis))
    window = math.prod(n for d, n in enumerate(sizes) if d not in (first, last))
    # A weight without elements has a spread too.
    return sizes, max(sizes[first] * window, 1), max(sizes[last] * window, 1)


def glorot_uniform(
    key: Key,
    shape: Sequence[int],
    *,
    dtype: object = None,
    in_axis: int = -2,
    out_axis: int = -1,
) -> Array:
    """Uniform with variance 2 / (inputs + outputs) (X. Glorot and Y. Bengio, 2010).

    >>> bu.nn.init.glorot_uniform(bu.random.key(0), (3, 4)).shape
    (3, 4)
    """
    sizes, inputs, outputs = _fans("glorot_uniform", shape, in_axis, out_axis)
    limit = math.sqrt(6 / (inputs + outputs))
    return uniform(key, sizes, dtype=dtype, low=-limit, high=limit)


def glorot_normal(
    key: Key,
    shape: Sequence[int],
    *,
    dtype: object = None,
    in_axis: int = -2,
    out_axis: int = -1,
) -> Array:
    """Normal with variance 2 / (inputs + outputs).

    >>> bu.nn.init.glorot_normal(bu.random.key(0), (3, 4)).shape
    (3, 4)
    """
    sizes, inputs, outputs = _fans("glorot_normal", shape, in_axis, out_axis)
    return normal(key, sizes, dtype=dtype) * math.sqrt(2 / (inputs + outputs))


def he_uniform(
    key: Key,
    shape: Sequence[int],
    *,
    dtype: object = None,
    in_axis: int = -2,
    out_axis: int = -1,
) -> Array:
    """Uniform with variance 2 / inputs, for layers before a relu (K. He et al., 2015).

    >>> bu.nn.init.he_uniform(bu.random.key(0), (3, 4)).shape
    (3, 4)
    """
    sizes, inputs, _ = _fans("he_uniform", shape, in_axis, out_axis)
    limit = math.sqrt(6 / inputs)
    return uniform(key, sizes, dtype=dtype, low=-limit, high=limit)


def he_normal(
    key: Key,
    shape: Sequence[int],
    *,
    dtype: object = None,
    in_axis: int = -2,
    out_axis: int = -1,
) -> Array:
    """Normal with variance 2 / inputs, for layers before a relu.

    >>> bu.nn.init.he_normal(bu.random.key(0), (3, 4)).shape
    (3, 4)
    """
    sizes, inputs, _ = _fans("he_normal", shape, in_axis, out_axis)
    return normal(key, sizes, dtype=dtype) * math.sqrt(2 / inputs)


def lecun_normal(
    key: Key,
    shape: Sequence[int],
    *,
    dtype: object = None,
    in_axis: int = -2,
    out_axis: int = -1,
) -> Array:
    """Normal with variance 1 / inputs, which keeps the variance of a linear layer.

    >>> bu.nn.init.lecun_normal(bu.random.key(0), (3, 4)).shape
    (3, 4)
    """
    sizes, inputs, _ = _fans("lecun_normal", shape, in_axis, out_axis)
    return normal(key, sizes, dtype=dtype) * math.sqrt(1 / inputs)


__all__ = [
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "normal",
    "uniform",
]

publish(globals(), "bringup.nn.init")
