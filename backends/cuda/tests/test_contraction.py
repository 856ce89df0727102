"""Products of matrices on the emulator, exact in small integers: every dtype, layout, tile and
epilogue; races, bounds and alignment are checked on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from emulated import Array, run_program, translated

import bringup as bu
from bringup import (
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)
from bringup.api.apply import apply
from bringup.dtypes import DType
from bringup.ops.evaluate import evaluate
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Translated
from bringup_cuda.codegen.contraction import planning
from bringup_cuda.codegen.contraction.tiles import (
    LEAST_PART,
    SCALAR,
    TENSOR,
    WARPGROUP,
    Tile,
)
from bringup_cuda.targets import TARGETS, TILE_SIDES

Fn = Callable[..., Any]

#: Without asynchronous copies and tensor cores, and with both.
ARCHITECTURES = ("sm_75", "sm_90")
DTYPES = (float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, uint32)
HALVES = (float16, bfloat16)


def integers(types: Sequence[TensorType]) -> list[Array]:
    """Small whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(7)
    made: list[Array] = []
    for type_ in types:
        low = 0 if type_.dtype.kind in ("uint", "bool") else -2
        made.append(random.integers(low, 3, type_.shape).astype(type_.dtype.numpy))
    return made


def check(
    fn: Fn,
    *types: TensorType,
    architecture: str = "sm_90",
    inputs: Sequence[Array] | None = None,
    seed: int = 0,
) -> Translated:
    """Run a function and compare its results, bit for bit but for the signs of zeros."""
    program, made = translated(fn, types, architecture)
    given = integers(types) if inputs is None else inputs
    got = run_program(program, made, given, seed)
    wanted = evaluate(bu.trace(fn, *types), given)
    for result, reference in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(
            result.astype(np.float64), np.asarray(reference).astype(np.float64)
        )
    return made


def names(made: Translated) -> list[str]:
    return [launch.kernel.name for launch in made.launches]


def is_contraction(made: Translated) -> bool:
    """Whether one launch takes exactly its blocks, as contractions do."""
    (launch,) = made.launches
    return launch.kernel.fixed


def turned(x: Any) -> Any:
    return bu.permute_dims(x, (1, 0))


# -- dtypes and sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: DType, architecture: str) -> None:
    assert is_contraction(
        check(lambda x, w: x @ w, dtype[33, 40], dtype[40, 24], architecture=architecture)
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, float64, float16, int8], ids=str)
@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 17, 5), (1, 33, 31), (70, 65, 37)], ids=str)
def test_odd_sizes(sizes: tuple[int, int, int], dtype: DType, architecture: str) -> None:
    m, k, n = sizes
    check(lambda x, w: x @ w, dtype[m, k], dtype[k, n], architecture=architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("left", [False, True], ids=("x", "x.T"))
@pytest.mark.parametrize("right", [False, True], ids=("w", "w.T"))
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, uint8], ids=str)
def test_every_layout(dtype: DType, left: bool, right: bool, architecture: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        return (turned(x) if left else x) @ (turned(w) if right else w)

    x = dtype[48, 40] if left else dtype[40, 48]
    w = dtype[56, 48] if right else dtype[48, 56]
    check(fn, x, w, architecture=architecture)


def test_a_result_that_is_transposed_is_written_along_its_rows() -> None:
    made = check(lambda x, w: turned(x @ w), float32[40, 24], float32[24, 56])
    assert "store <4 x float>" in made.text


@pytest.mark.parametrize("dtype", [int8, uint8], ids=str)
def test_bytes_are_summed_in_i32(dtype: DType) -> None:
    wide = {"accumulate": int32 if dtype is int8 else uint32}

    def fn(x: Any, w: Any) -> Any:
        attrs = {"batch": ((), ()), "contract": ((1,), (0,)), "result": wide["accumulate"]}
        return apply("dot_general", (x, w), {**attrs, **wide})

    random = np.random.default_rng(1)
    info = np.iinfo(dtype.numpy)
    types = dtype[40, 96], dtype[96, 24]
    given = [random.integers(info.min, info.max + 1, t.shape).astype(dtype.numpy) for t in types]
    made = check(fn, *types, inputs=given)
    assert f"m16n8k32.row.col.{'s' if dtype is int8 else 'u'}8" in made.text


@pytest.mark.parametrize("dtypes", [(int8, uint32), (uint8, int32)], ids=str)
def test_bytes_of_the_other_sign(dtypes: tuple[DType, DType]) -> None:
    """What a negative byte is among unsigned numbers, the conversion says."""
    dtype, wide = dtypes

    def fn(x: Any, w: Any) -> Any:
        attrs = {"batch": ((), ()), "contract": ((1,), (0,)), "accumulate": wide, "result": wide}
        return apply("dot_general", (x, w), attrs)

    random = np.random.default_rng(4)
    types = dtype[40, 64], dtype[64, 24]
    info = np.iinfo(dtype.numpy)
    given = [random.integers(info.min, info.max + 1, t.shape).astype(dtype.numpy) for t in types]
    check(fn, *types, inputs=given)


def test_integers_wrap() -> None:
    random = np.random.default_rng(2)
    types = int8[20, 64], int8[64, 24]
    given = [random.integers(-128, 128, t.shape).astype(np.int8) for t in types]
    check(lambda x, w: x @ w, *types, inputs=given)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_summed_in_f32(dtype: DType) -> None:
    """Products that no half holds, and sums that cancel."""

    def fn(x: Any, w: Any) -> Any:
        attrs = {"batch": ((), ()), "contract": ((1,), (0,)), "accumulate": float32}
        return apply("dot_general", (x, w), {**attrs, "result": float32})

    random = np.random.default_rng(3)
    types = dtype[24, 64], dtype[64, 24]
    given = [random.integers(-127, 128, t.shape).astype(dtype.numpy) for t in types]
    made = check(fn, *types, inputs=given)
    assert "llvm.nvvm.mma.m16n8k16" in made.text


# -- tiles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TENSOR, ids=lambda t: f"{t.rows}x{t.columns}")
@pytest.mark.parametrize("layout", ["x @ w", "x.T @ w.T"])
def test_every_tile_of_tensor_cores(
    tile: Tile, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "TENSOR", (tile,))
    m, k, n = tile.rows + 8, 40, tile.columns + 8
    if layout == "x @ w":
        check(lambda x, w: x @ w, float16[m, k], float16[k, n])
    else:
        check(lambda x, w: turned(x) @ turned(w), float16[k, m], float16[n, k])


@pytest.mark.parametrize("tile", TENSOR, ids=lambda t: f"{t.rows}x{t.columns}")
def test_every_tile_of_bytes(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TENSOR", (tile,))
    check(lambda x, w: x @ w, int8[tile.rows + 3, 80], int8[80, tile.columns + 16])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tile", SCALAR, ids=lambda t: f"{t.rows}x{t.columns}")
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_every_tile_of_fma(
    dtype: DType, tile: Tile, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype is float64 and tile is SCALAR[0]:
        pytest.skip("its sums would take all registers")
    if architecture == "sm_75" and tile is SCALAR[0]:
        pytest.skip("its sums do not fit shared memory")
    monkeypatch.setattr(planning, "SCALAR", (tile,))
    m, k, n = tile.rows + 4, 27, tile.columns + 4
    check(lambda x, w: x @ w, dtype[m, k], dtype[k, n], architecture=architecture)
    check(lambda x, w: x @ turned(w), dtype[m, 28], dtype[n, 28], architecture=architecture)


@pytest.mark.parametrize("seed", [1, 2])
def test_order_of_threads_and_blocks_does_not_matter(seed: int) -> None:
    check(lambda x, w: x @ w, float16[150, 72], float16[72, 200], seed=seed)
    check(lambda x, w: x @ w, float32[150, 40], float32[40, 72], seed=seed)


def test_many_tiles_are_visited_in_groups() -> None:
    """More tiles down than a group has, and a last group that is smaller."""
    check(lambda x, w: x @ w, float16[16 * 11, 16], float16[16, 32 * 3])


# -- batches, prologues, epilogues -----------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, float16, int8], ids=str)
def test_batches(dtype: DType, architecture: str) -> None:
    x, w = dtype[3, 2, 20, 24], dtype[3, 2, 24, 36]
    made = check(lambda x, w: x @ w, x, w, architecture=architecture)
    assert is_contraction(made)
    check(lambda x, w: x @ w, dtype[5, 20, 24], dtype[24, 36], architecture=architecture)
    check(lambda x, w: x @ w, dtype[20, 24], dtype[5, 24, 36], architecture=architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_epilogues(dtype: DType, architecture: str) -> None:
    def fn(x: Any, w: Any, b: Any, r: Any, s: Any) -> Any:
        return bu.nn.relu(x @ w + b) * 2 + r - s

    types = dtype[40, 24], dtype[24, 56], dtype[56], dtype[40, 56], dtype[40, 1]
    assert is_contraction(check(fn, *types, architecture=architecture))


def test_several_results() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        return y > 1, bu.nn.relu(y), bu.astype(y, int32)

    check(fn, float32[40, 24], float32[24, 56])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prologues(architecture: str) -> None:
    def scaled(x: Any, w: Any) -> Any:
        return (bu.astype(x, float32) * 2) @ (bu.astype(w, float32) * 3)

    types = float16[40, 24], int8[24, 56]
    assert is_contraction(check(scaled, *types, architecture=architecture))
    halves = check(lambda x, w: (x * 2) @ (w + 1), float16[40, 24], float16[24, 56])
    assert "llvm.nvvm.mma" in halves.text


def test_rows_that_are_gathered() -> None:
    types = int32[40], float32[50, 24], float32[24, 56]
    given = integers(types)
    given[0] = np.arange(40, dtype=np.int32)[::-1] + 5
    check(lambda i, x, w: bu.take(x, i, axis=0) @ w, *types, inputs=given)


def test_moved_and_padded_operands() -> None:
    def fn(x: Any, w: Any) -> Any:
        return bu.flip(x, axis=1)[1:, ::2] @ bu.concat([w, w * 2], axis=0)

    check(fn, float32[41, 48], float32[12, 56])


# -- sums in parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [float32, float16, int8, int32], ids=str)
@pytest.mark.parametrize("inner", [2000, 2049])
def test_long_sums_of_few_tiles_are_cut(dtype: DType, inner: int) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return bu.nn.relu(x @ w + b)

    made = check(fn, dtype[16, inner], dtype[inner, 24], dtype[24])
    first, last = (launch.kernel for launch in made.launches)
    assert first.fixed
    assert first.blocks > 4
    assert not last.fixed


def test_sums_of_two_axes_are_cut() -> None:
    def fn(x: Any, w: Any) -> Any:
        dims = {"batch": ((), ()), "contract": ((1, 2), (0, 1))}
        return apply("dot_general", (x, w), dims)

    assert len(check(fn, float32[16, 300, 5], float32[300, 5, 24]).launches) == 2


# -- what is none ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "types"),
    [
        (lambda x, w: x @ w, (float32[40, 24], float32[24])),
        (lambda x, w: bu.sum(x * w, axis=1), (float32[40, 24], float32[40, 24])),
        (lambda x, w: x @ w, (float32[40, 1], float32[1, 24])),
        (lambda x, w: x @ w, (float32[0, 4], float32[4, 24])),
        (lambda x, w: x @ w, (float32[40, 0], float32[0, 24])),
    ],
    ids=("vector", "rows", "outer", "empty", "empty sums"),
)
def test_what_shares_nothing_is_left_to_other_kernels(
    fn: Fn, types: tuple[TensorType, ...]
) -> None:
    made = check(fn, *types)
    assert not any(launch.kernel.fixed for launch in made.launches)


# -- plans -----------------------------------------------------------------------------------------


def test_every_architecture_has_tiles() -> None:
    """Each factor's dtype finds one that fits, from the smallest architecture to the largest."""
    for architecture in TARGETS:
        for dtype in (float32, float64, float16, int8):
            types = dtype[4096, 4096], dtype[4096, 4096]
            program, _ = translated(lambda x, w: x @ w, types, architecture)
            made = planning.plan_contraction(program.kernels[0], architecture)
            assert made is not None
            assert made.shared_bytes <= TARGETS[architecture].shared_bytes
            assert (made.tensor is None) == (architecture == "sm_75" or dtype.bits > 16)


@pytest.mark.parametrize(
    ("sizes", "tile", "cut"),
    [
        ((8192, 8192, 8192), (128, 256), False),
        ((512, 8192, 512), (128, 128), True),
        ((16, 4096, 4096), (16, 128), True),
        ((64, 64, 64), (16, 32), False),
    ],
)
def test_tiles_follow_sizes(sizes: tuple[int, int, int], tile: tuple[int, int], cut: bool) -> None:
    m, k, n = sizes
    program, made = translated(lambda x, w: x @ w, (bfloat16[m, k], bfloat16[k, n]))
    planned = planning.plan_contraction(program.kernels[0], "sm_90")
    assert planned is not None
    assert (planned.tile.rows, planned.tile.columns) == tile
    assert len(made.launches) == 1 + cut


def test_indices_beyond_two_to_the_31_are_wide() -> None:
    """Elements that no 32-bit offset reaches; the text is made, nothing is run."""
    types = float16[80000, 40000], float16[40000, 64]
    _, made = translated(lambda x, w: x @ w, types)
    assert "mul i64" in made.text


def test_the_sides_of_all_tiles_are_declared() -> None:
    sides = {n for tile in (*TENSOR, *WARPGROUP, *SCALAR) for n in (tile.rows, tile.columns)}
    assert sides | {LEAST_PART} == set(TILE_SIDES)
