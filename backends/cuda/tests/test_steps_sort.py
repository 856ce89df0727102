"""Sorting on the emulator: the reference's very bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import Array, run_program, translated
from stepped import assert_same_bits, lowered, run_step

import bringup as bu
from bringup.dtypes import ALL, DType, bool_, f32, i64
from bringup.errors import UnsupportedError
from bringup.runtime.compiler import lower_graph
from bringup.types import TensorType
from bringup_cuda.backend import CudaBackend

#: Sizes round lanes, blocks and tiles; along rows and down columns.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((1,), 0),
    ((2,), 0),
    ((3, 7), 1),
    ((40, 17), 1),
    ((5, 32), 1),
    ((33, 5), 0),
    ((33,), 0),
    ((4, 100), 1),
    ((2, 1000), 1),
    ((300, 3), 0),
]


def keys(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Numbers of the whole range, with ties; floats with NaN, infinities, zeros of both signs."""
    rng = np.random.default_rng(seed + sum(shape))
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        found = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        return np.where(rng.random(shape) < 0.3, found % 5, found).astype(dtype.numpy)
    x = (rng.standard_normal(shape) * 10).astype(dtype.numpy)
    special = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 3.0], dtype.numpy)
    odd = rng.random(shape) < 0.3
    x[odd] = special[rng.integers(0, len(special), int(odd.sum()))]
    return x


def check(shape: tuple[int, ...], dim: int, dtype: DType, turn: int) -> None:
    x = keys(shape, dtype)
    places = np.arange(x.size).reshape(shape)
    descending = bool(turn // 2 % 2)
    arrays, count = [
        ([x], 1),
        ([x, places.astype(np.int32)], 1),
        ([keys(shape, ALL[1], 1), x, places], 2),
        ([x, keys(shape, ALL[turn % len(ALL)], 2), x == x], 1),
    ][turn % 4]
    made, wanted = run_step("sort", arrays, dim=dim, num_keys=count, descending=descending)
    assert_same_bits(made, wanted)


@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_sorts(shape: tuple[int, ...], dim: int, turn: int) -> None:
    turn = 5 * turn + SHAPES.index((shape, dim))
    check(shape, dim, ALL[turn % len(ALL)], turn)


@pytest.mark.parametrize(
    ("shape", "dim", "dtype", "turn"),
    [
        ((4096,), 0, f32, 0),
        ((4097,), 0, f32, 0),
        ((4097,), 0, ALL[1], 1),
        ((4097,), 0, bool_, 2),
        ((2, 4100), 1, ALL[3], 3),
        ((4100, 2), 0, ALL[3], 1),
    ],
    ids=str,
)
def test_long_lines(shape: tuple[int, ...], dim: int, dtype: DType, turn: int) -> None:
    check(shape, dim, dtype, turn)


def test_equal_keys_keep_their_order() -> None:
    key = np.zeros(5000, np.int8)
    made, _ = run_step("sort", [key, np.arange(5000)], dim=0)
    assert_same_bits(made, [key, np.arange(5000)])


def test_a_launch_for_short_lines_and_four_for_each_byte_of_long_ones() -> None:
    def launches(*shape: int) -> int:
        types = [TensorType(shape, f32), TensorType(shape, i64)]
        return len(lowered("sort", types, dim=len(shape) - 1).launches)

    assert launches(1000, 20) == 1
    assert launches(1000, 4096) == 1
    assert launches(1 << 20) == 16


def test_passes_over_memory_share_kernels() -> None:
    made = lowered("sort", [TensorType((1 << 20,), i64)], dim=0)
    assert (len(made.launches), len(made.kernels)) == (32, 7)


def test_equal_steps_share_a_kernel() -> None:
    def both(x: Any, y: Any) -> Any:
        return bu.sort(x), bu.sort(y), bu.sort(bu.sort(x + y, axis=0), descending=True)

    types = [TensorType((40, 40), f32)] * 2
    program, made = translated(both, types)
    kernels = [launch.kernel.name for launch in made.launches if launch.step.name == "sort"]
    assert len(kernels) == 4
    assert len(set(kernels)) == 2
    x, y = keys((40, 40), f32), keys((40, 40), f32, 1)
    results = run_program(program, made, [x, y])
    with np.errstate(invalid="ignore"):
        columns = np.sort(x + y, axis=0)
    # Descending, NaN come first.
    wanted = [np.sort(x), np.sort(y), np.flip(np.sort(columns), -1)]
    for one, other in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_line_too_long_is_refused_with_a_way_out() -> None:
    graph = bu.trace(bu.sort, bu.uint8[1 << 31])
    with pytest.raises(UnsupportedError, match="less than 2147483648") as caught:
        _ = lower_graph(graph, CudaBackend(), "sm_90").asm
    assert caught.value.fix is not None
