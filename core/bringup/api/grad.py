"""`grad` and `value_and_grad`: derivatives of scalar functions of containers of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from bringup.api.apply import inline
from bringup.api.array import Array
from bringup.api.creation import asarray, ones
from bringup.api.traced import graph_name, leaf_type, trace_function
from bringup.errors import OpTypeError
from bringup.graph import user_location
from bringup.tracing.autodiff import vjp_graph
from bringup.tracing.pytree import flatten, unflatten

Argnums = int | Sequence[int]


def value_and_grad(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
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
    if not callable(fn):
        raise OpTypeError(
            f"grad: {type(fn).__name__} is no function",
            location=user_location(),
            fix="give a function first, then call the result with its arguments",
        )
    single = isinstance(argnums, int)
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

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
    chosen = _chosen(fn, args, positions)
    leaves, treedef = flatten(chosen)
    paths = [f"argument{path}" for path in treedef.paths()]
    types = [leaf_type(x, path) for x, path in zip(leaves, paths, strict=True)]
    arrays = [_differentiable(x, path) for x, path in zip(leaves, paths, strict=True)]

    def call(traced: Sequence[Array]) -> Any:
        replaced = list(args)
        for position, value in zip(positions, unflatten(treedef, traced), strict=True):
            replaced[position] = value
        return _split(fn, fn(*replaced, **kwargs), has_aux)

    device = next((x._device for x in arrays if x._device is not None), None)
    traced = trace_function(call, types, name=graph_name(fn), device=device, known=arrays)
    pullback = vjp_graph(traced.graph, range(len(arrays)), of=[0])
    seed = ones((), dtype=traced.graph.outputs[0].dtype, device=device)
    outputs = inline(pullback, [*arrays, *traced.captured, seed])
    count = len(traced.graph.outputs)
    return unflatten(traced.result, outputs[:count]), unflatten(treedef, outputs[count:])


def grad(fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradients of `fn`, or ``(gradients, aux)``; see `value_and_grad`.

    >>> bu.grad(bu.grad(lambda x: x * x * x))(bu.asarray(2.0)).item()
    12.0
    """
    both = value_and_grad(fn, argnums, has_aux)

    @wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def _chosen(
    fn: Callable[..., Any], args: tuple[Any, ...], positions: tuple[int, ...]
) -> tuple[Any, ...]:
    try:
        chosen = tuple(args[i] for i in positions)
    except IndexError:
        raise OpTypeError(
            f"grad: {graph_name(fn)} got {len(args)} positional arguments, argnums is {positions}",
            location=user_location(),
            fix="pass the arguments to differentiate by position",
        ) from None
    if len({i % len(args) for i in positions}) < len(positions):
        raise OpTypeError(
            f"grad: argnums {positions} name one argument twice",
            location=user_location(),
            fix="name each argument once",
        )
    return chosen


def _differentiable(leaf: Any, path: str) -> Array:
    array = leaf if isinstance(leaf, Array) else asarray(leaf)
    if not array.dtype.is_float:
        raise OpTypeError(
            f"grad: {path} is {array.type}, and derivatives exist for floats only",
            location=user_location(),
            fix="convert it with astype(x, float32), or choose other arguments by argnums",
        )
    return array


def _split(fn: Callable[..., Any], result: Any, has_aux: bool) -> tuple[Array, Any]:
    """The value, checked, and the rest."""
    name = graph_name(fn)
    if has_aux and (not isinstance(result, tuple) or len(result) != 2):
        raise OpTypeError(
            f"grad: {name} returned {type(result).__name__}, and has_aux needs (value, aux)",
            location=user_location(),
            fix="return a tuple of two",
        )
    value, aux = result if has_aux else (result, None)
    if not isinstance(value, Array | float | np.floating):
        raise OpTypeError(
            f"grad: {name} returned a {type(value).__name__}, not a 0-d float array",
            location=user_location(),
            fix="return one array; further results go through has_aux=True",
        )
    value = value if isinstance(value, Array) else asarray(value)
    if value.shape or not value.dtype.is_float:
        raise OpTypeError(
            f"grad: {name} returned {value.type}, not a 0-d float array",
            location=user_location(),
            fix="reduce the result with sum or mean" if value.shape else "return a float",
        )
    return value, aux
