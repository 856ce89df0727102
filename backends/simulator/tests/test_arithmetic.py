"""The arithmetic of the chip at its edges, and that every row computes what its name says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bringup_simulator import CASTS, DTYPES, OPERATIONS
from bringup_simulator.arithmetic import kind_of, tree

INTS = [d for d in DTYPES if d[0] in "iu"]
FLOATS = ["f16", "bf16", "f32", "f64"]
NAN, INF = math.nan, math.inf


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def run(op: str, dtype: str, *operands: Any, result: str | None = None) -> Any:
    kind = DTYPES[dtype]
    # Python integers beyond i64 would pass through floats.
    exact = object if kind.kind in "iu" else None
    arrays = [np.asarray(o, exact).astype(kind).reshape(1, -1) for o in operands]
    with np.errstate(all="ignore"):
        if op in CASTS:
            assert result is not None
            out = CASTS[op](arrays[0], DTYPES[result])
        else:
            out = OPERATIONS[op].compute(*arrays)
    assert out.dtype == DTYPES["bool" if op in COMPARISONS else result or dtype]
    assert out.ndim == 2
    return out[0]


def limits(dtype: str) -> tuple[int, int]:
    info = np.iinfo(DTYPES[dtype])
    return int(info.min), int(info.max)


@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap(dtype: str) -> None:
    low, high = limits(dtype)
    assert run("add", dtype, [high], [1]).tolist() == [low]
    assert run("sub", dtype, [low], [1]).tolist() == [high]
    assert run("neg", dtype, [low]).tolist() == [low]
    assert run("abs", dtype, [low]).tolist() == [low]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division(dtype: str) -> None:
    low, high = limits(dtype)
    ones = -1 if low else high
    assert run("div", dtype, [7, 0, high], [0, 0, 0]).tolist() == [ones] * 3
    assert run("rem", dtype, [7, 0, high], [0, 0, 0]).tolist() == [7, 0, high]
    if low:
        a, b = [7, -7, 7, -7, low], [2, 2, -2, -2, -1]
        assert run("div", dtype, a, b).tolist() == [3, -3, -3, 3, low]
        assert run("rem", dtype, a, b).tolist() == [1, -1, 1, -1, 0]


@pytest.mark.parametrize("dtype", INTS)
def test_shifts(dtype: str) -> None:
    low, high = limits(dtype)
    width = 8 * DTYPES[dtype].itemsize
    counts = [0, 1, width - 1, width, 100]
    assert run("shl", dtype, [1] * 5, counts).view(f"u{width // 8}").tolist() == [
        1, 2, 1 << (width - 1), 0, 0,
    ]  # fmt: skip
    top = low or high
    ones = -1 if low else high
    bits = top % (1 << width)
    logical = run("shr_l", dtype, [top] * 5, counts).view(f"u{width // 8}").tolist()
    assert logical == [bits, bits >> 1, 1, 0, 0]
    arithmetic = run("shr_a", dtype, [top] * 5, counts).tolist()
    assert arithmetic == [top, low >> 1 if low else high, ones, ones, ones]
    assert run("shr_a", dtype, [high >> 1], [1]).tolist() == [high >> 2]
    if low:
        assert run("shl", dtype, [1], [-1]).tolist() == [0]
        assert run("shr_a", dtype, [-9], [-1]).tolist() == [-1]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_powers_wrap(dtype: str) -> None:
    low, high = limits(dtype)
    bases, exponents = [3, 2, 0, 0, 1, 5], [4, 7, 0, 3, 9, 7]
    modulus = high - low + 1
    expected = [pow(b, e, modulus) for b, e in zip(bases, exponents, strict=True)]
    expected = [e - modulus if e > high else e for e in expected]
    assert run("pow", dtype, bases, exponents).tolist() == expected
    if low:
        got = run("pow", dtype, [1, -1, -1, 2, 0, -2], [-3, -3, -2, -1, -1, 3])
        assert got.tolist() == [1, -1, 1, 0, 0, -8]


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_and_min_propagate_nan_and_order_zeros(dtype: str) -> None:
    a, b = [NAN, 1.0, 0.0, -0.0, -INF, 2.0], [1.0, NAN, -0.0, 0.0, INF, 2.0]
    high = run("max", dtype, a, b).astype(np.float64)
    low = run("min", dtype, a, b).astype(np.float64)
    np.testing.assert_array_equal(high, [NAN, NAN, 0, 0, INF, 2])
    np.testing.assert_array_equal(low, [NAN, NAN, 0, 0, -INF, 2])
    assert not np.signbit(high[2:4]).any()
    assert np.signbit(low[2:4]).all()


@pytest.mark.parametrize("target", INTS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer_saturates_and_truncates(source: str, target: str) -> None:
    low, high = limits(target)
    got = run("convert", source, [NAN, INF, -INF, 2.75, -0.5, 100.0], result=target)
    assert got.tolist() == [0, high, low, 2, 0, 100]
    if low:
        assert run("convert", source, [-2.75], result=target).tolist() == [-2]
    if source == "f64":
        edges = run("convert", source, [2.0**63, 2.0**64, -(2.0**63)], result=target)
        past = [min(high, 2**63), high, low]
        assert edges.tolist() == past


@pytest.mark.parametrize("source", INTS)
@pytest.mark.parametrize("target", INTS)
def test_integer_conversions_saturate_or_truncate(source: str, target: str) -> None:
    values = [*limits(source), 5]
    low, high = limits(target)
    got = run("convert", source, np.array(values, object), result=target)
    assert got.tolist() == [min(max(v, low), high) for v in values]
    wrapped = run("truncate", source, np.array(values, object), result=target)
    modulus = high - low + 1
    assert wrapped.tolist() == [(v - low) % modulus + low for v in values]


def test_conversions_to_and_from_bool() -> None:
    assert run("convert", "f32", [NAN, -0.0, 0.5], result="bool").tolist() == [True, False, True]
    assert run("convert", "bool", [True, False], result="i16").tolist() == [1, 0]
    assert run("convert", "bool", [True, False], result="bf16").tolist() == [1, 0]


def test_each_step_rounds_to_its_own_type() -> None:
    # 256 + 1 is no bf16, and 2048 + 1 no f16: both ties go to even.
    assert run("add", "bf16", [256.0], [1.0]).tolist() == [256.0]
    assert run("add", "f16", [2048.0], [1.0]).tolist() == [2048.0]
    assert run("mul", "f16", [300.0], [300.0]).tolist() == [INF]


def test_bitcast_keeps_bits() -> None:
    assert run("bitcast", "f32", [-0.0, 1.0], result="u32").tolist() == [1 << 31, 0x3F80_0000]
    assert run("bitcast", "u16", [0x3F80], result="bf16").tolist() == [1.0]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("op", ["floor", "exp", "log", "sqrt", "sin", "cos", "tanh"])
def test_float_functions(op: str, dtype: str) -> None:
    x = np.array([0.25, 0.5, 1.5, 2.5])
    expected = getattr(np, op)(x)
    unit = float(np.finfo(DTYPES[dtype]).eps) if dtype != "bf16" else 2.0**-7
    np.testing.assert_allclose(run(op, dtype, x).astype(np.float64), expected, rtol=2 * unit)


def test_comparisons_are_false_for_nan_but_ne() -> None:
    got = {op: bool(run(op, "f32", [NAN], [1.0])[0]) for op in COMPARISONS}
    assert got == {"eq": False, "ne": True, "lt": False, "le": False, "gt": False, "ge": False}
    less = {op: bool(run(op, "i8", [-1], [1])[0]) for op in got}
    assert less == {"eq": False, "ne": True, "lt": True, "le": True, "gt": False, "ge": False}


@pytest.mark.parametrize(
    ("op", "expected"),
    [("add", 36), ("mul", 40320), ("max", 8), ("min", 1), ("and_", 0), ("or_", 15), ("xor", 8)],
)
def test_trees(op: str, expected: int) -> None:
    rows = np.arange(1, 9, dtype=np.int32)[None, :]
    assert tree(OPERATIONS[op].compute, rows).tolist() == [[expected]]


@pytest.mark.parametrize("count", range(1, 20))
def test_trees_of_any_number_of_elements(count: int) -> None:
    rows = np.arange(2 * count).reshape(2, count)
    assert tree(np.add, rows)[:, 0].tolist() == rows.sum(1).tolist()


def test_every_operation_keeps_the_type_it_declares() -> None:
    for name, row in OPERATIONS.items():
        for dtype, kind in DTYPES.items():
            if name != "select" and kind_of(kind) in row.kinds and kind_of(kind) != "s":
                run(name, dtype, *[[1, 0, 1]] * row.arity)


def test_casts_refuse_what_they_cannot_do() -> None:
    for cast, source, target in (
        ("truncate", "f32", "i32"),
        ("truncate", "i32", "f32"),
        ("truncate", "bool", "i32"),
        ("bitcast", "f32", "i64"),
        ("bitcast", "bool", "u8"),
    ):
        with pytest.raises(TypeError, match=f"{cast} takes no {source} to {target}"):
            run(cast, source, [1], result=target)
