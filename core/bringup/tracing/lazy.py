"""Deferred expressions: operations recorded now, made into one graph when a value is looked at.

A `Node` is a value that is not computed yet.  `collect` gathers everything some nodes need and
names its structure by a key that costs no graph; `Batch.graph` builds the graph when that key is
new.  Nothing here recurses: an expression may be as deep as memory allows.

Three rules keep the programs of a Python loop few and small, however long it runs:

* `collect` computes nothing that would have to be computed again: what is still waiting and reads
  an intermediate that nobody holds is computed with it.
* A node waits for at most `MAX_PENDING` operations: one more makes it `overdue`.
* An operation that was overdue once is so again with fewer, so that the iterations of a loop are
  cut at the same place and their program is found in the cache.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.bounded import BoundedDict
from bringup.errors import Location, OpTypeError
from bringup.graph import (
    Builder,
    Graph,
    Literal,
    Operation,
    Value,
    attrs_key,
    origins,
    user_location,
)
from bringup.ops.table import Kind, OpDef, lookup
from bringup.types import TensorType

#: For how many operations a value may wait before they are run although nobody looked.
MAX_PENDING = 128
#: How many have to wait at an operation where a chain was cut before, to cut there again.
REPEATED_PENDING = 32
#: How many operations may join those that are asked for because they share an intermediate.
MAX_JOINED = 512

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
    readers: references to the nodes that read this one while it waits.
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
        "readers",
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
        self.readers: list[weakref.ref[Node]] = []
        self.serial = self.oldest = next(_serials)
        self.weight = 1
        for operand in operands:
            if type(operand) is Node and operand.buffer is None:
                self.weight += operand.weight
                self.oldest = min(self.oldest, operand.oldest)
                operand._read_by(self)

    @property
    def op(self) -> Operation:
        """What the operation is."""
        return self.call.op

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
        self.readers = []
        self.weight = 1

    @property
    def held(self) -> bool:
        """Whether the array that shows it is alive."""
        return self.array is not None and self.array() is not None

    def _read_by(self, reader: Node) -> None:
        readers = self.readers
        size = len(readers)
        if size >= 16 and not size & (size - 1):  # those that died go, each time the list doubles
            self.readers = readers = [r for r in readers if r() is not None]
        readers.append(weakref.ref(reader))


Source = Leaf | Scalar | Node

_calls: BoundedDict[Any, Call] = BoundedDict(1 << 16)


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
        _calls.add(key, call)
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
        notes = origins(operands, lambda o: o if isinstance(o, Node) else None, location)
        raise OpTypeError(
            error.what,
            location=error.location,
            instruction=error.instruction,
            fix=error.fix,
            notes=(*error.notes, *notes),
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
    joined: whether more is computed than was asked for.
    structure: hashable; equal for batches that differ in nothing but the values of inputs and
    scalars.
    """

    __slots__ = ("_number", "inputs", "joined", "nodes", "outputs", "scalars", "structure")

    def __init__(self, nodes: list[Node], number: dict[int, int], joined: bool) -> None:
        self.nodes = nodes
        self._number = number
        self.joined = joined
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

    def graph(self, varying: Sequence[int] = ()) -> Graph:
        """The batch as a graph.

        varying: positions of scalars to take as further 0-d inputs, after the others, instead of as
        constants.
        """
        builder = Builder()
        inputs = {id(leaf): builder.input(leaf.type) for leaf in self.inputs}
        constants: dict[Literal, Value] = {}
        elements = {n: builder.input(self.scalars[n].type.with_shape(())) for n in varying}
        uses = itertools.count()
        results: list[tuple[Value, ...]] = []

        def value(operand: Source) -> Value:
            if isinstance(operand, Scalar):
                element = elements.get(next(uses))
                if element is not None:
                    return _spread(builder, element, operand.type)
                if operand.literal not in constants:
                    (constants[operand.literal],) = builder.emit(
                        lookup("constant"), (), {"value": operand.literal}
                    )
                return constants[operand.literal]
            argument = inputs.get(id(operand))
            if argument is not None:
                return argument
            assert isinstance(operand, Node)
            position, index = self.place(operand)
            return results[position][index]

        for node in self.nodes:
            builder.location = node.location
            operands = tuple([value(o) for o in node.operands])
            results.append(builder.emit(node.call.op, operands, node.call.attrs))
        positions = map(self.place, self.outputs)
        return builder.build(
            [results[position][index] for position, index in positions], "deferred"
        )


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


#: Where chains were cut: operations by their call and line.
_cuts: BoundedDict[tuple[int, Location | None], Call] = BoundedDict(1 << 16)


def overdue(node: Node) -> bool:
    """Whether a node that was just recorded waits for so much that it is time to compute."""
    if node.bound <= REPEATED_PENDING:
        return False
    site = (id(node.call), node.location)
    limit = REPEATED_PENDING if site in _cuts else MAX_PENDING
    if node.bound <= limit:
        return False
    # The bound is high; what is counted replaces it.
    node.weight = count(node, MAX_PENDING)
    if node.weight <= limit:
        return False
    _cuts.add(site, node.call)  # held, so that no other call takes its id
    return True


def forget_cuts() -> None:
    """Forget where chains were cut."""
    _cuts.clear()


def groups(node: Node) -> list[list[Node]]:
    """What to compute for a node that is overdue: its waiting operands in order, in groups of as
    many operations as may wait together.

    Not the node itself: one that reads thousands of values is no program of thousands then.  Nor
    what is only another view of a value that exists.
    """
    result: list[list[Node]] = []
    total = MAX_PENDING
    for operand in dict.fromkeys(node.operands):
        if type(operand) is Node and operand.buffer is None:
            size = count(operand, MAX_PENDING)
            if size == 1 and getattr(operand.call.op, "kind", None) is Kind.MOVEMENT:
                continue
            if total + size > MAX_PENDING:
                result.append([])
                total = 0
            result[-1].append(operand)
            total += size
    return result


def collect(roots: Iterable[Node], *, joined: bool = True) -> Batch:
    """Everything the roots wait for.

    Besides the roots, every value met on the way whose array is still alive becomes an output, so
    that nothing is computed twice.
    joined: also what else waits for a value met on the way that no array shows, again lest it be
    computed twice; if that is too much, the value itself becomes an output.
    """
    roots = list(roots)
    asked = len(roots)
    nodes, number = _order(roots)
    shared: list[Node] = []
    if joined:
        limit = len(nodes) + MAX_JOINED
        while True:
            waiting, read = _waiting(nodes, number, roots)
            if not waiting:
                break
            larger = _order([*roots, *waiting])
            if len(larger[0]) > limit:
                shared = read
                break
            roots += waiting
            nodes, number = larger
    batch = Batch(nodes, number, len(roots) > asked)
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
    batch.outputs = _wanted(nodes, [*roots, *shared])
    positions = tuple([batch.place(n) for n in batch.outputs])
    batch.structure = (tuple(rows), tuple([leaf.type for leaf in batch.inputs]), positions)
    return batch


def _waiting(
    nodes: Sequence[Node], number: Mapping[int, int], roots: Sequence[Node]
) -> tuple[list[Node], list[Node]]:
    """Values with an array that wait for a value in a batch which is no output of it, in the order
    in which they were recorded; and the values they wait for.
    """
    outputs = {id(root) for root in roots}
    waiting: dict[int, Node] = {}
    read: list[Node] = []
    seen: set[int] = set()
    for node in nodes:
        for result in _results(node):
            if id(result) in outputs or result.held:
                continue
            stack = _readers(result, number)
            if stack:
                read.append(result)
            while stack:
                reader = stack.pop()
                if id(reader) in seen:
                    continue
                seen.add(id(reader))
                if reader.held:
                    waiting[id(reader)] = reader
                else:
                    stack += _readers(reader, number)
    return sorted(waiting.values(), key=lambda n: n.serial), read


def _readers(node: Node, number: Mapping[int, int]) -> list[Node]:
    """The waiting nodes outside a batch that read a node, with the other results of theirs."""
    alive = [reader for r in node.readers if (reader := r()) is not None and reader.buffer is None]
    return [n for r in alive if _identity(r) not in number for n in _results(r)]


def _results(node: Node) -> list[Node]:
    """The results of a node's operation that something holds."""
    if not node.siblings:
        return [node]
    return [result for s in node.siblings if (result := s()) is not None]


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
    outputs = {id(root): root for root in roots if root.buffer is None}
    for node in nodes:
        for result in _results(node):
            if result.held:
                outputs[id(result)] = result
    return list(outputs.values())
