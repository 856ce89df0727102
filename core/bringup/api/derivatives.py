"""Derivatives: gradients of scalar functions, products with derivatives, whole matrices of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bringup.api.apply import inline
from bringup.api.array import Array
from bringup.api.boundary import guarded
from bringup.api.creation import asarray, eye, ones
from bringup.api.manipulation import broadcast_to, moveaxis, reshape
from bringup.api.trace import TracedFunction, graph_name, leaf_type, trace_function
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Graph
from bringup.records import record
from bringup.runtime.devices import OpenDevice
from bringup.tracing.autodiff import jvp_graph, vjp_graph
from bringup.tracing.batching import batch_graph
from bringup.tracing.pytree import TreeDef, flatten, prefix_leaves, unflatten

Argnums = int | Sequence[int]


@record(eq=False)
class Point:
    """A function traced at arguments to differentiate it there.

    arrays, treedef: the leaves of the arguments to differentiate by, the first inputs of the graph,
    and their shape: a tuple of one container per argument.
    """

    arrays: list[Array]
    treedef: TreeDef
    function: TracedFunction

    @property
    def graph(self) -> Graph:
        """What the function does."""
        return self.function.graph

    @property
    def wrt(self) -> range:
        """The inputs of the graph to differentiate by."""
        return range(len(self.arrays))

    @property
    def inputs(self) -> list[Array]:
        """The values of all inputs of the graph."""
        return [*self.arrays, *self.function.captured]

    @property
    def device(self) -> OpenDevice | None:
        """Where the arguments are."""
        return next((x._device for x in self.arrays if x._device is not None), None)


def point_of(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positions: tuple[int, ...],
    check: Callable[[Any], Any] = lambda result: result,
) -> Point:
    """Trace `fn` with the arguments at `positions` as inputs, whose values it may look at.

    name: what messages call the transformation.  check: applied to the function's result.
    Raises OpTypeError for arguments that are not there, named twice, or no floats.
    """
    chosen = _chosen(name, fn, args, positions)
    leaves, treedef = flatten(chosen)
    paths = [f"argument{path}" for path in treedef.paths()]
    types = [leaf_type(x, path) for x, path in zip(leaves, paths, strict=True)]
    arrays = [_differentiable(name, x, path) for x, path in zip(leaves, paths, strict=True)]

    def call(traced: Sequence[Array]) -> Any:
        replaced = list(args)
        for position, value in zip(positions, unflatten(treedef, traced), strict=True):
            replaced[position] = value
        return check(fn(*replaced, **kwargs))

    device = next((x._device for x in arrays if x._device is not None), None)
    function = trace_function(call, types, name=graph_name(fn), device=device, known=arrays)
    return Point(arrays, treedef, function)


def check_function(name: str, fn: object) -> None:
    """Raise OpTypeError unless `fn` can be called."""
    if not callable(fn):
        raise OpTypeError(
            f"{name}: {type(fn).__name__} is no function",
            fix="give a function first, then call the result with its arguments",
        )


def _chosen(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], positions: tuple[int, ...]
) -> tuple[Any, ...]:
    try:
        chosen = tuple(args[i] for i in positions)
    except IndexError:
        raise OpTypeError(
            f"{name}: {graph_name(fn)} got {len(args)} positional arguments,"
            f" argnums is {positions}",
            fix="pass the arguments to differentiate by position",
        ) from None
    if len({i % len(args) for i in positions}) < len(positions):
        raise OpTypeError(
            f"{name}: argnums {positions} name one argument twice", fix="name each argument once"
        )
    return chosen


def _differentiable(name: str, leaf: Any, path: str) -> Array:
    array = leaf if isinstance(leaf, Array) else asarray(leaf)
    if not array.dtype.is_float:
        alternative = "choose other arguments by argnums"
        if not path.endswith("]"):  # a field, of a dataclass or a namedtuple
            alternative = 'make the field static: dataclasses.field(metadata={"static": True})'
        raise OpTypeError(
            f"{name}: {path} is {array.type}, and derivatives exist for floats only",
            fix=f"convert it with astype(x, float32), or {alternative}",
        )
    return array


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
    """The value, checked, and the auxiliary results."""
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


def vjp(fn: Callable[..., R], *primals: Any) -> tuple[R, Callable[[Any], tuple[Any, ...]]]:
    """The result of ``fn(*primals)``, and the function that pulls cotangents of it back.

    primals: containers of float arrays.
    The returned function takes a container like the result, of cotangents, where None stands for
    zeros, and what is no float has none; it returns one container per primal, like the primal.
    It computes what it needs of `fn` anew, unless both are part of one `jit`.
    Raises OpTypeError for primals that are no floats.

    >>> y, pull = bu.vjp(lambda a, b: a * b, bu.asarray(2.0), bu.asarray(3.0))
    >>> y.item(), [g.item() for g in pull(bu.asarray(1.0))]
    (6.0, [3.0, 2.0])
    """
    check_function("vjp", fn)
    point = point_of("vjp", fn, primals, {}, tuple(range(len(primals))))
    values = inline(point.graph, point.inputs)

    @guarded
    def pull(cotangents: Any) -> tuple[Any, ...]:
        given_cotangents = _cotangents(fn, point, cotangents)
        pulled = vjp_graph(point.graph, point.wrt, list(given_cotangents))
        outputs = inline(pulled, [*point.inputs, *given_cotangents.values()])
        gradients: tuple[Any, ...] = unflatten(point.treedef, outputs[len(values) :])
        return gradients

    return unflatten(point.function.result, values), pull


def _cotangents(fn: Callable[..., Any], point: Point, cotangents: Any) -> dict[int, Array]:
    """The cotangents that are not None, by position of the output."""
    result = point.function.result
    leaves = _matching_leaves("vjp", cotangents, result, f"the cotangent of {graph_name(fn)}")
    paths = result.paths("the cotangent")
    by_output = {}
    for i, (leaf, value, path) in enumerate(zip(leaves, point.graph.outputs, paths, strict=True)):
        if leaf is not None and value.dtype.is_float:
            by_output[i] = _of_type(leaf, value.type, "vjp", path)
    return by_output


def _matching_leaves(name: str, tree: Any, treedef: TreeDef, label: str) -> list[Any]:
    """The leaves of a tree that must be like another; label: how messages call it."""
    try:
        return prefix_leaves(tree, treedef, label)
    except ConversionError as error:
        raise OpTypeError(f"{name}: {error.what}", fix=error.fix) from None


def _of_type(leaf: Any, type_: Any, name: str, path: str) -> Array:
    array = leaf if isinstance(leaf, Array) else asarray(leaf, dtype=type_.dtype)
    if array.type is not type_:
        raise OpTypeError(
            f"{name}: {path} is {array.type}, and what it belongs to is {type_}",
            fix=f"give it type {type_}",
        )
    return array


def jvp(fn: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, R]:
    """The result of ``fn(*primals)``, and how it changes when the primals move along tangents.

    primals: containers of float arrays.
    tangents: a container like each, where None stands for zeros.
    The second result is a container like the first; what is no float has None there.
    Raises OpTypeError for primals that are no floats, and for tangents of other types.

    >>> y, dy = bu.jvp(lambda x: x * x, (bu.asarray(3.0),), (bu.asarray(1.0),))
    >>> y.item(), dy.item()
    (9.0, 6.0)
    """
    check_function("jvp", fn)
    point = point_of("jvp", fn, tuple(primals), {}, tuple(range(len(primals))))
    leaves = _matching_leaves("jvp", tuple(tangents), point.treedef, "the tangents")
    paths = point.treedef.paths("the tangent ")
    by_input = {
        i: _of_type(leaf, x.type, "jvp", path)
        for i, (leaf, x, path) in enumerate(zip(leaves, point.arrays, paths, strict=True))
        if leaf is not None
    }
    of = [i for i, v in enumerate(point.graph.outputs) if v.dtype.is_float]
    pushed = jvp_graph(point.graph, list(by_input), of)
    outputs = inline(pushed, [*point.inputs, *by_input.values()])
    count = len(point.graph.outputs)
    moves = dict(zip(of, outputs[count:], strict=True))
    result = point.function.result
    return unflatten(result, outputs[:count]), unflatten(result, map(moves.get, range(count)))


def jacrev(fn: Callable[P, Any], argnums: Argnums = 0) -> Callable[P, Any]:
    """A function that returns the derivative of each element of the result by each of an argument.

    argnums: the position, or positions, of the arguments to differentiate by: containers of float
    arrays.
    For each array of the result there is a container like the argument, of arrays whose shape is
    that of the result followed by that of the argument.  Reverse mode: one backward pass for each
    element of the result, all at once; the better choice where results are smaller than arguments.
    Raises OpTypeError for arguments and results that are no floats.

    >>> bu.jacrev(lambda x: x * x)(bu.asarray([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacobian("jacrev", fn, argnums, _rows_in_reverse_mode)


def jacfwd(fn: Callable[P, Any], argnums: Argnums = 0) -> Callable[P, Any]:
    """`jacrev` in forward mode, for results that are larger than arguments.

    One pass for each element of the arguments, all at once.

    >>> bu.jacfwd(lambda x: bu.stack([x, x * x]))(bu.asarray(3.0)).tolist()
    [1.0, 6.0]
    """
    return _jacobian("jacfwd", fn, argnums, _columns_in_forward_mode)


def hessian(fn: Callable[P, Any], argnums: Argnums = 0) -> Callable[P, Any]:
    """A function that returns the second derivatives of `fn`: ``jacfwd(jacrev(fn))``.

    >>> bu.hessian(lambda x: bu.sum(x * x * x))(bu.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    check_function("hessian", fn)
    return jacfwd(jacrev(fn, argnums), argnums)


def _jacobian(
    name: str,
    fn: Callable[..., Any],
    argnums: Argnums,
    blocks: Callable[[Point], list[list[Array]]],
) -> Callable[..., Any]:
    """blocks: for each output of a point, the derivative by each input."""
    check_function(name, fn)
    single = isinstance(argnums, int)
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @guarded
    @wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        point = point_of(name, fn, args, kwargs, positions)
        _require_float_results(name, fn, point)
        rows = [unflatten(point.treedef, row) for row in blocks(point)]
        return unflatten(point.function.result, [row[0] if single else row for row in rows])

    return jacobian


def _require_float_results(name: str, fn: Callable[..., Any], point: Point) -> None:
    paths = point.function.result.paths("the result")
    for value, path in zip(point.graph.outputs, paths, strict=True):
        if not value.dtype.is_float:
            raise OpTypeError(
                f"{name}: {path} of {graph_name(fn)} is {value.type},"
                " and derivatives exist for floats only",
                fix="return floats alone",
            )


def _rows_in_reverse_mode(point: Point) -> list[list[Array]]:
    count = len(point.graph.outputs)
    result = []
    for k, value in enumerate(point.graph.outputs):
        pulled = vjp_graph(point.graph, point.wrt, [k])
        rows = _for_unit_vectors(pulled, point, value.type, count)
        result.append(
            [reshape(g, (*value.shape, *x.shape)) for g, x in zip(rows, point.arrays, strict=True)]
        )
    return result


def _columns_in_forward_mode(point: Point) -> list[list[Array]]:
    count = len(point.graph.outputs)
    result: list[list[Array]] = [[] for _ in point.graph.outputs]
    for i, x in enumerate(point.arrays):
        pushed = jvp_graph(point.graph, [i])
        columns = _for_unit_vectors(pushed, point, x.type, count)
        for row, moves, value in zip(result, columns, point.graph.outputs, strict=True):
            row.append(reshape(moveaxis(moves, 0, -1), (*value.shape, *x.shape)))
    return result


def _for_unit_vectors(graph: Graph, point: Point, type_: Any, skipped: int) -> list[Array]:
    """The outputs of a graph after those skipped, for each unit vector as its last input.

    The results are stacked along a first axis.
    """
    size = math.prod(type_.shape)
    flags = [False] * len(point.inputs) + [True]
    batched, mapped = batch_graph(graph, flags, size)
    units = reshape(eye(size, dtype=type_.dtype, device=point.device), (size, *type_.shape))
    outputs = inline(batched, [*point.inputs, units])
    pairs = zip(outputs[skipped:], mapped[skipped:], strict=True)
    return [y if flag else broadcast_to(y, (size, *y.shape)) for y, flag in pairs]
