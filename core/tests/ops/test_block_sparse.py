"""Products with blocks: the decomposition holds to its promises, and places may lie anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup.dtypes import f32, i32
from bringup.graph import Builder
from bringup.ops.evaluate import evaluate
from bringup.ops.table import lookup

ROW = lookup("block_sparse_dot")
LEAST = np.iinfo(np.int32).min
#: Rows and columns of blocks in a matrix of 3 × 4: in any order, some twice, some outside.
PLACES = {
    "any order": ([2, 0, 1, 2], [3, 1, 1, 0]),
    "twice": ([1, 1, 1, 0], [2, 2, 2, 2]),
    "outside": ([-1, 3, 0, 1, LEAST], [0, 0, 4, -1, 1]),
    "one column": ([2, 1, 0], [3, 3, 3]),
}


def operands(rows: Any, columns: Any) -> list[Any]:
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (5, 6)).astype(np.float32)
    blocks = rng.integers(-3, 4, (len(rows), 2, 3)).astype(np.float32)
    return [x, blocks, np.array(rows, np.int32), np.array(columns, np.int32)]


def matrix(blocks: Any, rows: Any, columns: Any) -> Any:
    w = np.zeros((6, 12), np.float32)
    for block, row, column in zip(blocks, rows, columns, strict=True):
        if 0 <= row < 3 and 0 <= column < 4:
            w[2 * row : 2 * row + 2, 3 * column : 3 * column + 3] += block
    return w


@pytest.mark.parametrize("places", PLACES)
def test_the_decomposition_needs_no_more_places_than_promised(places: str) -> None:
    arrays = operands(*PLACES[places])
    per_column = max(np.bincount([c for c in PLACES[places][1] if 0 <= c < 4]))
    with Builder() as b:
        types = [f32[a.shape] if a.dtype == np.float32 else i32[a.shape] for a in arrays]
        values = [b.input(t) for t in types]
        attrs = {"features": 12, "per_row": 5, "precision": "highest"}
        made = ROW.decompose(*values, **attrs, per_column=int(per_column))  # type: ignore[misc]
        graph = b.build([made])
    (found,) = evaluate(graph, arrays)
    expected = arrays[0] @ matrix(*arrays[1:])
    assert (found == expected).all()
    assert (ROW.reference(*arrays, features=12) == expected).all()


def test_elements_beside_the_blocks_are_not_looked_at() -> None:
    arrays = operands([1], [2])
    arrays[0][:, :2] = np.nan
    found = ROW.reference(*arrays, features=12)
    assert np.isfinite(found).all()
    with Builder() as b:
        values = [b.input(f32[a.shape] if a.dtype == np.float32 else i32[a.shape]) for a in arrays]
        attrs = {"features": 12, "per_row": 1, "per_column": 1, "precision": "highest"}
        graph = b.build([ROW.decompose(*values, **attrs)])  # type: ignore[misc]
    assert (evaluate(graph, arrays)[0] == found).all()
