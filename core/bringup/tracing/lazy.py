"""Deferred expressions: operations recorded now, made into one graph when a value is looked at.

A `Node` is a value that is not computed yet.  `collect` gathers everything some nodes need and
names its structure by a key that costs no graph; `Batch.graph` builds the graph when that key is
new.  Nothing here recurses: an expression may be as deep as memory allows.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.errors import Location, OpTypeError
from bringup.graph import Builder, Graph, Literal, Operation, Value, attrs_key, user_location
from bringup.ops.table import OpDef, lookup
from bringup.types import TensorType

#: How many instructions may wait before they are run although nobody looked.
MAX_PENDING = 2000

_MEMO_LIMIT = 1 << 16
_serials = itertools.count(1)


class Call:
    """An op with attributes on operand types, checked and inferred once; interned."""

    __slots__ = ("attrs", "op", "types")

    def __init__(self, op: Operation, attrs: dict[str, Any], types: tuple[TensorType, ...]) -> None:
        self.op = op
        self.attrs = attrs
        self.types = types


class Leaf:
    """A value that exists: the buffer of an array some node reads.

    shared: somebody outside sees the memory, so that it must not be given away.
    """

    __slots__ = ("__weakref__", "buffer", "shared", "type")

    def __init__(self, type_: TensorType, buffer: Any, shared: bool = False) -> None:
        self.type = type_
        self.buffer = buffer
        self.shared = shared


class Scalar:
    """A Python scalar spread over a shape: a constant, or an input if it keeps changing."""

    __slots__ = ("literal", "type")

    def __init__(self, literal: Literal) -> None:
        self.literal = literal
        self.type = literal.type


class Node:
    """One result of a recorded operation.

    buffer: None until it is run; then the operands are let go.
    array: a weak reference to the array that shows it.
    siblings: all results of the operation, if it has several.
    oldest, weight: see `bound`.
    """

    __slots__ = (
        "__weakref__",
        "array",
        "buffer",
        "call",
        "index",
        "location",
        "oldest",
        "operands",
        "serial",
        "siblings",
        "type",
        "weight",
    )

    def __init__(
        self, call: Call, operands: tuple[Source, ...], location: Location | None, index: int = 0
    ) -> None:
        self.call = call
        self.operands = operands
        self.location = location
        self.index = index
        self.type = call.types[index]
        self.buffer: Any = None
        self.array: weakref.ref[Any] | None = None
        self.siblings: tuple[weakref.ref[Node], ...] = ()
        self.serial = self.oldest = next(_serials)
        self.weight = 1
        for operand in operands:
            if type(operand) is Node and operand.buffer is None:
                self.weight += operand.weight
                self.oldest = min(self.oldest, operand.oldest)

    @property
    def bound(self) -> int:
        """An upper bound of the number of operations this node waits for.

        Counted as a tree it is too much where operands are shared; counted as everything recorded
        since the oldest one it is too much where unrelated work came in between.
        """
        return min(self.weight, self.serial - self.oldest + 1)

    def resolve(self, buffer: Any) -> None:
        """Turn into a leaf."""
        self.buffer = buffer
        self.operands = ()
        self.weight = 1


Source = Leaf | Scalar | Node

_calls: dict[Any, Call] = {}


def record(
    op: Operation,
    operands: tuple[Source, ...],
    attrs: Mapping[str, Any],
    location: Location | None = None,
) -> tuple[Node, ...]:
    """New nodes for the results of an operation, checked at once.

    Raises OpTypeError with the line of the operation and of its operands.
    """
    types = tuple([o.type for o in operands])
    key = (op, types, attrs_key(attrs)) if attrs else (op, types)
    call = _calls.get(key)
    if location is None:
        location = user_location()
    if call is None:
        call = _check(op, operands, attrs, location)
        if len(_calls) >= _MEMO_LIMIT:
            _calls.clear()
        _calls[key] = call
    if len(call.types) == 1:
        return (Node(call, operands, location),)
    nodes = tuple(Node(call, operands, location, i) for i in range(len(call.types)))
    siblings = tuple(map(weakref.ref, nodes))
    for node in nodes:
        node.siblings = siblings
    return nodes


def filled(
    op: Operation, types: tuple[TensorType, ...], attrs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The attributes with those added whose default follows from the operands."""
    if isinstance(op, OpDef) and op.fill is not None:
        return {**op.fill(types, attrs), **attrs}
    return attrs


def _check(
    op: Operation,
    operands: tuple[Source, ...],
    attrs: Mapping[str, Any],
    location: Location | None,
) -> Call:
    builder = Builder()
    builder.location = location
    values = [builder.input(o.type) for o in operands]
    try:
        results = builder.emit(op, values, filled(op, tuple([o.type for o in operands]), attrs))
    except OpTypeError as error:
        made = [
            f"operand {i} was made at {o.location} by {o.call.op.name}"
            for i, o in enumerate(operands)
            if isinstance(o, Node) and o.location is not None
        ]
        raise OpTypeError(
            error.what,
            location=error.location,
            instruction=error.instruction,
            fix=error.fix,
            notes=(*error.notes, *made),
        ) from None
    instr = results[0].producer
    assert instr is not None
    return Call(op, dict(instr.attrs), tuple(v.type for v in results))


class Batch:
    """What has to run for some values, in an order that respects every dependency.

    nodes: one per operation.
    inputs: the existing values read.
    scalars: the constants read, one entry per use.
    outputs: the values to compute.
    structure: hashable; equal for batches that differ in nothing but the values of inputs and
    scalars.
    """

    __slots__ = ("_number", "inputs", "nodes", "outputs", "scalars", "structure")

    def __init__(self, nodes: list[Node], number: dict[int, int]) -> None:
        self.nodes = nodes
        self._number = number
        self.inputs: list[Leaf | Node] = []
        self.scalars: list[Scalar] = []
        self.outputs: list[Node] = []
        self.structure: Any = None

    def place(self, node: Node) -> tuple[int, int]:
        """Which operation makes a node, and which of its results it is."""
        return self._number[_identity(node)], node.index

    @property
    def values(self) -> tuple[Literal, ...]:
        """The values of the scalars."""
        return tuple([s.literal for s in self.scalars])

    def graph(self, *, scalars_as_inputs: bool = False) -> Graph:
        """The batch as a graph.

        scalars_as_inputs: take every scalar as a further 0-d input, after the others, instead of a
        constant.
        """
        builder = Builder()
        inputs = {id(leaf): builder.input(leaf.type) for leaf in self.inputs}
        made: dict[Literal, Value] = {}
        spare = iter([builder.input(_element(s.type)) for s in self.scalars if scalars_as_inputs])
        results: list[tuple[Value, ...]] = []

        def value(operand: Source) -> Value:
            if isinstance(operand, Scalar):
                if scalars_as_inputs:
                    return _spread(builder, next(spare), operand.type)
                if operand.literal not in made:
                    (made[operand.literal],) = builder.emit(
                        lookup("constant"), (), {"value": operand.literal}
                    )
                return made[operand.literal]
            found = inputs.get(id(operand))
            if found is not None:
                return found
            assert isinstance(operand, Node)
            position, index = self.place(operand)
            return results[position][index]

        for node in self.nodes:
            builder.location = node.location
            operands = tuple([value(o) for o in node.operands])
            results.append(builder.emit(node.call.op, operands, node.call.attrs))
        places = map(self.place, self.outputs)
        return builder.build([results[position][index] for position, index in places], "deferred")


def _element(type_: TensorType) -> TensorType:
    return type_.with_shape(())


def _spread(builder: Builder, value: Value, type_: TensorType) -> Value:
    if not type_.shape:
        return value
    attrs = {"shape": type_.shape, "dims": ()}
    return builder.emit(lookup("broadcast_in_dim"), (value,), attrs)[0]


def _identity(node: Node) -> int:
    """Equal for the results of one operation."""
    return id(node.siblings) if node.siblings else id(node)


def count(root: Node, limit: int) -> int:
    """How many operations a node waits for, exactly, or more than `limit` if there are more."""
    seen = {id(root)}
    stack = [root]
    while stack and len(seen) <= limit:
        for operand in stack.pop().operands:
            if type(operand) is Node and operand.buffer is None and id(operand) not in seen:
                seen.add(id(operand))
                stack.append(operand)
    return len(seen)


def collect(roots: Iterable[Node]) -> Batch:
    """Everything the roots wait for.

    Besides the roots, every value met on the way whose array is still alive becomes an output, so
    that nothing is computed twice.
    """
    nodes, number = _order(roots)
    batch = Batch(nodes, number)
    codes: dict[int, int] = {}
    rows: list[Any] = []
    for node in nodes:
        rows.append(node.call)
        for operand in node.operands:
            if type(operand) is Scalar:
                batch.scalars.append(operand)
                rows.append(operand.type)
            elif type(operand) is Node and operand.buffer is None:
                rows.append(number[_identity(operand)])
                if operand.siblings:
                    rows.append(operand.index)
            else:
                assert not isinstance(operand, Scalar)
                code = codes.get(id(operand))
                if code is None:
                    code = codes[id(operand)] = ~len(batch.inputs)
                    batch.inputs.append(operand)
                rows.append(code)
    batch.outputs = _wanted(nodes, roots)
    places = tuple([batch.place(n) for n in batch.outputs])
    batch.structure = (tuple(rows), tuple([leaf.type for leaf in batch.inputs]), places)
    return batch


def _order(roots: Iterable[Node]) -> tuple[list[Node], dict[int, int]]:
    order: list[Node] = []
    number: dict[int, int] = {}
    stack = [root for root in roots if root.buffer is None]
    stack.reverse()
    while stack:
        node = stack[-1]
        if _identity(node) in number:
            stack.pop()
            continue
        waiting = [
            o
            for o in node.operands
            if type(o) is Node and o.buffer is None and _identity(o) not in number
        ]
        if waiting:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        number[_identity(node)] = len(order)
        order.append(node)
    return order, number


def _wanted(nodes: Sequence[Node], roots: Iterable[Node]) -> list[Node]:
    wanted = {id(root): root for root in roots if root.buffer is None}
    for node in nodes:
        for result in [node] if not node.siblings else [s() for s in node.siblings]:
            if result is not None and result.array is not None and result.array() is not None:
                wanted[id(result)] = result
    return list(wanted.values())
