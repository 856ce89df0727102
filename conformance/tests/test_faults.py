"""The suite finds planted faults, makes them small, names the mode at fault, and replays them."""

from __future__ import annotations

from pathlib import Path

import faulty
import pytest
from faulty import Reference

from bringup_conformance import Report, replay, run

# Fault, selection of cases that it may show in, and the most instructions left after shrinking.
OPS = [
    (faulty.drops_the_tail, "ops/mul", 1),
    (faulty.loses_negative_zero, "ops/neg", 1),
    (faulty.folds_less, "ops/reduce", 1),
    (faulty.sums_in_half, "ops/reduce/f16", 1),
    (faulty.ignores_nan, "ops/max", 1),
    (faulty.swaps_squares, "ops/transpose/f32", 1),
    (faulty.is_one_ulp_too_coarse, "ops/div", 1),
    (faulty.crashes_when_large, "ops/exp", 1),
]
FUSED = [
    (faulty.swaps_a_subtraction, 2),
    (faulty.takes_the_other_chain, 5),
    (faulty.sees_partial_sums, 3),
]
SPOILT = [
    (faulty.swaps_two_outputs, 4),
    (faulty.gives_the_last_call, 2),
    (faulty.writes_its_input, 2),
]


def caught(target: Reference, only: str, folder: Path, most: int) -> Report:
    """Run; every failure that was looked into must be small and replay, and pass once mended."""
    level = only.partition("/")[0]
    report = run(target, level, only=only, report=folder, shrink_seconds=5)
    assert report.failed
    assert not report.ok
    shrunk = [failure for failure in report.failures if "reduced" in failure.document]
    assert shrunk
    assert shrunk[0].nodes <= most, shrunk[0].shown["ir"]
    assert shrunk[0].file is not None
    _, again = replay(shrunk[0].file, target)
    assert again is not None
    assert again.kind == shrunk[0].problem["kind"]
    assert replay(shrunk[0].file, Reference())[1] is None
    return report


@pytest.mark.parametrize(("fault", "only", "most"), OPS, ids=[f.__name__ for f, _, _ in OPS])
def test_a_fault_of_an_op_is_found_by_its_cases(
    fault: faulty.Edit, only: str, most: int, tmp_path: Path
) -> None:
    caught(Reference(edit=fault), only, tmp_path, most)


@pytest.mark.parametrize(("fault", "most"), FUSED, ids=[f.__name__ for f, _ in FUSED])
def test_a_fault_of_fusion_is_found_by_random_programs(
    fault: faulty.Edit, most: int, tmp_path: Path
) -> None:
    report = caught(Reference(edit=fault), "fusion", tmp_path, most)
    assert report.failures[0].document["guilty"] == ["fusion"]


@pytest.mark.parametrize(("fault", "most"), SPOILT, ids=[f.__name__ for f, _ in SPOILT])
def test_a_fault_of_whole_programs_is_found(fault: faulty.Spoil, most: int, tmp_path: Path) -> None:
    report = caught(Reference(spoil=fault), "fusion", tmp_path, most)
    assert report.failures[0].document["guilty"] == ["fusion"]


def test_the_pass_at_fault_is_named(tmp_path: Path) -> None:
    report = caught(Reference(edit=faulty.drops_a_zero_product), "fusion", tmp_path, 2)
    assert report.failures[0].document["guilty"] == ["simplify"]


def test_no_fault_is_found_in_the_reference() -> None:
    report = run(Reference(), "fusion", seed=5)
    assert report.failures == []
    assert report.unsupported == []
    assert report.ok
    # So does it compute one: a bound that nothing comes near would find nothing.
    assert max(tally.ratio for tally in report.tallies.values()) > 0.5


def test_no_fault_is_found_in_the_device_of_this_machine() -> None:
    report = run("cpu", "smoke")
    assert [failure.document["problem"] for failure in report.failures] == []
    assert report.ok
