"""Functions as closed graphs: what they use from outside becomes inputs, and their state keeps its
types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.api.broadcasting import convert
from bringup.api.creation import asarray
from bringup.api.promotion import is_weak, kind_of, with_weak
from bringup.api.trace import LeafType, array_type, graph_name, leaf_type, trace_function
from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, replay
from bringup.records import record
from bringup.tracing.context import current
from bringup.tracing.pytree import TreeDef, flatten, unflatten
from bringup.types import TensorType


@record(eq=False)
class Closed:
    """A traced function.

    graph: its inputs are the leaves of the arguments, then the captured arrays.
    weak: per output whether it was made of Python scalars alone.
    """

    graph: Graph
    captured: tuple[Array, ...]
    result: TreeDef
    weak: tuple[bool, ...]


def require_function(name: str, fn: Any, what: str) -> None:
    """Raise OpTypeError unless `fn` can be called."""
    if not callable(fn):
        raise OpTypeError(
            f"{name}: {what} is of type {type(fn).__name__}, no function",
            fix="give a function, such as lambda x: x",
        )


def closed_over(
    fn: Callable[..., Any],
    trees: Sequence[TreeDef],
    types: Sequence[LeafType],
    wanted: Sequence[TensorType] | None,
    pair: str = "",
) -> Closed:
    """Trace a function.

    trees: of its arguments; types: of their leaves.
    wanted: types that its first results take where they are made of Python scalars alone.
    pair: the name of who needs a result of two parts.
    """
    weak: list[bool] = []

    def call(arrays: Sequence[Array]) -> Any:
        given, rest = [], list(arrays)
        for tree in trees:
            given.append(unflatten(tree, rest[: tree.leaves]))
            rest = rest[tree.leaves :]
        result = fn(*given)
        if pair and not (isinstance(result, tuple) and len(result) == 2):
            raise OpTypeError(
                f"{pair}: {graph_name(fn)} gives one {type(result).__name__}, not (carry, y)",
                fix="return two things, the second None if there is nothing to stack",
            )
        leaves, treedef = flatten(result)
        weak[:] = map(_is_weak, leaves)
        for n, type_ in enumerate((wanted or ())[: len(leaves)]):
            leaves[n] = _yielding(leaves[n], type_)
        return unflatten(treedef, leaves)

    around = current()
    device = around.device if around is not None else None
    traced = trace_function(call, types, name=graph_name(fn), device=device)
    return Closed(traced.graph, traced.captured, traced.result, tuple(weak))


def _is_weak(leaf: Any) -> bool:
    if isinstance(leaf, Array):
        return is_weak(leaf)
    return isinstance(leaf, bool | int | float) and not isinstance(leaf, np.generic)


def _yielding(leaf: Any, type_: TensorType) -> Any:
    """A leaf made of Python scalars in the dtype it meets, if that holds its kind."""
    if not _is_weak(leaf):
        return leaf
    kind = leaf.dtype.kind if isinstance(leaf, Array) else kind_of(leaf)
    if with_weak(type_.dtype, kind) is not type_.dtype:
        return leaf
    return convert(asarray(leaf), type_.dtype)


@record(eq=False)
class State:
    """What goes from iteration to iteration.

    name: who needs it.  label: what messages call it.  part: what they call its last part, if that
    alone is the user's.
    types: of the leaves; a Python type where a Python scalar stood.
    """

    name: str
    label: str
    arrays: list[Array]
    types: list[LeafType]
    treedef: TreeDef
    paths: list[str]
    part: str = ""

    @property
    def wanted(self) -> list[TensorType]:
        """The types of the arrays."""
        return [x.type for x in self.arrays]

    def settled(self, trace: Callable[[State], Closed]) -> Closed:
        """What `trace` makes for this state, whose Python scalars take the dtype that it returns.

        Raises OpTypeError unless it returns the state as it got it, containers and types.
        """
        for _ in range(2):
            traced = trace(self)
            after = traced.result if self.label == "state" else traced.result.children[0]
            if after != self.treedef:
                before, after = map(self._own, (self.treedef, after))
                raise OpTypeError(
                    f"{self.name}: the {self.part or self.label} is {before} before an iteration "
                    f"and {after} after it",
                    fix="return the same containers",
                )
            if not self._adopt([v.type for v in traced.graph.outputs]):
                break
        self._check([v.type for v in traced.graph.outputs])
        return traced

    def _own(self, tree: TreeDef) -> TreeDef:
        return tree.children[-1] if self.part else tree

    def _adopt(self, found: Sequence[TensorType]) -> bool:
        """Give Python scalars the dtype that they have after an iteration."""
        changed = False
        for n, (leaf, type_) in enumerate(zip(self.types, found, strict=False)):
            if not isinstance(leaf, TensorType) and type_ is not self.arrays[n].type:
                if (
                    type_.shape
                    or with_weak(type_.dtype, self.arrays[n].dtype.kind) is not type_.dtype
                ):
                    continue
                self.arrays[n] = convert(self.arrays[n], type_.dtype)
                self.types[n] = type_
                changed = True
        return changed

    def _check(self, found: Sequence[TensorType]) -> None:
        for before, after, path in zip(self.wanted, found, self.paths, strict=False):
            if before is after:
                continue
            cast = f"convert it, as in astype(x, {before.dtype.long_name}), or start with {after}"
            raise OpTypeError(
                f"{self.name}: {path} is {before} before an iteration and {after} after it",
                fix=cast if before.shape == after.shape else "make the function keep its shape",
            )


def state_of(name: str, tree: Any, label: str, labels: Sequence[str] | None) -> State:
    """A container as a `State`.

    labels: of its parts, if it is a tuple of ours.
    """
    leaves, treedef = flatten(tree)
    if labels is None:
        paths = list(treedef.paths(label))
    else:
        parts = zip(labels, treedef.children, strict=True)
        paths = [path for part, child in parts for path in child.paths(part)]
    types = [leaf_type(x, f"{name}: {path}") for x, path in zip(leaves, paths, strict=True)]
    arrays = [_as_typed(x, array_type(t)) for x, t in zip(leaves, types, strict=True)]
    part = "" if labels is None else labels[-1]
    return State(name, label, arrays, types, treedef, paths, part)


def _as_typed(leaf: Any, type_: TensorType) -> Array:
    return leaf if isinstance(leaf, Array) else asarray(leaf, dtype=type_.dtype)


def unchanged(graph: Graph, count: int) -> list[int]:
    """Which of the first `count` inputs are the outputs at their places."""
    pairs = zip(graph.inputs[:count], graph.outputs, strict=False)
    return [n for n, (before, after) in enumerate(pairs) if before is after]


def graph_of(
    made: Closed, types: Sequence[LeafType], outer: Sequence[Array], *, passing: bool = False
) -> Graph:
    """The graph of a function that takes all of `outer`, whether it uses them or not.

    passing: it also returns them.
    """
    builder = Builder()
    given = [builder.input(array_type(t)) for t in types]
    held = [builder.input(x.type) for x in outer]
    places = {id(x): value for x, value in zip(outer, held, strict=True)}
    arguments = [*given, *(places[id(x)] for x in made.captured)]
    results = replay(made.graph, builder=builder, arguments=arguments)
    return builder.build((*results, *(held if passing else ())), made.graph.name)


def body_of(
    made: Closed, types: Sequence[LeafType], held: Sequence[int], outer: Sequence[Array]
) -> Graph:
    """The graph of a function that takes `outer` first: the arguments at the places `held`, which
    it does not return, then what it captured.
    """
    builder = Builder()
    first = [builder.input(x.type) for x in outer]
    own = dict(zip(held, first, strict=False))
    given = [own[n] if n in own else builder.input(array_type(t)) for n, t in enumerate(types)]
    captured = first[len(held) :][: len(made.captured)]
    results = replay(made.graph, builder=builder, arguments=[*given, *captured])
    kept = [value for n, value in enumerate(results) if n not in own]
    return builder.build(kept, made.graph.name)


__all__ = [
    "Closed",
    "State",
    "body_of",
    "closed_over",
    "graph_of",
    "require_function",
    "state_of",
    "unchanged",
]
