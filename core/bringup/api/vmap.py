"""`vmap`: a function of one example as a function of many, by a transformation of its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bringup.api.apply import inline
from bringup.api.arguments import axis_of, integer_of
from bringup.api.array import Array
from bringup.api.boundary import guarded
from bringup.api.creation import asarray
from bringup.api.manipulation import broadcast_to, expand_dims, moveaxis
from bringup.api.trace import TracedFunction, argument_name, graph_name, trace_function
from bringup.errors import ConversionError, OpTypeError
from bringup.records import record
from bringup.tracing.batching import batch_graph
from bringup.tracing.pytree import TreeDef, flatten, prefix_leaves, unflatten

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fn: Callable[P, R], in_axes: Any = 0, out_axes: Any = 0, axis_size: int | None = None
) -> Callable[P, R]:
    """A function that maps `fn` over an axis of its arguments, all examples at once.

    in_axes: the axis of each positional argument that counts examples, None for arguments that are
    the same for all, which reach `fn` as they are: an int or None, or a tuple of one entry per
    argument, where an entry may be a container like its argument.  Keyword arguments are mapped
    along axis 0.
    out_axes: where that axis goes in the results, likewise; None only for results that are the same
    for all examples.
    axis_size: how many examples there are; needed only where nothing is mapped.

    `fn` sees arrays without the axis, and Python may not look at their values (see `trace`).
    Composes with `jit`, `grad` and itself; nothing is looped over: each operation is done once, for
    all examples.
    Raises OpTypeError for axes that are out of range and sizes that differ, UnsupportedError for an
    op that has no rule for many examples.

    >>> distance = lambda x, y: bu.sqrt(bu.sum((x - y) ** 2))
    >>> x, y = bu.reshape(bu.arange(6.0), (3, 2)), bu.asarray([0.0, 1.0])
    >>> bu.vmap(distance, in_axes=(0, None))(x, y).shape
    (3,)
    """
    if not callable(fn):
        raise OpTypeError(
            f"vmap: {type(fn).__name__} is no function",
            fix="give a function first, then call the result with its arguments",
        )

    @guarded
    @wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = flatten((args, kwargs))
        axes = _axes(_for_all(in_axes, treedef), treedef, "in_axes")
        examples = _mapped_arguments(fn, leaves, treedef, axes, axis_size)
        return _mapped(fn, examples, leaves, treedef, out_axes)

    return mapped


@record
class _Examples:
    """The mapped arguments, with the mapped axis first; positions: among the leaves."""

    positions: tuple[int, ...]
    arrays: list[Array]
    size: int


def _for_all(in_axes: Any, treedef: TreeDef) -> Any:
    """`in_axes` as a prefix of ``(args, kwargs)``."""
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    count = len(treedef.children[0].children)
    if isinstance(in_axes, tuple) and len(in_axes) != count:
        raise OpTypeError(
            f"vmap: in_axes {in_axes} does not fit {count} positional arguments",
            fix="give one entry per positional argument, or one int for all",
        )
    return in_axes, 0


def _axes(prefix: Any, treedef: TreeDef, name: str) -> list[int | None]:
    """The axis of every leaf."""
    try:
        result = prefix_leaves(prefix, treedef, name)
    except ConversionError as error:
        message = error.what.replace("in_axes[0]", "in_axes", 1)
        raise OpTypeError(f"vmap: {message}", fix=error.fix) from None
    return [None if a is None else integer_of("vmap", f"{name} entry", a) for a in result]


def _mapped_arguments(
    fn: Callable[..., Any],
    leaves: Sequence[Any],
    treedef: TreeDef,
    axes: Sequence[int | None],
    size: int | None,
) -> _Examples:
    """The mapped arguments and the number of examples."""
    leaf_indices, arrays, sizes = [], [], []
    paths = treedef.paths("arguments")
    for leaf_index, (leaf, axis, path) in enumerate(zip(leaves, axes, paths, strict=True)):
        if axis is None:
            continue
        name = argument_name(fn, path)
        array = _array(leaf, name)
        dim = _axis(name, array, axis)
        leaf_indices.append(leaf_index)
        arrays.append(moveaxis(array, dim, 0))
        sizes.append((array.shape[dim], f"{name} is {array.type}, axis {axis}"))
    if size is not None:
        sizes.append((_count(size), f"axis_size is {size}"))
    return _Examples(tuple(leaf_indices), arrays, _common_size(fn, sizes))


def _count(size: int) -> int:
    count = integer_of("vmap", "axis_size", size)
    if count < 0:
        raise OpTypeError(
            f"vmap: axis_size {count} is no number of examples",
            fix="give a size of at least 0, or leave it out where an argument is mapped",
        )
    return count


def _array(leaf: Any, name: str) -> Array:
    if isinstance(leaf, Array):
        return leaf
    if not isinstance(leaf, np.ndarray | np.generic | bool | int | float):
        raise ConversionError(
            f"vmap: {name} is a {type(leaf).__name__}, which is no array",
            fix="pass an array, or None for it in in_axes to hand it on as it is",
        )
    return asarray(leaf)


def _axis(name: str, array: Array, axis: int) -> int:
    if not -array.ndim <= axis < array.ndim:
        raise OpTypeError(
            f"vmap: {name} is {array.type} and has no axis {axis} to map over",
            fix="give its axis in in_axes, or None if it is the same for all examples",
        )
    return axis % array.ndim


def _common_size(fn: Callable[..., Any], sizes: Sequence[tuple[int, str]]) -> int:
    if not sizes:
        raise OpTypeError(
            f"vmap: no argument of {graph_name(fn)} is mapped, so the number of examples is open",
            fix="name an axis in in_axes, or give axis_size",
        )
    if len({size for size, _ in sizes}) > 1:
        raise OpTypeError(
            f"vmap: mapped arguments of {graph_name(fn)} differ in the number of examples:"
            f" {', '.join(str(size) for size, _ in sizes)}",
            notes=tuple(note for _, note in sizes),
            fix="map axes of one size, or give None in in_axes for what all examples share",
        )
    return sizes[0][0]


def _mapped(
    fn: Callable[..., Any],
    examples: _Examples,
    leaves: Sequence[Any],
    treedef: TreeDef,
    out_axes: Any,
) -> Any:
    def call(arrays: Sequence[Array]) -> Any:
        replaced = list(leaves)
        for leaf_index, array in zip(examples.positions, arrays, strict=True):
            replaced[leaf_index] = array
        args, kwargs = unflatten(treedef, replaced)
        return fn(*args, **kwargs)

    types = [x.type.with_shape(x.shape[1:]) for x in examples.arrays]
    device = next((x._device for x in examples.arrays if x._device is not None), None)
    traced = trace_function(call, types, name=graph_name(fn), device=device)
    flags = [True] * len(types) + [False] * len(traced.captured)
    graph, per_example = batch_graph(traced.graph, flags, examples.size)
    axes = _axes(out_axes, traced.result, "out_axes")
    targets = _targets(traced, per_example, axes)
    outputs = inline(graph, [*examples.arrays, *traced.captured])
    placed = [
        y if target is None else moveaxis(y if flag else _repeated(y, examples.size), 0, target)
        for y, flag, target in zip(outputs, per_example, targets, strict=True)
    ]
    return unflatten(traced.result, placed)


def _repeated(y: Array, size: int) -> Array:
    return broadcast_to(expand_dims(y, 0), (size, *y.shape))


def _targets(
    traced: TracedFunction, per_example: Sequence[bool], axes: Sequence[int | None]
) -> list[int | None]:
    """Where the examples go in each result, checked before anything runs."""
    targets: list[int | None] = []
    paths = traced.result.paths("the result")
    values = traced.graph.outputs
    for value, flag, axis, path in zip(values, per_example, axes, paths, strict=True):
        if axis is None and flag:
            raise OpTypeError(
                f"vmap: {path} of {traced.graph.name} depends on the mapped arguments,"
                " and its entry of out_axes is None",
                fix="name the axis of the result that shall count the examples, such as 0",
            )
        rank = len(value.shape) + 1
        targets.append(None if axis is None else axis_of("vmap: out_axes", axis, rank))
    return targets
