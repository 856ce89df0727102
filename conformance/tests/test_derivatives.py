"""Derivatives of rows in every mode: what is compared, and what a wrong rule looks like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planted import faulty, right

from bringup.backend.capabilities import Shapes
from bringup.dtypes import f32, f64
from bringup.ops.build import like
from bringup.ops.table import OpDef, all_ops, lookup
from bringup_conformance import run
from bringup_conformance.cases import Check
from bringup_conformance.execution.support import single
from bringup_conformance.generate import derivatives
from bringup_conformance.oracle.derivatives import (
    MODES,
    Differentiated,
    Point,
    Unshown,
    disagreement,
)
from bringup_selftest.corpus import faults
from bringup_selftest.device import Reference
from bringup_selftest.killing import Options
from bringup_selftest.process_pool import examined

#: Rows whose vjp says that there is nothing to differentiate, or refuses to.
_NONE = {"argmax", "argmin", "clz", "one_hot", "philox4x32", "popcount", "threefry2x32", "while"}


def made(row: OpDef, seed: int = 0) -> list[Check]:
    return list(derivatives.checks(row, f32, "ops", Shapes(), seed))


def test_every_row_with_a_vjp_has_a_check() -> None:
    without = {row.name for row in all_ops() if row.vjp is not None and not made(row)}
    assert without == _NONE


def test_right_rules_pass() -> None:
    """Every third row of a level, in every mode, with another seed than that of other tests."""
    checked = [row for row in all_ops() if made(row)][::3]
    # With their dtypes, so that cases of others are not made.
    terms = (f"{row.name}/{f32 if f32 in row.dtypes else row.dtypes[0]}" for row in checked)
    report = run(right(), "ops", seed=3, only=",".join(f"{term}/derivatives" for term in terms))
    assert [failure.document["problem"]["what"] for failure in report.failures] == []
    assert {result.op for result in report.results} == {row.name for row in checked}


def test_data_is_drawn_until_some_shows_the_derivative() -> None:
    """Of eigh, little data is far enough from equal eigenvalues for second derivatives."""
    for seed in (4, 24):
        (check,) = made(lookup("eigh"), seed)
        assert check.run(right()) is None


def point(x: float, move: float = 1.0) -> Point:
    moves = ([np.array([move])], [np.array([move / 2])])
    return Point([np.array([x])], moves, [np.array([1.5])])


@pytest.mark.parametrize("mode", MODES)
def test_kinks_show_nothing_and_smooth_places_do(mode: str) -> None:
    row = Differentiated.of_graph(single(lookup("abs"), (f64[1],), {}))
    with pytest.raises(Unshown):
        disagreement(row, mode, [point(1e-5), point(1.0)])
    assert disagreement(row, mode, [point(2.0), point(-1.0)]) is None


@pytest.mark.parametrize(("relative", "seen"), [(1e-8, True), (0.0, False)])
def test_small_errors_of_a_rule_are_seen(relative: float, seen: bool) -> None:
    """A hundredth of the roundoff of f32 lies outside of the bounds."""
    sin = lookup("sin")
    vjp = sin.vjp
    assert vjp is not None

    def wrong(ct, result, x):  # type: ignore[no-untyped-def]
        (found,) = vjp(ct, result, x)
        return (lookup("mul")(found, like(found, 1 + relative)),)

    row = Differentiated.of_graph(single(replace(sin, vjp=wrong), (f64[1],), {}))
    for mode in MODES:
        assert (disagreement(row, mode, [point(1.0), point(2.0)]) is not None) == seen


#: The item that finds each fault first, alone.
FOUND = {
    "DV01": "ops/tanh/f32",
    "DV01a": "ops/div/f32",
    "DV02": "ops/tanh/f32",
    "DV02a": "ops/exp/f32",
    "DV02b": "ops/logistic/f32",
    "DV03": "ops/eigh/f32",
    "DV03a": "ops/sqrt/f32",
    "DV03b": "ops/add/f32",
    "DV04": "ops/dot_general/f32",
}


@pytest.mark.parametrize("id", FOUND)
def test_wrong_rules_are_found(id: str) -> None:
    target = faulty(id)
    try:
        report = run(target, "ops", only=f"{FOUND[id]}/derivatives")
    finally:
        target.device.device.close()
    (failure,) = report.failures
    words = {"DV02": "over reverse", "DV03": "forward", "DV04": "vmap"}.get(id[:4], "reverse")
    assert words in failure.document["problem"]["what"]


def test_every_fault_is_tried_and_rules_are_right_again() -> None:
    assert {f.id for f in faults() if f.group == "Derivatives"} == set(FOUND)
    assert (
        disagreement(
            Differentiated.of_graph(single(lookup("tanh"), (f64[1],), {})),
            "forward over reverse",
            [point(0.5), point(0.7)],
        )
        is None
    )


def test_the_matrix_kills_them() -> None:
    how = Options("ops", simulated=True, only="ops/tanh/f32", directed=True)
    (row,) = examined([f for f in faults() if f.id == "DV02"], how, 1)
    assert row.killed
    assert row.item == "ops/tanh/f32/derivatives"


def test_a_fault_of_two_devices_is_that_of_one() -> None:
    """Examples that are reversed twice are in order."""
    (fault,) = (f for f in faults() if f.id == "DV04")
    before = lookup("dot_general").batch
    devices = [fault.inject(Reference(3)).open(0) for _ in range(2)]
    (check,) = made(lookup("dot_general"))
    problem = check.run(right())
    for device in reversed(devices):
        device.close()
    assert problem is not None
    assert lookup("dot_general").batch is before
    assert check.run(right()) is None
