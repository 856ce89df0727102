"""Faults that only data, attributes and constants of the right kind show are found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bringup.backend.capabilities import Numerics, Shapes
from bringup.dtypes import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i32, i64, u8, u64
from bringup.graph import Builder, Value
from bringup.ops.table import all_ops, lookup
from bringup_conformance.execution.support import Support
from bringup_conformance.generate import attribute_variants, drawing, hazards_numbers
from bringup_conformance.generate.choices import Stream
from bringup_conformance.generate.hazards import PatternInputs
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle import special
from bringup_conformance.oracle.numbers import nan_patterns
from bringup_conformance.oracle.verdict import text_of
from bringup_conformance.rules.cells import cells_of
from bringup_selftest import process_pool
from bringup_selftest.corpus import faults
from bringup_selftest.killing import Options

#: Faults by the cases that find them.
FOUND = {
    "ops/max/f32": "SV34a",
    "ops/compare/i64": "DT30a",
    "ops/sort/i64": "DT36a",
    "ops/reduce/i64": "DT34a",
    "ops/convert/f64": "SV31a",
    "ops/convert/f32": "CA27a CA28a",
    "ops/reduce/f16": "RD30a RD33a RD35a",
    "ops/cumulative/f32": "RD36a",
    "ops/layer_norm/f32": "RD38a PA15a CK05f",
    "ops/dot_general/f32": "DO30a",
    "fusion/there-and-back/f32": "CA07c",
    "fusion/div-then": "IN28a IN29a",
    "fusion/mul-then/u32": "IN32a IN33a",
    "ops/argmax/f32": "SV36a",
    "ops/transpose/f32": "SV38a",
}


@pytest.mark.parametrize("only", FOUND)
def test_faults_are_found_by_the_cases_of_their_rows(only: str) -> None:
    wanted = FOUND[only].split()
    chosen = [fault for fault in faults() if fault.id in wanted]
    options = Options(only.split("/", maxsplit=1)[0], simulated=False, only=only, shrink_seconds=0)
    found = {row.id: row.killed for row in process_pool.examined(chosen, options, 1)}
    assert found == dict.fromkeys(wanted, True)


def test_nan_has_every_sort_of_payload_and_both_signs() -> None:
    made = Recipe("nans", 0).make(f32[500])
    bits = made.view(np.uint32)[np.isnan(made)]
    assert {0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF} <= set(bits.tolist())
    quiet = bits & 0x400000 != 0
    assert 0.2 < quiet.mean() < 0.9
    assert len(set(bits.tolist())) > 40
    words = np.arange(8, dtype=np.uint64)
    for dtype in (f16, f8e4m3fn):
        for patterns in nan_patterns(dtype, words):
            assert np.isnan(patterns.view(dtype.numpy)).all()


def _constant(value: Value) -> int:
    """The element of a constant of equal ones."""
    made = value.producer
    assert made is not None
    literal = value.literal
    return int(literal.scalar) if literal is not None else _constant(made.operands[0])


@pytest.mark.parametrize("dtype", [i32, u8])
def test_integers_meet_every_pair_of_ops_by_constants(dtype: DType) -> None:
    found: dict[str, set[int]] = {}
    for name, build in {**hazards_numbers.SIGNED, **hazards_numbers.UNSIGNED}.items():
        with Builder() as builder:
            outputs = build(PatternInputs(builder, dtype, 4, 64, (5, 7, 9), Stream(0, name)))
        for value in outputs:
            second = value.producer
            assert second is not None
            first = second.operands[0].producer
            if first is None:
                continue
            assert name == f"{first.op.name}-then"
            numbers = [_constant(instr.operands[1]) for instr in (first, second)]
            assert all(numbers)
            found.setdefault(f"{first.op.name} {second.op.name}", set()).add(numbers[0])
    assert len(found) == 36
    assert all(len(constants) > 1 for constants in found.values())
    by_division = set().union(*(c for pair, c in found.items() if pair.startswith("div")))
    assert by_division >= {c for c in (2, 3, 5, 7, 10, 641) if c < 256 or dtype is i32}


@pytest.mark.parametrize("dtype", [i8, i64, u64, f16, f64], ids=lambda d: d.name)
def test_neighbours_are_at_most_two_steps_apart_at_any_magnitude(dtype: DType) -> None:
    first, second = (Recipe("near", seed).make(dtype[400]) for seed in (32, 33))
    words = [a.view(f"u{dtype.itemsize}") for a in (first, second)]
    steps = np.minimum(words[0] - words[1], words[1] - words[0])
    assert set(steps.tolist()) == {0, 1, 2}
    assert not np.array_equal(first, Recipe("near", 48).make(dtype[400]))
    halves = np.sort(np.abs(first.astype(np.float64)))
    assert halves[300] > 100 * max(halves[50], 1e-300) or dtype is i8


def test_extremes_are_the_ends_of_the_dtype_or_of_the_interval() -> None:
    assert set(Recipe("extremes").make(i8[50]).tolist()) == {-128, 127}
    assert set(Recipe("extremes").make(f16[50]).tolist()) == {-65504.0, 65504.0}
    assert set(Recipe("extremes", interval=(1.0, 9.0)).make(f32[50]).tolist()) == {1.0, 9.0}


def test_large_numbers_overflow_in_sums_but_not_alone() -> None:
    for dtype in (f16, f64, i32):
        made = Recipe("large", 1).make(dtype[64]).astype(np.longdouble)
        largest = float(np.abs(Recipe("extremes").make(dtype[9]).astype(np.longdouble)).max())
        assert np.isfinite(made).all()
        assert largest / 256 < np.median(np.abs(made)) < largest
        assert np.abs(np.add.accumulate(made)).max() > largest or dtype is i32


def test_tiny_numbers_are_subnormal_or_next_to_it() -> None:
    for dtype, least in ((f16, 2.0**-14), (f32, 2.0**-126), (f64, 2.0**-1022)):
        made = np.abs(Recipe("tiny", 1).make(dtype[256])).astype(np.float64)
        assert made.max() < 8 * least
        assert 128 < np.count_nonzero((made > 0) & (made < least)) < 256
    assert Recipe("tiny").make(i32[4]).tolist() == Recipe("tiny", 5).make(i32[4]).tolist()


def test_cells_about_nan_hold_for_every_pattern() -> None:
    (cells,) = (
        each
        for each in special.groups(lookup("convert"), f32, Numerics(), 4)
        if ("nan",) in [cell.operands for cell in each.cells]
        and dict(each.cells[0].attrs)["dtype"] is f16
    )
    (column,) = special.operands(cells, f32)
    at = [cell.operands for cell in cells.cells].index(("nan",))
    found = column[at :: len(cells.cells)]
    assert np.isnan(found).all()
    assert len(set(found.view(np.uint32).tolist())) >= 4


#: Attributes that have one value in every run, and why.
CONSTANT = {
    "scatter.unique": "it promises something that data made of recipes would break",
    "print.text": "a text would be printed in every run",
    "print.names": "a text would be printed in every run",
    "call.rule": "rules are functions of the user's, which no instance holds",
    "scan.consts": "bodies of scans are graphs, of one form",
    "scan.carries": "bodies of scans are graphs, of one form",
}


def test_every_attribute_has_two_values() -> None:
    support, found = Support(lambda _graph: None), set()
    for row in filter(lambda row: row.attrs, all_ops()):
        seen: dict[str, set[str]] = {attr.name: set() for attr in row.attrs}
        for dtype in [d for d in (f32, f16) if d in row.dtypes] or row.dtypes[:1]:
            given = instances(row, dtype, Shapes(vector=16, block=64), 0, few=True)
            cases = attribute_variants.cases(support, row, dtype.name, "ops", given, 0)
            made = [v.producer for case in cases for v in case.graph.outputs]
            tables = [drawing.bound(row, i) for i in given]
            for attrs in (*tables, *(instr.attrs for instr in made if instr is not None)):
                for name, value in attrs.items():
                    seen[name].add(str(value))
        found |= {f"{row.name}.{name}" for name, values in seen.items() if len(values) < 2}
    assert found == set(CONSTANT)


def test_powers_of_minus_one_tell_odd_exponents_of_every_size() -> None:
    cells = {cell.operands[1] for cell in cells_of(lookup("pow"), f64) if cell.operands[0] == "-1"}
    assert {str(2**n + d) for n in (24, 31) for d in (-1, 0, 1)} <= cells
    assert {str(2**53 - 1), str(2**53), str(2**64)} <= cells


def test_twins_differ_in_one_attribute() -> None:
    row = lookup("layer_norm")
    first = instances(row, f32, Shapes(vector=16, block=64), 0)[0]
    own = drawing.bound(row, first)
    for name, other in attribute_variants.variants(row, first).items():
        attrs = drawing.bound(row, other)
        assert [n for n in attrs if attrs[n] != own[n]] == [name]
        assert other.operands == first.operands


def test_some_instances_have_equal_sizes_and_others_primes() -> None:
    found = instances(lookup("sort"), f32, Shapes(vector=16, block=64), 0)
    shapes = [t.shape for i in found for t in i.operands if t.rank > 1]
    assert any(set(shape) == {5} for shape in shapes)
    assert any(shape == (3, 5) for shape in shapes)


@pytest.mark.parametrize("dtype", [f8e4m3fn, f8e5m2], ids=str)
def test_messages_tell_values_that_the_dtype_has(dtype: DType) -> None:
    for code in range(256):
        element = np.array([code], np.uint8).view(dtype.numpy)[0]
        text, value = text_of(element, dtype), float(element)
        if np.isnan(value):
            assert re.fullmatch(r"-?nan( \(0x[0-9a-f]{2}\))?", text)
            assert text.startswith("-") == (code >= 0x80)
        else:
            assert float(text) == value
    assert text_of(np.float32("nan"), f32) == "nan"
    assert text_of(np.array([0x7FC1], np.uint16).view(bf16.numpy)[0], bf16) == "nan (0x7fc1)"
