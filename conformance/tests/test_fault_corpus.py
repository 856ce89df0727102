"""The corpus of faults of fusion, plans, passes, loops, transfers, donation, caches and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from planted import faulty, right

from bringup.dtypes import f32, i32
from bringup.graph import Builder
from bringup.ops.build import like, reverse, rows
from bringup.program.program import KernelStep, Program
from bringup.runtime.compiler import lower_graph
from bringup_conformance import replay, run
from bringup_selftest import process_pool
from bringup_selftest.control import target_of
from bringup_selftest.corpus import faults
from bringup_selftest.device import Reference
from bringup_selftest.editing import fused, written
from bringup_selftest.killing import Kill, Options
from bringup_selftest.not_injected import INJECTED_AS, NOT_INJECTED
from bringup_selftest.versions import planned, rewritten, spread

#: The list that the corpus began with, by group.
LISTED = {
    "Fusion": "FU01 FU02 FU04 FU05 FU06 FU07 FU08 FU09 FU10 FU11 FU12 FU13 FU14 FU16 FU17 FU18 "
    "FU22 FU24",
    "Buffer plan and liveness": "BF01 BF02 BF03 BF04 BF05 BF06 BF07 BF08 BF10",
    "Passes": "SV06 SV08 SV09 SV10 CA07",
    "Control flow": "CF01 CF02 CF03 CF05 CF07",
    "Random numbers": "RN02 RN04 RN05",
    "Transfers, streams, synchronisation": "TS01 TS03 TS04 TS05 TS06 TS07 TS08 TS09 TS11 TS12",
    "Donation and aliasing": "DN01 DN02 DN04 DN05",
    "Compile cache": "CK01 CK04 CK05 CK06 CK07 CK08 CK09 CK10",
    "Errors, limits, lifetime": "ER01 ER03 ER04 ER06 ER08 ER09 ER11 ER12",
}
#: Hazards, each of which finds some of the faults that are tried.
HAZARDS = (
    "zero-products", "neighbours", "zero-sums", "sliced-twice", "waiting", "alive-together",
    "sums-of-two", "trips", "rewritten", "scanned",
)  # fmt: skip
ONLY = ",".join(f"fusion/{name}/f32" for name in HAZARDS)
HOW = Options("fusion", simulated=True, only=ONLY)


def tried(*ids: str, shrink_seconds: float) -> Sequence[Kill]:
    found = [fault for fault in faults() if fault.id in ids]
    assert len(found) == len(ids)
    return list(process_pool.examined(found, replace(HOW, shrink_seconds=shrink_seconds), 1))


@pytest.mark.parametrize("group", LISTED)
def test_every_line_of_the_list_is_planted_or_excused(group: str) -> None:
    planted = {fault.id for fault in faults()}
    missing = {name for name in LISTED[group].split() if name not in planted}
    assert missing - {"ER04"} <= set(NOT_INJECTED), group
    assert all(reason for reason in (*NOT_INJECTED.values(), *INJECTED_AS.values()))
    assert not planted & set(NOT_INJECTED)


@pytest.mark.parametrize("group", LISTED)
def test_groups_hold_more_than_the_list(group: str) -> None:
    found = [fault for fault in faults() if fault.group == group]
    assert len(found) >= len([n for n in LISTED[group].split() if n not in NOT_INJECTED]) - 1
    assert len({fault.title for fault in found}) == len(found)


def test_faults_are_found_by_programs_of_their_hazard_and_made_small() -> None:
    small = tried("FU04", "FU10", "FU14", "SV08", "FU24", shrink_seconds=2.0)
    large = tried("FU35a", "FU38a", "BF08b", "BF11a", "CF05", "CF07", "CF09", shrink_seconds=0)
    assert [row.id for row in (*small, *large) if not row.killed] == []
    sizes = {row.id: row.size or 0 for row in small}
    assert all(1 <= size <= 5 for size in sizes.values()), sizes


@pytest.mark.parametrize(
    ("id", "name"), [("FU10", "neighbours"), ("BF01", "choices"), ("SV09", "itself")]
)
def test_a_kill_is_found_again_from_its_file(id: str, name: str, tmp_path: Path) -> None:
    planted = faulty(id)
    report = run(planted, "fusion", only=f"fusion/{name}/f32", report=tmp_path, shrink_seconds=3)
    assert report.failures
    file = report.failures[0].file
    assert file is not None
    assert replay(file, planted)[1] is not None
    assert replay(file, right(depth=3))[1] is None


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_long_falling_lines_of_every_float_are_sorted(dtype: str, seed: int) -> None:
    """Each of them, whatever the seed, since -inf is the last by some digits of some alone."""
    (fault,) = (each for each in faults() if each.id == "SO24b")
    target = target_of(fault.inject(Reference()))
    report = run(target, "ops", seed, only=f"sort/{dtype}", shrink_seconds=0)
    assert [failure.case["op"] for failure in report.failures] == ["sort"]


def test_what_only_code_made_in_little_time_gets_wrong_is_found_again(tmp_path: Path) -> None:
    planted = faulty("ER17")
    report = run(planted, "ops", only="ops/exp", report=tmp_path, shrink_seconds=3)
    assert report.passed > 3, "one in four cases is compiled to fast code"
    assert report.failed > report.passed
    assert min(failure.nodes for failure in report.failures) <= 1
    for failure in report.failures:
        assert failure.document["case"]["optimize"] is False
        assert failure.file is not None
        assert replay(failure.file, planted)[1] is not None
        assert replay(failure.file, right(depth=3))[1] is None


@pytest.mark.parametrize(
    ("id", "name", "part"), [("FU09", "soft", "fusion"), ("SV08", "zero-sums", "plus_zero")]
)
def test_what_a_failure_goes_away_without_is_named(id: str, name: str, part: str) -> None:
    report = run(faulty(id), "fusion", only=f"fusion/{name}/f32", shrink_seconds=3)
    assert report.failures
    assert report.failures[0].document["guilty"] == [part]


def test_right_devices_come_near_their_bounds() -> None:
    """A bound that nothing comes near would find nothing."""
    report = run(right(), "ops", seed=5, only="gelu,lgamma,reduce/f32")
    assert report.failures == []
    assert max(tally.ratio for tally in report.tallies.values()) > 0.5


def program() -> Program:
    """Three launches that leave values in scratch, the first of which is read twice."""
    with Builder() as builder:
        x = builder.input(f32[12, 12])
        one = rows.dot_general(x, x, batch=((), ()), contract=((1,), (0,)))
        two = rows.dot_general(reverse(one, (0,)), x, batch=((), ()), contract=((1,), (0,)))
        three = rows.sub(reverse(two, (1,)), one)
    return lower_graph(builder.build([three], "made"), Reference(3)).program


def test_versions_know_who_writes_and_reads_a_value() -> None:
    plan = planned(program())
    assert plan is not None
    first = min(plan.scratch, key=lambda v: v.made)
    assert first.read
    assert first.last > first.made
    assert [v.slot.index for v in plan.taken] == [0]
    assert plan.returned[0].last == len(plan.program.steps)


def test_values_that_are_spread_keep_their_content() -> None:
    made = program()
    plan = planned(made)
    assert plan is not None
    apart = spread(plan)
    places = [slot for step in apart.steps for slot in step.slots if slot.space == "arena"]
    assert len({slot.offset for slot in places}) >= len(plan.scratch)
    assert rewritten(plan, {}) == made


def test_a_fault_changes_what_is_compiled_and_nothing_else() -> None:
    with Builder() as builder:
        x = builder.input(i32[9])
        outputs = [rows.add(x, like(x, 1)), rows.mul(x, like(x, 2))]
        outputs.append(rows.sub(*outputs))
    graph = builder.build(outputs, "twins")
    seen: list[Program] = []
    (fault,) = (f for f in faults() if f.id == "FU04")
    backend = fault.inject(Reference(3))
    target = target_of(backend)
    right = lower_graph(graph, backend).program
    device = target.device.device
    original = type(device).compile

    class Watched(type(device)):  # type: ignore[misc]
        def compile(self, given: Program) -> object:
            seen.append(given)
            return original(self, given)

    watched = Watched(device.capabilities)
    planted = fault.inject(_Of(watched)).open(0)
    planted.compile(right)
    (step,) = (s for s in seen[0].steps if isinstance(s, KernelStep))
    (wanted,) = (s for s in right.steps if isinstance(s, KernelStep))
    assert fused(step.kernel)
    assert step.kernel == wanted.kernel
    outs = written(step)
    assert step.slots != wanted.slots
    assert sorted(map(str, step.slots)) == sorted(map(str, wanted.slots))
    assert all(step.slots[n] == wanted.slots[n] for n in range(len(step.slots)) if n not in outs)


class _Of(Reference):
    """The reference backend with a device at hand."""

    def __init__(self, device: object) -> None:
        super().__init__(3)
        self.at_hand = device

    def open(self, index: int) -> object:  # type: ignore[override]
        return self.at_hand
