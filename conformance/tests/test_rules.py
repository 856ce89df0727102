"""Every rule has an id that never changes silently, and a test that carries it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from planted import declaring, right, spoilt
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

from bringup.backend.capabilities import Capabilities
from bringup.dtypes import STORED, DType, f16, f32, i32, u32
from bringup.ops.special_values import Special
from bringup.ops.table import Kind, OpDef, Trait, all_ops, lookup
from bringup_conformance import cli, rules
from bringup_conformance.cases import Case, Problem
from bringup_conformance.execution import levels, runner
from bringup_conformance.execution.plan import SIMULATED, Plan
from bringup_conformance.execution.support import Support
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.reporting import failures, listing
from bringup_conformance.rules import carried, cells, slugs
from bringup_conformance.rules.contract import AREAS
from bringup_conformance.runtime import CHECKS
from bringup_selftest.corpus import OpCall

#: Rules that no test of the suite can carry, each with the reason.
EXEMPT: dict[str, str] = {}

Rows = list[tuple[OpDef, DType]]


@pytest.fixture(scope="module")
def tested() -> Mapping[str, str]:
    return listing.carried_by_tests()


def rows() -> Rows:
    return [(row, dtype) for row in all_ops() for dtype in row.dtypes if row.special]


def test_every_rule_has_a_test(tested: Mapping[str, str]) -> None:
    without = {rule.id for rule in rules.untested(tested)}
    assert without == EXEMPT.keys(), "carry them by a test, or strike what is tested by now"


def test_what_a_device_runs_as_a_decomposition_shows_every_rule_too() -> None:
    """Of such ops only some dtypes are run on data, but special values of all."""
    ops = {c: frozenset(STORED) for row in all_ops() for c in row.tier0_claims}
    target = declaring(lambda _given: Capabilities(ops=ops))
    plan = Plan(target.capabilities, Support(target.missing), 0, SIMULATED)
    shown = {
        rule
        for unit in levels.units(plan, "ops")
        for item in unit.make()
        if isinstance(item, Case)
        for rule in item.rules
    }
    assert {rule.id for rule, _ in cells.special_rules()} - shown == set()


def test_no_test_carries_an_unknown_rule(tested: Mapping[str, str]) -> None:
    assert tested.keys() - rules.by_id().keys() == set()


def test_ids_are_unique_and_of_one_form() -> None:
    given = [r.id for r in (*rules.CONTRACT, *rules.NUMERICS)]
    given += [rule.id for rule, _ in cells.special_rules()]
    assert [id_ for id_, count in Counter(given).items() if count > 1] == []
    assert [id_ for id_ in given if not rules.ID.fullmatch(id_)] == []
    assert {rule.area for rule in rules.CONTRACT} == AREAS.keys()
    assert AREAS.keys().isdisjoint(row.name for row in all_ops())


def test_rules_say_what_only_some_devices_declare() -> None:
    fields = Capabilities().__dataclass_fields__
    assert {r.needs for r in rules.all_rules()} <= {"", *fields}


def test_checks_ask_for_what_their_rules_need() -> None:
    for promise in CHECKS:
        assert {rules.by_id()[rule].needs for rule in promise.rules} == {promise.needs}


#: Cells that no rule can fix to the bit: the result is log 2, rounded as the op's bound allows.
_ROUNDED = {("log_sigmoid", "0.0"), ("softplus", "0.0")}


def test_every_op_of_one_float_tells_nan_infinities_and_zeros() -> None:
    missing = set()
    for row in all_ops():
        by_elements = row.kind is Kind.ELEMENTWISE or Trait.POINTWISE in row.traits
        if row.arity == 1 and by_elements and f32 in row.dtypes and row.name != "bitcast":
            told = {cell.operands[0].lstrip("+-") for cell in cells.cells_of(row, f32)}
            signed = {cell.operands[0] for cell in cells.cells_of(row, f32)}
            missing |= {(row.name, word) for word in ("nan", "inf", "0.0") if word not in told}
            missing |= {(row.name, word) for word in ("inf", "-inf") if word not in signed}
    assert missing == _ROUNDED


def test_every_op_of_two_floats_tells_nan_on_either_side() -> None:
    for row in all_ops():
        if row.arity == 2 and row.kind is Kind.ELEMENTWISE and f32 in row.dtypes:
            found = {
                cell.operands.index("nan")
                for cell in cells.cells_of(row, f32)
                if cell.operands.count("nan") == 1
            }
            assert found == {0, 1}, row.name


def test_ids_stay(snapshot: SnapshotAssertion) -> None:
    """An id that goes, or means something else, leaves certificates behind that nobody can read:
    new ones may come, old ones stay.
    """
    lines = [rule.id for rule in (*rules.CONTRACT, *rules.NUMERICS)]
    for row in all_ops():
        found: dict[tuple[str, ...], list[str]] = {}
        for dtype in row.dtypes:
            if slugs_ := tuple(sorted(rule.slug for rule in cells.rules_of(row, dtype))):
                found.setdefault(slugs_, []).append(dtype.name)
        for slugs_, dtypes in found.items():
            lines.append(f"{row.name}.[{' '.join(dtypes)}]")
            lines += [f"    {slug}" for slug in slugs_]
    assert "\n".join(lines) == snapshot


def test_ids_do_not_hang_on_the_order_of_cells() -> None:
    for row, dtype in rows():
        turned = replace(row, special=row.special[::-1])
        for cell in cells.cells_of(row, dtype):
            assert cells.rule_of(turned, dtype, cell) == cells.rule_of(row, dtype, cell)


def test_cells_of_one_rule_are_one_rule() -> None:
    """Only cells that share a sentence, that swap operands of a commutative op, or whose indices
    lie alike, share an id.
    """
    for row, dtype in rows():
        for rule, found in cells.rules_of(row, dtype).items():
            if rule.says not in slugs.SHARED.values():
                sets = {frozenset(cell.operands) for cell in found}
                assert len(sets) == 1 or row.kind is Kind.INDEXED, rule.id
                assert len({c.result for c in found}) == 1, rule.id


@pytest.mark.parametrize(
    ("op", "dtype", "cell", "id_"),
    [
        ("add", f32, Special(("1", "nan"), "nan"), "add.f32.nan-propagates"),
        ("add", f32, Special(("inf", "-inf"), "nan"), "add.f32.invalid-operation"),
        ("add", f16, Special(("-MAX", "-MAX"), "-inf"), "add.f16.overflows"),
        ("add", i32, Special(("INT_MIN", "-1"), "INT_MAX", ("int",)), "add.i32.wraps"),
        ("add", i32, Special(("INT_MAX", "-1"), "5", ("int",)), "add.i32.int-max-and-minus-1"),
        ("div", i32, Special(("7", "0"), "-1", ("int",)), "div.i32.by-zero"),
        ("div", f32, Special(("-1", "-0.0"), "inf"), "div.f32.by-zero"),
        ("sub", f32, Special(("-0.0", "0.0"), "-0.0"), "sub.f32.minus-zero-less-zero"),
        ("max", f32, Special(("0.0", "-0.0"), "0.0"), "max.f32.minus-zero-and-zero"),
        ("sqrt", f32, Special(("-0.0",), "-0.0"), "sqrt.f32.of-minus-zero"),
        ("round", f32, Special(("-1.5",), "-2"), "round.f32.of-minus-1-point-5"),
        ("shl", u32, Special(("1", "INT_MAX"), "0", ("uint",)), "shl.u32.amount-past-width"),
        ("convert", f32, Special(("nan",), "0", attrs=(("dtype", i32),)), "convert.f32.nan-to-i32"),
        (
            "reduce",
            f32,
            Special(("[]",), "0.0", attrs=(("kind", "add"), ("dims", (0,)))),
            "reduce.f32.add-of-empty",
        ),
        ("sort", f32, Special(("[1, nan]",), "[1, nan]"), "sort.f32.nans-last"),
        (
            "slice",
            f32,
            Special(("[1, 2]",), "[2]", attrs=(("start", (1,)), ("limit", (2,)))),
            "slice.f32.start-1-limit-2",
        ),
        (
            "dynamic_slice",
            i32,
            Special(("[5, 6, 7]", "2"), "[6, 7]", ("int",), (("sizes", (2,)),)),
            "dynamic_slice.i32.index-past-end",
        ),
        (
            "scatter",
            i32,
            Special(("[5, 6]", "[1, 1]", "[1, 2]"), "[5, 9]", ("int",), (("kind", "add"),)),
            "scatter.i32.add-repeated-index",
        ),
        (
            "compare",
            f32,
            Special(("nan", "1"), "false", attrs=(("direction", "lt"),)),
            "compare.f32.lt-unordered",
        ),
    ],
)
def test_slugs_follow_from_the_cell(op: str, dtype: DType, cell: Special, id_: str) -> None:
    row = replace(lookup(op), special=(cell,))
    assert cells.rule_of(row, dtype, cell) == id_


def test_attributes_tell_cells_apart_that_operands_do_not() -> None:
    pairs = [Special(("2",), "3", attrs=(("exclusive", on),)) for on in (False, True)]
    row = replace(lookup("floor"), special=tuple(pairs))
    ids = [cells.rule_of(row, f32, cell) for cell in pairs]
    assert ids == ["floor.f32.of-2-exclusive-false", "floor.f32.of-2-exclusive-true"]


def test_cases_carry_the_rules_that_they_show() -> None:
    reference = right()
    plan = Plan(reference.capabilities, Support(reference.missing), 0, SIMULATED)
    units = [u for u in levels.units(plan, "ops") if u.op == "div"]
    items = {(u.op, u.dtype, u.number): [*u.make()] for u in units}
    both = [*items["div", "i32", ""], *items["div", "i32", levels.SPECIAL]]
    made = [item for item in both if isinstance(item, Case)]
    found = {case.name.rpartition("/")[2]: case.rules for case in made}
    assert {"div.i32.by-zero", "div.i32.int-min-by-minus-1"} <= {*found["special"]}
    assert "numerics.integers" not in found["special"]
    assert {"numerics.integers", carried.INPUTS, carried.AGAIN, carried.CLAIMS} <= {*found["0"]}
    assert "numerics.elementwise" not in {*chain.from_iterable(found.values())}
    floats = [item for item in items["div", "f32", ""] if isinstance(item, Case)]
    [mapped] = [case for case in floats if case.name.endswith("/mapped")]
    assert {"numerics.mapped", "numerics.elementwise"} <= {*mapped.rules}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem("input", ""), [carried.INPUTS]),
        (Problem("unstable", ""), [carried.AGAIN]),
        (Problem("wrong", ""), ["numerics.sums"]),
        (Problem("wrong", "", fused=False), [carried.UNFUSED]),
        (Problem("crash", ""), [carried.CLAIMS]),
        (Problem("wrong", "", rules=("a.b",)), ["a.b"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Problem) else "",
)
def test_a_problem_breaks_only_what_it_is_about(problem: Problem, expected: list[str]) -> None:
    held = (carried.CLAIMS, "numerics.sums", carried.INPUTS, carried.AGAIN, carried.UNFUSED)
    assert list(carried.broken(problem, held)) == expected


def test_a_problem_of_another_kind_breaks_all() -> None:
    assert carried.broken(Problem("broken", ""), ("cache.key-shape",)) == ("cache.key-shape",)
    assert carried.broken(Problem("crash", ""), ("cache.key-shape",)) == ("cache.key-shape",)


def roots_of_minus_zero_are_positive(call: OpCall) -> Array:
    return np.where(call.operands[0] == 0, np.abs(call.right), call.right).astype(call.dtype)


def test_a_failing_cell_names_its_rule() -> None:
    target = spoilt({"sqrt": roots_of_minus_zero_are_positive})
    found = runner.run(target, "ops", only="sqrt/f32/special", shrink_seconds=5)
    [failure] = found.failures
    problem = failure.document["problem"]
    assert problem["rules"] == ["sqrt.f32.of-minus-zero"]
    assert problem["what"].startswith("sqrt.f32.of-minus-zero: ")
    assert {m["rule"] for m in problem["mismatches"]} == {"sqrt.f32.of-minus-zero"}
    assert found.rules["sqrt.f32.of-minus-zero"].failed == 1
    assert found.rules["sqrt.f32.invalid-operation"].failed == 0
    again = failures.case_from_json(failure.document["case"])
    assert "sqrt.f32.of-minus-zero" in {r for cells_ in again.cells for r in cells_.rules}


def listed(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["list", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_of_rules_says_what_checks_them() -> None:
    found = json.loads(listed("--rules", "--only", "sqrt.f32", "--json"))["rules"]
    assert {
        "id": "sqrt.f32.of-minus-zero",
        "says": "sqrt(-0.0) → -0.0",
        "cells": ["sqrt(-0.0) → -0.0"],
        "needs": "",
        "test": "ops/sqrt/f32/special",
    } in found
    assert "ops/sqrt/f32/special" in listed("--rules", "--only", "sqrt.f32")


@pytest.mark.parametrize("arguments", [["--only", "add"], ["--rules", "--only", "nothing"]])
def test_what_lists_nothing_is_an_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["conformance", "list", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
