"""The rows whose indices are data: what they refuse, whose update stays, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup.dtypes import f32, f64, i32, u64
from bringup.errors import OpTypeError
from bringup.graph import Builder
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, all_ops, lookup
from bringup.types import TensorType

PLACES = {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
ROWS = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}


def refused(name: str, *types: TensorType, **attrs: Any) -> str:
    with Builder() as b, pytest.raises(OpTypeError) as caught:
        lookup(name)(*map(b.input, types), **attrs)
    assert caught.value.fix
    return caught.value.what


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"index_dim": 2}, "index_dim 2 is out of range for i32[4]"),
        ({"index_map": ()}, "index_map () names 0 dimensions, an index of i32[4] has 1 components"),
        ({"index_map": (2,)}, "index_map (2,) does not name dimensions of f32[5,3] once each"),
        ({"collapsed": (1, 0)}, "collapsed (1, 0) is not strictly increasing"),
        ({"collapsed": (7,)}, "collapsed (7,) does not name dimensions of f32[5,3] once each"),
        ({"offset": ()}, "attribute 'offset' has 0 entries for 1 dimensions"),
        ({"offset": (5,)}, "offset (5,) is out of range for windows of rank 2"),
        ({"sizes": (1, 4)}, "windows of sizes (1, 4) do not fit dimension 1 of f32[5,3]"),
        ({"sizes": (2, 3)}, "windows of sizes (2, 3) do not fit dimension 0 of f32[5,3]"),
        ({"batch": ((0,), (0,))}, "batch ((0,), (0,)) does not pair equal dimensions of f32[5,3]"),
        ({"batch": (0, 0)}, "batch (0, 0) is no pair of tuples"),
        ({"mode": "wrap"}, "mode='wrap' is not allowed"),
    ],
    ids=str,
)
def test_dimension_numbers_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    attrs = {**ROWS, "sizes": (1, 3), **changed}
    assert refused("gather", f32[5, 3], i32[4], **attrs).startswith(f"gather: {message}")


def test_batch_dimensions_are_counted_in_by_nobody_else() -> None:
    attrs = {**ROWS, "sizes": (1, 1), "batch": ((0,), (0,)), "offset": ()}
    what = refused("gather", f32[4, 3], i32[4], **{**attrs, "collapsed": (1,)})
    assert what == "gather: batch dimensions (0,) of f32[4,3] stand in index_map (0,) too"


def test_other_operands_that_do_not_fit() -> None:
    assert "does not take f32" in refused("gather", f32[5], f32[4], **PLACES, sizes=(1,))
    kind = {"kind": "add", **PLACES}
    assert "must have the dtype of x" in refused("scatter", f32[5], i32[4], f64[4], **kind)
    assert "must have shape (4,)" in refused("scatter", f32[5], i32[4], f32[3], **kind)
    rows = {"kind": "add", **ROWS}
    assert "do not fit dimension 1" in refused("scatter", f32[5, 3], i32[4], f32[4, 4], **rows)
    assert "names dimensions that" in refused("scatter", f32[5, 3], i32[4], f32[4], **rows)
    assert "1 starts for f32[5,3]" in refused("dynamic_slice", f32[5, 3], i32[()], sizes=(1, 1))
    assert "0-d integers of one dtype" in refused("dynamic_slice", f32[5], i32[1], sizes=(1,))
    two = (f32[5, 3], i32[()], u64[()])
    assert "0-d integers of one dtype" in refused("dynamic_slice", *two, sizes=(1, 1))
    assert "do not fit dimension 0" in refused("dynamic_slice", f32[5], i32[()], sizes=(6,))
    assert "does not fit into f32[5]" in refused("dynamic_update_slice", f32[5], f32[6], i32[()])
    assert "takes x, update and starts" in refused("dynamic_update_slice", f32[5])


def test_the_last_update_in_row_major_order_stays(kit) -> None:
    """Of windows that overlap, too, and where their dimensions come before those of indices."""
    attrs = {"kind": "set", "offset": (0, 2), "index_map": (0, 1), "index_dim": 0}
    x, at = np.zeros((4, 5), np.int32), np.array([[0, 1, 1], [0, 1, 0]], np.int32)
    new = np.arange(1, 19, dtype=np.int32).reshape(2, 3, 3)
    wanted = x.copy()
    for i, k, j in np.ndindex(2, 3, 3):
        wanted[at[0, k] + i, at[1, k] + j] = new[i, k, j]
    graph = kit.graph(lookup("scatter"), [i32[4, 5], i32[2, 3], i32[2, 3, 3]], attrs)
    for each in (graph, kit.lowered(graph)):
        assert evaluate(each, [x, at, new])[0].tolist() == wanted.tolist()


def test_a_window_that_lies_outside_in_part_is_dropped_or_filled_whole(kit) -> None:
    numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1}
    x, at = np.arange(1, 6, dtype=np.int32), np.array([3, 4, -1], np.int32)
    graph = kit.graph(
        lookup("gather"), [i32[5], i32[3]], {**numbers, "sizes": (2,), "mode": "fill"}
    )
    assert evaluate(graph, [x, at])[0].tolist() == [[4, 5], [0, 0], [0, 0]]
    types = [i32[5], i32[3], i32[3, 2]]
    graph = kit.graph(lookup("scatter"), types, {**numbers, "kind": "add"})
    ones = np.full((3, 2), 10, np.int32)
    for each in (graph, kit.lowered(graph)):
        assert evaluate(each, [x, at, ones])[0].tolist() == [1, 2, 3, 14, 15]


def test_signed_zeros_and_nan_are_kept(kit) -> None:
    x = np.array([-0.0, np.nan, -np.inf, 5], np.float32)
    at = np.array([0, 1, 2, 3], np.int32)
    graph = kit.graph(lookup("gather"), [f32[4], i32[4]], {**PLACES, "sizes": (1,)})
    for each in (graph, kit.lowered(graph)):
        assert kit.same(evaluate(each, [x, at])[0], x).all()
    graph = kit.graph(lookup("scatter"), [f32[4], i32[4], f32[4]], {**PLACES, "kind": "set"})
    for each in (graph, kit.lowered(graph)):
        assert kit.same(evaluate(each, [np.ones_like(x), at, x])[0], x).all()
        none = at + 9
        assert kit.same(evaluate(each, [x, none, np.ones_like(x)])[0], x).all()


def test_rows_say_which_operands_hold_their_indices() -> None:
    window = {**PLACES, "sizes": (1,)}
    calls: dict[str, tuple[list[TensorType], dict[str, Any]]] = {
        "dynamic_slice": ([f32[5], i32[()]], {"sizes": (2,)}),
        "dynamic_update_slice": ([f32[5], f32[2], i32[()]], {}),
        "gather": ([f32[5], i32[2]], {**window, "mode": "clip"}),
        "scatter": ([f32[5], i32[2], f32[2]], {**PLACES, "kind": "set"}),
    }
    indexed = [row for row in all_ops() if row.kind is Kind.INDEXED]
    assert {row.name for row in indexed} == set(calls)
    for row in indexed:
        types, attrs = calls[row.name]
        assert row.domain.indices == next(n for n, t in enumerate(types) if t.dtype is i32)
        types[row.domain.indices] = types[row.domain.indices].with_dtype(f32)
        refused(row.name, *types, **attrs)
