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


def require_function(name: str, fn: Any, label: str) -> None:
    """Raise OpTypeError unless `fn` can be called."""
    if not callable(fn):
        raise OpTypeError(
            f"{name}: {label} is of type {type(fn).__name__}, no function",
            fix="give a function, such as lambda x: x",
        )


def closed_over(
    fn: Callable[..., Any],
    trees: Sequence[TreeDef],
    types: Sequence[LeafType],
    result_types: Sequence[TensorType] | None,
    pair: str = "",
) -> Closed:
    """Trace a function.

    trees: of its arguments; types: of their leaves.
    result_types: types that its first results take where they are made of Python scalars alone.
    pair: the name of the function whose `fn` must return two parts; empty for others.
    """
    weak: list[bool] = []

    def call(arrays: Sequence[Array]) -> Any:
        arguments, remaining = [], list(arrays)
        for tree in trees:
            arguments.append(unflatten(tree, remaining[: tree.leaves]))
            remaining = remaining[tree.leaves :]
        result = fn(*arguments)
        if pair and not (isinstance(result, tuple) and len(result) == 2):
            raise OpTypeError(
                f"{pair}: {graph_name(fn)} gives one {type(result).__name__}, not (carry, y)",
                fix="return two things, the second None if there is nothing to stack",
            )
        leaves, treedef = flatten(result)
        weak[:] = map(_is_weak, leaves)
        for n, type_ in enumerate((result_types or ())[: len(leaves)]):
            leaves[n] = _weak_as(leaves[n], type_)
        return unflatten(treedef, leaves)

    around = current()
    device = around.device if around is not None else None
    traced = trace_function(call, types, name=graph_name(fn), device=device)
    return Closed(traced.graph, traced.captured, traced.result, tuple(weak))


def _is_weak(leaf: Any) -> bool:
    if isinstance(leaf, Array):
        return is_weak(leaf)
    return isinstance(leaf, bool | int | float) and not isinstance(leaf, np.generic)


def _weak_as(leaf: Any, type_: TensorType) -> Any:
    """A leaf; one made of Python scalars in the dtype of `type_`, if that holds its kind."""
    if not _is_weak(leaf):
        return leaf
    kind = leaf.dtype.kind if isinstance(leaf, Array) else kind_of(leaf)
    if with_weak(type_.dtype, kind) is not type_.dtype:
        return leaf
    return convert(asarray(leaf), type_.dtype)


@record(eq=False)
class State:
    """The values that go from one iteration to the next, or the operands of branches.

    name: of the function that messages are about.  label: what they call the state.  part: what
    they call its last part, if that alone is the user's.
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
    def array_types(self) -> list[TensorType]:
        """The types of the arrays."""
        return [x.type for x in self.arrays]

    def settled(self, trace: Callable[[State], Closed]) -> Closed:
        """The function that `trace` makes for this state; Python scalars take its result's dtype.

        Raises OpTypeError unless it returns the containers and the types of the state.
        """
        for _ in range(2):
            traced = trace(self)
            after = traced.result if self.label == "state" else traced.result.children[0]
            if after != self.treedef:
                before, after = map(self._user_part, (self.treedef, after))
                raise OpTypeError(
                    f"{self.name}: the {self.part or self.label} is {before} before an iteration "
                    f"and {after} after it",
                    fix="return the same containers",
                )
            if not self._adopt_dtypes([v.type for v in traced.graph.outputs]):
                break
        self._check([v.type for v in traced.graph.outputs])
        return traced

    def _user_part(self, tree: TreeDef) -> TreeDef:
        return tree.children[-1] if self.part else tree

    def _adopt_dtypes(self, after: Sequence[TensorType]) -> bool:
        """Give Python scalars the dtype that they have after an iteration."""
        changed = False
        for n, (leaf, type_) in enumerate(zip(self.types, after, strict=False)):
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

    def _check(self, after_types: Sequence[TensorType]) -> None:
        for before, after, path in zip(self.array_types, after_types, self.paths, strict=False):
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
    arrays = [
        x if isinstance(x, Array) else asarray(x, dtype=array_type(t).dtype)
        for x, t in zip(leaves, types, strict=True)
    ]
    part = "" if labels is None else labels[-1]
    return State(name, label, arrays, types, treedef, paths, part)


def unchanged(graph: Graph, count: int) -> list[int]:
    """Which of the first `count` inputs are also the outputs at the same positions."""
    pairs = zip(graph.inputs[:count], graph.outputs, strict=False)
    return [n for n, (before, after) in enumerate(pairs) if before is after]


def graph_of(
    closed: Closed, types: Sequence[LeafType], outer: Sequence[Array], *, passing: bool = False
) -> Graph:
    """The graph of a function that takes all of `outer`, whether it uses them or not.

    passing: it also returns them.
    """
    builder = Builder()
    inputs = [builder.input(array_type(t)) for t in types]
    outer_inputs = [builder.input(x.type) for x in outer]
    value_of = {id(x): value for x, value in zip(outer, outer_inputs, strict=True)}
    arguments = [*inputs, *(value_of[id(x)] for x in closed.captured)]
    results = replay(closed.graph, builder=builder, arguments=arguments)
    return builder.build((*results, *(outer_inputs if passing else ())), closed.graph.name)


def body_of(
    closed: Closed, types: Sequence[LeafType], fixed: Sequence[int], outer: Sequence[Array]
) -> Graph:
    """The graph of a function that takes `outer` first: the arguments at the positions
    `fixed`, which it does not return, then the arrays that it captured.
    """
    builder = Builder()
    first = [builder.input(x.type) for x in outer]
    value_of = dict(zip(fixed, first, strict=False))
    arguments = [
        value_of[n] if n in value_of else builder.input(array_type(t)) for n, t in enumerate(types)
    ]
    captured = first[len(fixed) :][: len(closed.captured)]
    results = replay(closed.graph, builder=builder, arguments=[*arguments, *captured])
    outputs = [value for n, value in enumerate(results) if n not in value_of]
    return builder.build(outputs, closed.graph.name)


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
