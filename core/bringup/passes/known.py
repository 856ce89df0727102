"""Inputs whose values are known before a program is compiled, and what follows from them alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bringup.graph import Builder, Graph, Instr, Value, has_effects
from bringup.ops.build import broadcast_to, reshape, rows, splat
from bringup.ops.table import Kind, Trait
from bringup.passes.base import literal_of, opdef
from bringup.records import record

Dims = frozenset[int]
Values = frozenset[Value]

#: They change no element and cost nothing in a kernel, so that what they read is kept in memory,
#: and not a second array with the same elements.
VIEWS = ("reshape", "transpose", "broadcast_in_dim")


@record(eq=False)
class Known:
    """The values of a graph that are the same in every run.

    varying: by value, the dimensions along which its elements may differ.
    held: those that depend on a known input, not only on constants of the graph.
    expanded: those of them that take more memory than the inputs they depend on, and that a kernel
    makes of these at little cost: weights of 8 bits, converted and scaled.
    """

    varying: Mapping[Value, Dims]
    held: frozenset[Value]
    expanded: frozenset[Value]


def known_values(graph: Graph, inputs: Iterable[int]) -> Known:
    """What is known of a graph if the inputs at these positions are.

    Instructions with effects are never known, as they must run each time.
    """
    roots = {graph.inputs[n]: frozenset((graph.inputs[n],)) for n in inputs}
    varying = {value: _large(value) for value in roots}
    expanded: set[Value] = set()
    for instr in graph.instrs:
        if not all(v in varying for v in instr.operands) or has_effects(instr.op, instr.attrs):
            continue
        for result in instr.results:
            varying[result] = _varying(instr, result, varying)
        below: Iterable[Values] = [roots[v] for v in instr.operands if v in roots]
        if below:
            roots.update(dict.fromkeys(instr.results, frozenset().union(*below)))
            read = sum(v.type.nbytes for v in roots[instr.results[0]])
            if _is_cheap(instr) and _nbytes(instr.result, varying) > read:
                expanded.add(instr.result)
    return Known(varying, frozenset(roots), frozenset(expanded))


def _is_cheap(instr: Instr) -> bool:
    cheap = is_pointwise(instr) and Trait.EXPENSIVE not in opdef(instr).traits
    return cheap or instr.op.name in VIEWS


def _nbytes(value: Value, varying: Mapping[Value, Dims]) -> int:
    """The memory of a value with each element once."""
    return math.prod(value.shape[d] for d in varying[value]) * value.dtype.bits // 8


def _large(value: Value) -> Dims:
    return frozenset(d for d, n in enumerate(value.shape) if n != 1)


def _varying(instr: Instr, result: Value, varying: Mapping[Value, Dims]) -> Dims:
    """The dimensions along which a result differs, given those of the operands."""
    op = opdef(instr)
    if not result.type.size:
        return _large(result)  # with an element of each dimension there would be too many
    if op.name == "constant" and instr.attrs["value"].is_splat:
        return frozenset()
    if op.name == "broadcast_in_dim":
        dims = instr.attrs["dims"]
        return frozenset(dims[d] for d in varying[instr.operands[0]])
    if op.name in VIEWS:
        moved = moved_dims(instr)
        inner = varying[instr.operands[0]]
        return _large(result) if moved is None else frozenset(moved[d] for d in inner)
    if is_pointwise(instr):
        return frozenset().union(*(varying[v] for v in instr.operands))
    return _large(result)


def moved_dims(instr: Instr) -> dict[int, int] | None:
    """Where a transpose, or a reshape that adds or drops sizes of 1, puts each dimension of its
    operand that has another size; None for every other instruction.
    """
    if instr.op.name == "transpose":
        return {old: new for new, old in enumerate(instr.attrs["permutation"])}
    if instr.op.name != "reshape":
        return None
    before, after = (sorted(_large(v)) for v in (instr.operands[0], instr.result))
    if [instr.operands[0].shape[d] for d in before] != [instr.result.shape[d] for d in after]:
        return None
    return dict(zip(before, after, strict=True))


def narrowed(value: Value, dims: Dims, _found: dict[Any, Value] | None = None) -> Value:
    """The elements of a value that varies along `dims` alone, each once, in a new value of these
    dimensions in order; computed from operands that are narrowed alike, where it can be.
    """
    found = {} if _found is None else _found
    if (value, dims) not in found:
        found[value, dims] = _narrowed(value, dims, found)
    return found[value, dims]


def _narrowed(value: Value, dims: Dims, found: dict[Any, Value]) -> Value:
    instr, order = value.producer, sorted(dims)
    shape = tuple(value.shape[d] for d in order)
    if len(order) == len(value.shape):
        return value
    if instr is not None and is_pointwise(instr):
        operands = [narrowed(v, dims, found) for v in instr.operands]
        result: Value = opdef(instr)(*operands, **instr.attrs)
        return result
    if instr is not None and instr.op.name == "broadcast_in_dim":
        places = instr.attrs["dims"]
        inner = [n for n, d in enumerate(places) if d in dims]
        small = narrowed(instr.operands[0], frozenset(inner), found)
        return broadcast_to(small, shape, [order.index(places[n]) for n in inner])
    literal = literal_of(value)
    if literal is not None and literal.is_splat:
        return splat(literal.scalar, value.type.with_shape(shape))
    limit = tuple(n if d in dims else 1 for d, n in enumerate(value.shape))
    start, stride = (0,) * len(limit), (1,) * len(limit)
    return reshape(rows.slice(value, start=start, limit=limit, stride=stride), shape)


def is_pointwise(instr: Instr) -> bool:
    """Whether each element of the one result comes from the same elements of the operands."""
    op = opdef(instr)
    return len(instr.results) == 1 and (op.kind is Kind.ELEMENTWISE or Trait.POINTWISE in op.traits)


def split(graph: Graph, inputs: Iterable[int]) -> tuple[Graph, Graph]:
    """Cut off what is known of a graph if the inputs at these positions are.

    Returns the graph of constants, from the known inputs to the values that the rest reads, each
    element once; and the graph of the rest, from the other inputs, then these values, to the
    outputs.
    """
    positions = frozenset(inputs)
    known = known_values(graph, positions)
    constants, rest = Builder(dedupe=True), Builder()
    table: dict[Value, Value] = {}
    made = {graph.inputs[n]: constants.input(graph.inputs[n].type) for n in sorted(positions)}
    for n, value in enumerate(graph.inputs):
        if n not in positions:
            table[value] = rest.input(value.type)
    results: list[Value] = []

    def constant(value: Value) -> Value:
        """What stands in the rest for a known value."""
        dims = known.varying[value]
        with constants:
            results.append(narrowed(made[value], dims))
        with rest:
            return broadcast_to(rest.input(results[-1].type), value.shape, sorted(dims))

    def needed(value: Value) -> Value:
        if value not in table:
            instr = value.producer
            left = value not in known.held or value in known.expanded
            if instr is None or not (left or instr.op.name in VIEWS):
                table[value] = constant(value)
            else:
                emit(instr)
        return table[value]

    def emit(instr: Instr) -> None:
        operands = tuple(map(needed, instr.operands))
        rest.location = instr.location
        table.update(zip(instr.results, rest.emit_again(instr, operands), strict=True))

    for instr in graph.instrs:
        if all(v in known.varying for v in instr.results):
            operands = tuple(made[v] for v in instr.operands)
            constants.location = instr.location
            made.update(zip(instr.results, constants.emit_again(instr, operands), strict=True))
        else:
            emit(instr)
    outputs = [needed(value) for value in graph.outputs]
    return constants.build(results, graph.name), rest.build(outputs, graph.name)
