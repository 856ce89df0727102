"""Decompositions: nothing but tier 0 is left, and the value is the reference's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bringup.dtypes import f32, f64, i32
from bringup.graph import Builder, replay
from bringup.ops.evaluate import evaluate, run_instr
from bringup.ops.table import EXACT, Accuracy, Kind, OpDef, all_ops, lookup
from bringup.passes.base import as_results

# Absolute, relative to the largest element: rows whose bound is that of their decomposition.
LOOSE = {"f16": 2e-3, "bf16": 2e-2, "f32": 2e-5, "f64": 1e-13}


def dtypes_of(row: OpDef):
    """Whole kinds behave alike; one narrow and one wide of each, and all floats."""
    keep = ("bool", "i8", "i32", "u8", "u64", "f16", "bf16", "f32", "f64")
    if row.accuracy.residual is not None:
        return []  # test_residuals.py
    return [d for d in row.dtypes if d.name in keep]


#: Rows of many cases that treat elements of every dtype alike; these dtypes see all of them.
MOVING, ALL_CASES = ("gather", "scatter", "sort"), (i32, f32)


def each_case(kit, row, seed=0):
    others = [d for d in dtypes_of(row) if d not in ALL_CASES]
    for dtype in dtypes_of(row):
        for number, (types, attrs) in enumerate(kit.cases(row, dtype)):
            if row.name in MOVING and dtype in others and number % 7 != others.index(dtype):
                continue  # seven other dtypes, of which each case is for one
            graph = kit.graph(row, types, attrs)
            if kit.is_tier0(graph.instrs[0]):
                continue
            yield (
                dtype,
                graph,
                [kit.values(t.dtype, t.shape, seed + i) for i, t in enumerate(types)],
            )


def check(kit, row, dtype, graph, arrays, actual):
    (instr,) = graph.instrs
    wanted, *more = run_instr(instr, arrays)
    actual, *others = actual
    for got, other in zip(others, more, strict=True):
        assert kit.same(got, other).all(), "rows of several results are exact so far"
    assert actual.shape == wanted.shape
    assert actual.dtype == wanted.dtype
    accuracy = row.accuracy_for(instr.attrs)
    if accuracy.exact or not instr.results[0].dtype.is_float:
        assert kit.same(actual, wanted).all(), (instr.attrs, dtype)
    elif accuracy.ulp:
        wide = row.reference(*[a.astype(kit.wider(dtype)) for a in arrays], **instr.attrs)
        errors = kit.ulps(actual, wide, dtype)
        assert errors.max(initial=0) <= accuracy.ulp[dtype.name], (dtype, errors.max())
    else:
        close(actual, wanted, dtype)


def close(actual, wanted, dtype):
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isnan(actual), np.isnan(wanted))
    scale = np.abs(wanted[finite]).max(initial=1e-30)
    assert np.abs(actual[finite] - wanted[finite]).max(initial=0) <= LOOSE[dtype.name] * scale


def loosely_checked(row: OpDef, attrs) -> bool:
    accuracy = row.accuracy_for(attrs)
    return not accuracy.exact and not accuracy.ulp


def test_tier_0_is_left_and_its_value_is_the_reference(kit, decomposable: OpDef) -> None:
    for dtype, graph, arrays in each_case(kit, decomposable):
        inputs = arrays
        if loosely_checked(decomposable, graph.instrs[0].attrs):
            # Sums of numbers of every size say nothing: the order decides overflow.
            rng = np.random.default_rng(5)
            inputs = [(rng.normal(size=a.shape) * 3).astype(a.dtype) for a in arrays]
        lowered = kit.lowered(graph)
        assert all(map(kit.is_tier0, lowered.instrs))
        assert [v.type for v in lowered.outputs] == [v.type for v in graph.outputs]
        actual = evaluate(lowered, inputs)
        check(kit, decomposable, dtype, graph, inputs, actual)


def test_one_step_of_decomposition_is_the_reference(kit, composite: OpDef) -> None:
    for dtype, graph, arrays in each_case(kit, composite, seed=3):
        if loosely_checked(composite, graph.instrs[0].attrs):
            continue
        (instr,) = graph.instrs
        with Builder() as b:
            values = [b.input(v.type) for v in graph.inputs]
            once = b.build(as_results(instr.op.decompose(*values, **instr.attrs)))
        check(kit, composite, dtype, graph, arrays, evaluate(once, arrays))


@pytest.mark.parametrize("name", ["neg", "abs", "concatenate"])
def test_moves_and_sign_changes_keep_nan_payloads(kit, name: str) -> None:
    row, bits = lookup(name), np.array([0x7FC12345, 0xFFC00001, 0x80000000, 0x7F800001], np.uint32)
    arrays = [bits.view(np.float32)] * (2 if name == "concatenate" else 1)
    attrs = {"dim": 0} if name == "concatenate" else {}
    graph = kit.graph(row, [f32[4]] * len(arrays), attrs)
    actual, wanted = evaluate(kit.lowered(graph), arrays)[0], evaluate(graph, arrays)[0]
    assert np.array_equal(actual.view(np.uint32), wanted.view(np.uint32))


INEXACT = ("exp", "log", "sin")


def shaken(graph, arrays, seed):
    """The graph's value when tier 0 functions are as far off as their rows allow."""
    rng = np.random.default_rng(seed)
    values = dict(zip(graph.inputs, arrays, strict=True))
    for instr in graph.instrs:
        (result,) = run_instr(instr, [values[v] for v in instr.operands])
        if instr.op.name in INEXACT:
            # The reference is right to 0.6 ULP at worst.
            off = round(instr.op.accuracy.ulp[instr.result.dtype.name] - 0.6)
            wrong, towards = result, np.where(rng.random(result.shape) < 0.5, -np.inf, np.inf)
            for _ in range(off):
                wrong = np.nextafter(wrong, towards.astype(result.dtype))
            special = (result == 0) | ~np.isfinite(result) | (np.abs(result) == 1)
            result = np.where(special, result, wrong).astype(result.dtype)
        values[instr.result] = result
    return values[graph.outputs[0]]


STATED = ["cos", "tanh", "pow", "logistic", "erf", "log1p", "expm1", "rsqrt"]


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", STATED)
def test_the_stated_accuracy_leaves_room_for_tier_0(kit, name: str, dtype) -> None:
    row = lookup(name)
    graph = kit.graph(row, [dtype[20000]] * row.arity, {})
    lowered = kit.lowered(graph)
    for seed, spread in enumerate((1, 4, 10)):
        rng = np.random.default_rng(seed)
        drawn = [np.exp2(rng.uniform(-spread, spread / 2, 20000)) for _ in range(row.arity)]
        arrays = [(x * rng.choice([-1, 1], 20000)).astype(dtype.numpy) for x in drawn]
        wide = row.reference(*[a.astype(kit.wider(dtype)) for a in arrays])
        errors = kit.ulps(shaken(lowered, arrays, seed), wide, dtype)
        assert errors.max() <= row.accuracy.ulp[dtype.name]


def test_a_stated_accuracy_is_needed(kit) -> None:
    """The test above would fail if the tier 0 functions were worse than allowed."""
    row = lookup("tanh")
    graph = kit.lowered(kit.graph(row, [f32[2000]], {}))
    x = np.linspace(0.7, 2, 2000, dtype=np.float32)
    broken = replace(lookup("exp"), accuracy=Accuracy(ulp={"f32": 40.0}))

    def rewrite(instr, operands):
        return [broken(*operands)] if instr.op.name == "exp" else None

    with Builder() as b:
        worse = b.build(replay(graph, rewrite))
    errors = kit.ulps(shaken(worse, [x], 0), row.reference(x.astype(np.float64)), f32)
    assert errors.max() > row.accuracy.ulp["f32"]


def test_cos_of_the_last_binade_is_right_to_an_absolute_error(kit) -> None:
    x = np.array([1.8e38, -2.5e38, 3.3e38], np.float32)
    (actual,) = evaluate(kit.lowered(kit.graph(lookup("cos"), [f32[3]], {})), [x])
    assert np.abs(actual - np.cos(x.astype(np.float64))).max() < 1e-6


def test_integer_powers_of_every_bit_of_the_exponent(kit) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, 400).astype(np.int32)
    y = rng.integers(0, 2**31, 400).astype(np.int32) >> rng.integers(0, 31, 400).astype(np.int32)
    (actual,) = evaluate(kit.lowered(kit.graph(lookup("pow"), [i32[400]] * 2, {})), [x, y])
    wanted = [pow(int(a), int(b), 2**32) for a, b in zip(x, y, strict=True)]
    assert np.array_equal(actual.view(np.uint32), np.array(wanted, np.uint32))


def test_every_row_beyond_tier_0_has_a_decomposition() -> None:
    for row in all_ops():
        beyond = set(row.claims) - set(row.tier0_claims)
        driven = row.kind is Kind.CONTROL  # core runs what the device does not
        assert not beyond or driven or row.decompose is not None, row.name
        assert row.kind is not Kind.COMPOSITE or not row.tier0_claims


def test_exact_rows_state_it() -> None:
    moves = [row for row in all_ops() if row.kind is Kind.MOVEMENT]
    assert moves
    assert all(row.accuracy is EXACT for row in moves)
