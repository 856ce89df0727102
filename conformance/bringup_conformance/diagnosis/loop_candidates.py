"""Loops and branches made smaller: one run of a body in their place, a scan of few trips instead of
a condition, fewer carries, and less inside their bodies.

A loop with a condition needs most of what it carries to end, so that little of it may be touched.
A scan of a few trips in its place shows most faults as well, and everything in it is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bringup.graph import Builder, Graph, Instr, Value, rebuild, replay
from bringup.graph.verify import subgraphs_of
from bringup.ops.build import broadcast_to
from bringup.ops.subgraphs import is_branch, is_control, is_loop, loop_parts, reached
from bringup.ops.table import lookup
from bringup.passes.base import as_results
from bringup.passes.dce import dce, eliminate
from bringup_conformance.diagnosis.edits import (
    Candidate,
    Edit,
    Replacement,
    as_constants,
    as_operands,
    control_operands,
    edited,
    is_conditional,
    loop_controls,
    pass_through,
)
from bringup_conformance.generate.program_builder import pruned
from bringup_conformance.generate.recipes import Recipe

#: Trips of the scan that takes the place of a ``while``: as few as show that a state is carried.
_TRIPS = (2, 3)
Values = Sequence[Value]
Attrs = dict[str, Any]


def smaller_loops(candidate: Candidate) -> Iterator[Candidate]:
    """All of these, the largest steps first; none for a program without loops and branches."""
    graph, recipes = candidate
    holding = [instr for instr in graph.instrs if _holds_graphs(instr)]
    if not holding:
        return
    yield dce(lambda _instr: True).run(graph), recipes
    for instr in holding:
        for inner in _bodies(instr):
            yield edited(candidate, {instr: partial(_one_run, instr, inner)})
    yield from scans_instead(candidate)
    for instr in holding:
        for attrs in _smaller_attrs(instr):
            yield edited(candidate, {instr: partial(_with_attrs, instr, attrs)})


def _holds_graphs(instr: Instr) -> bool:
    return any(True for _ in subgraphs_of(instr))


def _with_attrs(instr: Instr, attrs: Attrs, operands: Values, _edit: Edit | None = None) -> Values:
    return as_results(lookup(instr.op.name)(*operands, **attrs))


# -- one run of a body -----------------------------------------------------------------------------


def _bodies(instr: Instr) -> tuple[Graph, ...]:
    """The sub-graphs that may stand for an instruction, each run once."""
    if not is_control(instr):
        return ()
    return tuple(instr.attrs["branches"]) if is_branch(instr) else (instr.attrs["body"],)


def _is_counted(instr: Instr) -> bool:
    """Whether an instruction is a loop whose length is known: a scan."""
    return is_loop(instr) and not is_conditional(instr)


def _one_run(instr: Instr, inner: Graph, operands: Values, edit: Edit) -> Values:
    """One run of a body or branch.  A scan's rows are new inputs then, and where a stack is an
    output, the row that is made is returned instead.
    """
    arguments = list(operands[1:] if is_branch(instr) else operands)
    if is_loop(instr):
        first = loop_parts(instr).first_stack
        arguments[first:] = [edit.input(v.type, Recipe("signed")) for v in inner.inputs[first:]]
    results = replay(inner, arguments=arguments)
    edit.outputs.update(zip(instr.results, results, strict=True))
    return [_repeated(value, result) for value, result in zip(results, instr.results, strict=True)]


def _repeated(value: Value, result: Value) -> Value:
    """A row again and again, where a stack is wanted."""
    return broadcast_to(value, result.shape)


# -- scans instead of conditions -------------------------------------------------------------------


def scans_instead(candidate: Candidate) -> Iterator[Candidate]:
    """Every ``while`` a scan; then of scans, one value of the inside as all there is to see, and a
    carry less.
    """
    graph, _ = candidate
    for instr in graph.instrs:
        for replacement in _as_scan(instr):
            yield edited(candidate, {instr: replacement})
            yield edited(candidate, {instr: partial(_all_returned, replacement)})
    for scan in graph.instrs:
        if _is_counted(scan):
            for body in _bodies_with_one_value(scan):
                yield from _ending_in(candidate, scan, body)
            yield from _carries_removed(candidate, scan)


def _as_scan(instr: Instr) -> Iterator[Replacement]:
    if is_conditional(instr):
        yield from (partial(_scan_of_trips, instr, trips) for trips in _TRIPS)


def _scan_of_trips(instr: Instr, trips: int, operands: Values, _edit: Edit) -> Values:
    """So many runs of the body of a ``while``; what it only reads, the scan only reads too."""
    body: Graph = instr.attrs["body"]
    positions = range(len(operands))
    read_only = [n for n in positions if body.outputs[n] is body.inputs[n]]
    changing = [n for n in positions if n not in read_only]
    if not changing:
        return operands
    order = (*read_only, *changing)
    inputs, outputs = (
        tuple(body.inputs[n] for n in order),
        tuple(body.outputs[n] for n in changing),
    )
    inner = Graph(inputs, body.instrs, outputs, body.name)
    carried = _scan([operands[n] for n in order], inner, trips, len(read_only), len(changing))
    results = dict(zip(changing, carried, strict=True))
    return [results.get(n, operands[n]) for n in positions]


def _scan(
    operands: Values, body: Graph, length: int, consts: int, carries: int, reverse: bool = False
) -> Values:
    return as_results(
        lookup("scan")(
            *operands, body=_without_dead(body), length=length, reverse=reverse, consts=consts,
            carries=carries,
        )
    )  # fmt: skip


def _without_dead(body: Graph) -> Graph:
    """Without the instructions that no output needs; inputs stay."""
    return rebuild(eliminate(body))


def _all_returned(replacement: Replacement, operands: Values, edit: Edit) -> Values:
    """A replacement of which everything is returned, so that none of it is dead."""
    results = replacement(operands, edit)
    edit.extra_outputs += [v for v in results if v not in operands]
    return results


def _bodies_with_one_value(scan: Instr) -> Iterator[Graph]:
    """Bodies that give one value of the inside besides the carries."""
    body: Graph = scan.attrs["body"]
    carried = body.outputs[: scan.attrs["carries"]]
    for instr in body.instrs:
        if instr.literal is None:
            for value in instr.results:
                yield Graph(body.inputs, body.instrs, (*carried, value), body.name)


def _ending_in(candidate: Candidate, scan: Instr, body: Graph) -> Iterator[Candidate]:
    """The program up to a scan of another body, with its last result as the only output, or all."""
    (graph, recipes), attrs = candidate, scan.attrs
    before = graph.instrs[: graph.instrs.index(scan)]
    builder = Builder()
    head = Graph(graph.inputs, before, scan.operands, graph.name)
    operands = replay(head, builder=builder)
    with builder:
        results = _scan(
            operands, body, attrs["length"], attrs["consts"], attrs["carries"], attrs["reverse"]
        )
    for outputs in dict.fromkeys((results[-1:], results)):
        yield pruned(builder.build(outputs, graph.name), recipes)


def _carries_removed(candidate: Candidate, scan: Instr) -> Iterator[Candidate]:
    """A carry that is only read, the same in every trip; or rows of a new input in its place."""
    if len(scan.results) < 2:
        return
    for carry in range(scan.attrs["carries"]):
        yield edited(candidate, {scan: partial(_one_carry_less, scan, carry, False)})
        if _ends_anyhow(scan.attrs["body"], scan.attrs["consts"] + carry):
            yield edited(candidate, {scan: partial(_one_carry_less, scan, carry, True)})


def _one_carry_less(scan: Instr, carry: int, as_rows: bool, operands: Values, edit: Edit) -> Values:
    attrs, body = scan.attrs, scan.attrs["body"]
    position = attrs["consts"] + carry
    others = [*operands[:position], *operands[position + 1 :]]
    inputs = [*body.inputs[:position], *body.inputs[position + 1 :]]
    start, inner = operands[position], body.inputs[position]
    if as_rows:
        stack = start.type.with_shape((attrs["length"], *start.shape))
        others, inputs = [*others, edit.input(stack, Recipe())], [*inputs, inner]
    else:
        others, inputs = [start, *others], [inner, *inputs]
    outputs = (*body.outputs[:carry], *body.outputs[carry + 1 :])
    results = _scan(
        others, Graph(tuple(inputs), body.instrs, outputs, body.name), attrs["length"],
        attrs["consts"] + (not as_rows), attrs["carries"] - 1, attrs["reverse"],
    )  # fmt: skip
    return (*results[:carry], start, *results[carry:])


def _ends_anyhow(body: Graph, position: int) -> bool:
    """Whether loops inside end whatever an input is: it is at most where they begin to count."""
    value = body.inputs[position]
    if value not in loop_controls(body):
        return True
    for instr in body.instrs:
        positions = [n for n, v in enumerate(instr.operands) if v is value]
        if positions and not is_conditional(instr):
            return False
        for n in positions:
            inner = instr.attrs["body"]
            others = control_operands(instr) - {n}
            if inner.outputs[n] is inner.inputs[n] or n in reached(inner, others):
                return False
    return True


# -- less inside -----------------------------------------------------------------------------------


def _smaller_attrs(instr: Instr) -> Iterator[Attrs]:
    """Attributes with one sub-graph made smaller; what decides how often a loop runs stays."""
    attrs = dict(instr.attrs)
    fixed = control_operands(instr) if is_conditional(instr) else frozenset()
    for name, value in attrs.items():
        if name == "cond":
            continue
        if isinstance(value, Graph):
            yield from ({**attrs, name: made} for made in _smaller_bodies(value, fixed))
        elif name == "branches":
            for i, branch in enumerate(value):
                for made in _smaller_bodies(branch, frozenset()):
                    yield {**attrs, name: (*value[:i], made, *value[i + 1 :])}


def _smaller_bodies(graph: Graph, fixed: frozenset[int]) -> Iterator[Graph]:
    """The same signature with less inside: outputs that are inputs, then instructions replaced.

    fixed: outputs that stay as they are.
    """
    for number, value in enumerate(graph.outputs):
        for other in graph.inputs:
            if number not in fixed and other is not value and other.type is value.type:
                outputs = (*graph.outputs[:number], other, *graph.outputs[number + 1 :])
                yield _without_dead(Graph(graph.inputs, graph.instrs, outputs, graph.name))
    needed = _needed_by(graph, fixed) | loop_controls(graph)
    for instr in reversed(graph.instrs):
        if instr.literal is None and needed.isdisjoint(instr.results):
            for positions in pass_through(instr):
                yield _with_replaced(graph, instr, as_operands(positions))
            yield _with_replaced(graph, instr, as_constants(instr))
    for instr in graph.instrs:
        for replacement in _as_scan(instr):
            yield _with_replaced(graph, instr, replacement)
    for instr in graph.instrs:
        for attrs in _smaller_attrs(instr) if _holds_graphs(instr) else ():
            yield _with_replaced(graph, instr, partial(_with_attrs, instr, attrs))


def _needed_by(graph: Graph, outputs: frozenset[int]) -> frozenset[Value]:
    """The values that some outputs need."""
    needed = {graph.outputs[i] for i in outputs}
    for instr in reversed(graph.instrs):
        if not needed.isdisjoint(instr.results):
            needed.update(instr.operands)
    return frozenset(needed)


def _with_replaced(graph: Graph, replaced: Instr, replacement: Replacement) -> Graph:
    """A body with one instruction replaced; its inputs stay, and it gets no new ones."""
    edit = Edit(Builder(), [])
    edited_body = rebuild(
        graph, lambda instr, operands: replacement(operands, edit) if instr is replaced else None
    )
    return _without_dead(edited_body)
