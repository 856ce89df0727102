"""Derivatives of functions of any result: products with them, and whole matrices of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bringup.api.apply import inline
from bringup.api.array import Array
from bringup.api.boundary import guarded
from bringup.api.creation import asarray, eye
from bringup.api.differentiable import Argnums, Point, check_function, point_of
from bringup.api.manipulation import broadcast_to, moveaxis, reshape
from bringup.api.traced import graph_name
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Graph
from bringup.tracing.autodiff import jvp_graph, vjp_graph
from bringup.tracing.batching import batch_graph
from bringup.tracing.pytree import TreeDef, prefix_leaves, unflatten

P = ParamSpec("P")
R = TypeVar("R")


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
        given = _cotangents(fn, point, cotangents)
        pulled = vjp_graph(point.graph, point.wrt, list(given))
        outputs = inline(pulled, [*point.inputs, *given.values()])
        gradients: tuple[Any, ...] = unflatten(point.treedef, outputs[len(values) :])
        return gradients

    return unflatten(point.function.result, values), pull


def _cotangents(fn: Callable[..., Any], point: Point, cotangents: Any) -> dict[int, Array]:
    """The cotangents that are given, by position of the output."""
    result = point.function.result
    leaves = _like("vjp", cotangents, result, f"the cotangent of {graph_name(fn)}")
    paths = result.paths("the cotangent")
    given = {}
    for i, (leaf, value, path) in enumerate(zip(leaves, point.graph.outputs, paths, strict=True)):
        if leaf is not None and value.dtype.is_float:
            given[i] = _of_type(leaf, value.type, "vjp", path)
    return given


def _like(name: str, tree: Any, treedef: TreeDef, what: str) -> list[Any]:
    """The leaves of a tree that must be like another; what: how messages call it."""
    try:
        return prefix_leaves(tree, treedef, what)
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
    leaves = _like("jvp", tuple(tangents), point.treedef, "the tangents")
    paths = point.treedef.paths("the tangent ")
    given = {
        i: _of_type(leaf, x.type, "jvp", path)
        for i, (leaf, x, path) in enumerate(zip(leaves, point.arrays, paths, strict=True))
        if leaf is not None
    }
    of = _floats(point.graph)
    pushed = jvp_graph(point.graph, list(given), of)
    outputs = inline(pushed, [*point.inputs, *given.values()])
    count = len(point.graph.outputs)
    moves = dict(zip(of, outputs[count:], strict=True))
    result = point.function.result
    return unflatten(result, outputs[:count]), unflatten(result, map(moves.get, range(count)))


def _floats(graph: Graph) -> list[int]:
    return [i for i, v in enumerate(graph.outputs) if v.dtype.is_float]


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
    return _jacobian("jacrev", fn, argnums, _by_rows)


def jacfwd(fn: Callable[P, Any], argnums: Argnums = 0) -> Callable[P, Any]:
    """`jacrev` in forward mode, for results that are larger than arguments.

    One pass for each element of the arguments, all at once.

    >>> bu.jacfwd(lambda x: bu.stack([x, x * x]))(bu.asarray(3.0)).tolist()
    [1.0, 6.0]
    """
    return _jacobian("jacfwd", fn, argnums, _by_columns)


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


def _by_rows(point: Point) -> list[list[Array]]:
    count = len(point.graph.outputs)
    found = []
    for k, value in enumerate(point.graph.outputs):
        pulled = vjp_graph(point.graph, point.wrt, [k])
        made = _for_each(pulled, point, value.type, count)
        found.append(
            [reshape(g, (*value.shape, *x.shape)) for g, x in zip(made, point.arrays, strict=True)]
        )
    return found


def _by_columns(point: Point) -> list[list[Array]]:
    count = len(point.graph.outputs)
    found: list[list[Array]] = [[] for _ in point.graph.outputs]
    for i, x in enumerate(point.arrays):
        pushed = jvp_graph(point.graph, [i])
        made = _for_each(pushed, point, x.type, count)
        for row, moves, value in zip(found, made, point.graph.outputs, strict=True):
            row.append(reshape(moveaxis(moves, 0, -1), (*value.shape, *x.shape)))
    return found


def _for_each(graph: Graph, point: Point, type_: Any, skipped: int) -> list[Array]:
    """The outputs of a graph after those skipped, for each unit vector as its last input.

    The vectors are counted by a first axis.
    """
    size = math.prod(type_.shape)
    flags = [False] * len(point.inputs) + [True]
    batched, given = batch_graph(graph, flags, size)
    units = reshape(eye(size, dtype=type_.dtype, device=point.device), (size, *type_.shape))
    outputs = inline(batched, [*point.inputs, units])
    pairs = zip(outputs[skipped:], given[skipped:], strict=True)
    return [y if flag else broadcast_to(y, (size, *y.shape)) for y, flag in pairs]
