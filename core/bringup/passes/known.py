"""Inputs whose values are known before a program is compiled, and what follows from them alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from bringup.graph import Builder, Graph, Instr, Value, has_effects
from bringup.ops.build import broadcast_to, reshape, rows, splat
from bringup.ops.table import Kind, Trait
from bringup.passes.base import as_results, literal_of, opdef
from bringup.passes.dce import eliminate
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


#: Operands of operands that are narrowed before a slice of the whole has to do.
_DEPTH = 64


def narrowed(value: Value, dims: Dims) -> Value:
    """The elements of a value that varies along `dims` alone, each once, in a new value of these
    dimensions in order; computed from operands that are narrowed alike, where it can be, so that it
    does not depend on the sizes of the other dimensions.
    """
    found: dict[tuple[Value, Dims], Value] = {}

    def at(value: Value, dims: Dims, depth: int) -> Value:
        if (value, dims) not in found:
            found[value, dims] = make(value, dims, depth)
        return found[value, dims]

    def make(value: Value, dims: Dims, depth: int) -> Value:
        instr, order = value.producer, sorted(dims)
        shape = tuple(value.shape[d] for d in order)
        if len(order) == len(value.shape):
            return value
        literal = literal_of(value)
        if literal is not None and literal.is_splat:
            return splat(literal.scalar, value.type.with_shape(shape))
        if instr is not None and depth and is_pointwise(instr):
            operands = [at(v, dims, depth - 1) for v in instr.operands]
            return as_results(opdef(instr)(*operands, **instr.attrs))[0]
        if instr is not None and depth and instr.op.name == "broadcast_in_dim":
            places = instr.attrs["dims"]
            inner = [n for n, d in enumerate(places) if d in dims]
            small = at(instr.operands[0], frozenset(inner), depth - 1)
            return broadcast_to(small, shape, [order.index(places[n]) for n in inner])
        limit = tuple(n if d in dims else 1 for d, n in enumerate(value.shape))
        start, stride = (0,) * len(limit), (1,) * len(limit)
        return reshape(rows.slice(value, start=start, limit=limit, stride=stride), shape)

    return at(value, dims, _DEPTH)


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
    cut = _cut(graph, known)
    constants, rest = Builder(dedupe=True), Builder()
    made = {graph.inputs[n]: constants.input(graph.inputs[n].type) for n in sorted(positions)}
    table = {v: rest.input(v.type) for n, v in enumerate(graph.inputs) if n not in positions}
    results: list[Value] = []

    def keep(value: Value) -> None:
        dims = known.varying[value]
        with constants:
            results.append(narrowed(made[value], dims))
        with rest:
            table[value] = broadcast_to(rest.input(results[-1].type), value.shape, sorted(dims))

    for value in graph.inputs:
        if value in cut:
            keep(value)
    for instr in graph.instrs:
        if all(v in known.varying for v in instr.results):
            constants.location = instr.location
            again = constants.emit_again(instr, tuple(made[v] for v in instr.operands))
            made.update(zip(instr.results, again, strict=True))
            for value in instr.results:
                if value in cut:
                    keep(value)
        # Of what is known, this also takes along what nobody needs here, which is left out below.
        if all(v in table for v in instr.operands) and cut.isdisjoint(instr.results):
            rest.location = instr.location
            again = rest.emit_again(instr, tuple(table[v] for v in instr.operands))
            table.update(zip(instr.results, again, strict=True))
    outputs = [table[value] for value in graph.outputs]
    return (
        constants.build(results, graph.name),
        eliminate(rest.build(outputs, graph.name)),
    )


def _cut(graph: Graph, known: Known) -> set[Value]:
    """The known values that are kept in memory for what is not known."""
    needed, cut = set(graph.outputs), set()
    for instr in reversed(graph.instrs):
        if not all(v in known.varying for v in instr.results):
            needed.update(instr.operands)
            continue
        for value in needed.intersection(instr.results):
            remade = value not in known.held or value in known.expanded or instr.op.name in VIEWS
            if remade:
                needed.update(instr.operands)
            else:
                cut.add(value)
    return cut | {v for v in graph.inputs if v in needed and v in known.held}
