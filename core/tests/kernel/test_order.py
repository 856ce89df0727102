"""Launches that free memory run early, and no order needs more memory than the one given."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from growing import LIMITS, graphs, launches
from hypothesis import given
from hypothesis import strategies as st

from bringup.graph import Graph, Value
from bringup.kernel.order import _NOTHING, by_memory

Places = Sequence[Collection[Value]]


def in_use(graph: Graph, reads: Places, writes: Places, order: Sequence[int]) -> list[int]:
    """Bytes of scratch memory in use after each launch of an order."""
    scratch = {v for values in writes for v in values}.difference(graph.outputs)
    last = {v: at for at, n in enumerate(order) for v in [*writes[n], *reads[n]] if v in scratch}
    alive: set[Value] = set()
    found = []
    for at, n in enumerate(order):
        alive |= scratch.intersection(writes[n])
        alive = {v for v in alive if last[v] > at}
        found.append(sum(v.type.nbytes for v in alive))
    return found


@given(graph=graphs, limits=st.sampled_from(LIMITS), depth=st.booleans())
def test_any_order_can_run_and_needs_no_more_memory(
    graph: Graph, limits: object, depth: bool
) -> None:
    made = [x for x in launches(graph, limits, depth=depth) if x.writes]  # type: ignore[arg-type]
    reads, writes = [x.reads for x in made], [x.writes for x in made]
    # The order that fusion chose is one that can run; so is that of the graph.
    place = {instr: n for n, instr in enumerate(graph.instrs)}
    byplace = sorted(
        range(len(made)), key=lambda n: max(place[v.producer] for v in writes[n] if v.producer)
    )
    for start in (range(len(made)), byplace):
        ours_reads, ours_writes = [reads[n] for n in start], [writes[n] for n in start]
        order = by_memory(graph, ours_reads, ours_writes, frozenset())
        assert sorted(order) == list(range(len(made)))
        there = set(graph.inputs)
        for n in order:
            assert there.issuperset(ours_reads[n])
            there.update(ours_writes[n])
        given_ = in_use(graph, ours_reads, ours_writes, range(len(made)))
        found = in_use(graph, ours_reads, ours_writes, order)
        assert max(found, default=0) <= max(given_, default=0) + _NOTHING * len(made)
