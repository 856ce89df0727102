"""From an optimised graph to a program: its outputs, fusion, planning; sub-graphs likewise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import KernelPass
from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.graph.ir import Operation
from bringup.kernel.fuse import Launch, fuse, narrow_concatenations
from bringup.ops.table import lookup
from bringup.program.in_place import kept_whole
from bringup.program.nested import forward_invariants
from bringup.program.plan import plan
from bringup.program.program import Program
from bringup.runtime import timeline


def prepared(graph: Graph, capabilities: Capabilities) -> Graph:
    """An optimised graph in the form that fusion takes."""
    return narrow_concatenations(materialized(graph), capabilities.limits, fuses=capabilities.fuses)


def materialized(graph: Graph) -> Graph:
    """An optimised graph whose outputs are made by it, none of them a loop's unchanged operand."""
    return materialize_outputs(forward_invariants(graph))


def fused_program(
    ready: Graph,
    capabilities: Capabilities,
    passes: Sequence[KernelPass],
    *,
    fused: bool = True,
    donated: frozenset[int] = frozenset(),
    own: Mapping[int, int] | None = None,
    report: list[str] | None = None,
) -> tuple[list[Launch], Program]:
    """The launches of a prepared graph, and its program.

    passes: of the backend's own, over every kernel.  fused: False makes one launch of every
    instruction.  own: as in `plan`.  report: as in `fuse`, for sub-graphs as well.
    """

    def inner(graph: Graph, own: Mapping[int, int]) -> Program:
        ready, taken = prepared(graph, capabilities), frozenset(own.values())
        return fused_program(
            ready, capabilities, passes, fused=fused, donated=taken, own=own, report=report
        )[1]

    owned = donated if capabilities.donation else frozenset[int]()
    whole = kept_whole(ready, owned, capabilities.runs_op)

    def fuses(instr: Instr) -> bool:
        return instr not in whole and capabilities.fuses(instr)

    with timeline.span("fuse", "compile"):
        launches = fuse(
            ready, capabilities.limits, fuses=fuses, depth=fused, donated=owned, report=report
        )
    with timeline.span("plan", "compile"):
        launches = [_after_fusion(x, passes) for x in _constants_first(launches)]
        program = plan(
            ready,
            launches,
            alignment=capabilities.alignment,
            donated=owned,
            inner=inner,
            own=own,
        )
    return launches, program


def materialize_outputs(graph: Graph) -> Graph:
    """Outputs that are inputs, constants or repeated -> copies made by the graph, so that each is
    written once.
    """
    reshape = lookup("reshape")
    seen: set[Value] = set()
    clean = True
    for value in graph.outputs:
        made = value.producer
        clean = clean and value not in seen and made is not None and not _is_constant(made.op)
        seen.add(value)
    if clean:
        return graph
    builder = Builder()
    outputs = list(replay(graph, builder=builder))
    written: set[Value] = set()
    with builder:
        for i, value in enumerate(outputs):
            made = value.producer
            if made is None or _is_constant(made.op) or value in written:
                outputs[i] = reshape(value, shape=value.shape)
            written.add(outputs[i])
    return builder.build(outputs, graph.name)


def _is_constant(op: Operation) -> bool:
    return op.name == "constant"


def _after_fusion(launch: Launch, passes: Sequence[KernelPass]) -> Launch:
    for change in passes if launch.kernel is not None else ():
        assert launch.kernel is not None
        launch = replace(launch, kernel=change(launch.kernel))
    return launch


def _constants_first(launches: list[Launch]) -> list[Launch]:
    """Constants take no part in any lifetime."""
    constants = [x for x in launches if _makes_constant(x.instr)]
    return constants + [x for x in launches if not _makes_constant(x.instr)]


def _makes_constant(instr: Instr | None) -> bool:
    return instr is not None and _is_constant(instr.op)


__all__ = ["fused_program", "materialize_outputs", "materialized", "prepared"]
