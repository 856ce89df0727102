"""Dead code elimination."""

from __future__ import annotations

from bringup.graph import Graph
from bringup.passes.base import Available, Pass, deep


def eliminate(graph: Graph) -> Graph:
    """Keep the instructions that outputs depend on, and every input.

    No op has effects, so this is all there is.  The result shares instructions with `graph`.
    """
    live = set(graph.outputs)
    kept = []
    for instr in reversed(graph.instrs):
        if not live.isdisjoint(instr.results):
            live.update(instr.operands)
            kept.append(instr)
    if len(kept) == len(graph):
        return graph
    return Graph(graph.inputs, kept[::-1], graph.outputs, graph.name)


def dce(_available: Available) -> Pass:
    """Make the pass; it makes no instruction, so it does not matter what the device has."""
    return Pass("dce", "instructions no output depends on -> nothing", deep(eliminate))
