"""Products with blocks natively, against numpy in double precision: every edge of a tile, a vector,
a unit and a run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.apply import apply
from bringup.ops.table import lookup

#: Half an ULP of a result near 1, and what a sum in f32 or wider adds to it.
STEP = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SUM = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-24, "bfloat16": 2.0**-24}

#: Rows of x, block rows and columns, blocks.
FORMS: list[tuple[tuple[int, ...], int, int, tuple[int, int, int]]] = [
    ((1,), 4, 3, (7, 16, 16)),
    ((), 5, 2, (6, 8, 24)),
    ((5,), 3, 3, (4, 1, 1)),
    ((13,), 4, 5, (11, 7, 5)),
    ((2, 29), 6, 4, (15, 12, 40)),
    ((130,), 3, 2, (5, 33, 64)),
    ((6,), 2, 3, (1, 4, 8)),
    ((7,), 2, 3, (0, 4, 8)),
    ((3,), 0, 3, (2, 4, 8)),
]


def error_bound(arrays: list[Any], dtype: str, features: int) -> Any:
    """Of each element: the rounding of the result, and one of each product and sum in a chain."""
    wide = [np.abs(a.astype(np.float64)) if a.dtype.kind != "i" else a for a in arrays]
    sizes = lookup("block_sparse_dot").reference(*wide, features=features)
    terms = arrays[1].shape[0] * arrays[1].shape[1] + 2
    return sizes * (STEP[dtype] + terms * SUM[dtype])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", STEP)
def test_values(form: Any, dtype: str) -> None:
    lead, down, across, block = form
    rng = np.random.default_rng(2)
    count, height, width = block
    numbers = [rng.normal(size=(*lead, down * height)), rng.normal(size=block)]
    held = [bu.asarray(x, dtype=getattr(bu, dtype)) for x in numbers]
    held += [bu.asarray(rng.integers(-1, n + 1, count), dtype=bu.int32) for n in (down, across)]
    found = np.asarray(apply("block_sparse_dot", held, {"features": across * width}))
    arrays = [np.asarray(x) for x in held]
    wide = [a.astype(np.float64) if a.dtype.kind != "i" else a for a in arrays]
    wanted = lookup("block_sparse_dot").reference(*wide, features=across * width)
    bound = error_bound(arrays, dtype, across * width)
    assert (np.abs(found.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.parametrize(("count", "height"), [(9, 1024), (2, 5000), (1, 9000)])
def test_long_sums_are_sums_of_short_ones(count: int, height: int) -> None:
    """One behind the other, 9,000 additions of less than half an ULP of 1 would all be lost."""
    each = np.float32(0.99 * 2.0**-24)
    x = np.full((3, height * count), each)
    x[:, 0] = 1
    blocks = bu.ones((count, height, 8), dtype=bu.float32)
    places = bu.arange(count, dtype=bu.int32), bu.zeros(count, dtype=bu.int32)
    attrs = {"features": 8}
    found = np.asarray(apply("block_sparse_dot", (bu.asarray(x), blocks, *places), attrs))
    exact = 1 + np.float64(each) * (height * count - 1)
    terms = 2048 + count * -(-height // 2048)
    assert (np.abs(found - exact) <= terms * 2.0**-24 * exact).all()


def test_it_is_one_launch_that_costs_what_is_stored() -> None:
    rng = np.random.default_rng(0)
    keeps = np.kron(rng.random((16, 16)) < 0.1, np.ones((32, 32)))
    w = bu.asarray((keeps * rng.normal(size=(512, 512))).astype(np.float32))
    x = bu.ones((64, 512), dtype=bu.float32)
    sparse = bu.prune.block_sparse(w)
    costs = [bu.jit(lambda w, x: x @ w).lower(each, x).cost() for each in (w, sparse)]
    assert costs[1].kernels == 1
    assert costs[1].bytes_read < costs[0].bytes_read / 2


def test_places_are_data_of_one_program() -> None:
    product = bu.jit(lambda *a: apply("block_sparse_dot", a, {"features": 16}))
    x, blocks = bu.ones((4, 16), dtype=bu.float32), bu.ones((2, 8, 8), dtype=bu.float32)
    for rows, columns in (([0, 1], [0, 1]), ([1, 1], [0, 1]), ([0, 1], [1, 1])):
        at = [bu.asarray(each, dtype=bu.int32) for each in (rows, columns)]
        found = np.asarray(product(x, blocks, *at))
        assert found[0, ::8].tolist() == [8 * columns.count(c) for c in (0, 1)]
