"""Loops that only count: without a condition they end for certain, so nothing in them has to stay.

What a ``while`` carries mostly steers it, and may not be touched.  A scan of a few trips in its
place shows most faults as well; and what it carries, or returns, is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bringup.graph import Builder, Graph, Instr, Value, rebuild, replay
from bringup.ops.subgraphs import reached
from bringup.ops.table import lookup
from bringup.passes.base import as_results
from bringup.passes.dce import eliminate
from bringup_conformance.generate.growing import pruned
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.reducing.rewriting import Small, steering, steers

#: Trips of the scan that takes the place of a ``while``: as few as show that a state is carried.
TRIPS = (2, 3)
Made = Sequence[Value]


def counted_loops(small: Small) -> Iterator[Small]:
    """Every ``while`` a scan; then of scans, one value inside as all there is to see, and a carry
    as something that is given.
    """
    graph, recipes = small
    for instr in graph.instrs:
        for change in counted(instr):
            yield pruned(replaced(graph, instr, change), recipes)
            yield pruned(_all_returned(graph, instr, change), recipes)
    for instr in graph.instrs:
        if instr.op.name == "scan":
            for body in _shown(instr):
                yield from _ending(small, instr, body)
            yield from _given(small, instr)


def counted(instr: Instr) -> Iterator[Callable[[Made], Made]]:
    """What may stand for a ``while``, of its operands; nothing for other instructions."""
    if instr.op.name == "while":
        yield from (partial(_counting, instr, trips) for trips in TRIPS)


def replaced(graph: Graph, at: Instr, change: Callable[[Made], Made]) -> Graph:
    """One instruction replaced by what is made of its operands."""
    return rebuild(graph, lambda instr, operands: change(operands) if instr is at else None)


def _all_returned(graph: Graph, at: Instr, change: Callable[[Made], Made]) -> Graph:
    """The same with all that is made returned, so that none of it is dead."""
    made: list[Value] = []

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Made | None:
        if instr is not at:
            return None
        results = change(operands)
        made.extend(v for v in results if v not in operands)
        return results

    builder = Builder()
    outputs = replay(graph, rewrite, builder=builder)
    return builder.build(tuple(dict.fromkeys((*outputs, *made))), graph.name)


def _counting(instr: Instr, trips: int, operands: Made) -> Made:
    """So many runs of the body of a ``while``; what it only reads is read by the scan too."""
    body: Graph = instr.attrs["body"]
    numbers = range(len(operands))
    kept = [n for n in numbers if body.outputs[n] is body.inputs[n]]
    moving = [n for n in numbers if n not in kept]
    if not moving:
        return operands
    given = tuple(body.inputs[n] for n in (*kept, *moving))
    inner = Graph(given, body.instrs, tuple(body.outputs[n] for n in moving), body.name)
    made = _scan([operands[n] for n in (*kept, *moving)], inner, trips, len(kept), len(moving))
    results = dict(zip(moving, made, strict=True))
    return [results.get(n, operands[n]) for n in numbers]


def _scan(
    operands: Made, body: Graph, length: int, consts: int, carries: int, reverse: bool = False
) -> tuple[Value, ...]:
    made = lookup("scan")(
        *operands, body=rebuild(eliminate(body)), length=length, reverse=reverse, consts=consts,
        carries=carries,
    )  # fmt: skip
    return as_results(made)


def _shown(scan: Instr) -> Iterator[Graph]:
    """Bodies that give one value of the inside besides the carries."""
    body: Graph = scan.attrs["body"]
    carried = body.outputs[: scan.attrs["carries"]]
    for instr in body.instrs:
        if instr.op.name != "constant":
            for value in instr.results:
                yield Graph(body.inputs, body.instrs, (*carried, value), body.name)


def _ending(small: Small, scan: Instr, body: Graph) -> Iterator[Small]:
    """The program up to a scan of another body, with its last result as the only output, or all."""
    graph, recipes = small
    attrs = scan.attrs
    builder = Builder()
    table: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    for instr in graph.instrs[: graph.instrs.index(scan)]:
        made = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
        table.update(zip(instr.results, made, strict=True))
    with builder:
        operands = [table[v] for v in scan.operands]
        found = _scan(
            operands, body, attrs["length"], attrs["consts"], attrs["carries"], attrs["reverse"]
        )
    for outputs in dict.fromkeys((found[-1:], found)):
        yield pruned(builder.build(outputs, graph.name), recipes)


def _given(small: Small, scan: Instr) -> Iterator[Small]:
    """A carry read alone, as at first in every trip; or a new input's rows in its place."""
    if len(scan.results) < 2:
        return
    for carry in range(scan.attrs["carries"]):
        yield _with_one_less(small, scan, carry, None)
        if _harmless(scan.attrs["body"], scan.attrs["consts"] + carry):
            yield _with_one_less(small, scan, carry, Recipe())


def _with_one_less(small: Small, scan: Instr, carry: int, rows: Recipe | None) -> Small:
    graph, recipes = small
    attrs, body = scan.attrs, scan.attrs["body"]
    consts, carries = attrs["consts"], attrs["carries"]
    place = consts + carry
    builder = Builder()
    table: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    for instr in graph.instrs:
        operands = [table[v] for v in instr.operands]
        if instr is not scan:
            made = builder.emit(instr.op, operands, instr.attrs)
            table.update(zip(instr.results, made, strict=True))
            continue
        own = operands.pop(place)
        inputs = [*body.inputs[:place], *body.inputs[place + 1 :]]
        if rows is None:
            operands.insert(0, own)
            inputs.insert(0, body.inputs[place])
        else:
            shape = (attrs["length"], *own.shape)
            operands.append(builder.input(own.type.with_shape(shape)))
            inputs.append(body.inputs[place])
        outputs = (*body.outputs[:carry], *body.outputs[carry + 1 :])
        inner = Graph(tuple(inputs), body.instrs, outputs, body.name)
        with builder:
            found = _scan(
                operands, inner, attrs["length"], consts + (rows is None), carries - 1,
                attrs["reverse"],
            )  # fmt: skip
        results = (*found[:carry], own, *found[carry:])
        table.update(zip(scan.results, results, strict=True))
    added = recipes if rows is None else (*recipes, rows)
    return pruned(builder.build([table[v] for v in graph.outputs], graph.name), added)


def _harmless(body: Graph, place: int) -> bool:
    """Whether a loop inside ends whatever an input is: it is no more there than where it starts."""
    value = body.inputs[place]
    if value not in steers(body):
        return True
    for instr in body.instrs:
        at = [n for n, v in enumerate(instr.operands) if v is value]
        if at and instr.op.name != "while":
            return False
        for n in at:
            inner = instr.attrs["body"]
            others = steering(instr) - {n}
            if inner.outputs[n] is inner.inputs[n] or n in reached(inner, others):
                return False
    return True
