"""Loads at indices that are data: what they become in kernels, and what fuses with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import host_simt
import numpy as np
import pytest

from bringup.dtypes import DType, f32, i8, i32, i64, u8, u64
from bringup.graph import Builder, Graph, Value
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.kernel.parser import parse_kernel
from bringup.kernel.verify import verify_kernel
from bringup.ops import build
from bringup.ops.build import rows, splat, sum_
from bringup.ops.evaluate import evaluate
from bringup.program.evaluate import evaluate_launches
from bringup.types import TensorType

Fn = Callable[..., Value | Sequence[Value]]
ROWS = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
ELEMENTS = {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}


def rows_of(x: Value, at: Value, mode: str = "clip") -> Value:
    """``x[at]`` of a matrix."""
    return rows.gather(x, at, sizes=(1, x.shape[1]), mode=mode, **ROWS)


def elements_of(x: Value, at: Value, mode: str = "clip") -> Value:
    return rows.gather(x, at, sizes=(1,), mode=mode, **ELEMENTS)


def graph_of(fn: Fn, types: Sequence[TensorType]) -> Graph:
    with Builder() as builder:
        made = fn(*map(builder.input, types))
        return builder.build([made] if isinstance(made, Value) else list(made), "main")


def drawn(type_: TensorType, seed: int) -> Any:
    """Indices in range, at its ends and beyond; small whole numbers."""
    rng = np.random.default_rng(seed)
    if type_.dtype.is_float:
        return rng.integers(-9, 10, type_.shape).astype(type_.dtype.numpy)
    info = np.iinfo(type_.dtype.numpy)
    ends = np.array([info.min, info.max, 0, 3], type_.dtype.numpy)
    inside = rng.integers(0, 6, type_.shape).astype(type_.dtype.numpy)
    return np.where(rng.random(type_.shape) < 0.3, rng.choice(ends, type_.shape), inside).astype(
        type_.dtype.numpy
    )


def fused(fn: Fn, *types: TensorType) -> list[Launch]:
    """Launches that verify, read back from their text, and give the graph's values, on threads of a
    machine with one per lane too.
    """
    graph = graph_of(fn, types)
    made = fuse(graph, Limits())
    for launch in made:
        assert launch.kernel is not None
        verify_kernel(launch.kernel)
        assert str(parse_kernel(str(launch.kernel))) == str(launch.kernel)
    threads = host_simt.Launches(graph, made)
    for seed in range(3):
        inputs = [drawn(t, 10 * seed + n) for n, t in enumerate(types)]
        wanted = evaluate(graph, inputs)
        for found in (evaluate_launches(graph, made, inputs), threads(inputs)):
            for a, b in zip(wanted, found, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a, b, rtol=1e-6)
    return made


def counted(x: Value) -> Value:
    return rows.add(x, rows.iota(type=x.type, dim=0))


def softmax(x: Value) -> Value:
    top = build.kept(rows.reduce(x, kind="max", dims=(1,)), (1,), x.shape)
    e = rows.exp(rows.sub(x, top))
    return rows.div(e, build.kept(sum_(e, (1,)), (1,), x.shape))


def embedded_sum(table: Value, at: Value) -> Value:
    return sum_(rows_of(table, at), (0,))


def indices_from_indices(x: Value, at: Value, more: Value) -> Value:
    return rows_of(x, elements_of(at, more))


def padded_rows(x: Value, at: Value) -> Value:
    return build.pad(rows_of(x, at), 1, (1, 0), (2, 1))


def best_row(x: Value, score: Value) -> Value:
    dims = (0,)
    top = build.reduce("max", score, dims)
    hit = build.compare("eq", score, build.kept(top, dims, score.shape))
    place = rows.iota(type=score.type.with_dtype(i32), dim=0)
    at = build.reduce("min", rows.select(hit, place, build.like(place, 99)), dims)
    sizes = (1, x.shape[1])
    return rows.dynamic_slice(x, at, splat(0, at.type), sizes=sizes)


def moved_window(x: Value, i: Value, j: Value) -> Value:
    return rows.neg(rows.dynamic_slice(rows.mul(x, x), i, j, sizes=(2, 3)))


def updated(x: Value, new: Value, i: Value, j: Value) -> Value:
    return rows.neg(rows.dynamic_update_slice(x, rows.mul(new, new), i, j))


def pairs(x: Value, at: Value) -> Value:
    numbers = {"offset": (), "index_map": (1, 0), "index_dim": 0, "collapsed": (0, 1)}
    return rows.gather(x, at, sizes=(1, 1), mode="fill", **numbers)


def lines(x: Value, at: Value) -> Value:
    numbers = {"offset": (), "index_map": (1,), "index_dim": 2, "collapsed": (1,)}
    return rows.gather(x, at, sizes=(1, 1), batch=((0,), (0,)), **numbers)


S = ()
#: Everything here is one kernel.
ONE: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "rows": (rows_of, (f32[5, 7], i32[9])),
    "rows or 0": (lambda x, i: rows_of(x, i, "fill"), (f32[5, 7], i64[9])),
    "rows at u64": (rows_of, (f32[5, 7], u64[9])),
    "rows at i8 of many": (rows_of, (f32[300, 3], i8[9])),
    "rows of no elements": (rows_of, (f32[5, 0], i32[9])),
    "no rows": (rows_of, (f32[5, 7], i32[0])),
    "elements": (elements_of, (f32[5], i32[40])),
    "of one element": (elements_of, (f32[1], i32[40])),
    "embedding and sum": (embedded_sum, (f32[5, 7], i32[9])),
    "prologue, epilogue": (
        lambda x, i: rows.neg(rows_of(x, counted(i), "fill")), (f32[5, 7], i32[9])),
    "of what is computed": (
        lambda x, i: rows_of(rows.mul(x, x), i, "fill"), (f32[5, 7], i32[9])),
    "of what is moved": (
        lambda x, i: rows_of(build.transpose(x, (1, 0)), i), (f32[7, 5], i32[9])),
    "of what is padded": (
        lambda x, i: rows_of(build.pad(x, 1, (1, 0), (0, 2)), i), (f32[3, 5], i32[9])),
    "of counters": (
        lambda i: rows_of(rows.iota(type=f32[5, 3], dim=0), i), (i32[9],)),
    "padded": (padded_rows, (f32[5, 7], i32[4])),
    "indices from indices": (indices_from_indices, (f32[5, 7], i32[6], u8[4])),
    "softmax of rows": (lambda x, i: softmax(rows_of(x, i)), (f32[5, 7], i32[9])),
    "two components": (pairs, (f32[4, 5], i32[2, 6])),
    "a batch dimension": (lines, (f32[3, 5], i32[3, 4])),
    "a window": (moved_window, (f32[4, 5], i32[S], i32[S])),
    "a window at i8 of many": (
        lambda x, i: rows.dynamic_slice(x, i, sizes=(3,)), (f32[300], i8[S])),
    "an update": (updated, (f32[4, 5], f32[2, 3], u8[S], u8[S])),
    "an update of all": (updated, (f32[4, 5], f32[4, 5], u8[S], u8[S])),
    "an update by nothing": (updated, (f32[4, 5], f32[0, 5], u8[S], u8[S])),
    "a row that a fold chose": (best_row, (f32[5, 7], f32[5])),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str) -> None:
    fn, types = ONE[name]
    assert len(fused(fn, *types)) == 1


def test_the_text_of_a_gather() -> None:
    (launch,) = fused(lambda x, i: rows.neg(rows_of(x, i, "fill")), f32[5, 7], i32[9])
    text = """
        kernel k0_neg
          b0: in i32[9]
          b1: in f32[5,7]
          b2: out f32[9,7]
          grid a0[9] a1[7]
          stage 0 over ()
            graph stage0() {
              %0: i32[] = load() {buffer=0, dtype=i32, index=index<a0[9]>, mask=()}
              %1: i32[] = constant() {value=i32[](0)}
              %2: i32[] = max(%0, %1)
              %3: i32[] = constant() {value=i32[](4)}
              %4: i32[] = min(%2, %3)
              %5: f32[] = load(%4) {buffer=1, dtype=f32, index=index<a1[7] + 7*d0[0:4]>, mask=()}
              %6: bool[] = compare(%0, %4) {direction="eq"}
              %7: f32[] = constant() {value=f32[](0.0)}
              %8: f32[] = select(%6, %5, %7)
              %9: f32[] = neg(%8)
              return %9
            }
            store b2[7*a0[9] + a1[7]]
    """
    assert str(launch.kernel) == inspect.cleandoc(text)


def test_an_index_that_cannot_lie_outside_is_not_asked() -> None:
    (launch,) = fused(lambda x, i: elements_of(x, i, "fill"), f32[300], u8[9])
    assert launch.kernel is not None
    (stage,) = launch.kernel.stages
    assert [instr.op.name for instr in stage.body.instrs] == ["load", "load"]


def test_an_index_that_only_a_mask_keeps_in_range_is_loaded_under_it() -> None:
    (launch,) = fused(padded_rows, f32[5, 7], i32[4])
    assert launch.kernel is not None
    (stage,) = launch.kernel.stages
    index, data = stage.loads()
    assert index.attrs["mask"]
    assert set(index.attrs["mask"]) <= set(data.attrs["mask"])


def test_expensive_work_is_not_done_again_for_every_row() -> None:
    def kernels(count: int) -> list[str]:
        graph = graph_of(lambda x, i: rows_of(rows.exp(x), i), (f32[50, 64], i32[count]))
        return [launch.kernel.name for launch in fuse(graph, Limits()) if launch.kernel]

    assert kernels(40_000) == ["k0_exp", "k1_copy"]
    assert kernels(40) == ["k0_exp"]


def test_a_sum_is_made_before_it_is_read_at_data() -> None:
    made = fused(lambda x, i: elements_of(sum_(x, (1,)), i), f32[5, 7], i32[9])
    assert len(made) == 2


def test_a_contraction_reads_gathered_rows_from_memory() -> None:
    def fn(x: Value, i: Value, w: Value) -> Value:
        return rows.dot_general(rows_of(x, i), w, batch=((), ()), contract=((1,), (0,)))

    assert len(fused(fn, f32[5, 7], i32[9], f32[7, 3])) == 2


@pytest.mark.parametrize("dtype", [i8, u8, i32, i64, u64], ids=str)
def test_every_index_dtype(dtype: DType) -> None:
    for mode in ("clip", "fill"):
        for count in (5, 300):
            fused(lambda x, i, mode=mode: elements_of(x, i, mode), f32[count], dtype[50])
