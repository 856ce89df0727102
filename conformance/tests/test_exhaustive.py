"""Level exhaustive holds every input it says it holds, and finds what no sample meets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from planted import declaring, faulty, right, spoilt

from bringup.backend import Limits
from bringup.dtypes import BY_NAME, STORED, bool_, f32
from bringup.ops.table import all_ops
from bringup_conformance.cases import Case, Check, NotOffered, Unsupported
from bringup_conformance.execution.plan import SIMULATED, Item, Plan
from bringup_conformance.execution.running import made_inputs, run_case
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import Target
from bringup_conformance.generate import exhaustive, huge_arrays
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array, format_of
from bringup_selftest.corpus import OpCall, OpEdit


def plan(target: Target, seed: int = 0) -> Plan:
    return Plan(target.capabilities, Support(target.missing), seed, SIMULATED)


def items(target: Target, op: str, dtype: str = "", seed: int = 0) -> list[Item]:
    units = [u for u in exhaustive.units(plan(target, seed)) if u.op == op]
    return [i for u in units if not dtype or u.dtype == dtype for i in u.make()]


def cases(target: Target, op: str, dtype: str = "", seed: int = 0) -> list[Case]:
    return [i for i in items(target, op, dtype, seed) if isinstance(i, Case)]


def patterns(array: Array) -> Array:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def test_units_are_of_every_op_of_one_operand_every_cast_and_every_pair() -> None:
    units = exhaustive.units(plan(right()))
    counts = Counter((u.op, u.dtype) for u in units)
    assert {d.name for d in STORED if d.bits <= 16 and d is not bool_} == {
        u.dtype for u in units if u.number == "chain"
    }
    assert {op for op, _ in counts} >= {"exp", "neg", "convert", "bitcast", "add", "shr", "gelu"}
    assert counts["add", "i8"] == counts["exp", "bf16"] == 1
    assert ("add", "f32") not in counts
    rows = {row.name for row in all_ops()}
    assert {op for op, _ in counts} <= {*rows, huge_arrays.AREA}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i16", "u8", "f8e4m3fn", "f8e5m2"])
def test_all_values_of_up_to_16_bits_are_cast_to_every_dtype(dtype: str) -> None:
    found = [c for c in cases(right(), "convert", dtype) if "every" in c.tags]
    assert {c.graph.outputs[0].dtype for c in found} == set(STORED)
    for case in found:
        (values,) = made_inputs(case, 0)
        assert len(np.unique(patterns(values))) == values.size == 1 << BY_NAME[dtype].bits


def test_all_pairs_of_8_bits_meet() -> None:
    for case in cases(right(), "shr", "i8"):
        x, y = (patterns(a).astype(int) for a in made_inputs(case, 0))
        assert len(np.unique(x * 256 + y)) == 1 << 16
    assert len(cases(right(), "shr", "i8")) == 2


def test_values_of_wide_dtypes_are_spaced_over_all_patterns() -> None:
    first, second = (Recipe("spaced", seed).make(f32[4096]) for seed in (0, 1))
    for made in (first, second):
        assert set(np.diff(patterns(made).astype(np.int64)).tolist()) == {1 << 20}
    assert not np.array_equal(patterns(first), patterns(second))
    kinds = [np.isnan(first).any(), (first < 0).any(), (np.abs(first) < 1e-38).any()]
    assert all(kinds)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_the_last_binade_is_left_out_where_a_row_says_less_of_it(dtype: str) -> None:
    (case,) = cases(right(), "cos", dtype)
    (x,) = made_inputs(case, 0)
    with np.errstate(invalid="ignore"):
        x = x.astype(np.float64)
    finite = np.abs(x[np.isfinite(x)])
    largest = float(format_of(BY_NAME[dtype]).largest)
    assert largest / 4.1 < finite.max() <= largest / 2
    assert np.isinf(x).any() == (dtype in ("f16", "bf16"))
    assert np.isnan(x).any()
    assert (x < 0).any()
    assert finite.min() == 0 or dtype in ("f32", "f64")


@pytest.mark.parametrize("op", ["exp", "neg", "lgamma", "popcount", "add", "rem"])
def test_the_reference_passes(op: str) -> None:
    target = right()
    found = [run_case(target, case) for case in cases(target, op)]
    assert found
    assert [outcome.problem for outcome in found if outcome.problem] == []


def one_entry(call: OpCall) -> None:
    """A table of logarithms with one wrong entry."""
    if call.dtype == np.float16:
        call.results[0][call.operands[0] == np.float16(0.0311)] = 1


def test_one_wrong_entry_of_a_table_is_found() -> None:
    target = spoilt({"log": one_entry})
    (outcome,) = [run_case(target, case) for case in cases(target, "log", "f16")]
    assert outcome.problem is not None
    assert outcome.problem.verdict.wrong == 1


def test_a_chain_of_casts_made_one_is_found() -> None:
    target = faulty("CA07b")
    found = [run_case(target, case) for case in cases(target, "convert", "f8e5m2")]
    wrong = {o.case.tags[0] for o in found if o.problem}
    assert wrong == {"chain"}


def test_names_are_unique_and_equal_seeds_make_equal_cases() -> None:
    target = right()
    for op in ("convert", "gelu", "add", huge_arrays.AREA):
        first = items(target, op, seed=3)
        names = [item.name for item in first]
        assert len(set(names)) == len(names)
        assert names == [item.name for item in items(target, op, seed=3)]
        assert all(item.name.split("/")[:3] == [item.level, op, item.dtype] for item in first)


def test_what_is_not_claimed_is_named_once_a_reason() -> None:
    ops = {claim: d for claim, d in right().capabilities.ops.items() if claim != "exp"}
    target = declaring(lambda given: replace(given, ops=ops))
    found = items(target, "exp", "f16")
    assert [type(item) for item in found] == [Unsupported]


def fast(edits: Mapping[str, OpEdit] | None = None) -> Target:
    limits = Limits(memory_bytes=None)
    return declaring(lambda given: replace(given, simulated=False, limits=limits), edits)


def test_arrays_past_2_31_bytes_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = [i.reason for i in items(right(), huge_arrays.AREA) if isinstance(i, Unsupported)]
    assert len(reasons) == 3
    assert all("simulated" in reason for reason in reasons)
    monkeypatch.setattr(huge_arrays, "available", lambda: 1 << 30)
    target = fast()
    for check in items(target, huge_arrays.AREA):
        assert isinstance(check, Check)
        with pytest.raises(NotOffered, match=r"this host has 1.0 GiB free, and .* needs 10"):
            check.run(target)


def wraps(call: OpCall) -> None:
    """Offsets of 16 bits."""
    (result,) = call.results
    if call.name == "xor":
        result[1 << 16 :] = result[: max(result.size - (1 << 16), 0)].copy()
    if call.name == "slice" and call.attrs["stride"] == (-1,) and result.size:
        result[0] = call.operands[0][(call.operands[0].size - 1) % (1 << 16)]


def test_ends_of_long_arrays_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # As many bytes as offsets of 16 bits reach, and some.
    monkeypatch.setattr(huge_arrays, "BYTES", (1 << 18) + 4 * 1027)
    monkeypatch.setattr(huge_arrays, "_CHUNK", 1 << 12)
    wrong = fast({"xor": wraps, "slice": wraps})
    for target, all_good in ((fast(), True), (wrong, False)):
        checks = [item for item in items(target, huge_arrays.AREA) if isinstance(item, Check)]
        assert len(checks) == 3
        problems = [check.run(target) for check in checks]
        assert all((problem is None) == all_good for problem in problems), problems
