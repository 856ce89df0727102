"""Running folds on the emulator: exact, because the numbers are small and whole."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated import Array
from stepped import assert_equal, assert_same_bits, lowered, run_step

from bringup.dtypes import NUMERIC, DType
from bringup.types import TensorType

KINDS = ("add", "mul", "max", "min")
#: Sizes round lanes, groups of them, blocks, tiles and chunks; along rows and down columns.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((1,), 0),
    ((31,), 0),
    ((33,), 0),
    ((3, 7), 1),
    ((70, 16), 1),
    ((2, 512), 1),
    ((2, 513), 1),
    ((2, 4097), 1),
    ((20001,), 0),
    ((7, 3), 0),
    ((100, 5, 3), 1),
    ((2, 300, 40), 1),
    ((3000, 2), 0),
]


def numbers(shape: tuple[int, ...], dtype: DType, kind: str) -> Array:
    """Small whole numbers, of which every fold is exact; with zeros of both signs for extremes."""
    rng = np.random.default_rng(len(shape) + sum(shape))
    drawn = rng.choice([-1, 1], shape) if kind == "mul" else rng.integers(-2, 3, shape)
    found = (abs(drawn) if dtype.kind == "uint" else drawn).astype(dtype.numpy)
    if dtype.is_float and kind in ("max", "min"):
        found[rng.random(shape) < 0.2] = -0.0
    return found


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_scans(shape: tuple[int, ...], dim: int, turn: int) -> None:
    turn = 5 * turn + SHAPES.index((shape, dim))
    dtype = NUMERIC[turn % len(NUMERIC)]
    kind = KINDS[turn % 4]
    x = numbers(shape, dtype, kind)
    attrs: dict[str, Any] = {"reverse": bool(turn // 4 % 2), "exclusive": turn % 3 == 0}
    made, wanted = run_step("cumulative", [x], kind=kind, dim=dim, **attrs)
    (assert_same_bits if kind in ("max", "min") else assert_equal)(made, wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_goes_on_to_the_end(kind: str, reverse: bool) -> None:
    x = np.sign(np.random.default_rng(1).standard_normal(20000)).astype(np.float32)
    x[7000] = np.nan
    assert_equal(*run_step("cumulative", [x], kind=kind, dim=0, reverse=reverse))


def test_a_sum_of_negative_zeros_is_negative() -> None:
    made, wanted = run_step("cumulative", [np.full(600, -0.0, np.float32)], kind="add", dim=0)
    assert_same_bits(made, wanted)


def test_half_floats_are_summed_in_single_precision() -> None:
    x = np.full(4000, 1.0, ml_dtypes.bfloat16)
    assert_same_bits(*run_step("cumulative", [x], kind="add", dim=0))


def test_sums_are_the_same_bits_in_every_order_of_blocks() -> None:
    x = np.random.default_rng(2).standard_normal(30000).astype(np.float32)
    first, _ = run_step("cumulative", [x], kind="add", dim=0)
    for _ in range(3):
        assert_same_bits(run_step("cumulative", [x], kind="add", dim=0)[0], first)


def test_long_rows_are_read_twice_by_two_launches_and_short_ones_once_by_one() -> None:
    from bringup.dtypes import f32

    def launches(*shape: int) -> int:
        made = lowered("cumulative", [TensorType(shape, f32)], kind="add", dim=len(shape) - 1)
        return len(made.launches)

    assert launches(1 << 24) == 2
    assert launches(1 << 12, 1 << 12) == 1
