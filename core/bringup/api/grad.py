"""`grad` and `value_and_grad`: derivatives of scalar functions of containers of arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bringup.api.apply import inline
from bringup.api.array import Array
from bringup.api.boundary import guarded
from bringup.api.creation import asarray, ones
from bringup.api.differentiable import Argnums, check_function, point_of
from bringup.api.traced import graph_name
from bringup.errors import OpTypeError
from bringup.tracing.autodiff import vjp_graph
from bringup.tracing.pytree import unflatten

P = ParamSpec("P")
R = TypeVar("R")


def value_and_grad(
    fn: Callable[P, R], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """A function that returns ``(value, gradients)`` of `fn`, which returns a 0-d float.

    argnums: the position, or positions, of the arguments to differentiate by: containers of float
    arrays; the gradients have their shape.
    has_aux: `fn` returns ``(value, anything)``, and the new function
    ``((value, anything), gradients)``.

    Arguments have values while `fn` runs, so it may branch on them, unless a `jit` is around or
    inside.
    Raises OpTypeError for arguments that are no floats and for values that are no 0-d float.

    >>> value, gradient = bu.value_and_grad(lambda w: bu.sum(w * w))(bu.asarray([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    """
    check_function("grad", fn)
    single = isinstance(argnums, int)
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @guarded
    @wraps(fn)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        value, gradients = _differentiate(fn, positions, has_aux, args, kwargs)
        return (value if has_aux else value[0]), (gradients[0] if single else gradients)

    return differentiated


def _differentiate(
    fn: Callable[..., Any],
    positions: tuple[int, ...],
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    """``(value, aux), gradients`` of one call."""
    point = point_of("grad", fn, args, kwargs, positions, lambda y: _split(fn, y, has_aux))
    pullback = vjp_graph(point.graph, point.wrt, of=[0])
    seed = ones((), dtype=point.graph.outputs[0].dtype, device=point.device)
    outputs = inline(pullback, [*point.inputs, seed])
    count = len(point.graph.outputs)
    result = unflatten(point.function.result, outputs[:count])
    return result, unflatten(point.treedef, outputs[count:])


def grad(fn: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[P, Any]:
    """A function that returns the gradients of `fn`, or ``(gradients, aux)``; see `value_and_grad`.

    >>> bu.grad(bu.grad(lambda x: x * x * x))(bu.asarray(2.0)).item()
    12.0
    """
    both = value_and_grad(fn, argnums, has_aux)

    @guarded
    @wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def _split(fn: Callable[..., Any], result: Any, has_aux: bool) -> tuple[Array, Any]:
    """The value, checked, and the rest."""
    name = graph_name(fn)
    if has_aux and (not isinstance(result, tuple) or len(result) != 2):
        raise OpTypeError(
            f"grad: {name} returned {type(result).__name__}, and has_aux needs (value, aux)",
            fix="return a tuple of two",
        )
    value, aux = result if has_aux else (result, None)
    if not isinstance(value, Array | float | np.floating):
        raise OpTypeError(
            f"grad: {name} returned a {type(value).__name__}, not a 0-d float array",
            fix="return one array; further results go through has_aux=True",
        )
    value = value if isinstance(value, Array) else asarray(value)
    if value.shape or not value.dtype.is_float:
        raise OpTypeError(
            f"grad: {name} returned {value.type}, not a 0-d float array",
            fix="reduce the result with sum or mean" if value.shape else "return a float",
        )
    return value, aux
