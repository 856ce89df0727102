"""Weights that freezing lays out as panels: products that read them there, values, memory, sharing.

Whole numbers, so that every order of a sum gives the same bits; the blocks are made small, so that
small arrays have several of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api import freeze
from bringup.dtypes import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u32
from bringup.llvm.func.schedules import packed
from bringup.llvm.loops import blocking
from bringup.llvm.loops.blocking import Blocking
from bringup.llvm.loops.heuristics import PRODUCTS
from bringup.passes.panels import in_panels
from bringup.target import Target
from bringup_cpu.codegen import generate
from bringup_cpu.target import host_target

nn = bu.nn
Array = np.ndarray[Any, Any]
LAYOUTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "rows": (lambda x, w: x @ w, "kn"),
    "columns": (lambda x, w: x @ w.mT, "nk"),
    "stacked": (lambda x, w: bu.stack([x, x[::-1]]) @ w, "bkn"),
    "two sums": (lambda x, w: bu.einsum("mkl,klab->mab", x.reshape(-1, x.shape[1] // 2, 2), w), ""),
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
            made.append(replace(found, rows=2 * tile.rows, columns=2 * tile.columns, band=band))
            return made[-1]
        return None

    small_rules(monkeypatch, least_products=1, near_bytes=0, depth_bytes=4 * 37)
    monkeypatch.setattr(packed, "blocking", cut)
    wide_panels(monkeypatch, host_target())
    return made


def small_rules(monkeypatch: Any, **rules: Any) -> None:
    """Plan products by other numbers."""
    monkeypatch.setattr(blocking, "RULES", replace(blocking.RULES, **rules))


def wide_panels(monkeypatch: Any, target: Target) -> None:
    """Lay out weights of small products too, as a target reads them."""
    bits = PRODUCTS.panel_bits(target)
    monkeypatch.setattr(freeze, "in_panels", lambda c, r, *_: in_panels(c, r, bits, 1))


def draw(dtype: DType, *shape: int, seed: int = 0) -> Array:
    low = 0 if dtype.kind == "uint" else -3
    return np.random.default_rng(seed).integers(low, 4, shape).astype(dtype.numpy)


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def frozen(fn: Callable[[Any, Any], Any], weights: Any) -> Any:
    return bu.freeze(lambda w, x: fn(x, w), weights, device="cpu")


def held(function: Any) -> list[Any]:
    """The arrays that the signatures of a frozen function read."""
    return [a for entry in function._entries.values() for a in entry.function.captured]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(33, 38, 48), (29, 74, 132), (64, 16, 36), (16, 90, 64), (31, 112, 66)]
)
def test_layouts_and_edges(layout: str, m: int, k: int, n: int, plans: list[Blocking]) -> None:
    """Columns that fill their panels, and others, in blocks that are whole and not."""
    product, order = LAYOUTS[layout]
    sizes = {"b": 2, "k": k, "n": n}
    shape = [sizes[c] for c in order] or [k // 2, 2, n // 2, 2]
    x, w = draw(f32, m, k), draw(f32, *shape, seed=1)
    function = frozen(product, w)
    made = np.asarray(function(x))
    np.testing.assert_array_equal(made, bu.jit(product, device="cpu")(x, w))
    assert [plan.ready is not None for plan in plans] == [True, False]
    (panels,) = held(function)
    width = plans[0].tile.columns
    assert panels.shape == (shape[0] if order == "bkn" else 1, -(-n // width), k, width)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i32, i64, u32], ids=str)
def test_dtypes(dtype: DType, plans: list[Blocking]) -> None:
    x, w = draw(dtype, 45, 50), draw(dtype, 50, 39, seed=1)
    made = frozen(lambda x, w: x @ w, w)(x)
    np.testing.assert_array_equal(wide(np.asarray(made)), wide((wide(x) @ wide(w)).astype(x.dtype)))
    (plan,) = plans
    assert plan.ready is not None
    assert plan.ready.dtype is dtype


@pytest.mark.parametrize("dtype", [i8, u8, i16], ids=str)
@pytest.mark.parametrize(
    ("rows", "inner", "ready"), [(40, 76, True), (40, 75, False), (130, 76, False)]
)
def test_pairs_are_joined_where_rows_are_few(
    dtype: DType, rows: int, inner: int, ready: bool, plans: list[Blocking]
) -> None:
    """Where inner indices are even: what follows the last panel is no number of this array."""
    sums = u32 if dtype is u8 else i32
    info, rng = np.iinfo(dtype.numpy), np.random.default_rng(0)
    numbers = [info.min, info.max, 1, 3]
    x, w = (rng.choice(numbers, s).astype(dtype.numpy) for s in ((rows, inner), (inner, 39)))
    made = frozen(lambda x, w: bu.astype(x, sums) @ bu.astype(w, sums), w)(x)
    expected = (x.astype(np.int64) @ w.astype(np.int64)).astype(sums.numpy)
    np.testing.assert_array_equal(made, expected)
    (plan,) = plans
    assert plan.tile.pair
    assert (plan.ready is not None) == ready


@pytest.mark.parametrize("stored", [i8, bf16], ids=str)
def test_weights_are_converted_as_they_are_read(stored: DType, plans: list[Blocking]) -> None:
    x, w = draw(f32, 40, 50), draw(stored, 50, 48, seed=1)
    function = frozen(lambda x, w: x @ bu.astype(w, f32), w)
    np.testing.assert_array_equal(function(x), wide(x) @ wide(w))
    (panels,) = held(function)
    assert panels.dtype is stored
    (plan,) = plans
    assert (plan.ready is not None) == stored.is_float, "i8 is converted once, as it is packed"


@pytest.mark.parametrize(("bits", "registers"), [(128, 16), (256, 16), (128, 32), (512, 32)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_of_any_width(
    bits: int, registers: int, layout: str, plans: list[Blocking], monkeypatch: Any
) -> None:
    target = Target(vector_bits=bits, registers=registers)
    monkeypatch.setattr("bringup_cpu.device.host_target", lambda: target)
    wide_panels(monkeypatch, target)
    product, order = LAYOUTS[layout]
    inner = bits + registers  # no two targets share a program
    for columns in (64, 74):
        sizes = {"b": 2, "k": inner, "n": columns}
        shape = [sizes[c] for c in order] or [inner // 2, 2, columns // 2, 2]
        for dtype in (f32, f16):
            x, w = draw(dtype, 45, inner), draw(dtype, *shape, seed=1)
            made = frozen(product, w)(x)
            np.testing.assert_array_equal(made, bu.jit(product, device="cpu")(x, w))
    assert [plan.ready is not None for plan in plans] == 4 * [True, False]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("features", "stride", "groups"), [(32, 1, 1), (36, 1, 1), (48, 2, 1), (32, 1, 2)]
)
def test_convolutions(
    layout: str, features: int, stride: int, groups: int, plans: list[Blocking]
) -> None:
    x, w = draw(f32, 2, 64, 6, 7), draw(f32, features, 64 // groups, 3, 3, seed=1)
    if layout == "NHWC":
        x, w = (np.ascontiguousarray(a.transpose(order))
                for a, order in ((x, (0, 2, 3, 1)), (w, (2, 3, 1, 0))))  # fmt: skip

    def fn(x: Any, w: Any) -> Any:
        y = nn.conv(x, w, layout=layout, stride=stride, groups=groups, padding=1)
        return nn.relu(y + np.arange(features).reshape(-1, *(1, 1) * (layout == "NCHW")))

    made = frozen(fn, w)(x)
    ready = any(plan.ready is not None for plan in plans)
    np.testing.assert_array_equal(made, bu.jit(fn, device="cpu")(x, w))
    assert ready == (stride == groups == 1)


def test_features_are_laid_out_where_rows_of_places_fill_vectors_badly() -> None:
    width = PRODUCTS.panel_bits(host_target()) // 32
    lanes = width // 2
    w = draw(f32, width, 24, 3, 3, seed=1)
    for row, shape in ((lanes + lanes // 4, (1, 1, 216, width)), (2 * lanes, w.shape)):
        x = draw(f32, 1, 24, 100 // row + 2, row + 2)
        function = frozen(nn.conv, w)
        np.testing.assert_array_equal(function(x), bu.jit(nn.conv, device="cpu")(x, w))
        assert [array.shape for array in held(function)] == [shape]


def test_what_is_fused_stays_fused(plans: list[Blocking]) -> None:
    x, w, bias = draw(f32, 40, 50), draw(f32, 50, 39, seed=1), draw(f32, 39, seed=2)

    def layer(p: Any, x: Any) -> Any:
        total = bu.transpose(x) @ p[0] + p[1]
        return bu.maximum(total, 0), bu.astype(total, i32) + 1

    function = bu.freeze(layer, (w, bias), device="cpu")
    for made, plain in zip(function(x.T), bu.jit(layer, device="cpu")((w, bias), x.T), strict=True):
        np.testing.assert_array_equal(made, plain)
    assert function.lower(x.T).cost().kernels == 1
    assert plans[0].ready is not None


def test_packed_columns_need_no_memory(plans: list[Blocking], monkeypatch: Any) -> None:
    small_rules(monkeypatch, vectors=blocking.RULES.vectors[:1])
    x, w = draw(f32, 40, 150), draw(f32, 150, 96, seed=1)
    product = LAYOUTS["rows"][0]
    lowered = frozen(product, w).lower(x), bu.jit(product, device="cpu").lower(x, w)
    plans.clear()
    ready, packs = (generate(c.program, host_target()).arena_bytes for c in lowered)
    plan = plans[1]
    assert replace(plans[0], cut=plan.cut, ready=None) == plan
    columns = plan.columns * plan.cut.depth * f32.bits // 8
    assert packs - ready == -(-columns // 64) * 64


def test_sums_are_those_of_products_that_pack(plans: list[Blocking]) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((70, 900), (900, 130)))
    product = LAYOUTS["rows"][0]
    np.testing.assert_array_equal(frozen(product, w)(x), bu.jit(product, device="cpu")(x, w))
    assert [plan.ready is not None for plan in plans] == [True, False]


def test_one_constant_serves_products_and_signatures() -> None:
    w = draw(f32, 50, 64)

    def twice(x: Any, w: Any) -> Any:
        return x @ w + bu.exp(x[::-1] * 0) @ w

    function = frozen(twice, w)
    for rows in (20, 33, 1):
        x = draw(f32, rows, 50)
        np.testing.assert_array_equal(function(x), wide(x) @ wide(w) + np.ones_like(x) @ wide(w))
    first, *others = held(function)
    width = PRODUCTS.panel_bits(host_target()) // 32
    assert first.shape == (1, 64 // width, 50, width)
    assert all(other is first for other in others)
    assert len(others) == 2


def test_weights_that_another_reads_stay_as_well() -> None:
    w = draw(f32, 48, 48)
    function = frozen(lambda x, w: bu.stack([x @ w, x @ w.mT, x[:, :1] * w[:40] * 2]), w)
    x = draw(f32, 40, 48)
    expected = [wide(x) @ wide(w), wide(x) @ wide(w).T, wide(x)[:, :1] * wide(w)[:40] * 2]
    np.testing.assert_array_equal(function(x), expected)
    assert [a.type.rank for a in held(function)] == [2, 4, 4]


def test_where_weights_stay_as_they_are() -> None:
    """Few columns; a division for few rows; a repeated matrix; weights on the left."""
    x, w = draw(f32, 8, 50), draw(f32, 50, 39, seed=1)
    for fn, y in (
        (lambda x, w: x @ w[:, :7], x),
        (lambda x, w: x @ w, x),
        (lambda x, w: bu.stack([x, x]) @ bu.broadcast_to(w, (2, 50, 39)), draw(f32, 32, 50)),
        (lambda x, w: w.mT @ x.mT, draw(f32, 32, 50)),
    ):
        function = frozen(fn, w)
        np.testing.assert_array_equal(function(y), bu.jit(fn, device="cpu")(y, w))
        (captured,) = held(function)
        assert captured.type.rank == 2
    unfused = bu.freeze(lambda w, x: x @ w, w, device="cpu", fuse=False)
    unfused(draw(f32, 32, 50))
    assert held(unfused)[0].shape == w.shape


def test_gradients_and_examples() -> None:
    x, w = draw(f32, 3, 20, 48), draw(f32, 48, 70, seed=1)
    function = frozen(lambda x, w: x @ w, w)
    with bu.device("cpu"):
        slope = bu.grad(lambda x: bu.sum(function(x)))(bu.asarray(x[0]))
        many = bu.vmap(function)(bu.asarray(x))
    np.testing.assert_array_equal(slope, np.tile(wide(w).sum(1), (20, 1)))
    np.testing.assert_array_equal(many, wide(x) @ wide(w))


@pytest.mark.parametrize(("start", "ready"), [(0, True), (3, False)])
def test_a_last_panel_ends_in_its_memory(
    start: int, ready: bool, plans: list[Blocking], monkeypatch: Any
) -> None:
    """Some columns of a matrix as wide as a panel: from the fourth on, the last row would not."""
    small_rules(monkeypatch, least_rows=2)
    width = PRODUCTS.panel_bits(host_target()) // 32
    x, w = draw(f32, 40, 50), draw(f32, 50, width, seed=1)
    columns = slice(start, start + width - 4)
    product = bu.jit(lambda x, w: x @ w[:, columns], device="cpu")
    np.testing.assert_array_equal(product(x, w), wide(x) @ wide(w)[:, columns])
    assert [plan.ready is not None for plan in plans] == [ready]
