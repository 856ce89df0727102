"""What regions become: the text of typical kernels, and the shapes that are hard to get right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bringup.dtypes import f16, f32, i32
from bringup.graph import Builder, Graph, Value
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.kernel.verify import verify_kernel
from bringup.ops.build import kept, rows, slice_dim, splat, sum_
from bringup.ops.evaluate import evaluate
from bringup.passes.check import generated_inputs
from bringup.program.evaluate import evaluate_launches
from bringup.types import TensorType

Fn = Callable[..., Value | Sequence[Value]]


def graph_of(fn: Fn, *types: TensorType) -> Graph:
    with Builder() as builder:
        made = fn(*map(builder.input, types))
        return builder.build([made] if isinstance(made, Value) else list(made), "main")


def fused(fn: Fn, *types: TensorType, limits: Limits | None = None) -> list[Launch]:
    """Launches that are kernels and give the graph's values, here of small whole numbers."""
    graph = graph_of(fn, *types)
    made = fuse(graph, limits or Limits())
    for launch in made:
        assert launch.kernel is not None
        verify_kernel(launch.kernel)
    inputs = [np.round(a) for a in generated_inputs(graph, 5, special=False)]
    wanted = evaluate(graph, inputs)
    for a, b in zip(wanted, evaluate_launches(graph, made, inputs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return made


def kernel_of(fn: Fn, *types: TensorType, limits: Limits | None = None) -> Kernel:
    (launch,) = fused(fn, *types, limits=limits)
    assert launch.kernel is not None
    return launch.kernel


def softmax(x: Value) -> Value:
    """Over the last dimension."""
    dims = (len(x.shape) - 1,)
    top = kept(rows.reduce(x, kind="max", dims=dims), dims, x.shape)
    e = rows.exp(rows.sub(x, top))
    return rows.div(e, kept(sum_(e, dims), dims, x.shape))


def padded(x: Value) -> Value:
    return rows.pad(x, splat(1, f32[()]), lo=(1,), hi=(2,), interior=(1,))


def dense(x: Value, w: Value, b: Value) -> Value:
    product = rows.dot_general(x, w, batch=((), ()), contract=((1,), (0,)))
    biased = rows.add(product, kept(b, (0,), product.shape))
    return rows.max(biased, splat(0, biased.type))


GOLDEN: dict[str, tuple[Fn, tuple[TensorType, ...], str]] = {
    "a reduction with its prologue and epilogue": (
        lambda x, y: rows.neg(sum_(rows.mul(x, y), (0,))),
        (f16[6], f16[6]),
        """
        kernel k0_mul_reduce_neg
          b0: in f16[6]
          b1: in f16[6]
          b2: out f16[]
          grid ()
          stage 0 over a0[6]
            graph stage0() {
              %0: f16[] = load() {buffer=0, dtype=f16, index=index<a0[6]>, mask=()}
              %1: f16[] = load() {buffer=1, dtype=f16, index=index<a0[6]>, mask=()}
              %2: f16[] = mul(%1, %0)
              %3: f32[] = convert(%2) {dtype=f32}
              return %3
            }
            fold.add f32
          stage 1 over ()
            graph stage1(%0: f32[]) {
              %1: f16[] = convert(%0) {dtype=f16}
              %2: f16[] = neg(%1)
              return %2
            }
            store b2[0]
        """,
    ),
    "softmax keeps its exponentials in a tile": (
        softmax,
        (f32[2, 3],),
        """
        kernel k0_sub_exp_reduce_div
          b0: in f32[2,3]
          b1: out f32[2,3]
          b2: tile f32[3]
          grid a0[2]
          stage 0 over a1[3]
            graph stage0() {
              %0: f32[] = load() {buffer=0, dtype=f32, index=index<3*a0[2] + a1[3]>, mask=()}
              return %0
            }
            fold.max f32
          stage 1 over a1[3]
            graph stage1(%0: f32[]) {
              %1: f32[] = load() {buffer=0, dtype=f32, index=index<3*a0[2] + a1[3]>, mask=()}
              %2: f32[] = sub(%1, %0)
              %3: f32[] = exp(%2)
              return %3, %3
            }
            fold.add f32
            store b2[a1[3]]
          stage 2 over a1[3]
            graph stage2(%0: f32[], %1: f32[]) {
              %2: f32[] = load() {buffer=2, dtype=f32, index=index<a1[3]>, mask=()}
              %3: f32[] = div(%2, %1)
              return %3
            }
            store b1[3*a0[2] + a1[3]]
        """,
    ),
    "a product with bias and activation": (
        dense,
        (f32[2, 3], f32[3, 4], f32[4]),
        """
        kernel k0_dot_general_add_max
          b0: in f32[3,4]
          b1: in f32[2,3]
          b2: in f32[4]
          b3: out f32[2,4]
          grid a0[2] a1[4]
          stage 0 over a2[3]
            graph stage0() {
              %0: f32[] = load() {buffer=0, dtype=f32, index=index<a1[4] + 4*a2[3]>, mask=()}
              %1: f32[] = load() {buffer=1, dtype=f32, index=index<3*a0[2] + a2[3]>, mask=()}
              %2: f32[] = mul(%1, %0)
              return %2
            }
            fold.add f32 product
          stage 1 over ()
            graph stage1(%0: f32[]) {
              %1: f32[] = constant() {value=f32[](0.0)}
              %2: f32[] = load() {buffer=2, dtype=f32, index=index<a1[4]>, mask=()}
              %3: f32[] = add(%0, %2)
              %4: f32[] = max(%3, %1)
              return %4
            }
            store b3[4*a0[2] + a1[4]]
        """,
    ),
    "padding is a mask": (
        padded,
        (f32[4],),
        """
        kernel k0_copy
          b0: in f32[4]
          b1: out f32[10]
          grid a0[10]
          stage 0 over ()
            graph stage0() {
              %0: f32[] = constant() {value=f32[](1.0)}
              %1: f32[] = load() {buffer=0, dtype=f32, index=index<(a0[10] + 1)//2 + -1>, \
mask=(bound<0:7 a0[10] + -1>, bound<0:1 (a0[10] + 1)%2>)}
              %2: bool[] = inside() {mask=(bound<0:7 a0[10] + -1>, bound<0:1 (a0[10] + 1)%2>)}
              %3: f32[] = select(%2, %1, %0)
              return %3
            }
            store b1[a0[10]]
        """,
    ),
    "reversed, every other row, without a column": (
        lambda x: rows.reshape(
            rows.slice(x, start=(4, 1), limit=(-1, 3), stride=(-2, 1)), shape=(6,)
        ),
        (f32[5, 3],),
        """
        kernel k0_copy
          b0: in f32[5,3]
          b1: out f32[6]
          grid a0[3] a1[2]
          stage 0 over ()
            graph stage0() {
              %0: f32[] = load() {buffer=0, dtype=f32, index=index<-6*a0[3] + a1[2] + 13>, mask=()}
              return %0
            }
            store b1[2*a0[3] + a1[2]]
        """,
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_of(name: str) -> None:
    fn, types, wanted = GOLDEN[name]
    assert str(kernel_of(fn, *types)) == inspect.cleandoc(wanted)


# -- movement --------------------------------------------------------------------------------------


def test_movement_that_ends_where_it_began_is_one_loop() -> None:
    def back_and_forth(x: Value) -> Value:
        flat = rows.reshape(rows.transpose(x, permutation=(1, 0)), shape=(6,))
        again = rows.transpose(rows.reshape(flat, shape=(3, 2)), permutation=(1, 0))
        return rows.neg(again)

    kernel = kernel_of(back_and_forth, f32[2, 3])
    assert [a.size for a in kernel.grid] == [6]
    (load,) = kernel.stages[0].loads()
    assert str(load.attrs["index"]) == "a0[6]"


def test_a_concatenation_touches_each_operand_only_where_it_is() -> None:
    kernel = kernel_of(
        lambda x, y, z: rows.concatenate(x, y, z, dim=1), f32[3, 2], f32[3, 5], f32[3, 1]
    )
    assert kernel.points == 3 * 8
    masks = [load.attrs["mask"] for load in kernel.stages[0].loads()]
    assert sorted((m[0].low, m[0].high) for m in masks) == [(0, 2), (2, 7), (7, 8)]


def test_masks_of_several_movements_hold_together() -> None:
    def cropped(x: Value) -> Value:
        wide = rows.pad(x, splat(0, f32[()]), lo=(2,), hi=(2,), interior=(0,))
        joined = rows.concatenate(wide, x, dim=0)
        return rows.slice(joined, start=(13,), limit=(1,), stride=(-1,))

    kernel = kernel_of(cropped, f32[5])
    assert any(len(load.attrs["mask"]) == 2 for load in kernel.stages[0].loads())


def test_padding_by_less_than_nothing_crops_without_a_mask() -> None:
    kernel = kernel_of(
        lambda x: rows.pad(x, splat(0, f32[()]), lo=(-1,), hi=(-2,), interior=(0,)), f32[8]
    )
    (load,) = kernel.stages[0].loads()
    assert (str(load.attrs["index"]), load.attrs["mask"]) == ("a0[5] + 1", ())


# -- tiles and limits ------------------------------------------------------------------------------


def test_a_row_beyond_the_scratch_is_computed_again() -> None:
    kernel = kernel_of(softmax, f32[2, 3], limits=Limits(tile_bytes=8))
    assert all(d.role != "tile" for d in kernel.buffers)
    exps = [sum(i.op.name == "exp" for i in s.body.instrs) for s in kernel.stages]
    assert exps == [0, 1, 1]


def test_scratch_is_shared_by_all_tiles_of_a_kernel() -> None:
    def two(x: Value) -> Sequence[Value]:
        return [softmax(x), softmax(rows.neg(x))]

    room = kernel_of(two, f32[2, 3])
    assert sum(d.role == "tile" for d in room.buffers) == 2
    tight = kernel_of(two, f32[2, 3], limits=Limits(tile_bytes=12))
    assert sum(d.role == "tile" for d in tight.buffers) == 1


def test_a_stage_over_more_axes_reads_the_scratch_of_one_over_fewer() -> None:
    def column(x: Value) -> tuple[Value, Value]:
        e = rows.exp(rows.reshape(slice_dim(x, 1, 1, 2), shape=(4,)))
        top = rows.reduce(e, kind="max", dims=(0,))
        scaled = rows.div(e, rows.broadcast_in_dim(top, shape=(4,), dims=()))
        whole = rows.broadcast_in_dim(sum_(scaled, (0,)), shape=(4, 5), dims=())
        return sum_(scaled, (0,)), rows.mul(rows.add(x, whole), kept(e, (1,), (4, 5)))

    kernel = kernel_of(column, f32[4, 5])
    assert [str(d.type) for d in kernel.buffers if d.role == "tile"] == ["f32[4]"]


def test_one_loop_a_kernel_still_fuses_what_surrounds_a_sum() -> None:
    kernel = kernel_of(
        lambda x: rows.neg(sum_(rows.mul(x, x), (1,))), f32[4, 6], limits=Limits(stages=1)
    )
    assert len(kernel.stages) == 2
    assert len(fused(softmax, f32[4, 6], limits=Limits(stages=1))) == 3


def test_a_contraction_shares_no_kernel_with_another_loop() -> None:
    launches = fused(lambda x, w, b: softmax(dense(x, w, b)), f32[2, 3], f32[3, 4], f32[4])
    assert len(launches) == 2


# -- outputs and the grid of their reduction -------------------------------------------------------


def total(x: Value) -> Value:
    return sum_(x, (1,))


@pytest.mark.parametrize(
    ("fn", "launches"),
    [
        (lambda x: slice_dim(total(x), 0, 0, 3), 2),
        (lambda x: rows.pad(total(x), splat(7, f32[()]), lo=(0,), hi=(3,), interior=(0,)), 2),
        (lambda x: rows.concatenate(total(x), total(x), dim=0), 2),
        (lambda x: rows.slice(total(x), start=(4,), limit=(-1,), stride=(-1,)), 2),
        (lambda x: kept(total(x), (0,), (3, 5)), 1),
        (lambda x: rows.reshape(total(x), shape=(5, 1, 1)), 1),
        (lambda x: kept(total(x), (1,), (5, 2)), 1),
    ],
    ids=["shorter", "longer", "twice", "reversed", "spread before", "reshaped", "spread behind"],
)
def test_an_output_of_another_size_than_its_sum_is_right(fn: Fn, launches: int) -> None:
    assert len(fused(fn, f32[5, 4])) == launches


def test_a_sum_and_a_slice_of_it_are_both_right() -> None:
    fused(lambda x: [total(x), rows.neg(slice_dim(total(x), 0, 0, 3))], f32[5, 4])


def test_two_reductions_over_one_read_are_one_kernel() -> None:
    kernel = kernel_of(lambda x: [total(x), rows.reduce(x, kind="max", dims=(1,))], f32[5, 4])
    assert [len(s.folds) for s in kernel.stages if s.folds] == [2]
    assert len(kernel.outputs) == 2


# -- nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (rows.exp, (0,)),
        (rows.exp, (3, 0)),
        (total, (0, 4)),
        (total, (4, 0)),
        (lambda x: rows.reduce(x, kind="max", dims=(0, 1)), (0, 0)),
        (softmax, (3, 0)),
        (softmax, (0, 3)),
        (lambda x: rows.reshape(x, shape=(0, 7)), (3, 0)),
        (lambda x: rows.concatenate(x, x, dim=0), (0, 3)),
        (lambda x: rows.concatenate(x, rows.exp(x), dim=1), (2, 0)),
        (lambda x: rows.pad(x, splat(2, f32[()]), lo=(1, 2), hi=(0, 0), interior=(3, 0)), (0, 3)),
        (lambda x: rows.dot_general(x, x, batch=((), ()), contract=((1,), (1,))), (3, 0)),
    ],
)
def test_arrays_without_elements(fn: Fn, shape: tuple[int, ...]) -> None:
    fused(fn, f32[shape])


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_folding_nothing_gives_the_identity(kind: str) -> None:
    kernel_of(lambda x: rows.reduce(x, kind=kind, dims=(1,)), i32[3, 0])
