"""Fusion keeps values, order and limits, whatever the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from growing import LIMITS, graphs, grown, launches
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.dtypes import DType, bf16, f32, i8, i32
from bringup.graph import Builder, Graph, Instr
from bringup.kernel import clusters
from bringup.kernel.build import KernelBuilder, Shape
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.kernel.limits import Limits
from bringup.kernel.verify import verify_kernel
from bringup.ops.build import broadcast_to, convert, reshape, rows, splat
from bringup.passes.check import disagreement, is_strict
from bringup.program.evaluate import evaluate_launches

limits_of_devices = st.sampled_from(LIMITS)


def check_values(graph: Graph, made: Sequence[Launch]) -> None:
    """What the launches compute is what the graph computes, in bits where nothing accumulates."""
    found = disagreement(
        graph, lambda inputs: evaluate_launches(graph, made, inputs), strict=is_strict(graph)
    )
    if found is not None:
        text = "\n".join(str(x.kernel or x.instr) for x in made)
        raise AssertionError(f"{found[0]}\n{graph}\n{text}")


@settings(max_examples=75)
@given(graph=graphs, limits=limits_of_devices)
def test_fused_kernels_are_kernels_and_keep_values(graph: Graph, limits: Limits) -> None:
    made = launches(graph, limits, depth=True)
    for launch in made:
        assert launch.kernel is not None
        verify_kernel(launch.kernel)
    check_values(graph, made)


@settings(max_examples=30)
@given(graph=graphs)
def test_one_kernel_of_each_instruction_keeps_values(graph: Graph) -> None:
    made = launches(graph, Limits(), depth=False)
    for launch in made:
        assert launch.kernel is not None
        verify_kernel(launch.kernel)
    check_values(graph, made)


@settings(max_examples=75)
@given(graph=graphs, limits=limits_of_devices)
def test_limits_hold(graph: Graph, limits: Limits) -> None:
    for launch in launches(graph, limits, depth=True):
        assert launch.kernel is not None
        check_limits(launch.kernel, limits)


def check_limits(kernel: Kernel, limits: Limits) -> None:
    outside = [d for d in kernel.buffers if d.role != "tile"]
    scratch = sum(d.type.nbytes for d in kernel.buffers if d.role == "tile")
    looping = [s for s in kernel.stages if s.axes]
    assert len(outside) <= limits.buffers
    assert len(looping) <= limits.stages
    assert scratch <= limits.tile_bytes
    if len(looping) > 1:
        assert max(s.trips for s in looping) <= limits.row_elements


@settings(max_examples=50)
@given(graph=graphs, limits=limits_of_devices, depth=st.booleans())
def test_launches_stand_in_a_runnable_order(graph: Graph, limits: Limits, depth: bool) -> None:
    made = launches(graph, limits, depth=depth)
    known = set(graph.inputs)
    for launch in made:
        assert known.issuperset(launch.reads)
        assert known.isdisjoint(launch.writes)
        assert set(launch.values) == {*launch.reads, *launch.writes}
        assert launch.kernel is None or len(launch.values) == len(
            [d for d in launch.kernel.buffers if d.role != "tile"]
        )
        known.update(launch.writes)
    assert known.issuperset(graph.outputs)
    read = {v for launch in made for v in launch.reads}
    unread = known - read - {*graph.inputs, *graph.outputs}
    assert hides_values(graph) or not unread, "a value is stored for nobody"


def hides_values(graph: Graph) -> bool:
    """Whether an operand may have no element that is read: none is asked for, all are cropped away,
    or it is the place of a window that has only one.
    """
    empty = any(i.result.type.size == 0 for i in graph.instrs)
    crops = (i for i in graph.instrs if i.op.name == "pad")
    cropped = any(min(*i.attrs["lo"], *i.attrs["hi"], 0) < 0 for i in crops)
    return empty or cropped or any(map(_has_one_place, graph.instrs))


def _has_one_place(instr: Instr) -> bool:
    if instr.op.name in ("dynamic_slice", "gather"):
        sizes = instr.attrs["sizes"]
    elif instr.op.name == "dynamic_update_slice":
        sizes = instr.operands[1].shape
    else:
        return False
    return any(n == size for n, size in zip(instr.operands[0].shape, sizes, strict=True))


@settings(max_examples=50)
@given(graph=graphs, limits=limits_of_devices)
def test_fusion_never_adds_launches(graph: Graph, limits: Limits) -> None:
    fused = launches(graph, limits, depth=True)
    assert len(fused) <= len(launches(graph, limits, depth=False))


@settings(max_examples=30)
@given(graph=graphs, limits=limits_of_devices)
def test_fusion_is_deterministic(graph: Graph, limits: Limits) -> None:
    first, second = (launches(graph, limits, depth=True) for _ in range(2))
    assert [str(x.kernel) for x in first] == [str(x.kernel) for x in second]


def sample(count: int) -> Iterator[Graph]:
    """Always the same graphs, of the longest kind."""
    state = 7
    for _ in range(count):
        numbers = []
        for _ in range(60):
            state = (state * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
            numbers.append((state >> 33) % 5040)
        yield grown(numbers)


def test_the_graphs_are_dense_in_what_fusion_looks_for() -> None:
    """Otherwise the properties above would hold for a fusion that does nothing."""
    kernels = [x.kernel for g in sample(120) for x in launches(g, Limits(), depth=True)]
    made = [k for k in kernels if k is not None]
    assert sum(len(k.outputs) > 1 for k in made) > 4
    assert sum(len([s for s in k.stages if s.axes]) > 1 for k in made) > 10
    assert sum(any(d.role == "tile" for d in k.buffers) for k in made) > 1
    assert sum(any(i.attrs["mask"] for s in k.stages for i in s.loads()) for k in made) > 10
    assert sum(any(f.product for s in k.stages for f in s.folds) for k in made) > 10
    assert sum(len(k.source) > 4 for k in made) > 60
    assert sum(k.points == 0 for k in made) > 8


def test_limits_cut_what_fusion_would_join() -> None:
    whole = sum(len(launches(g, Limits(), depth=True)) for g in sample(60))
    for limits in LIMITS[1:4]:
        assert sum(len(launches(g, limits, depth=True)) for g in sample(60)) > whole


def test_many_readers_of_one_array_are_fused_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are full already are no longer tried with each of the others."""
    tried: list[KernelBuilder] = []
    shape = KernelBuilder.shape

    def counted(lowering: KernelBuilder) -> Shape:
        tried.append(lowering)
        return shape(lowering)

    monkeypatch.setattr(KernelBuilder, "shape", counted)
    builder, readers = Builder(), 300
    with builder:
        x = builder.input(f32[5])
        outputs = [rows.add(x, splat(float(i), f32[5])) for i in range(readers)]
    made = launches(builder.build(outputs), Limits(), depth=True)
    assert len(made) <= -(-readers // (Limits().buffers - 1))
    assert len(tried) <= 3 * readers


def test_full_kernels_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    shape = clusters.shape_region

    def counted(*arguments: Any) -> Shape:
        nonlocal tried
        tried += 1
        return shape(*arguments)

    monkeypatch.setattr(clusters, "shape_region", counted)
    count = 300
    with Builder() as b:
        shared = rows.sin(b.input(f32[1000]))
        graph = b.build([rows.add(shared, splat(i, f32[1000])) for i in range(count)])
    made = launches(graph, Limits(), depth=True)
    assert len(made) <= count // (Limits().buffers - 2) + 1
    assert tried < 5 * count


@pytest.mark.parametrize(("codes", "group", "kernels"), [(i8, 16, 1), (i8, 1, 2), (f32, 16, 2)])
def test_a_product_unpacks_what_takes_little_memory(codes: DType, group: int, kernels: int) -> None:
    """Codes with a scale for each group, unless both are more than a third of the value."""
    builder = Builder()
    with builder:
        x, w = builder.input(f32[16, 32]), builder.input(codes[32 // group, group, 24])
        scale = builder.input(f32[32 // group, 24])
        spread = broadcast_to(scale, (32 // group, group, 24), (0, 2))
        value = reshape(rows.mul(convert(w, f32), spread), (32, 24))
        made = rows.dot_general(x, value, batch=((), ()), contract=((1,), (0,)))
    graph = builder.build([made], "unpacked")
    found = launches(graph, Limits(), depth=True)
    assert len(found) == kernels
    check_values(graph, found)


@pytest.mark.parametrize(("dtype", "kernels"), [(i8, 2), (bf16, 1)])
def test_codes_are_stored_before_a_product(dtype: DType, kernels: int) -> None:
    """Of a quarter of the size of what is rounded; not what is half of it."""
    builder = Builder()
    with builder:
        x, w = builder.input(f32[16, 32]), builder.input(dtype[32, 24])
        codes = convert(rows.round(x), dtype)
        made = rows.dot_general(
            codes, w, batch=((), ()), contract=((1,), (0,)), result=i32 if dtype is i8 else f32
        )
    found = launches(builder.build([made], "codes"), Limits(), depth=True)
    assert len(found) == kernels
    assert [launch.writes[0].dtype for launch in found[:-1]] == [dtype] * (kernels - 1)
