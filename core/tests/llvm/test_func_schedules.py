"""Kernels as CPUs run them: lowered to loops, scheduled and not, equal to the graph in value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from func_helper import text_of
from growing import graphs
from hypothesis import given, settings
from launch_helper import TARGET, as_run, check, exact, graph_of, whole

import bringup as bu
from bringup.dtypes import DType, bool_, f16, f32, i8
from bringup.graph import Builder, Graph, Value
from bringup.kernel.fuse import fuse
from bringup.kernel.limits import Limits
from bringup.llvm.func.schedules import scheduled, steps_of
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.llvm.loops.schedule import schedule
from bringup.loops import Alloc, For, If, Load, lower_kernel, statements
from bringup.ops.build import broadcast_to, convert, kept, pad, rows, sum_
from bringup.target import Target
from bringup.types import TensorType

Array = np.ndarray[Any, Any]


@settings(max_examples=25)
@given(graph=graphs)
def test_unscheduled_loops_of_random_graphs(graph: Graph) -> None:
    check(graph, lower_kernel)


@settings(max_examples=100)
@given(graph=graphs)
def test_scheduled_loops_of_random_graphs(graph: Graph) -> None:
    check(graph, as_run)


# -- maps of sizes at which their loops change ----------------------------------------------------


def line(x: Value, y: Value) -> Value:
    return rows.add(rows.mul(x, x), y)


# A register tile is 32 elements, a vector 8, a unit 2048.
@pytest.mark.parametrize("size", [1, 3, 8, 31, 32, 33, 40, 45, 2047, 2048, 2049, 2080, 4099, 4136])
def test_a_line_of_any_length(size: int) -> None:
    exact(line, f32[size], f32[size])


@pytest.mark.parametrize("shape", [(5, 3), (3, 45), (2, 2050), (1, 7), (7, 1)])
def test_rows_with_something_of_each(shape: tuple[int, int]) -> None:
    exact(
        lambda x, y: rows.div(x, broadcast_to(y, shape, dims=(0,))),
        f32[shape],
        f32[shape[:1]],
    )


@pytest.mark.parametrize("dtype", [f16, i8, bool_])
def test_narrow_elements(dtype: Any) -> None:
    def build(x: Value, y: Value) -> Value:
        return rows.select(rows.compare(x, y, direction="eq"), convert(x, f32), convert(y, f32))

    exact(build, dtype[77], dtype[77])


def test_transpositions_and_reversals() -> None:
    exact(lambda x: rows.neg(rows.transpose(x, permutation=(1, 0))), f32[70, 45])
    exact(lambda x: rows.neg(rows.slice(x, start=(76,), limit=(-1,), stride=(-1,))), f32[77])


def roll(x: Value, shift: int, dim: int) -> Value:
    size = x.shape[dim]
    at = size - shift % size

    def part(low: int, high: int) -> Value:
        start, limit = [0] * len(x.shape), list(x.shape)
        start[dim], limit[dim] = low, high
        return rows.slice(x, start=tuple(start), limit=tuple(limit), stride=(1,) * len(x.shape))

    return rows.concatenate(part(at, size), part(0, at), dim=dim)


def periodic(x: Value) -> Value:
    across = rows.add(roll(x, 1, 0), roll(x, -1, 0))
    return rows.add(across, rows.add(roll(x, 1, 1), roll(x, -1, 1)))


def steps_for(build: Callable[..., Value], *types: TensorType) -> list[str]:
    (launch,) = fuse(graph_of(build, *types), Limits())
    assert launch.kernel is not None
    return str(steps_of(schedule(launch.kernel, TARGET))).splitlines()


# Seams are peeled off rows of 64 elements and more; a vector is 8.
@pytest.mark.parametrize(
    "shape", [(3, 63), (3, 64), (5, 70), (2, 77), (1, 130), (3, 2050), (65, 2050)]
)
def test_seams_of_periodic_rows(shape: tuple[int, int]) -> None:
    exact(periodic, f32[shape])


@pytest.mark.parametrize("shift", [1, -1, 9, -9, 16, -17, 40])
def test_a_roll_by_less_and_more_than_a_vector(shift: int) -> None:
    exact(lambda x: rows.neg(roll(x, shift, 1)), f32[3, 160])
    exact(lambda x: rows.neg(roll(x, shift, 1)), i8[3, 160])


@pytest.mark.parametrize(("low", "high"), [(1, 1), (0, 3), (20, 0), (2, 30)])
def test_padded_rows(low: int, high: int) -> None:
    exact(lambda x: rows.neg(pad(x, 0, (1, low), (0, high))), f32[3, 150])


def test_no_load_between_seams_is_masked() -> None:
    (launch,) = fuse(graph_of(periodic, f32[100, 200]), Limits())
    assert launch.kernel is not None
    func = as_run(launch.kernel)
    masked: dict[str, set[str]] = {}
    for loop in statements(func.body):
        if isinstance(loop, For) and loop.kind == "vector":
            loads = [s for s in statements(loop.body) if isinstance(s, Load)]
            axes = {axis.name for s in loads for bound in s.mask for axis in bound.expr.axes()}
            masked[loop.name] = masked.get(loop.name, set()) | axes
    assert masked == {
        "g1.first": {"g1.first"},
        "g1.v": set(),
        "g1.u": set(),
        "g1.last": {"g1.last"},
    }
    # The first row, those between, and the last one.
    assert [loop.axis.size for loop in func.body if isinstance(loop, For)] == [1, 98, 1]
    assert text_of(func)[0].units == 100
    assert "peel g0 1 1" not in steps_for(periodic, f32[10, 200])


def test_long_rows_that_are_few_are_cut_for_threads_and_not_peeled() -> None:
    assert "split g1 g1.o g1.i 2048" in steps_for(periodic, f32[3, 5000])
    assert "peel g1 8 8" in steps_for(periodic, f32[64, 5000])


def turned(name: str) -> Callable[[Value], Value]:
    """A function of a transposed matrix."""
    return lambda x: getattr(rows, name)(rows.transpose(x, permutation=(1, 0)))


def plan_for(fn: Callable[..., Value], *types: TensorType) -> Plan:
    (launch,) = fuse(graph_of(fn, *types), Limits())
    assert launch.kernel is not None
    return schedule(launch.kernel, TARGET)


def test_transpositions_are_in_squares() -> None:
    plan = plan_for(turned("neg"), f32[128, 256])
    assert (
        str(steps_of(plan))
        == """\
split g1 g1.o g1.i 64
split g0 g0.o g0.i 64
split g1.i g1.b g1.v 8
split g0.i g0.b g0.u 8
reorder g0.o g1.o g0.b g1.b g0.u g1.v
unroll g0.u
vectorize g1.v
serialize g0.b g1.b"""
    )
    _, text = text_of(scheduled(plan).after)
    assert text.count("shufflevector") == 24
    assert "gather" not in text


@pytest.mark.parametrize(
    ("name", "shape", "lanes", "block"),
    [
        ("neg", (200, 1000), 8, 40),
        ("neg", (132, 300), 4, 12),
        ("tanh", (200, 1000), 8, 40),
        # Squares that are smaller than vectors do not pay here, nor for few elements.
        ("tanh", (132, 300), 0, 0),
        ("neg", (134, 300), 0, 0),
        ("neg", (64, 64), 0, 0),
    ],
)
def test_squares_have_a_side_that_divides_both_axes(
    name: str, shape: tuple[int, int], lanes: int, block: int
) -> None:
    plan = plan_for(turned(name), f32[shape])
    assert plan.square == (lanes > 0)
    assert not plan.square or (plan.lanes, plan.block) == (lanes, block)


@pytest.mark.parametrize("dtype", [f32, f16, i8, bool_], ids=str)
@pytest.mark.parametrize("shape", [(200, 1000), (132, 300), (4, 4096), (3, 64, 96)], ids=str)
def test_squares_are_those_of_the_reference(dtype: DType, shape: tuple[int, ...]) -> None:
    def fn(x: Value) -> Value:
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return rows.transpose(x, permutation=order)

    assert plan_for(fn, dtype[shape]).square
    exact(fn, dtype[shape])


def test_windows_of_maxima_have_lanes_along_a_row_of_results() -> None:
    """Their lanes are near each other, and maxima have the same bits in any order; sums do not."""

    def pooled(x: Value, kind: str = "max") -> Value:
        return rows.reduce(rows.neg(x), kind=kind, dims=(2, 4))

    def steps(build: Callable[[Value], Value]) -> str:
        (launch,) = fuse(graph_of(build, f32[6, 14, 2, 14, 2]), Limits())
        assert launch.kernel is not None
        return str(steps_of(schedule(launch.kernel, TARGET)))

    exact(pooled, f32[6, 14, 2, 14, 2])
    assert "vectorize g1.v" in steps(pooled)
    assert "vectorize s0_1.v" in steps(lambda x: pooled(x, "add"))


def test_lanes_are_not_along_a_fold_that_is_a_little_longer_than_a_vector() -> None:
    """A fifth element would be a vector of its own, in every iteration of the loops round it."""
    conv = bu.jit(lambda x, w: bu.nn.conv(x, w))
    (kernel,) = conv.lower(f32[1, 1, 32, 32], f32[6, 1, 5, 5]).kernels
    for bits, lanes in ((128, 4), (256, 8)):
        plan = schedule(kernel, Target(vector_bits=bits, registers=16))
        assert (plan.lanes, plan.lane) == (lanes, kernel.grid[-1])


def test_lanes_of_products_are_along_features_if_rows_of_places_waste_lanes() -> None:
    """With features last in the weights; their results are stored one by one."""

    def conv(x: bu.Array, w: bu.Array) -> bu.Array:
        return bu.nn.conv(x, bu.transpose(w, (3, 0, 1, 2)))

    for side, lane in ((14, 0), (20, 2)):
        (kernel,) = bu.jit(conv).lower(f32[1, 6, side, side], f32[6, 5, 5, 16]).kernels
        plan = schedule(kernel, Target(vector_bits=256, registers=16))
        assert plan.lane == kernel.grid[lane]


@pytest.mark.parametrize("dtype", [f32, i8, bool_, f16])
def test_squares_have_the_elements_of_gathers(dtype: DType) -> None:
    exact(lambda x: rows.transpose(x, permutation=(0, 2, 1)), dtype[3, 64, 1024])
    exact(lambda x: rows.transpose(x, permutation=(2, 1, 0)), dtype[64, 3, 1024])


@pytest.mark.parametrize("shape", [(96, 2), (100, 2), (130, 3), (240, 2)])
def test_units_of_transpositions_are_whole_register_tiles(shape: tuple[int, int]) -> None:
    """A unit has 64 elements, and three vectors of 32 would exceed it."""
    exact(lambda x: rows.transpose(x, permutation=(1, 0)), i8[shape])
    exact(lambda x: rows.neg(rows.transpose(x, permutation=(1, 0))), f32[shape])


def test_several_outputs() -> None:
    with Builder() as b:
        x = b.input(f32[45])
        graph = b.build([rows.neg(x), rows.compare(x, rows.mul(x, x), direction="lt")])
    check(graph, as_run)
    assert len(fuse(graph, Limits())) == 1


def test_values_of_a_row_are_computed_once_for_it() -> None:
    graph = graph_of(
        lambda x, y: rows.add(x, broadcast_to(rows.neg(y), (6, 90), dims=(0,))), f32[6, 90], f32[6]
    )
    (launch,) = fuse(graph, Limits())
    assert launch.kernel is not None
    func = as_run(launch.kernel)
    (nest,) = func.body
    while isinstance(nest, For) and len(nest.body) == 1:
        (nest,) = nest.body
    assert isinstance(nest, For)
    straight = [s for s in nest.body if isinstance(s, Load)]
    assert [s.buffer.size for s in straight] == [6]


def test_only_the_last_unit_has_what_is_left() -> None:
    graph = graph_of(line, f32[4136], f32[4136])
    (launch,) = fuse(graph, Limits())
    assert launch.kernel is not None
    func = as_run(launch.kernel)
    vectors = [s for s in statements(func.body) if isinstance(s, For) and s.kind == "vector"]
    assert [loop.axis.size for loop in vectors] == [8, 8]
    assert sum(isinstance(s, If) for s in statements(func.body)) == 1


# -- folds along rows, of sizes at which their loops change ----------------------------------------


def total(x: Value) -> Value:
    return sum_(x, (len(x.shape) - 1,))


def three_passes(x: Value) -> Value:
    """A row is read for its maximum, for a sum with that, and for the result."""
    dims = (len(x.shape) - 1,)
    less = rows.sub(x, kept(rows.reduce(x, kind="max", dims=dims), dims, x.shape))
    return rows.mul(less, kept(sum_(less, dims), dims, x.shape))


# A vector has 8 elements and a register tile 64.
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 16, 31, 63, 64, 65, 72, 127, 200, 1000])
@pytest.mark.parametrize("build", [total, three_passes])
def test_rows_of_any_length(build: Callable[..., Value], size: int) -> None:
    whole(build, f32[3, size])


@pytest.mark.parametrize("shape", [(5, 2, 3), (3, 2, 45), (70, 2, 64), (300, 1, 77), (200, 2, 1)])
def test_folds_over_two_axes(shape: tuple[int, int, int]) -> None:
    whole(lambda x: sum_(x, (0, 2)), f32[shape])


@pytest.mark.parametrize("size", [9000, 64 * 128, 64 * 129, 300_001])
def test_sums_of_blocks(size: int) -> None:
    whole(total, f32[1, size])
    whole(lambda x: rows.reduce(x, kind="max", dims=(1,)), f32[1, size])


@pytest.mark.parametrize("size", [1000, 1001, 1024, 4099, 10_007])
@pytest.mark.parametrize("chunk", [64, 100, 128])
def test_chunks_that_end_early(size: int, chunk: int) -> None:
    whole(lambda x: sum_(x, (0,)), f32[size], chunk=chunk)
    whole(lambda x: sum_(x, (0, 2)), f32[size // 50, 2, 50], chunk=chunk)


def test_a_sum_of_what_does_not_change() -> None:
    """Parts of its loop share statements, because no index in them does."""
    whole(lambda x: sum_(broadcast_to(x, (1003,), dims=()), (0,)), f32[()], chunk=128)


def test_products_and_narrow_sums() -> None:
    whole(lambda x: sum_(rows.mul(x, x), (1,)), f16[3, 77])
    whole(lambda x: rows.reduce(x, kind="add", dims=(1,)), i8[3, 77])


def test_long_sums_have_blocks_for_their_errors() -> None:
    graph = graph_of(total, f32[1, 1 << 20])
    (launch,) = fuse(graph, Limits())
    assert launch.kernel is not None
    steps = str(steps_of(schedule(launch.kernel, TARGET))).splitlines()
    assert [s for s in steps if s.endswith(" 64")] == [
        "split s0_0.b.x1 s0_0.b.o0 s0_0.b.x0 64",
    ]
    divided = [s.split()[1] for s in steps if s.startswith("rfactor")]
    assert divided == ["s0_0.b.o1", "s0_0.b.o0", "s0_0.b.x0"]


def test_the_second_pass_over_a_row_prefetches_the_next() -> None:
    (launch,) = fuse(graph_of(three_passes, f32[40, 256]), Limits())
    assert launch.kernel is not None
    assert "llvm.prefetch" in text_of(as_run(launch.kernel))[1]
    (single,) = fuse(graph_of(total, f32[40, 256]), Limits())
    assert single.kernel is not None
    assert "llvm.prefetch" not in text_of(as_run(single.kernel))[1]


def test_what_is_stored_row_by_row_is_prefetched_only_behind_a_tile_of_sums() -> None:
    def normed(x: Value) -> Value:
        return rows.div(x, kept(rows.sqrt(sum_(rows.mul(x, x), (0,))), (0,), x.shape))

    (launch,) = fuse(graph_of(normed, f32[300, 300]), Limits())
    assert launch.kernel is not None
    assert "llvm.prefetch" not in text_of(as_run(launch.kernel))[1]


def multiplied(x: Value, y: Value) -> Value:
    return rows.dot_general(x, y, batch=((0,), (0,)), contract=((2,), (1,)))


# The bytes of all factors and of one decide, and how often one is read.
@pytest.mark.parametrize(
    ("shapes", "asks"),
    [
        (((512, 64, 64), (512, 64, 64)), 2),
        (((512, 96, 96), (512, 96, 96)), 2),
        (((2048, 32, 32), (2048, 32, 32)), 2),
        (((8, 64, 64), (8, 64, 64)), 0),
        (((4096, 12, 12), (4096, 12, 12)), 0),
        (((2048, 6, 64), (2048, 64, 64)), 0),
        (((64, 200, 200), (64, 200, 200)), 0),
    ],
    ids=str,
)
def test_factors_in_memory_are_prefetched_while_those_before_them_are_multiplied(
    shapes: tuple[tuple[int, ...], ...], asks: int
) -> None:
    (launch,) = fuse(graph_of(multiplied, *(f32[shape] for shape in shapes)), Limits())
    assert launch.kernel is not None
    text = text_of(as_run(launch.kernel))[1]
    assert text.count("call void @llvm.prefetch") == asks


# -- folds with lanes along the grid, of sizes at which their loops change -------------------------


def over_rows(x: Value) -> Value:
    return sum_(x, (0,))


def column_passes(x: Value) -> Value:
    """A column is read for its maximum, for a sum with that, and for the result."""
    less = rows.sub(x, kept(rows.reduce(x, kind="max", dims=(0,)), (0,), x.shape))
    return rows.mul(less, kept(sum_(less, (0,)), (0,), x.shape))


# A vector has 8 elements and a register tile 32; at two vectors it has two rows.
@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 16, 17, 24, 31, 32, 33, 40, 64, 69, 96, 100])
@pytest.mark.parametrize("build", [over_rows, column_passes])
def test_columns_of_any_number(build: Callable[..., Value], size: int) -> None:
    whole(build, f32[5, size])
    whole(lambda x: sum_(x, (1,)), f32[4, 5, size])


@pytest.mark.parametrize("size", [129, 8192, 9001, 64 * 64 * 128 + 1])
def test_blocks_of_columns(size: int) -> None:
    whole(over_rows, f32[size, 3])
    whole(lambda x: rows.reduce(x, kind="max", dims=(0,)), f32[size, 3])


@pytest.mark.parametrize("shape", [(5, 2, 3, 7), (70, 2, 3, 12), (2, 3, 300, 9)])
def test_folds_over_axes_before_the_lanes(shape: tuple[int, ...]) -> None:
    whole(lambda x: sum_(x, (0, 2)), f32[shape])
    whole(lambda x: rows.reduce(x, kind="min", dims=(0, 1)), i8[shape])


@pytest.mark.parametrize("size", [1000, 1001, 1024])
def test_chunks_of_columns_that_end_early(size: int) -> None:
    whole(over_rows, f32[size, 12], chunk=128)
    whole(lambda x: sum_(x, (0, 1)), f32[size, 3, 20], chunk=100)


@pytest.mark.parametrize("shape", [(17, 33), (17, 64), (40, 12)])
def test_columns_of_narrow_elements(shape: tuple[int, int]) -> None:
    whole(lambda x: sum_(rows.mul(x, x), (0,)), f16[shape])
    whole(lambda x: rows.reduce(convert(x, f32), kind="add", dims=(0,)), i8[shape])
    exact(lambda x: rows.reduce(x, kind="and", dims=(0,)), bool_[shape])


@pytest.mark.parametrize("size", [9, 16, 31, 65])
def test_two_rows_of_columns_of_which_some_are_left(size: int) -> None:
    """Both tiles of lanes have the same loop over rows."""

    def product(x: Value, y: Value) -> Value:
        x, y = (broadcast_to(v, (2, 5, size), dims=d) for v, d in ((x, (0, 1)), (y, (1, 2))))
        return sum_(rows.mul(x, y), (1,))

    whole(product, f32[2, 5], f32[5, size])


def test_columns_of_nothing() -> None:
    whole(over_rows, f32[0, 12])


def test_a_tile_of_a_unit_has_an_element_for_each_of_its_points() -> None:
    """Exponentials are kept from one pass to the next; both bodies have the same memory."""

    def soft(x: Value) -> Value:
        powers = rows.exp(x)
        return rows.div(powers, kept(sum_(powers, (0,)), (0,), x.shape))

    check(graph_of(soft, f32[40, 100]), as_run)
    (launch,) = fuse(graph_of(soft, f32[40, 100]), Limits())
    assert launch.kernel is not None
    func = as_run(launch.kernel)
    tiles = [s.buffer for s in statements(func.body) if isinstance(s, Alloc)]
    assert [b.size for b in tiles if b.space == "scratch"] == 2 * [40 * 32]
    assert text_of(func)[0].tile_bytes == 40 * 32 * 4


@pytest.mark.parametrize(
    ("build", "shape", "expected"),
    [
        (over_rows, (5, 8), "distribute g0 to=innermost\nvectorize g0"),
        (
            over_rows,
            (5, 64),
            """
            split g0 g0.o g0.i 32
            split g0.i g0.i.c g0.i.v 8
            distribute g0.i.c g0.i.v to=innermost
            vectorize g0.i.v
            """,
        ),
        (
            over_rows,
            (200, 69),
            """
            split s0_0 s0_0.o0 s0_0.x0 64
            rfactor s0_0.x0 r0
            split g0 g0.o g0.i 32
            split g0.i g0.i.c g0.i.v 8
            distribute g0.i.c g0.i.v to=innermost
            vectorize g0.i.v
            specialize g0.o 2 g0.o
            """,
        ),
        (
            lambda x: sum_(x, (1,)),
            (6, 5, 16),
            """
            split g0 g0.o g0.i 2
            split g1 g1.c g1.v 8
            distribute g0.i g1.c g1.v to=innermost
            vectorize g1.v
            """,
        ),
    ],
    ids=["one vector", "columns", "some left", "two rows"],
)
def test_steps_of_columns(
    build: Callable[..., Value], shape: tuple[int, ...], expected: str
) -> None:
    (launch,) = fuse(graph_of(build, f32[shape]), Limits())
    assert launch.kernel is not None
    steps = str(steps_of(schedule(launch.kernel, TARGET)))
    assert steps.split() == expected.split()
