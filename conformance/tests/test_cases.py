"""Choices and cases depend on the seed and the device's declaration alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from planted import declaring, right

from bringup.backend.capabilities import Shapes
from bringup.dtypes import ALL, STORED
from bringup.graph.verify import verify
from bringup.ops.table import Kind, all_ops
from bringup_conformance.cases import PROGRAMS, Case, Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.plan import FULL, SIMULATED, Item, Plan, Unit
from bringup_conformance.execution.schedule import TAGS, Selection
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.choices import Stream, chance, pick, weighted
from bringup_conformance.reporting.failures import case_from_json, case_to_json

#: Levels of programs alone.
PROGRAM_LEVELS = ("smoke", "ops", "fusion")


def plan(seed: int = 0, programs: int = 40, **changes: object) -> Plan:
    ops = {claim: frozenset(STORED) for row in all_ops() for claim in row.claims}
    target = declaring(lambda given: replace(given, ops=ops, **changes))  # type: ignore[arg-type]
    budget = replace(SIMULATED, programs=programs)
    return Plan(target.capabilities, Support(target.missing), seed, budget)


def made(given: Plan, level: str) -> list[Item]:
    return [item for unit in levels.units(given, level) for item in unit.make()]


#: What every unit of a level makes of the default plan.
Default = Callable[[str], list[tuple[Unit, list[Item]]]]


@pytest.fixture(scope="module")
def default() -> Default:
    return cache(lambda level: [(unit, list(unit.make())) for unit in levels.units(plan(), level)])


def cases_of(default: Default, level: str) -> list[Case]:
    return [item for _, items in default(level) for item in items if isinstance(item, Case)]


def text(items: list[Item]) -> list[str]:
    return [str(case_to_json(i)) if isinstance(i, Case) else str(i) for i in items]


def test_a_stream_gives_the_same_numbers_for_ever() -> None:
    stream = Stream(7, "a")
    assert [stream.integer(0, 999) for _ in range(8)] == [535, 409, 627, 276, 63, 29, 521, 742]


def test_streams_differ_by_every_part_of_their_key() -> None:
    keys = [(0,), (1,), (0, "a"), (0, "b"), ("a", 0), (0, "a", 1)]
    first = {tuple(s.integer(0, 10**9) for _ in range(4)) for s in (Stream(*k) for k in keys)}
    assert len(first) == len(keys)


def test_choices_follow_their_weights() -> None:
    stream = Stream(0, "weights")
    drawn = Counter(weighted(stream, ((6, "a"), (3, "b"), (1, "c"))) for _ in range(5000))
    assert 2800 < drawn["a"] < 3200
    assert 400 < drawn["c"] < 600
    assert 1100 < sum(chance(stream, 1, 4) for _ in range(5000)) < 1400
    assert {pick(stream, "abc") for _ in range(100)} == set("abc")


@pytest.mark.parametrize("level", PROGRAM_LEVELS)
def test_equal_seeds_make_equal_cases(level: str, default: Default) -> None:
    # Units are made by themselves: every sixth is made again.
    first, again = default(level), levels.units(plan(), level)
    assert len(first) == len(again) > 20
    known = [text(items) for _, items in first[::6]]
    assert known == [text(list(unit.make())) for unit in again[::6]]
    other = levels.units(plan(4), level)[::24]
    assert known[::4] != [text(list(unit.make())) for unit in other]


@pytest.mark.parametrize("level", PROGRAM_LEVELS)
def test_cases_have_names_of_their_own_and_valid_programs(level: str, default: Default) -> None:
    cases = cases_of(default, level)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        verify(case.graph)
        assert case.name.split("/")[:3] == [case.level, case.op, case.dtype]
        if not case.cells:
            assert case.data
            assert all(len(recipes) == len(case.graph.inputs) for recipes in case.data)


def test_every_op_is_checked_with_every_dtype_it_takes(default: Default) -> None:
    cases = cases_of(default, "ops")
    wanted = {(row.name, dtype.name) for row in all_ops() for dtype in row.dtypes}
    assert {(case.op, case.dtype) for case in cases if not case.cells} == wanted
    special = {
        (row.name, dtype.name)
        for row in all_ops()
        for dtype in row.dtypes
        if any(c.holds_for(dtype) and c.result != "unspecified" for c in row.special)
    }
    assert special - {(case.op, case.dtype) for case in cases if case.cells} == set()


def test_sizes_lie_round_the_boundaries_of_the_device() -> None:
    given = replace(plan(shapes=Shapes(vector=24, block=300)), budget=FULL)
    sizes: Counter[int] = Counter()
    elementwise = [u for u in levels.units(given, "ops") if u.op in ("add", "exp", "neg")]
    for item in (item for unit in elementwise for item in unit.make()):
        if isinstance(item, Case) and not item.cells:
            sizes.update(v.type.size for v in item.graph.inputs if v.type.rank == 1)
    assert {0, 1, 23, 24, 25, 299, 300, 301} <= set(sizes)


def test_folds_cover_first_last_middle_several_and_no_dimensions(default: Default) -> None:
    seen = set()
    for case in cases_of(default, "ops"):
        if case.op == "reduce" and not case.cells:
            for instr in (i for i in case.graph.instrs if i.op.name == "reduce"):
                rank = instr.operands[0].type.rank
                seen.add((rank, instr.attrs["dims"]))
    assert {(1, (0,)), (2, (0,)), (2, (1,)), (2, (0, 1)), (3, (1,)), (3, (0, 2)), (0, ())} <= seen


def test_programs_hold_what_fusion_gets_wrong() -> None:
    cases = [item for item in made(plan(programs=100), "fusion") if isinstance(item, Case)]
    graphs = [case.graph for case in cases]
    rows = {row.name: row for row in all_ops()}
    kinds = Counter(rows[i.op.name].kind for graph in graphs for i in graph.instrs)
    assert {Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION, Kind.CONTRACTION} <= set(kinds)
    assert any(len(graph.outputs) > 1 for graph in graphs)
    assert any("exact" in case.tags for case in cases)
    shared = [v for g in graphs for v in g.inputs if sum(v in i.operands for i in g.instrs) > 1]
    assert shared
    assert len({case.dtype for case in cases}) >= 6


def test_what_a_device_does_not_declare_is_named_and_not_run() -> None:
    known = {claim: d for claim, d in right().capabilities.ops.items() if claim != "exp"}
    target = declaring(lambda given: replace(given, ops=known))
    given = Plan(target.capabilities, Support(target.missing), 0, SIMULATED)
    items = [i for u in levels.units(given, "ops") if u.op in ("exp", "log") for i in u.make()]
    unsupported = [item for item in items if isinstance(item, Unsupported)]
    assert {item.op for item in unsupported} == {"exp"}
    assert all("exp" in item.reason for item in unsupported)
    assert {item.op for item in items if isinstance(item, Case)} == {"log"}


@pytest.mark.parametrize("level", PROGRAM_LEVELS)
def test_cases_survive_plain_data(level: str, default: Default) -> None:
    for case in cases_of(default, level)[::2]:
        plain = case_to_json(case)
        again = case_from_json(plain)
        assert case_to_json(again) == plain
        assert again.data == case.data
        for cells, before in zip(again.cells, case.cells, strict=True):
            attrs = [cell.attrs for cell in before.cells]
            assert [cell.attrs for cell in cells.cells] == attrs


@pytest.mark.parametrize(
    "only", ["exp/f32", "special", "reduction", "f16,ops/add/i8", "exact", "0"]
)
def test_a_selection_reaches_all_that_it_admits(only: str, default: Default) -> None:
    selection, found = Selection(only), 0
    for level in (*PROGRAM_LEVELS, "runtime"):
        for unit, items in default(level):
            admitted = [item for item in items if selection.admits(item)]
            found += len(admitted)
            assert selection.reaches(unit) or not admitted
    assert found


def test_the_name_of_a_case_and_each_of_its_tags_select_it(default: Default) -> None:
    for level in levels.LEVELS:
        for unit, items in default(level):
            for item in items:
                if not isinstance(item, Unsupported):
                    for text in (item.name, *item.tags):
                        assert Selection(text).admits(item)
                        assert Selection(text).reaches(unit), text


def test_every_tag_has_its_sentence(default: Default) -> None:
    known = {*TAGS, *(kind.value for kind in Kind)}
    tags = {
        tag
        for level in levels.LEVELS
        for _, items in default(level)
        for item in items
        if not isinstance(item, Unsupported)
        for tag in item.tags
    }
    assert {tag for tag in tags if not re.match(r"many-|\w+\.", tag)} <= known
    # The first is the number of a unit; simulators have no cases of the other.
    assert set(TAGS) - tags == {"special", "heavy"}


def test_a_level_selects_its_own_cases(default: Default) -> None:
    for level in PROGRAM_LEVELS:
        units = [unit for each in PROGRAM_LEVELS for unit, _ in default(each)]
        reached = [unit for unit in units if Selection(level).reaches(unit)]
        assert reached == [unit for unit, _ in default(level)]


def test_a_selection_spares_what_it_cannot_want(default: Default) -> None:
    units = [unit for level in PROGRAM_LEVELS for unit, _ in default(level)]
    reached = [u for u in units if Selection("ops/exp/f32").reaches(u)]
    assert {(u.level, u.op, u.dtype) for u in reached} == {("ops", "exp", "f32")}
    programs = [u for u in units if Selection("fusion/programs/17").reaches(u)]
    assert [(u.op, u.number) for u in programs] == [(PROGRAMS, "17")]
    assert len(ALL) == 13
