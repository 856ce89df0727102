"""Kernels as loops: the text of typical ones, and that every one does what its kernel does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from growing import LIMITS, graphs, launches
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.dtypes import DType, bf16, f16, f32, f64, i8, i32
from bringup.errors import GraphError
from bringup.graph import Builder, Graph, Value
from bringup.kernel.evaluate import Place, evaluate_kernel
from bringup.kernel.form import Fold, Kernel
from bringup.kernel.fuse import fuse
from bringup.kernel.limits import Limits
from bringup.kernel.parser import parse_kernel
from bringup.kernel.split import split_launch
from bringup.loops import (
    Alloc,
    For,
    Func,
    Let,
    Load,
    Store,
    evaluate_func,
    lower_kernel,
    parse_func,
    statements,
    verify_func,
)
from bringup.ops.build import kept, rows, sum_
from bringup.types import TensorType

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _folds_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of a fold is free: that of kernels is here that of their loops."""
    monkeypatch.setattr("bringup.kernel.evaluate._fold", fold_in_order)


def fold_in_order(fold: Fold, value: Array, where: Place) -> Array:
    alive = np.broadcast_to(where.alive, where.shape).T
    total = np.full(where.shape[0], fold.start(where.shape[1]))
    for column, runs in zip(np.broadcast_to(value, where.shape).T, alive, strict=True):
        total = np.where(runs, fold.monoid.row.reference(total, column), total)
    return total[:, None]


def buffers_of(kernel: Kernel, seed: int) -> list[Array]:
    """Random numbers; where a fold may skip the rounding of products, small whole ones, with which
    nothing is rounded.
    """
    rng = np.random.default_rng(seed)
    scale = 1 if any(fold.product for stage in kernel.stages for fold in stage.folds) else 1 / 3
    decls = [d for d in kernel.buffers if d.role != "tile"]
    return [
        np.ascontiguousarray((rng.integers(-2, 3, d.type.shape) * scale).astype(d.type.dtype.numpy))
        if d.type.dtype.is_float
        else np.ascontiguousarray(rng.integers(0, 3, d.type.shape).astype(d.type.dtype.numpy))
        for d in decls
    ]


def same_bits(one: Array, other: Array) -> bool:
    """Equal bit by bit, but for what a NaN carries."""
    if one.dtype.kind not in "fV":
        return one.tobytes() == other.tobytes()
    nan = np.isnan(one)
    return bool(
        (nan == np.isnan(other)).all()
        and np.where(nan, 0, one).tobytes() == np.where(nan, 0, other).tobytes()
    )


def proven(kernel: Kernel, seed: int = 3) -> Func:
    """The loops of a kernel, which verify, come back from text and do what the kernel does."""
    func = lower_kernel(kernel)
    verify_func(func)
    again = parse_func(str(func))
    assert str(again) == str(func)
    buffers, others = buffers_of(kernel, seed), buffers_of(kernel, seed)
    with np.errstate(all="ignore"):
        evaluate_kernel(kernel, buffers)
    evaluate_func(again, others)
    for one, other in zip(buffers, others, strict=True):
        assert same_bits(one, other), f"{kernel}\n{func}"
    return func


@settings(max_examples=100)
@given(
    graph=graphs,
    limits=st.sampled_from(LIMITS),
    depth=st.booleans(),
    chunk=st.sampled_from((0, 2, 7)),
)
def test_random_kernels_do_the_same_as_loops(
    graph: Graph, limits: Limits, depth: bool, chunk: int
) -> None:
    """Long folds whole, and cut into chunks, of which the last may be short."""
    for launch in launches(graph, limits, depth=depth):
        for part in split_launch(launch, lambda _: chunk, limits.buffers):
            assert part.kernel is not None
            proven(part.kernel)


def kernels_of(fn: Callable[..., Value], *types: TensorType, chunk: int = 0) -> list[Kernel]:
    """The kernels of a function; long folds are cut into chunks of so many iterations."""
    with Builder() as builder:
        graph = builder.build([fn(*map(builder.input, types))], "main")
    made = [
        part
        for launch in fuse(graph, Limits())
        for part in split_launch(launch, lambda _: chunk, 9)
    ]
    assert all(launch.kernel is not None for launch in made)
    return [launch.kernel for launch in made if launch.kernel is not None]


def softmax(x: Value) -> Value:
    dims = (len(x.shape) - 1,)
    e = rows.exp(rows.sub(x, kept(rows.reduce(x, kind="max", dims=dims), dims, x.shape)))
    return rows.div(e, kept(sum_(e, dims), dims, x.shape))


def product(x: Value, w: Value) -> Value:
    return rows.dot_general(x, w, batch=((), ()), contract=((1,), (0,)), precision="tf32")


def taken(x: Value, at: Value) -> Value:
    numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
    return rows.gather(x, at, sizes=(1, x.shape[1]), mode="fill", **numbers)


#: What is computed, of which types, in chunks of which length; the text of the loops.
GOLDEN: dict[str, tuple[Callable[..., Value], tuple[TensorType, ...], int, str]] = {
    "softmax": (softmax, (f32[2, 3],), 0, """
        func k0_sub_exp_reduce_div(b0: in f32[6], b1: out f32[6]) {
          for g0 in 2 parallel {
            alloc t2: scratch f32[3]
            alloc r0: register f32[1]
            %0: f32 = -inf
            r0[0] = %0
            for s0_0 in 3 {
              %1: f32 = b0[3*g0 + s0_0]
              r0[0] max= %1
            }
            alloc r1: register f32[1]
            %2: f32 = -0.0
            r1[0] = %2
            %3: f32 = r0[0]
            for s1_0 in 3 {
              %4: f32 = b0[3*g0 + s1_0]
              %5: f32 = sub(%4, %3)
              %6: f32 = exp(%5)
              r1[0] add= %6
              t2[s1_0] = %6
            }
            %8: f32 = r1[0]
            for s2_0 in 3 {
              %9: f32 = t2[s2_0]
              %10: f32 = div(%9, %8)
              b1[3*g0 + s2_0] = %10
            }
          }
        }
    """),
    "a product whose factors may lose bits": (product, (f32[3, 4], f32[4, 5]), 0, """
        func k0_dot_general(b0: in f32[20], b1: in f32[12], b2: out f32[15]) {
          for g0 in 3 parallel {
            for g1 in 5 parallel {
              alloc r0: register f32[1]
              %0: f32 = -0.0
              r0[0] = %0
              for s0_0 in 4 {
                %1: f32 = b0[g1 + 5*s0_0]
                %2: f32 = b1[4*g0 + s0_0]
                r0[0] add= %2 * %1 tf32
              }
              %4: f32 = r0[0]
              b2[5*g0 + g1] = %4
            }
          }
        }
    """),
    "elements at loaded indices": (taken, (f32[9, 2], i32[4]), 0, """
        func k0_copy(b0: in i32[4], b1: in f32[18], b2: out f32[8]) {
          for g0 in 4 parallel {
            for g1 in 2 parallel {
              %0: i32 = b0[g0]
              %1: i32 = 0
              %2: i32 = max(%0, %1)
              %3: i32 = 8
              %4: i32 = min(%2, %3)
              %5: f32 = b1[g1 + 2*d0[0:8]](%4)
              %6: bool = compare(%0, %4) {direction="eq"}
              %7: f32 = 0.0
              %8: f32 = select(%6, %5, %7)
              b2[2*g0 + g1] = %8
            }
          }
        }
    """),
    "the chunks of a sum, of which the last is short": (lambda x: sum_(x, (0,)), (f16[11],), 4, """
        func k0_reduce_partial(b0: in f16[11], b1: out f32[3]) {
          for g0 in 3 parallel {
            alloc r0: register f32[1]
            %0: f32 = -0.0
            r0[0] = %0
            for s0_0 in 4 until -4*g0 + 11 {
              %1: f16 = b0[4*g0 + s0_0]
              %2: f32 = convert(%1) {dtype=f32}
              r0[0] add= %2
            }
            %3: f32 = r0[0]
            b1[g0] = %3
          }
        }
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_loops_of_typical_kernels(name: str) -> None:
    fn, types, chunk, text = GOLDEN[name]
    func = proven(kernels_of(fn, *types, chunk=chunk)[0])
    assert str(func) == inspect.cleandoc(text)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64, i8, i32], ids=str)
@pytest.mark.parametrize("chunk", [0, 3])
def test_folds_of_every_dtype(dtype: DType, chunk: int) -> None:
    for kernel in kernels_of(lambda x: sum_(rows.mul(x, x), (1,)), dtype[3, 7], chunk=chunk):
        proven(kernel)
    for kernel in kernels_of(
        lambda x: rows.reduce(x, kind="max", dims=(0,)), dtype[7], chunk=chunk
    ):
        proven(kernel)
    if dtype.is_float:
        for kernel in kernels_of(softmax, dtype[4, 5]):
            proven(kernel)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64, i8], ids=str)
def test_products_are_summed_by_folds_with_a_factor(dtype: DType) -> None:
    wide = {f16: f32, bf16: f32, i8: i32}.get(dtype, dtype)

    def dot(x: Value, w: Value) -> Value:
        return rows.dot_general(x, w, batch=((), ()), contract=((1,), (0,)), result=wide)

    (kernel,) = kernels_of(dot, dtype[3, 4], dtype[4, 5])
    folds = [s for s in statements(proven(kernel).body) if isinstance(s, Store) and s.fold]
    assert [fold.factor is not None for fold in folds] == [dtype is not i8]


def test_a_loop_of_no_iterations_vanishes_and_leaves_what_its_fold_begins_with() -> None:
    (kernel,) = kernels_of(lambda x: rows.reduce(x, kind="max", dims=(1,)), f32[3, 0])
    func = proven(kernel)
    assert [s.name for s in statements(func.body) if isinstance(s, For)] == ["g0"]
    assert not any(
        isinstance(s, Load) and s.buffer.space == "global" for s in statements(func.body)
    )
    assert any(isinstance(s, Alloc) for s in statements(func.body))


def test_a_scalar_stands_in_the_outermost_loop_that_has_all_it_needs() -> None:
    def scaled(x: Value, s: Value) -> Value:
        return sum_(rows.mul(x, kept(rows.exp(s), (1,), x.shape)), (0, 1))

    (kernel,) = kernels_of(scaled, f32[5, 6], f32[5])
    func = proven(kernel)
    outer = next(s for s in statements(func.body) if isinstance(s, For) and s.axis.size == 5)
    names = [s.op.name for s in outer.body if isinstance(s, Let)]
    assert names == ["exp"]


MAP = """
    kernel k
      b0: in f32[4]
      b1: out f32[4]
      grid a0[4]
      stage 0 over ()
        graph body() {
          %0: f32[] = load() {buffer=0, dtype=f32, index=index<INDEX>, mask=()}
          %1: f32[] = neg(%0)
          return %1
        }
        store b1[a0[4]]
"""


@pytest.mark.parametrize("index", ["a0[4]", "-1*a0[4] + 3", "0"])
def test_loops_may_replace_what_their_kernel_may(index: str) -> None:
    """One memory for an operand and a result: both interpreters agree whether that is right."""
    kernel = parse_kernel(inspect.cleandoc(MAP.replace("INDEX", index)))
    func = proven(kernel)
    x, y = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32)
    if index == "a0[4]":
        evaluate_kernel(kernel, [x, x])
        evaluate_func(func, [y, y])
        assert x.tolist() == y.tolist() == [0.0, -1.0, -2.0, -3.0]
        return
    with pytest.raises(GraphError):
        evaluate_kernel(kernel, [x, x])
    with pytest.raises(GraphError):
        evaluate_func(func, [y, y])
