"""Scatter and dynamic_update_slice on the emulator: exact, as the numbers are small and whole."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated import Array
from stepped import assert_equal, assert_same_bits, run_step

from bringup.dtypes import NUMERIC, STORED, DType, bf16, f32, i8, i32, i64, u32
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Copy

KINDS = ("set", "add", "mul", "min", "max")
ELEMENTS = {"offset": (), "collapsed": (0,), "index_map": (0,), "index_dim": 1}
ROWS = {**ELEMENTS, "offset": (1,)}


def numbers(shape: tuple[int, ...], dtype: DType, kind: str, seed: int = 0) -> Array:
    """Small whole numbers; for extremes also zeros of both signs and NaN."""
    rng = np.random.default_rng(seed + sum(shape))
    drawn = rng.choice([-1, 1], shape) if kind == "mul" else rng.integers(-3, 4, shape)
    found = (abs(drawn) if dtype.kind == "uint" else drawn).astype(dtype.numpy)
    if dtype.is_float and kind in ("max", "min"):
        found[rng.random(shape) < 0.2] = -0.0
        found[rng.random(shape) < 0.1] = np.nan
    return found


def check(x: Array, at: Any, updates: Array, **attrs: Any) -> None:
    indices = np.asarray(at)
    assert_equal(*run_step("scatter", [x, indices, updates], **attrs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_elements_and_rows(dtype: DType, kind: str) -> None:
    check_rows(dtype, kind, unique=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [f32, bf16, i8], ids=str)
def test_updates_that_never_meet(dtype: DType, kind: str) -> None:
    check_rows(dtype, kind, unique=True)


def check_rows(dtype: DType, kind: str, *, unique: bool) -> None:
    rng = np.random.default_rng(3)

    def at(count: int, places: int) -> Array:
        drawn = rng.permutation(places)[:count] if unique else rng.integers(-1, places + 1, count)
        return drawn.astype(np.int32)[:, None]

    x, updates = numbers((97,), dtype, kind), numbers((90,), dtype, kind, 1)
    check(x, at(90, 97 if unique else 30), updates, kind=kind, unique=unique, **ELEMENTS)
    x, updates = numbers((50, 13), dtype, kind), numbers((40, 13), dtype, kind, 1)
    check(x, at(40, 50 if unique else 9), updates, kind=kind, unique=unique, **ROWS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [f32, i32], ids=str)
def test_windows(dtype: DType, kind: str) -> None:
    """Windows that lie across each other; batches; windows before positions."""
    rng = np.random.default_rng(4)
    numbered: dict[str, Any] = {"kind": kind, "unique": False}
    across = {"offset": (1, 2), "collapsed": (), "index_map": (0, 1), "index_dim": 1}
    at = rng.integers(-1, 9, (6, 2)).astype(np.int16)
    x, updates = numbers((10, 12), dtype, kind), numbers((6, 3, 4), dtype, kind, 1)
    check(x, at, updates, **across, **numbered)
    batched = {"offset": (2,), "collapsed": (1,), "index_map": (1,), "index_dim": 2}
    x, updates = numbers((4, 7, 3), dtype, kind), numbers((4, 5, 3), dtype, kind, 1)
    at = rng.integers(0, 7, (4, 5, 1)).astype(np.uint8)
    check(x, at, updates, batch=((0,), (0,)), **batched, **numbered)
    before = {"offset": (0,), "collapsed": (1,), "index_map": (1,), "index_dim": 1}
    x, updates = numbers((6, 9), dtype, kind), numbers((6, 20), dtype, kind, 1)
    check(x, rng.integers(0, 9, (20, 1)), updates, **before, **numbered)


@pytest.mark.parametrize("count", [255, 256, 257, 1025])
def test_many_updates_of_one_place_are_summed_in_chunks(count: int) -> None:
    for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)):
        updates = np.random.default_rng(5).integers(-3, 4, (count, 2)).astype(dtype)
        at = np.random.default_rng(6).choice([1, 1, 1, 2, 5], (count, 1))
        check(np.ones((3, 2), dtype), at, updates, kind="add", unique=False, **ROWS)
        check(np.ones((3, 2), dtype), at * 0, updates, kind="add", unique=False, **ROWS)
        check(np.ones((3, 2), dtype), at * 0 + 3, updates, kind="add", unique=False, **ROWS)


@pytest.mark.parametrize("kind", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", [i32, u32, i64], ids=str)
def test_many_updates_of_few_places(dtype: DType, kind: str) -> None:
    """Counted in the shared memory of each block first."""
    x, updates = numbers((7,), dtype, kind), numbers((9000,), dtype, kind, 1)
    at = np.random.default_rng(9).integers(-1, 8, (9000, 1))
    check(x, at, updates, kind=kind, unique=False, **ELEMENTS)


def test_sums_are_the_same_bits_in_every_order_of_blocks() -> None:
    rng = np.random.default_rng(7)
    at, updates = rng.integers(0, 9, (3000, 1)), rng.standard_normal(3000).astype(np.float32)
    arrays = [np.zeros(9, np.float32), at, updates]
    first, _ = run_step("scatter", arrays, kind="add", unique=False, **ELEMENTS)
    for _ in range(3):
        again, _ = run_step("scatter", arrays, kind="add", unique=False, **ELEMENTS)
        assert_same_bits(again, first)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_dtype_is_set(dtype: DType) -> None:
    x, updates = (np.arange(n).astype(dtype.numpy) for n in (50, 90))
    at = np.random.default_rng(8).integers(0, 50, (90, 1))
    made, wanted = run_step("scatter", [x, at, updates], kind="set", unique=False, **ELEMENTS)
    assert_same_bits(made, wanted)


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("index", [np.int32, np.uint8, np.uint64])
def test_update_slices(dtype: DType, index: Any) -> None:
    """Starts that lie inside, and outside on both sides."""
    x, update = np.arange(420).reshape(10, 7, 6), np.arange(42).reshape(3, 7, 2)
    low = -1 if np.iinfo(index).min < 0 else np.iinfo(index).max
    starts = [np.asarray(start).astype(index) for start in (4, low, 3)]
    arrays = [x.astype(dtype.numpy), update.astype(dtype.numpy), *starts]
    assert_same_bits(*run_step("dynamic_update_slice", arrays))


def test_an_update_without_elements_copies() -> None:
    arrays = [np.ones((5, 3), np.float32), np.ones((0, 3), np.float32), *[np.int32(0)] * 2]
    assert_same_bits(*run_step("dynamic_update_slice", [np.asarray(a) for a in arrays]))
    none = [np.ones(3, np.float32), np.zeros((0, 1), np.int32), np.ones(0, np.float32)]
    assert_same_bits(*run_step("scatter", none, kind="add", **ELEMENTS))


def test_what_is_changed_in_place_is_not_copied() -> None:
    from dataclasses import replace

    from stepped import program_of

    from bringup_cuda.codegen.lower import translate

    types = [TensorType((90,), f32), TensorType((40, 1), i32), TensorType((40,), f32)]
    program = program_of("scatter", types, {"kind": "set", **ELEMENTS})
    (step,) = program.steps
    inside = replace(step, results=step.slots[:1])
    copies = [
        sum(isinstance(c, Copy) for c in translate(replace(program, steps=(s,)), "sm_90").commands)
        for s in (step, inside)
    ]
    assert copies == [1, 0]
