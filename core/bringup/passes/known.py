"""Inputs whose values are known before a program is compiled, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.graph import Builder, Graph, Instr, Value, has_effects
from bringup.graph.index import Axis, Expr
from bringup.ops.build import broadcast_to, reshape, splat, transpose
from bringup.ops.table import Kind, Trait, lookup, opdef
from bringup.passes.dce import eliminate
from bringup.records import record


@record(eq=False)
class Known:
    """The values of a graph that are the same in every run.

    fixed: all of them.  held: those that depend on a known input.
    expanded: those of these that take more memory than the inputs they depend on, and that a kernel
    makes of them at little cost: weights of 8 bits, converted and scaled.
    """

    fixed: frozenset[Value]
    held: frozenset[Value]
    expanded: frozenset[Value]


def known_values(graph: Graph, inputs: Iterable[int]) -> Known:
    """What is known of a graph if the inputs at these positions are.

    Instructions with effects are never known, as they must run each time.
    """
    roots = {graph.inputs[n]: frozenset((graph.inputs[n],)) for n in inputs}
    fixed, expanded = set(roots), set()
    for instr in graph.instrs:
        if not fixed.issuperset(instr.operands) or has_effects(instr.op, instr.attrs):
            continue
        fixed.update(instr.results)
        below = [roots[v] for v in instr.operands if v in roots]
        if below:
            roots.update(dict.fromkeys(instr.results, frozenset[Value]().union(*below)))
            read = sum(v.type.nbytes for v in roots[instr.results[0]])
            if _is_cheap(instr) and instr.result.type.nbytes > read:
                expanded.add(instr.result)
    return Known(frozenset(fixed), frozenset(roots), frozenset(expanded))


def _is_cheap(instr: Instr) -> bool:
    op = opdef(instr)
    pointwise = op.kind is Kind.ELEMENTWISE or Trait.POINTWISE in op.traits
    return len(instr.results) == 1 and pointwise and Trait.EXPENSIVE not in op.traits


def split(graph: Graph, inputs: Iterable[int]) -> tuple[Graph, Graph]:
    """Cut off what is known of a graph if the inputs at these positions are.

    Returns the graph of constants, from the known inputs to the values that the rest reads; and the
    graph of the rest, from the other inputs, then these values, to the outputs.
    """
    positions = frozenset(inputs)
    known = known_values(graph, positions)
    cut = _cut(graph, known)
    constants, rest = Builder(), Builder()
    made = {graph.inputs[n]: constants.input(graph.inputs[n].type) for n in sorted(positions)}
    table = {v: rest.input(v.type) for n, v in enumerate(graph.inputs) if n not in positions}
    order = [*graph.inputs, *(v for instr in graph.instrs for v in instr.results)]
    table |= {value: rest.input(value.type) for value in order if value in cut}
    for instr in graph.instrs:
        # Both take along what nobody needs there, which is left out below.
        if known.fixed.issuperset(instr.results):
            _again(instr, constants, made)
        if cut.isdisjoint(instr.results) and all(v in table for v in instr.operands):
            _again(instr, rest, table)
    kept = constants.build([made[value] for value in order if value in cut], graph.name)
    outputs = rest.build([table[value] for value in graph.outputs], graph.name)
    return eliminate(kept), eliminate(outputs)


def _again(instr: Instr, builder: Builder, table: dict[Value, Value]) -> None:
    builder.location = instr.location
    results = builder.emit_again(instr, tuple(table[v] for v in instr.operands))
    table.update(zip(instr.results, results, strict=True))


def _cut(graph: Graph, known: Known) -> set[Value]:
    """The known values that are kept in memory for what is not known."""
    needed, cut = set(graph.outputs), set()
    for instr in reversed(graph.instrs):
        if not known.fixed.issuperset(instr.results):
            needed.update(instr.operands)
            continue
        for value in needed.intersection(instr.results):
            # Views cost nothing in a kernel: keep what they read, and no second array of the same.
            if value in known.held - known.expanded and not _is_view(instr):
                cut.add(value)
            else:
                needed.update(instr.operands)
    return cut | known.held.intersection(needed, graph.inputs)


def _is_view(instr: Instr) -> bool:
    return opdef(instr).adapts and opdef(instr).index_map is not None


def moved_dims(instr: Instr) -> dict[int, int] | None:
    """Where a view puts each dimension of its operand that has another size than 1; None for other
    instructions, and for a reshape that does more than add and drop sizes of 1.
    """
    index_map = opdef(instr).index_map
    if index_map is None or not _is_view(instr):
        return None
    axes = [Axis(d, n) for d, n in enumerate(instr.result.shape)]
    (source,) = index_map(tuple(map(Expr.of, axes)), (), *instr.operands, **instr.attrs)
    moved: dict[int, int] = {}
    for d, expr in enumerate(source.index):
        if instr.operands[0].shape[d] != 1:
            if expr.axis is None:
                return None
            moved[d] = expr.axis.id
    return moved


def repeated(value: Value) -> tuple[Value, dict[int, int]]:
    """What a value repeats, and where it has each dimension of that, those of size 1 left out."""
    dims = {d: d for d, n in enumerate(value.shape) if n != 1}
    while (instr := value.producer) is not None and (moved := moved_dims(instr)) is not None:
        value, dims = instr.operands[0], {d: dims[to] for d, to in moved.items()}
    literal = value.literal
    return value, {} if literal is not None and literal.is_splat else dims


def spread(value: Value, places: Mapping[int, int], shape: Sequence[int]) -> Value:
    """A value over another shape: each dimension along which it differs where `places` says."""
    x, dims = repeated(value)
    literal = x.literal
    if literal is not None and literal.is_splat:
        return splat(literal.scalar, value.type.with_shape(tuple(shape)))
    order = sorted(dims, key=lambda d: places[dims[d]])
    x = transpose(x, [*order, *(d for d in range(len(x.shape)) if d not in dims)])
    x = reshape(x, x.shape[: len(order)])
    return broadcast_to(x, shape, [places[dims[d]] for d in order])


def pointwise(name: str, *values: Value) -> Value:
    """An elementwise op of values of one type, computed for each element that is repeated once."""
    dims = sorted({d for value in values for d in repeated(value)[1].values()})
    shape = [values[0].shape[d] for d in dims]
    places = {d: n for n, d in enumerate(dims)}
    small: Value = lookup(name)(*(spread(value, places, shape) for value in values))
    return broadcast_to(small, values[0].shape, dims)
