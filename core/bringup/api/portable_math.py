"""Logarithm, exponential and normal quantile of arrays, for samplers: `bringup.maths.portable`.

Arguments are f32 or f64, of one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from bringup.api.apply import inline
from bringup.api.array import Array
from bringup.api.elementwise import minimum, where
from bringup.graph import Builder, Graph, Value
from bringup.maths import portable, quantile
from bringup.ops.graph_arithmetic import GraphArithmetic
from bringup.types import TensorType

Definition = Callable[..., Value]


def _apply(definition: Definition, *arrays: Array) -> Array:
    return inline(_graph(definition, tuple([x._type for x in arrays])), arrays)[0]


@lru_cache(maxsize=256)
def _graph(definition: Definition, types: tuple[TensorType, ...]) -> Graph:
    with Builder() as b:
        values = [b.input(type_) for type_ in types]
        return b.build([definition(GraphArithmetic(values[0]), *values)])


def log(x: Array, above: Array | None = None) -> Array:
    """The natural logarithm of positive normal numbers, within 1 ULP.

    above: ``1 - x``, where that is known better than `x` tells; then within 3 ULP.
    """
    return _apply(portable.log, x) if above is None else _apply(portable.log, x, above)


def exp(x: Array) -> Array:
    """The exponential function, within 1 ULP where the result is normal; 0 far below."""
    return _apply(portable.exp, x)


def _quantile(m: GraphArithmetic, tail: Value, centre: Value, *, deep: bool) -> Value:
    regions = quantile.SHORT if m.width == 32 else quantile.PRECISE
    return quantile.upper_quantile(
        m, tail, centre, partial(portable.log, m), regions, deep=deep or m.width == 64
    )


_DEEP, _SHALLOW = partial(_quantile, deep=True), partial(_quantile, deep=False)


def upper_quantile(tail: Array, centre: Array, *, deep: bool = False) -> Array:
    """The number a standard normal variable exceeds with probability `tail`.

    tail: above 0, up to 1/2.  centre: ``1/2 - tail``, where that is known better than `tail` tells.
    deep: tails may be below 1e-11.
    The relative error is below 4e-7 in f32 and 1e-15 in f64.
    """
    return _apply(_DEEP if deep else _SHALLOW, tail, centre)


def normal_quantile(lower: Array, upper: Array) -> Array:
    """The normal quantile of probability `lower`, which is ``1 - upper``, both above 0."""
    size = upper_quantile(minimum(lower, upper), abs(upper - lower) * 0.5, deep=True)
    return where(lower < upper, -size, size)
