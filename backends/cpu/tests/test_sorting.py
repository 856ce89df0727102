"""Sorts as native code: every way of sorting, at the sizes where one ends and the next begins."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.backend import Backend
from bringup.dtypes import ALL, DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u32, u64
from bringup.llvm.loops.library import emit_step
from bringup.llvm.text import Module
from bringup.loops.library import sorting
from bringup.loops.library.calls import PERMUTES
from bringup.ops.table import lookup
from bringup.program.program import OpStep, Slot
from bringup.runtime import devices
from bringup.runtime.compiler import lower_graph
from bringup.target import Target
from bringup.types import TensorType

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def sort(dim: int = 0, **attrs: Any) -> Any:
    return lambda *operands: ops.sort(*operands, dim=dim, **attrs)


def drawn(dtype: DType, shape: Shape, seed: int) -> Array:
    """Few values and many, and of floats all those that compare oddly."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(bool)
    share = rng.random(count)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        wide = rng.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        few = rng.integers(0, 5, count).astype(dtype.numpy)
        return np.where(share < 0.5, wide, few).reshape(shape)
    made = rng.normal(size=count) * 8
    made = np.where(share < 0.4, np.round(made), made)
    odd = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf])
    made = np.where(share > 0.7, odd[rng.integers(0, 6, count)], made)
    return made.astype(dtype.numpy).reshape(shape)


SHAPES: list[tuple[Shape, int]] = [
    ((1,), 0), ((7,), 0), ((300,), 0), ((4097,), 0), ((3, 1000), 1),
    ((70, 5), 1), ((48, 64), 1), ((21, 33), 1), ((40, 3), 0), ((33, 17), 0),
    ((2, 50, 13), 1), ((3, 0), 0), ((0, 3), 0), ((32, 48), 1), ((16, 24), 1), ((4, 30), 1),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda n: str(ALL[n]))
def test_numbers_and_payloads_of_every_dtype(kit: Any, number: int) -> None:
    """Up or down, with a payload or without: all four for each dtype, and of two a shape each."""
    for seed, (shape, dim) in enumerate(SHAPES):
        if (seed // 4 + number // 4) & 1:
            continue
        load = [drawn(i32, shape, seed + 50)] if (seed + number) & 1 else []
        descending = bool((seed + number) & 2)
        kit.exact(sort(dim, descending=descending), drawn(ALL[number], shape, seed), *load)


@pytest.mark.parametrize(
    "keys",
    [(bool_, u8), (f16, i8), (f32, bf16), (i32, f32), (u64, f64), (f64, i64, i8), (i8,) * 6],
    ids=lambda keys: "-".join(map(str, keys)),
)
def test_several_keys_of_every_width(kit: Any, keys: tuple[DType, ...]) -> None:
    for shape, dim in (((500,), 0), ((40, 9), 0), ((20, 30), 1)):
        few = [drawn(d, shape, n) for n, d in enumerate(keys)]
        ties = [np.where(np.arange(x.size).reshape(shape) % 3, x.flat[0], x) for x in few[:-1]]
        arrays = [*ties, few[-1], drawn(f64, shape, 9), drawn(u8, shape, 10)]
        for descending in (False, True):
            kit.exact(sort(dim, num_keys=len(keys), descending=descending), *arrays)


LONG: list[Shape] = [(100_000,), (2, 40_000), (33_000, 2), (16, 40_000)]
LONG_DTYPES = [f32, f16, i64, u32, bool_]


@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("dtype", LONG_DTYPES, ids=str)
def test_lines_longer_than_a_block(kit: Any, dtype: DType, shape: Shape) -> None:
    """Up or down, alone or with a payload, in turn over shapes and dtypes."""
    dim, turn = int(shape[0] < 17), LONG.index(shape) + LONG_DTYPES.index(dtype)
    load = [drawn(i8, shape, 2)] if turn & 2 else []
    kit.exact(sort(dim, descending=bool(turn & 1)), drawn(dtype, shape, turn & 1), *load)


def test_what_is_in_order_already_and_what_is_not_at_all(kit: Any) -> None:
    for size in (100, 5000, 70_000):
        up = np.arange(size, dtype=np.int32)
        for x in (up, up[::-1].copy(), np.zeros(size, np.int32), np.where(up % 2, up, -up)):
            kit.exact(sort(), x)
            kit.exact(sort(), x, up)


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
def test_signs_of_zeros_stay_in_order_across_stretches(kit: Any, descending: bool) -> None:
    rng = np.random.default_rng(4)
    x = np.where(rng.random(120_000) < 0.9, 0.0, rng.normal(size=120_000)).astype(np.float32)
    x = np.where(rng.random(x.size) < 0.5, -x, x)
    x[rng.integers(0, x.size, 1000)] = np.nan
    kit.exact(sort(descending=descending), x)


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("registers", [16, 32])
def test_any_vector_width_sorts(
    kit: Any, monkeypatch: pytest.MonkeyPatch, bits: int, registers: int
) -> None:
    """The host runs what is emitted for narrower machines too."""
    target = Target(vector_bits=bits, registers=registers, instructions=(PERMUTES,))
    own = sorting.sort

    def narrowed(call: Any) -> Any:
        return own(replace(call, target=target))

    monkeypatch.setattr(sorting, "sort", narrowed)
    for n, (shape, dim) in enumerate([((777,), 0), ((9, 33), 1), ((33, 9), 0), ((50_000,), 0)]):
        for k, dtype in enumerate((f32, i64), n + registers // 16):
            x = drawn(dtype, shape, bits + registers + n)
            load = [drawn(u8, shape, n)] if k % 2 else []
            kit.exact(sort(dim, descending=bool(load)), x, *load)


def test_a_sort_stands_between_kernels(kit: Any) -> None:
    def build(x: Any) -> Any:
        keys, places = ops.sort(
            ops.neg(x), ops.iota(type=x.type.with_dtype(i32), dim=1), dim=1, num_keys=1
        )
        return [ops.neg(keys), ops.reduce(ops.mul(places, places), kind="add", dims=(1,))]

    kit.exact(build, drawn(f32, (20, 100), 1))


def test_results_that_nobody_reads_cost_no_output(kit: Any) -> None:
    x, y = drawn(f32, (3, 50), 1), drawn(i32, (3, 50), 2)
    kit.exact(lambda a, b: ops.sort(a, b, dim=1)[1], x, y)


def test_equal_steps_share_their_functions(kit: Any) -> None:
    def build(x: Any, y: Any) -> Any:
        return [ops.sort(x, dim=0), ops.sort(y, dim=0)]

    graph = kit.graph(build, f32[100], f32[100])
    text = lower_graph(graph, _backend()).source
    assert text.count("define internal void @entry.op0.sort.sort(") == 1
    assert "op1" not in text


def _backend() -> Backend:
    return devices.get("cpu").backend


def test_a_step_without_elements_has_no_phase() -> None:
    slot = Slot("input", 0, 0, TensorType((0, 3), f32))
    step = OpStep(lookup("sort"), {}, (slot,), (slot,))
    assert emit_step(Module(), step, "nothing", Target(vector_bits=128)).phases == ()


def test_long_lines_are_many_units() -> None:
    """So that threads share even a single one, in every phase."""
    for keys, dtype in itertools.product((1, 2), (f32, i64)):
        type_ = TensorType((1 << 20,), dtype)
        slots = tuple(Slot("input", n, 0, type_) for n in range(2 * keys))
        attrs = {"dim": 0, "num_keys": keys, "descending": False}
        step = OpStep(lookup("sort"), attrs, slots[:keys], slots[keys:])
        phases = emit_step(Module(), step, "long", Target(vector_bits=512, registers=32)).phases
        assert len(phases) > 4
        # The first says how long the runs of each merge are.
        assert min(phase.units for phase in phases[1:]) >= 8
