"""Functions at a point: traced with the arguments to differentiate by as inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.api.array import Array
from bringup.api.creation import asarray
from bringup.api.traced import TracedFunction, graph_name, leaf_type, trace_function
from bringup.errors import OpTypeError
from bringup.graph import Graph
from bringup.records import record
from bringup.runtime.devices import OpenDevice
from bringup.tracing.pytree import TreeDef, flatten, unflatten

Argnums = int | Sequence[int]


@record(eq=False)
class Point:
    """A function traced where its derivative is wanted.

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

    name: what messages call the transformation.  check: what to make of the function's result.
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
    made = trace_function(call, types, name=graph_name(fn), device=device, known=arrays)
    return Point(arrays, treedef, made)


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
        other = "choose other arguments by argnums"
        if not path.endswith("]"):  # a field, of a dataclass or a namedtuple
            other = 'make the field static: dataclasses.field(metadata={"static": True})'
        raise OpTypeError(
            f"{name}: {path} is {array.type}, and derivatives exist for floats only",
            fix=f"convert it with astype(x, float32), or {other}",
        )
    return array
