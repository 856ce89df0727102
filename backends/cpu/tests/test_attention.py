"""Attention natively, against numpy in double precision: every edge of a tile, a block, a unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.ops.table import lookup

CLOSE = {"float64": (1e-12, 1e-13), "float32": (2e-5, 2e-6), "float16": (4e-3, 2e-3)}

#: (leading dimensions, queries, keys, depth, values, bias).
FORMS: list[tuple[tuple[int, ...], int, int, int, int, tuple[int, ...] | None]] = [
    ((2, 3), 5, 7, 4, 3, None),
    ((2,), 1, 130, 16, 16, None),
    ((), 13, 200, 33, 70, (1, 1)),
    ((2, 2), 70, 70, 64, 64, (2, 1, 70, 70)),
    ((2, 2), 3, 64, 8, 17, (1, 2, 1, 64)),
    ((3,), 49, 65, 5, 64, None),
    ((1,), 6, 1, 1, 1, None),
    ((2,), 9, 3, 0, 4, None),
    ((2,), 4, 0, 3, 2, None),
    ((), 100, 20, 7, 129, (100, 1)),
    ((0, 2), 3, 4, 5, 6, None),
    ((2,), 4, 70, 8, 20, (2, 4, 70)),
    ((2,), 45, 197, 20, 40, (2, 45, 197)),
    ((3,), 64, 120, 16, 32, (1, 64, 120)),
]


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", CLOSE)
def test_values(form: Any, causal: bool, dtype: str) -> None:
    lead, n, m, depth, width, bias = form
    shapes = [(*lead, n, depth), (*lead, m, depth), (*lead, m, width)]
    arrays = [numbers(s, dtype, i) for i, s in enumerate([*shapes, *([bias] if bias else [])])]
    held = [bu.asarray(x) for x in arrays]
    extra = held[3] if bias else None
    found = np.asarray(bu.nn.attention(*held[:3], bias=extra, causal=causal, scale=0.3))
    wide = [x.astype(np.float64) for x in arrays]
    with np.errstate(invalid="ignore"):
        wanted = lookup("attention").reference(*wide, scale=0.3, causal=causal)
    relative, absolute = CLOSE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, relative, absolute)


def test_it_is_one_launch_whose_scores_are_nowhere_in_memory() -> None:
    x = bu.ones((2, 4, 512, 32), dtype=bu.float32)
    made = bu.jit(lambda q, k, v: bu.nn.attention(q, k, v, causal=True)).lower(x, x, x)
    assert made.cost().kernels == 1
    assert made.program.arena_bytes < 2 * 4 * 512 * 512 * 4 / 4


def test_large_scores_do_not_overflow_and_hidden_blocks_leave_no_nan() -> None:
    q = np.full((1, 3, 4), 100.0, np.float32)
    k = np.concatenate([np.full((1, 200, 4), -100.0), np.full((1, 1, 4), 100.0)], axis=1)
    v = np.arange(201, dtype=np.float32).reshape(1, 201, 1)
    arrays = [bu.asarray(x.astype(np.float32)) for x in (q, k, v)]
    assert np.asarray(bu.nn.attention(*arrays, scale=1)).tolist() == [[[200.0]] * 3]
    seen = np.zeros(201, bool)
    seen[199] = True  # every block before is hidden altogether
    hidden = bu.nn.attention(*arrays, scale=1, mask=bu.asarray(seen))
    assert np.asarray(hidden).tolist() == [[[199.0]] * 3]


def test_nan_and_infinity_reach_the_queries_that_see_them() -> None:
    q = np.ones((9, 2), np.float32)
    k = np.ones((9, 2), np.float32)
    k[4] = np.nan
    v = np.ones((9, 1), np.float32)
    found = np.asarray(bu.nn.attention(*map(bu.asarray, (q, k, v)), causal=True))[:, 0]
    assert np.isnan(found).tolist() == [i >= 4 for i in range(9)]


def test_gradients_are_those_of_the_decomposition() -> None:
    shapes = [(2, 3, 20, 8), (2, 3, 70, 8), (2, 3, 70, 5)]
    arrays = [bu.asarray(numbers(s, "float64", i)) for i, s in enumerate(shapes)]

    def whole(a: Any) -> Any:
        return bu.sum(bu.square(bu.nn.attention(*a, scale=0.5)))

    def parts(a: Any) -> Any:
        q, k, v = a
        weights = bu.nn.softmax(q @ bu.matrix_transpose(k) * 0.5)
        return bu.sum(bu.square(weights @ v))

    for found, wanted in zip(bu.grad(whole)(arrays), bu.grad(parts)(arrays), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-9, atol=1e-12)
