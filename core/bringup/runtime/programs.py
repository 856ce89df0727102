"""From an optimised graph to a program: fusion and planning; sub-graphs likewise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import KernelPass
from bringup.graph import Graph, Instr
from bringup.kernel.fuse import Launch, fuse
from bringup.program.in_place import kept_whole
from bringup.program.plan import plan
from bringup.program.program import Program
from bringup.runtime import timeline


def fused_program(
    graph: Graph,
    capabilities: Capabilities,
    passes: Sequence[KernelPass],
    *,
    fused: bool = True,
    donated: frozenset[int] = frozenset(),
    own: Mapping[int, int] | None = None,
    report: list[str] | None = None,
) -> tuple[list[Launch], Program]:
    """The launches of a graph after all passes, and its program.

    passes: of the backend's own, over every kernel.  fused: False makes one launch of every
    instruction.  own: as in `plan`.  report: as in `fuse`, for sub-graphs as well.
    """

    def inner(graph: Graph, own: Mapping[int, int]) -> Program:
        taken = frozenset(own.values())
        return fused_program(
            graph, capabilities, passes, fused=fused, donated=taken, own=own, report=report
        )[1]

    owned = donated if capabilities.donation else frozenset[int]()
    whole = kept_whole(graph, owned, capabilities.runs_op)

    def fuses(instr: Instr) -> bool:
        return instr not in whole and capabilities.fuses(instr)

    with timeline.span("fuse", "compile"):
        launches = fuse(
            graph, capabilities.limits, fuses=fuses, depth=fused, donated=owned, report=report
        )
    with timeline.span("plan", "compile"):
        launches = [_after_fusion(x, passes) for x in launches]
        program = plan(
            graph,
            launches,
            alignment=capabilities.alignment,
            donated=owned,
            inner=inner,
            own=own,
        )
    return launches, program


def _after_fusion(launch: Launch, passes: Sequence[KernelPass]) -> Launch:
    for change in passes if launch.kernel is not None else ():
        assert launch.kernel is not None
        launch = replace(launch, kernel=change(launch.kernel))
    return launch
