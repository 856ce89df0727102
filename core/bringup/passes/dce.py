"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph import Graph, Instr, Value, has_effects, rebuild
from bringup.ops.table import opdef
from bringup.passes.base import Available, Pass, as_results, deep


def eliminate(graph: Graph) -> Graph:
    """Keep the instructions that outputs depend on or that have effects, and every input.
    The result shares instructions with `graph`.
    """
    live = set(graph.outputs)
    kept = []
    for instr in reversed(graph.instrs):
        if not live.isdisjoint(instr.results) or has_effects(instr.op, instr.attrs):
            live.update(instr.operands)
            kept.append(instr)
    if len(kept) == len(graph):
        return graph
    return Graph(graph.inputs, kept[::-1], graph.outputs, graph.name)


def eliminate_inside(graph: Graph) -> Graph:
    """`eliminate`, and the parts of loops and branches that only make results nobody reads."""
    graph = eliminate(graph)
    while any(opdef(instr).prune is not None for instr in graph.instrs):
        smaller = _pruned(graph)
        if smaller is graph:
            break
        graph = eliminate(smaller)
    return graph


def _pruned(graph: Graph) -> Graph:
    live = set(graph.outputs).union(*(instr.operands for instr in graph.instrs))
    changed = False

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        nonlocal changed
        prune = opdef(instr).prune
        if prune is None or has_effects(instr.op, instr.attrs):
            return None
        read = frozenset(i for i, v in enumerate(instr.results) if v in live)
        found = prune(read, operands, instr.attrs)
        if found is None:
            return None
        changed = True
        made = as_results(opdef(instr)(*found.operands, **found.attrs))
        places = {old: new for new, old in enumerate(found.kept)}
        # Nobody reads the others, which still need something to stand for them.
        return [made[places.get(i, 0)] for i in range(len(instr.results))]

    smaller = rebuild(graph, rewrite)
    return smaller if changed else graph


def dce(_available: Available) -> Pass:
    """Make the pass; it makes no new kind of instruction, so any device has what it needs."""
    return Pass("dce", "instructions no output depends on -> nothing", deep(eliminate_inside))
