"""The special-value table: every cell holds for the reference and for the decomposition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup.dtypes import BY_NAME, bf16, f16, f32, i8, u8, u64
from bringup.graph import attrs_key
from bringup.ops.evaluate import evaluate
from bringup.ops.special_values import WORDS, Special, agrees, allowed, special_value
from bringup.ops.table import OpDef, all_ops
from bringup.types import TensorType

DTYPE_OF = {d.numpy: d for d in BY_NAME.values()}


def cells(row: OpDef):
    """Each cell with each dtype it holds for."""
    for cell in row.special:
        for dtype in row.dtypes:
            if cell.holds_for(dtype):
                yield cell, dtype


def applied(kit, row, cell, dtype):
    arrays = [special_value(text, dtype) for text in cell.operands]
    types = [TensorType(a.shape, DTYPE_OF[a.dtype]) for a in arrays]
    return kit.graph(row, types, dict(cell.attrs)), arrays


def test_the_reference_fills_every_cell(kit, any_row: OpDef) -> None:
    for cell, dtype in cells(any_row):
        graph, arrays = applied(kit, any_row, cell, dtype)
        result, *_ = evaluate(graph, arrays)
        assert allowed(result, cell.result, graph.outputs[0].dtype), (cell, dtype, result)


def test_the_decomposition_to_tier_0_fills_every_cell(kit, decomposable: OpDef) -> None:
    """Cells of single elements and equal attributes are elements of one array."""
    groups: dict[object, list[Any]] = {}
    for cell, dtype in cells(decomposable):
        graph, arrays = applied(kit, decomposable, cell, dtype)
        key = tuple(v.type for v in graph.inputs), attrs_key(graph.instrs[0].attrs)
        groups.setdefault(key, []).append((cell, graph, arrays))
    for group in groups.values():
        graph = group[0][1]
        single = all(v.type.shape == () for v in (*graph.inputs, *graph.outputs))
        if single and not decomposable.holds_graphs:
            types = [TensorType((len(group),), v.dtype) for v in graph.inputs]
            whole = kit.lowered(kit.graph(decomposable, types, dict(group[0][0].attrs)))
            stacked = [
                np.stack(operand) for operand in zip(*(arrays for *_, arrays in group), strict=True)
            ]
            results = list(evaluate(whole, stacked)[0])
        else:
            lowered = kit.lowered(graph)
            results = [evaluate(lowered, arrays)[0] for *_, arrays in group]
        for (cell, _, _), result in zip(group, results, strict=True):
            dtype = graph.outputs[0].dtype
            assert allowed(np.asarray(result), cell.result, dtype), (cell, dtype, result)


def test_every_cell_holds_for_some_dtype_of_its_row(any_row: OpDef) -> None:
    found = {cell for cell, _ in cells(any_row)}
    assert found == set(any_row.special)


def test_no_cell_is_there_twice(any_row: OpDef) -> None:
    assert len(set(any_row.special)) == len(any_row.special)


def test_every_float_function_says_what_nan_and_infinity_give(float_function: OpDef) -> None:
    texts = " ".join(
        text for c in float_function.special if c.holds_for(f32) for text in c.operands
    )
    assert "nan" in texts
    assert "inf" in texts


def test_every_integer_function_says_what_the_range_s_ends_give(integer_function: OpDef) -> None:
    texts = {text for c in integer_function.special if c.holds_for(i8) for text in c.operands}
    assert "INT_MIN" in texts or "INT_MAX" in texts


def test_a_wrong_result_is_seen() -> None:
    assert not allowed(np.float32(0.0), "-0.0", f32)
    assert not allowed(np.float32(1.0), "nan", f32)
    assert not allowed(np.int32(0), "0", i8), "another dtype"
    assert not allowed(np.zeros(1, np.int8), "0", i8), "another shape"
    assert not agrees(np.asarray(-np.float32("nan")), "+nan", f32)
    assert allowed(np.asarray(-np.float32("nan")), "nan", f32)
    assert allowed(np.float32(3.0), ("0.0", "3"), f32)
    assert allowed(np.float32(3.0), "unspecified", f32)


@pytest.mark.parametrize("dtype", [f16, bf16, f32])
def test_words_of_floats(dtype) -> None:
    tiny, least = special_value("TINY", dtype), special_value("SUBNORMAL", dtype)
    assert 0 < least < tiny
    assert np.isfinite(special_value("MAX", dtype))
    assert special_value("MAX", dtype) == np.nextafter(
        dtype.numpy.type(np.inf), dtype.numpy.type(0)
    )
    assert np.signbit(special_value("-nan", dtype))
    assert not np.signbit(special_value("+nan", dtype))
    assert special_value("-SUBNORMAL", dtype) == -least


def test_words_of_integers() -> None:
    assert special_value("INT_MIN", i8) == -128
    assert special_value("INT_MIN", u8) == 0
    assert special_value("INT_MAX", u64) == 2**64 - 1
    assert special_value("BITS", i8) == 8
    assert special_value("[true, false]", i8).dtype == bool
    assert special_value("i32:[INT_MIN, 1]", f32).tolist() == [-(2**31), 1]
    assert special_value("[]", f32).shape == (0,)


def test_every_word_is_used() -> None:
    words = {
        word.strip("[] ")
        for row in all_ops()
        for cell in row.special
        for result in ((cell.result,) if isinstance(cell.result, str) else cell.result,)
        for text in (*cell.operands, *result)
        for word in text.split(",")
    }
    assert set(WORDS) <= words


def test_holds_for_names_kinds_and_dtypes() -> None:
    assert Special(("1",), "1", ("int",)).holds_for(i8)
    assert Special(("1",), "1", ("i8",)).holds_for(i8)
    assert not Special(("1",), "1", ("float", "u8")).holds_for(i8)
