"""Applying an op to arrays: staged into the open trace, or recorded for later."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.api import deferred
from bringup.api.array import Array
from bringup.errors import OpTypeError
from bringup.graph import (
    Graph,
    Instr,
    Literal,
    Operation,
    Value,
    has_effects,
    rebuild,
    replay,
    user_location,
)
from bringup.ops.table import Kind, OpDef, lookup
from bringup.passes.base import deep
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice
from bringup.tracing.context import Trace, Traced, current
from bringup.tracing.lazy import (
    Leaf,
    Node,
    Scalar,
    Source,
    filled,
    groups,
    overdue,
    record,
)

_NO_ATTRS: Mapping[str, Any] = {}


def apply(
    name: str,
    operands: Sequence[Array | Literal],
    attrs: Mapping[str, Any] = _NO_ATTRS,
    *,
    weak: bool = False,
    device: OpenDevice | None = None,
) -> Array:
    """The result of the op of that name, the first if it has several.

    operands: arrays, and constants of the full type.
    weak: the result yields to other dtypes; only kept in a trace.
    device: where the result goes if there are no operands; the default device by default.
    Raises OpTypeError, pointing at the user's line, if the op does not take the operands or they
    are on two devices.
    """
    return apply_all(name, operands, attrs, weak=weak, device=device)[0]


def apply_all(
    name: str,
    operands: Sequence[Array | Literal],
    attrs: Mapping[str, Any] = _NO_ATTRS,
    *,
    weak: bool = False,
    device: OpenDevice | None = None,
) -> list[Array]:
    """Every result of the op of that name; the rest is as in `apply`."""
    op = lookup(name)
    trace = current()
    if trace is not None:
        return _stage(trace, op, operands, attrs, weak)
    return _defer(op, operands, attrs, device)


def lift(trace: Trace, array: Array) -> Value:
    """The value that stands for an array in a trace; one from outside becomes an input."""
    node = array._node
    if isinstance(node, Traced):
        if node.trace is trace:
            return node.value
        node.check_open()
    elif node is None and array._buffer is None:
        raise deferred.deleted(f"an array of type {array._type}")
    if array._device is not None:
        if trace.device is None:
            trace.device = array._device
        elif trace.device is not array._device:
            raise _two_devices(trace.device, array._device)
    return trace.capture(array, array._type)


def staged(trace: Trace, value: Value, weak: bool = False) -> Array:
    """The array that stands for a value of a trace."""
    return Array(value.type, trace.device, None, Traced(trace, value, weak))


def inline(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a graph applied to arrays, staged in the open trace or recorded."""
    trace, location = current(), user_location()
    if trace is not None:
        values = [lift(trace, array) for array in arrays]
        trace.builder.location = location
        outputs = replay(graph, builder=trace.builder, arguments=values)
        return [staged(trace, value) for value in outputs]
    if any(isinstance(instr.op, OpDef) and instr.op.holds_graphs for instr in graph.instrs):
        # Recorded operations are never differentiated; rules would only make equal programs differ.
        graph = deep(_without_calls)(graph)
    device = _common_device(arrays) or devices.get()
    if any(has_effects(instr.op, instr.attrs) for instr in graph.instrs):
        # It must run even if nobody looks at its results.
        buffers = [array._concrete("an operand")._buffer for array in arrays]
        results = deferred.run_graph(graph, buffers, device)
        pairs = zip(graph.outputs, results, strict=True)
        return [Array(v.type, device, buffer) for v, buffer in pairs]
    table: dict[Value, Source] = {
        value: source(array) for value, array in zip(graph.inputs, arrays, strict=True)
    }
    for instr in graph.instrs:
        if instr.literal is not None and instr.literal.is_splat:
            table[instr.result] = Scalar(instr.literal)
            continue
        operands = tuple([table[v] for v in instr.operands])
        nodes = record(instr.op, operands, instr.attrs, instr.location or location)
        table.update(zip(instr.results, nodes, strict=True))
    shown: dict[Value, Array] = dict(zip(graph.inputs, arrays, strict=True))
    new: list[Node] = []
    for value in graph.outputs:
        if value not in shown:
            shown[value] = array = _show(table[value], device)
            assert isinstance(array._node, Node)
            new.append(array._node)
    # Evaluate them together: they share most of their operands.
    if new and overdue(max(new, key=lambda node: node.bound)):
        deferred.evaluate(new, device)
    return [shown[value] for value in graph.outputs]


def _without_calls(graph: Graph) -> Graph:
    """`graph` with the bodies of calls in their places."""

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if instr.op.name != "call":
            return None
        return replay(instr.attrs["body"], arguments=operands)

    return rebuild(graph, rewrite)


def source(array: Array) -> Leaf | Node:
    """What a recorded operation reads for an array."""
    node = array._node
    if node is None:
        if array._buffer is None:
            raise deferred.deleted(f"an array of type {array._type}")
        node = array._node = Leaf(array._type, array._buffer)
    if isinstance(node, Traced):
        node.check_open()
        raise AssertionError("an open trace takes every operation of its thread")
    return node


def _stage(
    trace: Trace,
    op: Operation,
    operands: Sequence[Array | Literal],
    attrs: Mapping[str, Any],
    weak: bool = False,
) -> list[Array]:
    builder = trace.builder
    builder.location = user_location()
    values: list[Value] = []
    for operand in operands:
        if type(operand) is Literal:
            values += builder.emit(lookup("constant"), (), {"value": operand})
        elif type(operand) is Array:
            values.append(lift(trace, operand))
        else:
            return [_on_parts(op, operands, attrs)]
    full = filled(op, tuple(v.type for v in values), attrs)
    return [staged(trace, value, weak) for value in builder.emit(op, values, full)]


def _defer(
    op: OpDef,
    operands: Sequence[Array | Literal],
    attrs: Mapping[str, Any],
    device: OpenDevice | None,
) -> list[Array]:
    sources: list[Source] = []
    for operand in operands:
        if type(operand) is Literal:
            sources.append(Scalar(operand))
            continue
        if type(operand) is not Array:
            return [_on_parts(op, operands, attrs)]
        sources.append(source(operand))
        if device is None:
            device = operand._device
        elif operand._device is not device:
            raise _two_devices(device, operand.device)
    if device is None:
        device = devices.get()
    nodes = record(op, tuple(sources), attrs)
    arrays = [_show(node, device) for node in nodes]
    if op.kind in (Kind.CONTROL, Kind.COMPOSITE) and has_effects(op, attrs):
        deferred.evaluate(nodes, device)  # it must run even if nobody looks
        return arrays
    if overdue(nodes[-1]):
        for group in groups(nodes[-1]):
            deferred.evaluate(group, device)
        for node in nodes:
            node.weight = 1
    return arrays


def _on_parts(
    op: Operation, operands: Sequence[Array | Literal], attrs: Mapping[str, Any]
) -> Array:
    """The result for complex operands: arrays of a class of their own."""
    from bringup.api.complex_rules import apply_rule

    return apply_rule(op.name, operands, attrs)


def _show(node: Source, device: OpenDevice) -> Array:
    """The array for a new node."""
    if isinstance(node, Scalar):
        (node,) = record(lookup("constant"), (), {"value": node.literal})
    assert isinstance(node, Node)
    array = Array(node.type, device, None, node)
    node.array = weakref.ref(array)
    return array


def _common_device(arrays: Sequence[Array]) -> OpenDevice | None:
    device: OpenDevice | None = None
    for array in arrays:
        if device is None:
            device = array._device
        elif array._device is not device:
            raise _two_devices(device, array.device)
    return device


def _two_devices(first: OpenDevice, second: OpenDevice) -> OpTypeError:
    return OpTypeError(
        f"operands are on different devices: {first} and {second}",
        fix=f'move one of them first: x.to("{first}")',
    )
