"""Kernels that fold into register tiles of the grid: products that are not packed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from func_helper import run, text_of
from launch_helper import TARGET, as_run, exact, graph_of, whole

from bringup.dtypes import bf16, f16, f32, i8, i32
from bringup.graph import Value
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import fuse
from bringup.kernel.limits import Limits
from bringup.llvm.func.render import emit_func
from bringup.llvm.func.schedules import scheduled, steps_of
from bringup.llvm.loops.schedule import schedule
from bringup.llvm.text import Module
from bringup.loops import parse_func
from bringup.loops.form import Store, statements
from bringup.ops.build import broadcast_to, convert, like, pad, rows, sum_
from bringup.types import TensorType


def product(x: Value, y: Value) -> Value:
    """Lanes are along the columns of y."""
    return rows.dot_general(x, y, batch=((), ()), contract=((1,), (0,)))


def of_rows(x: Value, y: Value) -> Value:
    """Lanes are along the fold, which is contiguous in both."""
    return rows.dot_general(x, y, batch=((), ()), contract=((1,), (1,)))


def batches(x: Value, y: Value) -> Value:
    return rows.dot_general(x, y, batch=((0,), (0,)), contract=((2,), (1,)))


def kernel_of(build: Callable[..., Value], *types: TensorType) -> Kernel:
    (launch,) = fuse(graph_of(build, *types), Limits())
    assert launch.kernel is not None
    return launch.kernel


# A tile has up to 6 rows of 2 vectors of 8 columns, or 12 rows of one vector.
@pytest.mark.parametrize("m", [1, 2, 5, 6, 7, 12, 13, 25])
@pytest.mark.parametrize("n", [1, 3, 8, 9, 16, 17, 31, 32, 33])
def test_products_of_any_size(m: int, n: int) -> None:
    whole(product, f32[m, 7], f32[7, n])


# A tile has 2 rows of one factor and 2 of the other, or 4 rows of one.
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("inner", [1, 3, 8, 9, 16, 23])
def test_products_of_rows_of_any_size(m: int, inner: int) -> None:
    for n in (1, 2, 3, 6, 7):
        whole(of_rows, f32[m, inner], f32[n, inner])


@pytest.mark.parametrize("shape", [(3, 5, 4, 9), (2, 13, 3, 17), (4, 6, 8, 16)])
def test_batches_of_products(shape: tuple[int, int, int, int]) -> None:
    b, m, k, n = shape
    whole(batches, f32[b, m, k], f32[b, k, n])
    whole(
        lambda x, y: rows.dot_general(x, y, batch=((0,), (0,)), contract=((2,), (2,))),
        f32[b, m, k],
        f32[b, n, k],
    )


@pytest.mark.parametrize("build", [product, of_rows])
def test_a_bias_and_a_maximum_after_a_product(build: Callable[..., Value]) -> None:
    for m, n in ((6, 16), (7, 19), (13, 33)):

        def layer(x: Value, y: Value, b: Value, m: int = m, n: int = n) -> Value:
            sums = rows.add(build(x, y), broadcast_to(b, (m, n), dims=(1,)))
            return rows.max(sums, like(sums, 0.0))

        y = f32[10, n] if build is product else f32[n, 10]
        whole(layer, f32[m, 10], y, f32[(n,)])


@pytest.mark.parametrize("size", [5, 8, 11])
def test_convolutions_with_a_border(size: int) -> None:
    """Loads of the border are masked, row by row and lane by lane."""

    def convolution(x: Value, w: Value) -> Value:
        x = pad(x, 0.0, lo=(0, 1, 1), hi=(0, 1, 1))
        parts = [
            rows.dot_general(
                rows.slice(w, start=(0, 0, i), limit=(4, 3, i + 1), stride=(1, 1, 1)),
                rows.slice(x, start=(0, i, i), limit=(3, size + i, size + i), stride=(1, 1, 1)),
                batch=((), ()),
                contract=((1,), (0,)),
            )
            for i in range(3)
        ]
        return rows.add(rows.add(parts[0], parts[1]), parts[2])

    whole(convolution, f32[3, size, size], f32[4, 3, 3])


@pytest.mark.parametrize("shape", [(5, 9, 17), (12, 16, 16), (3, 4, 33)])
def test_products_of_narrow_elements(shape: tuple[int, int, int]) -> None:
    m, k, n = shape

    def wide(build: Callable[..., Value], dtype: Any) -> Callable[..., Value]:
        return lambda x, y: build(convert(x, dtype), convert(y, dtype))

    for dtype in (f16, bf16):
        whole(product, dtype[m, k], dtype[k, n])
        whole(of_rows, dtype[m, k], dtype[n, k])
        whole(wide(of_rows, f32), dtype[m, k], dtype[n, k])
    exact(wide(product, i32), i8[m, k], i8[k, n])
    exact(wide(of_rows, i32), i8[m, k], i8[n, k])


@pytest.mark.parametrize("size", [3, 8, 21])
@pytest.mark.parametrize("build", [product, of_rows])
def test_rows_that_are_chosen_by_data(build: Callable[..., Value], size: int) -> None:
    def chosen(table: Value, which: Value, y: Value) -> Value:
        numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
        picked = rows.gather(table, which, sizes=(1, size), mode="clip", **numbers)
        return build(picked, y)

    whole(chosen, f32[9, size], i32[5, 1], f32[6, size] if build is of_rows else f32[size, 13])


@pytest.mark.parametrize(("m", "inner", "n"), [(3, 2049, 17), (4, 5000, 8), (2, 2 * 2049 * 8, 3)])
def test_long_products_have_blocks_for_their_errors(m: int, inner: int, n: int) -> None:
    whole(product, f32[m, inner], f32[inner, n])
    whole(of_rows, f32[m, inner], f32[n, inner])


def test_chunks_of_products_that_end_early() -> None:
    whole(of_rows, f32[3, 1001], f32[5, 1001], chunk=100)
    whole(product, f32[3, 1001], f32[1001, 12], chunk=128)


def test_a_fold_over_two_axes_with_scalars_between_them() -> None:
    def build(x: Value, y: Value) -> Value:
        powers = rows.mul(x, x)
        return sum_(
            rows.mul(
                broadcast_to(powers, (6, 4, 9, 20), dims=(0, 1)),
                broadcast_to(y, (6, 4, 9, 20), dims=(1, 2, 3)),
            ),
            (1, 2),
        )

    whole(build, f32[6, 4], f32[4, 9, 20])


def test_products_of_nothing() -> None:
    whole(product, f32[5, 0], f32[0, 12])
    whole(of_rows, f32[5, 0], f32[6, 0])
    whole(product, f32[0, 5], f32[5, 12])
    whole(lambda x: rows.sub(x, broadcast_to(sum_(x, (1,)), (0, 9), dims=(0,))), f32[0, 9])


@pytest.mark.parametrize(
    ("build", "types", "expected"),
    [
        (
            product,
            (f32[4, 7], f32[7, 8]),
            """
            distribute g0 g1 to=innermost
            vectorize g1
            """,
        ),
        (
            product,
            (f32[13, 7], f32[7, 36]),
            """
            split g0 g0.o g0.i 5
            split g1 g1.o g1.i 16
            reorder g1.o g0.o g0.i g1.i
            split g1.i g1.i.c g1.i.v 8
            distribute g0.i g1.i.c g1.i.v to=innermost
            vectorize g1.i.v
            specialize g0.o 2 g0.o
            specialize g1.o 2 g0.o
            """,
        ),
        (
            product,
            (f32[2, 5000], f32[5000, 8]),
            """
            split s0_0 s0_0.o0 s0_0.x0 1024
            rfactor s0_0.x0 r0
            distribute g0 g1 to=innermost
            vectorize g1
            """,
        ),
        (
            of_rows,
            (f32[5, 20], f32[7, 20]),
            """
            split g0 g0.o g0.i 2
            split g1 g1.o g1.i 2
            reorder g0.o g1.o g1.i g0.i
            distribute g1.i g0.i to=innermost
            split s0_0 s0_0.q s0_0.p 20
            split s0_0.p s0_0.k s0_0.v 8
            peel s0_0.k 0 1
            rfactor s0_0.q r0 g1.i g0.i s0_0.v
            vectorize s0_0.v
            specialize g1.o 3 g1.o
            specialize g0.o 2 g1.o
            """,
        ),
    ],
    ids=["one tile", "smaller tiles", "blocks", "lanes along the fold"],
)
def test_steps_of_products(
    build: Callable[..., Value], types: tuple[TensorType, ...], expected: str
) -> None:
    steps = str(steps_of(schedule(kernel_of(build, *types), TARGET)))
    assert steps.split() == expected.split()


# -- what the renderer makes of a tile -------------------------------------------------------------


def test_a_tile_loads_each_factor_once() -> None:
    kernel = kernel_of(product, f32[6, 7], f32[7, 16])
    _, text = text_of(as_run(kernel))
    (loop,) = re.findall(r"^body[^:]*:\n((?:  [^\n]*\n)*)", text.partition("fma")[0], re.M)[-1:]
    assert len(re.findall(r"load <8 x float>", text)) == 2
    assert len(re.findall(r"load float", loop)) == 6
    assert text.count("call <8 x float> @llvm.fma") == 12
    assert "llvm.masked" not in text


def test_accumulators_of_lanes_beyond_the_end_are_computed_and_not_stored() -> None:
    for columns in (13, 77):
        kernel = kernel_of(product, f32[6, 7], f32[7, columns])
        _, text = text_of(as_run(kernel))
        assert "select" not in text
        assert text.count("call void @llvm.masked.store") == 6


def test_units_with_alternatives_count_the_largest() -> None:
    even, ragged = (
        emit_func(Module(), scheduled(schedule(kernel, TARGET)).after, "f").work
        for kernel in (
            kernel_of(product, f32[12, 7], f32[7, 32]),
            kernel_of(product, f32[11, 7], f32[7, 35]),
        )
    )
    assert even == ragged


def test_copies_come_in_order_where_one_reads_what_another_stores() -> None:
    func = parse_func("""
    func f(x: in f32[8], y: out f32[8]) {
      alloc r: register f32[8]
      for l in 8 vector {
        %0: f32 = x[l]
        r[l] = %0
      }
      for i in 3 unroll {
        for l in 8 vector {
          %1: f32 = r[l]
          %2: f32 = add(%1, %1)
          r[l] = %2
        }
      }
      for l in 8 vector {
        %3: f32 = r[l]
        y[l] = %3
      }
    }""")
    _, text = text_of(func)
    assert text.count("fadd") == 3
    sums = re.findall(r"(%\S+) = fadd <8 x float> (\S+), (\S+)\n", text)
    assert [one for _, one, _ in sums[1:]] == [result for result, _, _ in sums[:-1]]


def test_copies_of_loops_that_end_early_and_of_lanes_that_differ() -> None:
    text = """
    func f(x: in f32[21], y: out f32[21]) {
      for c in 4 until 3 unroll {
        for l in 8 until -8*c + 21 vector {
          %0: f32 = x[l + 8*c]
          %1: f32 = add(%0, %0)
          y[l + 8*c] = %1
        }
      }
    }"""
    x = np.arange(21, dtype=np.float32)
    (y,) = run(text, x)
    assert y.tolist() == (x + x).tolist()
    _, rendered = text_of(parse_func(text))
    # All loads come first, so that none waits for another copy.
    assert re.findall(r"load <8|call <8|fadd|store <8|call void @llvm.masked.store", rendered) == [
        *("load <8", "load <8", "call <8"),
        *("fadd", "fadd", "fadd"),
        *("store <8", "store <8", "call void @llvm.masked.store"),
    ]


def test_buffers_of_two_blocks_may_have_one_name() -> None:
    """The loop of the second block does not carry the register of the first."""
    kernel = replace(kernel_of(of_rows, f32[3, 5000 * 8], f32[2, 5000 * 8]), name="twice")
    func = as_run(kernel)
    stored = {s.buffer.name for s in statements(func.body) if isinstance(s, Store)}
    assert any(".x0" in name for name in stored)
    whole(of_rows, f32[3, 5000 * 8], f32[2, 5000 * 8])
