"""A long fold cut into chunks gives what the whole gives, whatever the chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.dtypes import DType, f16, f32, i8, i32
from bringup.graph import Builder, Value
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import fuse
from bringup.kernel.limits import Limits
from bringup.kernel.split import SplitFold, split_fold
from bringup.ops.build import kept, rows, sum_

Array = np.ndarray[Any, Any]

#: With the dimensions to fold.  Axes of one element vanish from kernels.
shapes = st.lists(st.integers(2, 9), min_size=1, max_size=3).flatmap(
    lambda shape: st.tuples(
        st.just(tuple(shape)),
        st.sets(st.integers(0, len(shape) - 1), min_size=1).map(sorted),
    )
)


def folding(
    dtype: DType,
    shape: tuple[int, ...],
    dims: Sequence[int],
    *,
    second: bool,
    stored: bool = False,
) -> Kernel:
    """Sums of products, and with ``second`` maxima beside them; then an epilogue.

    stored: the products are an output too.
    """
    with Builder() as builder:
        x, y = (builder.input(dtype[shape]) for _ in range(2))
        product = rows.mul(x, y)
        results: list[Value] = [rows.neg(sum_(product, dims))]
        if second:
            results.append(rows.reduce(product, kind="max", dims=tuple(dims)))
        if stored:
            results.append(product)
        graph = builder.build(results)
    (launch,) = fuse(graph, Limits())
    assert launch.kernel is not None
    return launch.kernel


def drawn(kernel: Kernel, seed: int = 1) -> list[Array]:
    """Small whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [
        np.ascontiguousarray(rng.integers(-2, 3, d.type.shape).astype(d.type.dtype.numpy))
        for d in kernel.buffers
        if d.role != "tile"
    ]


def run_whole(kernel: Kernel) -> list[bytes]:
    buffers = drawn(kernel)
    evaluate_kernel(kernel, buffers)
    return [buffers[i].tobytes() for i in kernel.outputs]


def writing(kernel: Kernel) -> tuple[Kernel, set[int]]:
    """The kernel with every output that it does not write declared as read, and the others."""
    written = {store.buffer for stage in kernel.stages for store in stage.stores}
    decls = tuple(
        d if i in written or d.role != "out" else replace(d, role="in")
        for i, d in enumerate(kernel.buffers)
    )
    return replace(kernel, buffers=decls), written


def run_split(kernel: Kernel, split: SplitFold) -> list[bytes]:
    """Both kernels over the buffers and the scratch; each output is one's alone."""
    buffers = drawn(kernel)
    scratch = [np.full(t.shape, 99, t.dtype.numpy) for t in split.scratch]
    partial, first = writing(split.partial)
    final, second = writing(split.final)
    assert not first & second
    assert set(kernel.outputs) <= first | second
    evaluate_kernel(partial, [*buffers, *scratch], axis_limits=split.axis_limits)
    evaluate_kernel(final, [*buffers, *scratch])
    return [buffers[i].tobytes() for i in kernel.outputs]


@settings(max_examples=75)
@given(
    form=shapes,
    chunk=st.integers(1, 60),
    dtype=st.sampled_from((f32, i32, f16, i8)),
    beside=st.sampled_from(("nothing", "a second fold", "a store")),
)
def test_the_parts_give_what_the_whole_gives(
    form: tuple[tuple[int, ...], list[int]], chunk: int, dtype: DType, beside: str
) -> None:
    shape, dims = form
    inner = dims[0] == len(shape) - len(dims)  # a store shares the loops of trailing dimensions
    stored = beside == "a store" and inner
    kernel = folding(dtype, shape, dims, second=beside == "a second fold", stored=stored)
    split = split_fold(kernel, chunk_elements=chunk, max_points=1000)
    if split is not None:
        assert run_split(kernel, split) == run_whole(kernel)


@pytest.mark.parametrize("length", [8, 9, 15, 16, 17, 31])
def test_the_last_chunk_stops_early(length: int) -> None:
    kernel = folding(f32, (length,), (0,), second=True)
    split = split_fold(kernel, chunk_elements=4, max_points=1)
    assert split is not None
    chunks = -(-length // 4)
    assert split.partial.points == chunks
    assert [t.shape for t in split.scratch] == [(chunks,), (chunks,)]
    ((axis, clip),) = split.axis_limits.items()
    assert axis.size == 4
    assert clip.last == length
    assert run_split(kernel, split) == run_whole(kernel)


def test_a_fold_that_also_stores_what_it_folds_is_cut() -> None:
    """It would run on one thread, in one chain of additions."""
    kernel = folding(f32, (65,), (0,), second=False, stored=True)
    split = split_fold(kernel, chunk_elements=8, max_points=1)
    assert split is not None
    assert run_split(kernel, split) == run_whole(kernel)


def test_what_accumulates_wider_stays_wide_between_the_parts() -> None:
    split = split_fold(folding(f16, (64,), (0,), second=False), chunk_elements=8, max_points=1)
    assert split is not None
    assert [t.dtype for t in split.scratch] == [f32]


def test_the_chunks_depend_on_sizes_alone() -> None:
    made = [
        split_fold(folding(f32, (64,), (0,), second=True), chunk_elements=8, max_points=1)
        for _ in range(2)
    ]
    assert made[0] is not None
    assert str(made[0].partial) == str(made[1] and made[1].partial)


@pytest.mark.parametrize(
    ("shape", "dims"), [((7, 64), (1,)), ((64, 7), (0,)), ((3, 64, 2), (1,)), ((8, 9, 4), (0, 1))]
)
def test_a_small_grid_of_long_folds_is_cut(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    kernel = folding(f32, shape, dims, second=True)
    split = split_fold(kernel, chunk_elements=16, max_points=10)
    assert split is not None
    assert split.partial.points > kernel.points == split.final.points
    assert run_split(kernel, split) == run_whole(kernel)


@pytest.mark.parametrize(
    ("shape", "dims", "points"),
    [((64, 7), (1,), 10), ((3,), (0,), 10), ((0, 64), (1,), 10), ((4, 0), (1,), 10)],
    ids=["many points", "short", "no points", "nothing to fold"],
)
def test_others_are_left_whole(shape: tuple[int, ...], dims: tuple[int, ...], points: int) -> None:
    kernel = folding(f32, shape, dims, second=False)
    assert split_fold(kernel, chunk_elements=4, max_points=points) is None


def test_several_loops_over_one_row_are_left_whole() -> None:
    """The second loop needs the first one's register, which only the last part knows."""
    with Builder() as builder:
        x = builder.input(f32[64])
        centred = rows.sub(x, kept(sum_(x, (0,)), (0,), x.shape))
        graph = builder.build([sum_(rows.mul(centred, centred), (0,))])
    (launch,) = fuse(graph, Limits())
    assert launch.kernel is not None
    assert split_fold(launch.kernel, chunk_elements=4, max_points=10) is None
