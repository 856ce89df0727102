"""Each way of reading meets each use, on small sizes and on those past any chunk."""

from __future__ import annotations

from bringup.backend.capabilities import Shapes
from bringup.graph.verify import verify
from bringup_conformance.cases import Case
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.families import READS, USES, pairs


def found(seed: int, *, large: bool) -> list[Case]:
    support, shapes = Support(lambda _graph: None), Shapes(vector=16, block=64)
    items = [c for r in READS for c in pairs(support, shapes, r, seed, large=large)]
    assert all(isinstance(item, Case) for item in items)
    return [item for item in items if isinstance(item, Case)]


def test_every_read_meets_every_use() -> None:
    names = {"-".join(c.name.split("/")[-1].split("-")[:2]) for c in found(0, large=False)}
    assert names == {f"{read}-{use}" for read in READS for use in USES}
    assert len({c.name for c in found(0, large=True)}) == 2 * len(names)


def test_three_seeds_meet_every_shape() -> None:
    shapes = {c.name.split("-")[-1] for seed in range(3) for c in found(seed, large=True)}
    assert {"17", "5x15", "65x3", "70000", "7777x9", "7x10000"} == shapes


def test_the_programs_are_valid() -> None:
    for case in found(1, large=True):
        verify(case.graph)
        assert case.split
        assert len(case.data[0]) == len(case.graph.inputs)
