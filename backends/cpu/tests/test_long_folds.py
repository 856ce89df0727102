"""Folds that are cut into chunks, whose last chunk is short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.llvm.loops.heuristics import LONGEST_CHAIN

LENGTHS = (2**17, 2**17 + 1, 10**6 + 3, 2**20 + 2**16 + 1)


@pytest.mark.parametrize("n", LENGTHS)
def test_chunks_of_what_no_memory_holds(n: int) -> None:
    """The body reads nothing, or the same everywhere, so any axis might have run across lanes."""
    two = np.float32(2)
    assert int(bu.jit(lambda: bu.sum(bu.ones(n, dtype=bu.int32)))()) == n
    assert float(bu.jit(lambda x: bu.sum(bu.broadcast_to(x, (n,)) * 3))(two)) == 6 * n
    assert float(bu.jit(lambda: bu.prod(bu.full(n, -1.0, dtype=bu.float32)))()) == (-1.0) ** n
    assert int(bu.jit(lambda: bu.max(bu.arange(n, dtype=bu.int32)))()) == n - 1


@pytest.mark.parametrize("n", LENGTHS)
def test_chunks_of_rows_that_are_all_the_same(n: int) -> None:
    row = np.array([1, 2, 4], np.int32)
    f = bu.jit(lambda x: bu.sum(bu.broadcast_to(x, (n, 3)) + 1))
    assert int(f(row)) == 10 * n


READS: list[Callable[[Any], Any]] = [
    lambda x: x[::2],
    lambda x: x[::-3],
    lambda x: x[5::7],
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("n", LENGTHS)
def test_chunks_read_with_strides(read: Callable[[Any], Any], n: int) -> None:
    x = np.random.default_rng(n).integers(-9, 9, 7 * n).astype(np.int32)
    assert int(bu.jit(lambda x: bu.sum(read(x)))(x)) == read(x).sum()


def test_chunks_read_through_divisions() -> None:
    x = np.random.default_rng(0).integers(-9, 9, 6 * 300_007).astype(np.int32)
    f = bu.jit(lambda x: bu.sum(bu.reshape(x, (-1, 6)).T[::2], axis=1))
    np.testing.assert_array_equal(f(x), x.reshape(-1, 6).T[::2].sum(axis=1))


def test_kernels_that_differ_only_in_their_last_chunk() -> None:
    """Both read one array, in equally many chunks of equal length."""
    x = np.random.default_rng(0).integers(-9, 9, 100_000).astype(np.int32)
    f = bu.jit(lambda x: (bu.sum(x[:70_000]), bu.sum(x[:90_000])))
    assert [int(y) for y in f(x)] == [x[:70_000].sum(), x[:90_000].sum()]


def test_a_fold_beside_a_store_rounds_no_worse() -> None:
    """Both come from one loop, whose accumulators must not see more than the longest chain."""
    n = 10_000_019
    tenth = np.float32(0.1)

    @bu.jit
    def f(x: Any) -> Any:
        y = bu.broadcast_to(x, (n,)) * 1.0
        return y, bu.sum(y)

    y, total = f(tenth)
    assert (np.asarray(y) == tenth).all()
    exact = float(tenth) * n
    assert abs(float(total) - exact) < LONGEST_CHAIN * 2.0**-24 * exact


@pytest.mark.parametrize("n", [2**31, 2**32, 2**32 + 3])
def test_the_beginning_of_what_no_memory_holds(n: int) -> None:
    """Indices that fit 32 bits, under bounds that do not."""

    @bu.jit
    def f(x: Any) -> Any:
        return bu.concat([bu.zeros(1, dtype=bu.float32), bu.broadcast_to(x, (n,))])[:20]

    np.testing.assert_array_equal(f(np.float32(3)), [0] + [3] * 19)


def test_many_rows_share_one_long_row_and_round_no_worse() -> None:
    """Too many rows to cut the fold, and a register tile over them: one accumulator for each."""
    rows, n = 260, 2**20 - 1

    @bu.jit
    def f(x: Any, zero: Any) -> Any:
        wide = bu.broadcast_to(x, (rows, n))
        return bu.sum(wide + bu.broadcast_to(zero, (rows, n)) * wide, axis=1)

    tenth = np.float32(0.1)
    sums = np.asarray(f(np.full(n, tenth), np.float32(0)), np.float64)
    exact = float(tenth) * n
    assert abs(sums - exact).max() < LONGEST_CHAIN * 2.0**-24 * exact


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((10**6,), 0), ((10**6, 3), 0), ((3, 10**6), 1), ((100_003, 40), 0), ((2, 300_007, 2), 1)],
)
def test_the_error_of_a_sum_hardly_grows_with_its_length(shape: tuple[int, ...], axis: int) -> None:
    """Blocks of 64 terms, of 64 blocks and so on: 128 additions in a row for each level, and three
    levels for a million terms.
    """
    tenth = np.float32(0.1)
    sums = np.asarray(bu.sum(bu.full(shape, tenth), axis=axis), np.float64)
    exact = float(tenth) * shape[axis]
    assert abs(sums - exact).max() < 3 * 128 * 2.0**-24 * exact
