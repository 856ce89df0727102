"""A long fold cut into chunks gives what the whole gives, whatever the chunks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.dtypes import DType, f16, f32, i8, i32
from bringup.graph import Builder, Value
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.kernel.parser import parse_kernel
from bringup.kernel.split import even_chunks, split_launch
from bringup.kernel.verify import verify_kernel
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
) -> Launch:
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
    return launch


def evaluated(launches: Sequence[Launch]) -> dict[Value, bytes]:
    """The outputs of some launches on drawn inputs; each launch must obey the rules of kernels."""
    rng = np.random.default_rng(1)
    arrays: dict[Value, Array] = {}
    for launch in launches:
        assert launch.kernel is not None
        verify_kernel(launch.kernel)
        for value in launch.reads:
            if value not in arrays:
                # Small whole numbers, whose sums are exact in any order.
                drawn = rng.integers(-2, 3, value.shape).astype(value.dtype.numpy)
                arrays[value] = np.ascontiguousarray(drawn)
        arrays |= {v: np.full(v.shape, 99, v.dtype.numpy) for v in launch.writes}
        evaluate_kernel(launch.kernel, [arrays[v] for v in launch.values])
    outputs = [v for launch in launches for v in launch.writes if v.producer is not None]
    return {v: arrays[v].tobytes() for v in outputs}


def cut(launch: Launch, elements: int, points: int = 1000) -> tuple[Launch, ...]:
    """The launch in chunks of about so many elements, or alone."""
    length = partial(even_chunks, elements=elements, max_points=points)
    return split_launch(launch, length, 32)


def kernels_of(launches: Sequence[Launch]) -> list[Kernel]:
    return [launch.kernel for launch in launches if launch.kernel is not None]


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
    launch = folding(dtype, shape, dims, second=beside == "a second fold", stored=stored)
    parts = cut(launch, chunk)
    assert evaluated(parts) == evaluated([launch])


@pytest.mark.parametrize("length", [8, 9, 15, 16, 17, 31])
def test_the_last_chunk_ends_early(length: int) -> None:
    launch = folding(f32, (length,), (0,), second=True)
    first, second = cut(launch, 4)
    chunks = -(-length // 4)
    assert [v.shape for v in first.writes] == [(chunks,), (chunks,)]
    assert second.reads == first.writes
    folding_stage, storing_stage = kernels_of([first])[0].stages
    (limit,) = folding_stage.limits
    assert limit.axis in folding_stage.axes
    assert limit.axis.size == 4
    assert limit.end.last == length
    assert not storing_stage.limits
    assert evaluated([first, second]) == evaluated([launch])


def test_each_part_takes_only_what_it_uses() -> None:
    launch = folding(f32, (64,), (0,), second=False)
    first, second = cut(launch, 8)
    assert first.reads == launch.reads
    assert second.writes == launch.writes
    assert len(second.values) == 2


def test_a_fold_that_also_stores_what_it_folds_is_cut() -> None:
    """It would run on one thread, in one chain of additions."""
    launch = folding(f32, (65,), (0,), second=False, stored=True)
    first, second = cut(launch, 8)
    assert {v.shape for v in first.writes} == {(65,), (9,)}
    assert evaluated([first, second]) == evaluated([launch])


def test_what_accumulates_wider_stays_wide_between_the_parts() -> None:
    first, _ = cut(folding(f16, (64,), (0,), second=False), 8)
    assert [v.dtype for v in first.writes] == [f32]


def test_the_chunks_depend_on_sizes_alone() -> None:
    texts = [
        list(map(str, kernels_of(cut(folding(f32, (64,), (0,), second=True), 8)))) for _ in range(2)
    ]
    assert texts[0] == texts[1]


def test_the_text_says_where_loops_end() -> None:
    first, second = kernels_of(cut(folding(f32, (3, 65), (1,), second=True), 24))
    assert "stage 0 over a2[8] if a2[8] < -8*a0[9] + 65\n" in str(first)
    for kernel in (first, second):
        again = parse_kernel(str(kernel))
        assert str(again) == str(kernel)
        assert again.stages[0].limits == kernel.stages[0].limits


@pytest.mark.parametrize(
    ("shape", "dims"), [((7, 64), (1,)), ((64, 7), (0,)), ((3, 64, 2), (1,)), ((8, 9, 4), (0, 1))]
)
def test_a_small_grid_of_long_folds_is_cut(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    launch = folding(f32, shape, dims, second=True)
    parts = cut(launch, 16, points=10)
    (whole,), (first, second) = kernels_of([launch]), kernels_of(parts)
    assert first.points > whole.points == second.points
    assert evaluated(parts) == evaluated([launch])


@pytest.mark.parametrize(
    ("shape", "dims", "points"),
    [((64, 7), (1,), 10), ((3,), (0,), 10), ((0, 64), (1,), 10), ((4, 0), (1,), 10)],
    ids=["many points", "short", "no points", "nothing to fold"],
)
def test_others_are_left_whole(shape: tuple[int, ...], dims: tuple[int, ...], points: int) -> None:
    launch = folding(f32, shape, dims, second=False)
    assert cut(launch, 4, points=points) == (launch,)


def test_a_launch_is_left_whole_where_its_parts_need_too_many_buffers() -> None:
    launch = folding(f32, (64,), (0,), second=True)
    parts = split_launch(launch, lambda _kernel: 8, 4)
    assert max(len(part.values) for part in parts) == 4
    assert split_launch(launch, lambda _kernel: 8, 3) == (launch,)


def test_several_loops_over_one_row_are_left_whole() -> None:
    """The second loop needs the first one's register, which only the last part knows."""
    with Builder() as builder:
        x = builder.input(f32[64])
        centred = rows.sub(x, kept(sum_(x, (0,)), (0,), x.shape))
        graph = builder.build([sum_(rows.mul(centred, centred), (0,))])
    (launch,) = fuse(graph, Limits())
    assert cut(launch, 4) == (launch,)
