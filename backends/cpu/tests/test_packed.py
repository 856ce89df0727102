"""Products by packed panels: layouts, edges of tiles and blocks, dtypes, what is fused, targets.

Whole numbers, so that every order of a sum gives the same bits; the blocks are made small, so that
small arrays have several of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u32
from bringup.kernel.contraction import recognise
from bringup.llvm.func.schedules import packed
from bringup.llvm.loops import blocking
from bringup.llvm.loops.blocking import Blocking
from bringup.target import Target
from bringup_cpu.target import named

Array = np.ndarray[Any, Any]
LAYOUTS: dict[str, tuple[Callable[[Any, Any], Any], bool, bool]] = {
    "nn": (lambda x, y: x @ y, False, False),
    "nt": (lambda x, y: x @ y.mT, False, True),
    "tn": (lambda x, y: x.mT @ y, True, False),
    "tt": (lambda x, y: x.mT @ y.mT, True, True),
}


@pytest.fixture(autouse=True)
def plans(monkeypatch: Any) -> list[Blocking]:
    """Small blocks of inner indices, small units and bands; what was planned."""
    made: list[Blocking] = []

    def cut(contraction: Any, target: Target) -> Blocking | None:
        found = blocking.blocking(contraction, target)
        if found is not None:
            tile = found.tile
            band = tile.rows if found.cut.blocks > 1 else 2 * tile.rows
            small = replace(found, rows=2 * tile.rows, columns=2 * tile.columns, band=band)
            made.append(small)
            return small
        return None

    small = {"least_products": 1, "near_bytes": 0, "least_rows": 2, "least_depth": 2}
    rules = replace(blocking.RULES, depth_bytes=4 * 37, **small)
    monkeypatch.setattr(blocking, "RULES", rules)
    monkeypatch.setattr(packed, "blocking", cut)
    return made


def draw(dtype: DType, *shape: int, seed: int = 0) -> Array:
    low = 0 if dtype.kind == "uint" else -3
    return np.random.default_rng(seed).integers(low, 4, shape).astype(dtype.numpy)


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def swapped(x: Array, turn: bool) -> Array:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if turn else x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(33, 37, 40), (29, 74, 129), (64, 16, 17), (2, 90, 5), (31, 111, 66)]
)
def test_layouts_and_edges(layout: str, m: int, k: int, n: int, plans: list[Blocking]) -> None:
    product, left, right = LAYOUTS[layout]
    x, y = draw(f32, 3, m, k), draw(f32, 3, k, n, seed=1)
    made = bu.jit(product, device="cpu")(swapped(x, left), swapped(y, right))
    np.testing.assert_array_equal(made, wide(x) @ wide(y))
    assert plans


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [f64, f16, bf16, i32, i64, u32], ids=str)
def test_dtypes(layout: str, dtype: DType, plans: list[Blocking]) -> None:
    product, left, right = LAYOUTS[layout]
    x, y = draw(dtype, 45, 50), draw(dtype, 50, 39, seed=1)
    made = bu.jit(product, device="cpu")(swapped(x, left), swapped(y, right))
    np.testing.assert_array_equal(wide(np.asarray(made)), wide((wide(x) @ wide(y)).astype(x.dtype)))
    assert plans


def corners(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Numbers among which the least and the largest of the dtype are as many as all others."""
    rng, info = np.random.default_rng(seed), np.iinfo(dtype.numpy)
    ends = rng.choice([info.min, info.max], shape)
    drawn = rng.integers(info.min, info.max, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.5, ends, drawn).astype(dtype.numpy)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("first", "second"),
    [(i8, i8), (u8, u8), (i8, u8), (u8, i8), (i16, i8), (i16, i16)],
    ids=lambda d: str(d),
)
@pytest.mark.parametrize("inner", [50, 75])  # two blocks; two and a last one of a single index
def test_narrow_integers_go_in_pairs(
    layout: str, first: DType, second: DType, inner: int, plans: list[Blocking]
) -> None:
    """With the greatest products, and with an odd number in a block: its last pair has a zero."""
    sums = u32 if first is second is u8 else i32
    product, left, right = LAYOUTS[layout]
    x, y = corners(first, 40, inner), corners(second, inner, 39, seed=1)
    convert = lambda x: bu.astype(x, sums)  # noqa: E731
    made = bu.jit(lambda x, y: product(convert(x), convert(y)), device="cpu")(
        swapped(x, left), swapped(y, right)
    )
    expected = (x.astype(np.int64) @ y.astype(np.int64)).astype(sums.numpy)
    np.testing.assert_array_equal(made, expected)
    assert all(plan.tile.pair for plan in plans)
    assert plans


def test_pairs_that_are_least_together_wrap(plans: list[Blocking]) -> None:
    """2 (-2^15)^2 is 2^31, the one sum of a pair that an i32 does not hold."""
    x = np.full((20, 3), -(2**15), np.int16)
    made = bu.jit(lambda x, y: bu.matmul(x, y.mT, dtype=bu.int32), device="cpu")(x, x)
    assert (np.asarray(made) == 3 * 2**30 - 2**32).all()
    assert plans[0].tile.pair


@pytest.mark.parametrize(("rows", "columns"), [(16, 17), (33, 64), (65, 200)])
@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("registers", [16, 32])
def test_pairs_in_tiles_of_any_shape(
    rows: int, columns: int, bits: int, registers: int, plans: list[Blocking], monkeypatch: Any
) -> None:
    """Panels narrower than a vector among them."""
    target = Target(vector_bits=bits, registers=registers)
    monkeypatch.setattr("bringup_cpu.device.host_target", lambda: target)
    inner = bits // 4 + registers + 1  # odd, and no two targets share a program
    x, y = corners(i8, rows, inner), corners(i8, columns, inner, seed=1)
    made = bu.jit(lambda x, y: bu.matmul(x, y.mT, dtype=bu.int32), device="cpu")(x, y)
    np.testing.assert_array_equal(made, x.astype(np.int64) @ y.T.astype(np.int64))
    assert plans[0].tile.pair


@pytest.mark.parametrize("first", [bu.uint16, i32], ids=str)
def test_what_16_bits_do_not_hold_goes_alone(first: DType, plans: list[Blocking]) -> None:
    x, y = corners(first, 40, 50), corners(i8, 50, 39, seed=1)
    sums = lambda x, y: bu.astype(x, i32) @ bu.astype(y, i32)  # noqa: E731
    expected = (x.astype(np.int64) @ y.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(bu.jit(sums, device="cpu")(x, y), expected)
    assert not plans[0].tile.pair


@pytest.mark.skipif("x86-64-v3" not in named(), reason="levels are of x86-64")
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_pairs_are_one_instruction(level: str, monkeypatch: Any) -> None:
    monkeypatch.undo()
    product = bu.jit(lambda x, y: bu.matmul(x, y, dtype=bu.int32))
    asm = str(product.lower(i8[64, 256], i8[256, 256], target=f"cpu:{level}").asm)
    # Without optimisation, as tests may compile, LLVM leaves one of the products apart.
    assert asm.count("vpmaddwd") > 5 * asm.count("vpmulld")


def test_what_is_fused_before_and_after(plans: list[Blocking]) -> None:
    x, y, bias = draw(f32, 50, 60), draw(f32, 70, 60, seed=1), draw(f32, 40, seed=2)
    rest, rows = draw(f32, 41, 40, seed=3), draw(i32, 41, seed=4)

    def layer(x: Any, y: Any, bias: Any, rest: Any, rows: Any) -> Any:
        total = (x[3:44, ::-1] * 2) @ (y[5:45] + 1).mT + bias
        return bu.maximum(total, 0) + rest, bu.astype(total, bu.int32) + rows[:, None]

    total = (wide(x)[3:44, ::-1] * 2) @ (wide(y)[5:45] + 1).T + bias
    both = bu.jit(layer, device="cpu")(x, y, bias, rest, rows)
    for made, expected in zip(
        both, (np.maximum(total, 0) + rest, total + rows[:, None]), strict=True
    ):
        np.testing.assert_array_equal(made, expected)
    assert plans


def test_masks_inside_factors(plans: list[Blocking]) -> None:
    x, y = draw(f32, 30, 35), draw(f32, 70, 70, seed=1)
    double = bu.jit(lambda x, y: bu.concat([x, x[:, ::-1]], axis=1) @ bu.triu(y), device="cpu")
    expected = np.concatenate([wide(x), wide(x)[:, ::-1]], axis=1) @ np.triu(wide(y))
    np.testing.assert_array_equal(double(x, y), expected)
    assert plans


def test_negative_zeros_stay(plans: list[Blocking]) -> None:
    x, y = np.full((40, 80), -1, np.float32), np.zeros((80, 40), np.float32)
    assert np.signbit(np.asarray(bu.jit(lambda x, y: x @ y, device="cpu")(x, y))).all()
    assert plans[0].cut.blocks > 1


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("size", "stride"), [(7, 1), (9, 2), (19, 1), (37, 2), (34, 3)])
def test_convolutions(layout: str, size: int, stride: int, plans: list[Blocking]) -> None:
    x, w = draw(f32, 2, 6, 11, size), draw(f32, 18, 6, 3, 3, seed=1)
    windows = np.lib.stride_tricks.sliding_window_view(wide(x), (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows[:, :, ::stride, ::stride], wide(w))
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, 3))
        w = np.ascontiguousarray(w.transpose(2, 3, 1, 0))
        expected = np.moveaxis(expected, 1, 3)
    made = bu.jit(lambda x, w: bu.nn.conv(x, w, stride=stride, layout=layout), device="cpu")(x, w)
    np.testing.assert_array_equal(made, expected)
    assert plans


@pytest.mark.parametrize(("bits", "registers"), [(128, 16), (256, 16), (128, 32), (512, 32)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_of_any_width(
    bits: int, registers: int, layout: str, plans: list[Blocking], monkeypatch: Any
) -> None:
    target = Target(vector_bits=bits, registers=registers)
    monkeypatch.setattr("bringup_cpu.device.host_target", lambda: target)
    product, left, right = LAYOUTS[layout]
    for dtype in (f32, f64):
        x, y = draw(dtype, 45, bits), draw(dtype, bits, 39 + registers, seed=1)
        made = bu.jit(product, device="cpu")(swapped(x, left), swapped(y, right))
        np.testing.assert_array_equal(made, wide(x) @ wide(y))
    assert plans


def test_the_order_of_sums_does_not_depend_on_threads_or_caches(monkeypatch: Any) -> None:
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((300, 900), (900, 310)))
    found: list[Array] = []
    plans: list[Blocking | None] = []
    for threads, bytes_ in ((1, 1 << 21), (7, 1 << 17)):

        def planned(contraction: Any, target: Target, t: int = threads, c: int = bytes_) -> Any:
            plans.append(blocking.blocking(contraction, replace(target, threads=t, cache_bytes=c)))
            return plans[-1]

        monkeypatch.setattr(packed, "blocking", planned)
        made = bu.jit(lambda x, y, t=threads: (x @ y) * 2.0**t / 2**t, device="cpu")(x, y)
        found.append(np.asarray(made))
    first, second = (plan.rows * plan.columns for plan in plans if plan is not None)
    assert first > 2 * second
    np.testing.assert_array_equal(found[0], found[1])


def test_what_is_packed(monkeypatch: Any) -> None:
    monkeypatch.undo()

    def plan(
        product: Callable[[Any, Any], Any], *shapes: tuple[int, ...], dtype: DType = f32
    ) -> Blocking | None:
        types = [dtype[shape] for shape in shapes]
        found = recognise(bu.jit(product, device="cpu").lower(*types).kernels[-1])
        assert found is not None
        return blocking.blocking(found, Target(vector_bits=512, registers=32))

    plain, turned = LAYOUTS["nn"][0], LAYOUTS["nt"][0]
    assert plan(plain, (16, 64), (64, 64)) is None  # a call costs more than the product
    assert plan(plain, (128, 128), (128, 128)) is None  # read well as it is
    assert plan(turned, (128, 128), (128, 128)) is not None

    def gradient(x: Any, ct: Any) -> Any:
        weights = bu.zeros((32, 16, 3, 3), dtype=f32)
        return bu.vjp(lambda w: bu.nn.conv(x, w, padding=1), weights)[1](ct)[0]

    # Columns are neighbours three by three, which fills no vector.
    assert plan(gradient, (64, 16, 4, 4), (64, 32, 4, 4)) is not None
    assert plan(plain, (512, 784), (784, 512)) is not None
    assert plan(plain, (4, 4096), (4096, 4096)) is None  # reading the matrix is all

    def words(x: Any, y: Any) -> Any:
        return bu.matmul(x, y, dtype=bu.int32)

    assert plan(words, (128, 128), (128, 128), dtype=i8) is not None  # pairs pay at once
    assert plan(words, (4, 300), (300, 300), dtype=i8) is None
    assert plan(words, (4, 1024), (1024, 1024), dtype=i8) is not None


def source(build: Any, *types: Any, level: str = "x86-64-v3") -> str:
    return str(bu.jit(build).lower(*types, target=f"cpu:{level}").source)


def test_panels_are_filled_by_functions_of_their_own(plans: list[Blocking]) -> None:
    """Their constants would take registers from the sums of the product."""
    types = bu.float32[64, 64], bu.float32[64, 64]
    text = source(lambda x, w: x @ w, *types)
    names = re.findall(r"define internal void @(\S+)\(.* noinline", text)
    assert names == [f"entry.0.k0_dot_general.panels{n}" for n in range(2)]
    assert all(text.count(f"call void @{name}(") == 1 for name in names)
    assert "llvm.prefetch" in text, "rows of results may be pages apart"
    assert "noinline" not in source(lambda x: bu.nn.softmax(x, axis=0), bu.float32[64, 64])


def test_short_rows_of_patches_are_vectors_without_masks(plans: list[Blocking]) -> None:
    def conv(x: Any, w: Any) -> Any:
        return bu.lax.conv(x, w, (1, 1), "VALID")

    x, w = draw(f32, 4, 8, 6, 6), draw(f32, 16, 8, 3, 3, seed=1)
    assert "<4 x float>" in source(conv, bu.float32[x.shape], bu.float32[w.shape])
    found = np.asarray(bu.jit(conv, device="cpu")(x, w))
    whole = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(found, np.einsum("nchwij,ocij->nohw", whole, w))
