"""The last passes before fusion: what kernels and plans need of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.graph import Builder, Graph, Instr, Value, rebuild, replay
from bringup.ops.subgraphs import is_control, unchanged
from bringup.ops.table import lookup, opdef
from bringup.passes.base import Available, Pass, as_results, deep, holds_graph


def forward_loop_invariants() -> Pass:
    """Make the pass; a plan has no place for results that a loop only hands on."""
    doc = "the result of a loop that is its operand, unchanged -> the operand"
    return Pass("forward_loop_invariants", doc, deep(_forwarded), required=True)


def _forwarded(graph: Graph) -> Graph:
    pairs = {instr: unchanged(instr) for instr in graph.instrs if is_control(instr)}
    if not any(pairs.values()):
        return graph

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if not pairs.get(instr):
            return None
        results = list(as_results(opdef(instr)(*operands, **instr.attrs)))
        for operand, result in pairs[instr]:
            results[result] = operands[operand]
        return results

    return rebuild(graph, rewrite)


def materialize_outputs() -> Pass:
    """Make the pass; kernels write each output once.  What a loop returns unchanged is no output of
    its body.
    """
    doc = "an output that is an input, a constant or another output -> a copy of it"
    return Pass("materialize_outputs", doc, _materialized, required=True)


def _materialized(graph: Graph, unchanged_outputs: frozenset[int] = frozenset()) -> Graph:
    changed = {instr: _materialized_inside(instr) for instr in graph.instrs if is_control(instr)}
    if any(changed.values()):
        graph = rebuild(
            graph,
            lambda instr, operands: (
                as_results(opdef(instr)(*operands, **{**instr.attrs, **changed[instr]}))
                if changed.get(instr)
                else None
            ),
        )
    copied: list[int] = []
    seen: set[Value] = set()
    for i, value in enumerate(graph.outputs):
        if i not in unchanged_outputs:
            if value in seen or value.producer is None or value.literal is not None:
                copied.append(i)
            seen.add(value)
    if not copied:
        return graph
    reshape, builder = lookup("reshape"), Builder()
    outputs = list(replay(graph, builder=builder))
    with builder:
        for i in copied:
            outputs[i] = reshape(outputs[i], shape=outputs[i].shape)
    return builder.build(outputs, graph.name)


def _materialized_inside(instr: Instr) -> Mapping[str, Any]:
    """The attributes of a loop or branch whose graphs change."""
    results = frozenset(result for _, result in unchanged(instr))
    changed: dict[str, Any] = {}
    for name, value in instr.attrs.items():
        if not holds_graph(value):
            continue
        new: Any
        if isinstance(value, Graph):
            new = _materialized(value, results if name == "body" else frozenset())
            differs = new is not value
        else:
            new = tuple(map(_materialized, value))
            differs = any(a is not b for a, b in zip(new, value, strict=True))
        if differs:
            changed[name] = new
    return changed


def split_concatenates(fuses: Available, operands: int) -> Pass:
    """Make the pass; of all ops that kernels hold, concatenate alone has any number of operands.

    fuses: whether an instruction may stand in a kernel; the others keep their operands.
    operands: the most that one kernel takes.
    """
    most = max(operands, 2)

    def is_wide(instr: Instr) -> bool:
        return instr.op.name == "concatenate" and len(set(instr.operands)) > most and fuses(instr)

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if not is_wide(instr):
            return None
        join, dim = lookup("concatenate"), instr.attrs["dim"]
        while len(operands) > most:
            groups = [operands[i : i + most] for i in range(0, len(operands), most)]
            operands = tuple(g[0] if len(g) == 1 else join(*g, dim=dim) for g in groups)
        return (join(*operands, dim=dim),)

    def run(graph: Graph) -> Graph:
        return rebuild(graph, rewrite) if any(map(is_wide, graph.instrs)) else graph

    doc = "a concatenate of more operands than a kernel takes -> a concatenate of concatenates"
    return Pass("split_concatenates", doc, deep(run))
