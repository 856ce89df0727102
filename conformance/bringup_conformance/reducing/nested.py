"""Loops and branches made smaller: parts of their state that nobody needs, their bodies, and
themselves, when a body put in their place shows the fault as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bringup.graph import Builder, Graph, Instr, Literal, Value, rebuild, replay
from bringup.graph.verify import subgraphs_of
from bringup.ops.build import rows
from bringup.ops.table import lookup
from bringup.passes.dce import dce
from bringup_conformance.generate.growing import pruned
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.reducing.counted import counted, counted_loops, replaced
from bringup_conformance.reducing.rewriting import Small, shortcuts, steering, steers


def smaller_loops(small: Small) -> Iterator[Small]:
    """All of these, the largest steps first; none for a program without loops and branches."""
    graph, recipes = small
    holding = [i for i in graph.instrs if any(True for _ in subgraphs_of(i))]
    if not holding:
        return
    yield dce(lambda _instr: True).run(graph), recipes
    for instr in holding:
        yield from (_inlined(small, instr, inner) for inner in _ways(instr))
    yield from counted_loops(small)
    for instr in holding:
        for attrs in _edited(instr):
            yield _with_attrs(graph, instr, attrs), recipes


def _ways(instr: Instr) -> tuple[Graph, ...]:
    """The sub-graphs that may stand for an instruction, each run once."""
    if instr.op.name == "case":
        return tuple(instr.attrs["branches"])
    return (instr.attrs["body"],) if instr.op.name in ("while", "scan") else ()


def _inlined(small: Small, at: Instr, inner: Graph) -> Small:
    """One run of a body, or one of the branches, in the place of a loop or branch.

    Of a scan, rows are new inputs, and stacks that are outputs are rows too.
    """
    graph, recipes = small
    builder, added = Builder(), list(recipes)
    table: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    wanted: dict[Value, Value] = {}
    with builder:
        for instr in graph.instrs:
            operands = [table[v] for v in instr.operands]
            if instr is not at:
                made = builder.emit(instr.op, operands, instr.attrs)
            else:
                given = operands[1:] if at.op.name == "case" else operands
                rest = inner.inputs[_taken(at) :] if at.op.name == "scan" else ()
                given = [*given[: len(given) - len(rest)], *(builder.input(v.type) for v in rest)]
                added += [Recipe("signed")] * len(rest)
                made = replay(inner, arguments=given)
                wanted = dict(zip(at.results, made, strict=True))
                made = tuple(map(_like, made, at.results))
            table.update(zip(instr.results, made, strict=True))
    outputs = [wanted.get(v, table[v]) for v in graph.outputs]
    return pruned(builder.build(outputs, graph.name), tuple(added))


def _taken(scan: Instr) -> int:
    """How many inputs of a scan's body are no rows."""
    return int(scan.attrs["consts"] + scan.attrs["carries"])


def _like(value: Value, result: Value) -> Value:
    """A row where a stack is wanted, again and again."""
    if value.type is result.type:
        return value
    dims = tuple(range(1, len(result.shape)))
    spread: Value = rows.broadcast_in_dim(value, shape=result.shape, dims=dims)
    return spread


def _edited(instr: Instr) -> Iterator[dict[str, Any]]:
    """Attributes with one sub-graph made smaller; what steers a loop stays."""
    attrs = dict(instr.attrs)
    fixed = steering(instr) if instr.op.name == "while" else frozenset()
    for name, value in attrs.items():
        if name == "cond":
            continue
        if isinstance(value, Graph):
            yield from ({**attrs, name: made} for made in _variants(value, fixed))
        elif name == "branches":
            for i, branch in enumerate(value):
                for made in _variants(branch, frozenset()):
                    yield {**attrs, name: (*value[:i], made, *value[i + 1 :])}


def _variants(graph: Graph, fixed: frozenset[int]) -> Iterator[Graph]:
    """The same signature with less inside: results that are inputs, then instructions skipped.

    fixed: outputs that stay as they are.
    """
    kept = _behind(graph, fixed) | steers(graph)
    for number, value in enumerate(graph.outputs):
        for given in graph.inputs:
            if number not in fixed and given is not value and given.type is value.type:
                outputs = (*graph.outputs[:number], given, *graph.outputs[number + 1 :])
                yield _tidy(Graph(graph.inputs, graph.instrs, outputs, graph.name))
    for instr in reversed(graph.instrs):
        if instr.op.name != "constant" and kept.isdisjoint(instr.results):
            yield from (_tidy(_skipping(graph, table)) for table in shortcuts(instr))
            yield _tidy(_skipping(graph, dict.fromkeys(instr.results, 1)))
    for instr in graph.instrs:
        yield from (_tidy(replaced(graph, instr, change)) for change in counted(instr))
    for instr in graph.instrs:
        for attrs in _edited(instr) if any(True for _ in subgraphs_of(instr)) else ():
            yield _with_attrs(graph, instr, attrs)


def _behind(graph: Graph, outputs: frozenset[int]) -> frozenset[Value]:
    """The values that some outputs need."""
    found = {graph.outputs[i] for i in outputs}
    for instr in reversed(graph.instrs):
        if not found.isdisjoint(instr.results):
            found.update(instr.operands)
    return frozenset(found)


def _skipping(graph: Graph, table: Mapping[Value, Any]) -> Graph:
    builder = Builder()
    found: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    with builder:
        for instr in graph.instrs:
            results: tuple[Value, ...] = instr.results
            if all(v in table for v in results):
                for value in results:
                    other = table[value]
                    known = isinstance(other, Value)
                    found[value] = found[other] if known else _splat(other, value)
            else:
                made = builder.emit(instr.op, [found[v] for v in instr.operands], instr.attrs)
                found.update(zip(results, made, strict=True))
    return builder.build([found[v] for v in graph.outputs], graph.name)


def _splat(number: object, like: Value) -> Value:
    made: Value = lookup("constant")(value=Literal.splat(number, like.type))
    return made


def _tidy(graph: Graph) -> Graph:
    """Without the instructions that no output needs; inputs stay."""
    needed = _behind(graph, frozenset(range(len(graph.outputs))))
    kept = [instr for instr in graph.instrs if not needed.isdisjoint(instr.results)]
    part = Graph(graph.inputs, kept, graph.outputs, graph.name)
    builder = Builder()
    return builder.build(replay(part, builder=builder), graph.name)


def _with_attrs(graph: Graph, at: Instr, attrs: Mapping[str, Any]) -> Graph:
    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
        if instr is not at:
            return None
        made = lookup(instr.op.name)(*operands, **attrs)
        return made if isinstance(made, tuple) else (made,)

    return rebuild(graph, rewrite)
