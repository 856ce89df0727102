from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import f32, i32
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.ops import lookup
from bringup.ops.evaluate import evaluate
from bringup.tracing.lazy import (
    MAX_JOINED,
    MAX_PENDING,
    REPEATED_PENDING,
    Leaf,
    Node,
    Scalar,
    Source,
    collect,
    count,
    groups,
    overdue,
    record,
)


class Shown:
    """Stands for an array that is alive."""


def leaf(*shape: int) -> Leaf:
    return Leaf(f32[shape], object())


def op(name: str, *operands: Source, **attrs: Any) -> Node:
    (node,) = record(lookup(name), operands, attrs)
    return node


def scalar(value: float, *shape: int) -> Scalar:
    return Scalar(Literal.splat(value, f32[shape]))


def test_types_are_known_at_once() -> None:
    x = leaf(2, 3)
    assert op("reduce", op("exp", x), kind="add", dims=(0,)).type is f32[3]


def test_an_error_names_the_line_and_the_operands_lines() -> None:
    x = op("exp", leaf(2))
    with pytest.raises(OpTypeError) as caught:
        op("add", x, leaf(3))
    text = str(caught.value)
    assert "add: operand types differ: f32[2] and f32[3]" in text
    assert "operand 0 was made at" in text
    assert "test_lazy.py" in text
    assert caught.value.location is not None
    assert caught.value.location.function == "op"
    assert caught.value.instruction == "add(%0, %1)"


def test_equal_calls_are_checked_once() -> None:
    x = leaf(4)
    assert op("exp", x).call is op("exp", x).call
    assert op("exp", x).call is not op("log", x).call
    a = op("reduce", x, kind="add", dims=(0,))
    assert a.call is op("reduce", x, kind="add", dims=(0,)).call
    assert a.call is not op("reduce", x, kind="max", dims=(0,)).call


def test_left_out_attributes_are_filled_in() -> None:
    node = op("slice", leaf(4), start=(1,), limit=(3,))
    assert node.call.attrs["stride"] == (1,)


def test_a_batch_holds_what_the_root_needs_and_nothing_else() -> None:
    x = leaf(2)
    a = op("exp", x)
    op("log", a)
    b = op("mul", a, a)
    batch = collect([b])
    assert batch.nodes == [a, b]
    assert batch.inputs == [x]
    assert batch.outputs == [b]


def test_values_alive_on_the_way_become_outputs() -> None:
    a = op("exp", leaf(2))
    shown = Shown()
    a.array = weakref.ref(shown)
    b = op("neg", a)
    assert collect([b]).outputs == [b, a]
    del shown
    assert collect([b]).outputs == [b]


def show(node: Node) -> Shown:
    shown = Shown()
    node.array = weakref.ref(shown)
    return shown


def test_what_waits_for_an_intermediate_that_nobody_holds_is_computed_with_it() -> None:
    intermediate = op("exp", leaf(2))
    asked, waiting = op("neg", intermediate), op("abs", op("floor", intermediate))
    held = show(waiting)
    batch = collect([asked])
    assert batch.joined
    assert batch.outputs == [asked, waiting]
    assert [n.call.op.name for n in batch.nodes] == ["exp", "neg", "floor", "abs"]
    assert collect([asked], joined=False).outputs == [asked]
    del held
    assert collect([asked]).outputs == [asked], "nobody would compute it again"


def test_what_reads_a_value_that_is_held_waits() -> None:
    kept = op("exp", leaf(2))
    asked, waiting = op("neg", kept), op("abs", kept)
    held = [show(kept), show(waiting)]
    batch = collect([asked])
    assert not batch.joined
    assert batch.outputs == [asked, kept]
    assert len(held) == 2


def test_joining_goes_on_with_what_joined() -> None:
    first, second = op("exp", leaf(2)), op("log", leaf(2))
    middle, last = op("add", first, second), op("neg", second)
    held = [show(middle), show(last)]
    assert collect([op("neg", first)]).outputs[1:] == [middle, last]
    assert len(held) == 2


def test_too_much_to_join_makes_the_intermediate_an_output() -> None:
    intermediate = op("exp", leaf(2))
    asked = op("neg", intermediate)
    waiting = [op("add", intermediate, leaf(2)) for _ in range(MAX_JOINED + 1)]
    held = [show(node) for node in waiting]
    batch = collect([asked])
    assert batch.outputs == [asked, intermediate]
    assert not batch.joined
    assert len(batch.nodes) == 2
    del held[0]
    assert len(collect([asked]).outputs) == MAX_JOINED + 1


def test_readers_that_died_are_forgotten() -> None:
    node = op("exp", leaf(2))
    for _ in range(1000):
        op("neg", node)
    assert len(node.readers) <= 16
    alive = [op("neg", node) for _ in range(40)]
    assert len([r for r in node.readers if r() is not None]) == len(alive)


def test_a_chain_is_cut_at_a_bound_and_then_at_the_same_place() -> None:
    node: Source = leaf(3)
    for number in range(1, MAX_PENDING + 1):
        node = op("neg", node)
        assert not overdue(node), number
    last = op("neg", node)
    assert overdue(last)
    assert groups(last) == [[node]]
    assert isinstance(node, Node)
    node.resolve("buffer")
    last.weight = 1
    for _ in range(REPEATED_PENDING - 1):
        last = op("neg", last)
        assert not overdue(last)
    assert overdue(op("neg", last))


def test_shared_operands_count_once() -> None:
    node: Source = leaf(5)
    for _ in range(MAX_PENDING - 1):
        node = op("add", node, node)
    assert isinstance(node, Node)
    assert not overdue(node)


def test_operands_of_one_that_reads_many_are_computed_in_groups() -> None:
    parts = [op("exp", op("neg", leaf(2))) for _ in range(MAX_PENDING)]
    views = [op("reshape", leaf(1, 2), shape=(2,)) for _ in range(10)]
    many = op("concatenate", *parts, *views, dim=0)
    assert overdue(many)
    found = groups(many)
    assert [len(group) for group in found] == [MAX_PENDING // 2, MAX_PENDING // 2]
    assert [node for group in found for node in group] == parts, "views of what exists wait"
    structures = {collect(group).structure for group in found}
    assert len(structures) == 1


def test_the_graph_computes_what_was_recorded() -> None:
    x, y = leaf(2), leaf(2)
    total = op("add", op("mul", x, scalar(3, 2)), op("mul", y, scalar(3, 2)))
    batch = collect([op("reduce", total, kind="add", dims=(0,)), total])
    graph = batch.graph()
    inputs = [np.float32([1, 2]), np.float32([10, 20])]
    results = evaluate(graph, inputs)
    assert [r.tolist() for r in results] == [99.0, [33.0, 66.0]]
    assert sum(i.op.name == "constant" for i in graph.instrs) == 1
    general = batch.graph(range(len(batch.scalars)))
    assert not any(i.op.name == "constant" for i in general.instrs)
    more = evaluate(general, [*inputs, np.float32(2), np.float32(0)])
    assert [r.tolist() for r in more] == [6.0, [2.0, 4.0]]


def structure(node: Node) -> Any:
    return collect([node]).structure


def test_equal_structure_means_an_equal_program() -> None:
    x, y = leaf(2), leaf(2)
    assert structure(op("add", x, y)) == structure(op("add", leaf(2), leaf(2)))
    assert structure(op("add", x, x)) != structure(op("add", x, y))
    assert structure(op("add", x, leaf(2))) != structure(op("sub", x, leaf(2)))
    assert structure(op("exp", x)) != structure(op("exp", leaf(3)))
    assert structure(op("exp", x)) == structure(op("exp", y))
    left = op("sub", op("exp", x), op("log", x))
    right = op("sub", op("log", x), op("exp", x))
    assert structure(left) != structure(right)


def test_scalars_are_values_not_structure() -> None:
    x = leaf(2)
    first = collect([op("add", x, scalar(1, 2))])
    second = collect([op("add", x, scalar(2, 2))])
    assert first.structure == second.structure
    assert first.values != second.values
    minus = collect([op("add", x, scalar(-0.0, 2))])
    assert minus.values != collect([op("add", x, scalar(0.0, 2))]).values


def test_a_computed_value_is_an_input() -> None:
    a = op("exp", leaf(2))
    b = op("neg", a)
    a.resolve("buffer")
    batch = collect([b])
    assert batch.nodes == [b]
    assert batch.inputs == [a]
    assert not a.operands


def test_depth_is_bounded_by_memory_alone() -> None:
    node: Source = leaf(2)
    for _ in range(50_000):
        node = op("neg", node)
    assert isinstance(node, Node)
    batch = collect([node])
    assert len(batch.nodes) == len(batch.graph().instrs) == 50_000


def test_the_bound_is_never_below_the_count() -> None:
    x = leaf(2)
    chain = op("exp", x)
    for _ in range(40):
        chain = op("add", chain, chain)
    assert count(chain, 1000) == 41
    assert chain.bound == 41
    wide = [op("exp", x) for _ in range(30)]
    for _ in range(500):
        op("log", x)
    total = wide[0]
    for node in wide[1:]:
        total = op("add", total, node)
    assert count(total, 1000) == 59
    assert total.bound == 59
    assert count(total, 10) == 11


def test_ops_of_several_results_are_one_operation() -> None:
    from bringup.ops.table import Kind, OpDef

    both = OpDef(
        name="both",
        arity=1,
        kind=Kind.ELEMENTWISE,
        doc="The sine and the cosine.",
        infer=lambda types, _: (types[0], types[0].with_dtype(i32)),
        reference=lambda x: (np.sin(x), np.ones(x.shape, np.int32)),
    )
    first, second = record(both, (leaf(2),), {})
    assert second.type is i32[2]
    shown = Shown()
    second.array = weakref.ref(shown)
    batch = collect([op("neg", first)])
    assert len(batch.nodes) == 2
    assert len(batch.outputs) == 2
    graph = batch.graph()
    assert [v.type for v in graph.outputs] == [f32[2], i32[2]]
