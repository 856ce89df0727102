"""Rows that hold sub-graphs: text, references, derivatives, and what is left of them when results
are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import bool_, f32, f64, i32
from bringup.errors import OpTypeError, UnsupportedError
from bringup.graph import Builder, Graph, Value
from bringup.graph.parser import parse_graph
from bringup.graph.verify import verify
from bringup.ops.build import rows, splat
from bringup.ops.control import known_trips
from bringup.ops.evaluate import evaluate
from bringup.ops.table import find
from bringup.passes.base import as_results
from bringup.passes.dce import eliminate_inside
from bringup.tracing.autodiff import vjp_graph
from bringup.types import TensorType

SCALAR = f64[()]


def made(function: Callable[..., Any], *types: TensorType) -> Graph:
    with Builder() as builder:
        results = function(*map(builder.input, types))
        return builder.build(as_results(results), function.__name__.strip("<>"))


def below(count: int, *types: TensorType) -> Graph:
    return made(
        lambda i, *_: rows.compare(i, splat(count, i32[()]), direction="lt"), i32[()], *types
    )


def counted(count: int, body: Callable[..., Any], *types: TensorType) -> Graph:
    """A loop of so many runs from a state of these types."""
    step = made(
        lambda i, *state: (rows.add(i, splat(1, i32[()])), *as_results(body(*state))),
        i32[()],
        *types,
    )
    cond = below(count, *types)
    return made(
        lambda *state: rows.while_(splat(0, i32[()]), *state, cond=cond, body=step)[1:], *types
    )


def scanned(
    body: Graph, types: Sequence[TensorType], length: int, consts: int, carries: int, **more: Any
) -> Graph:
    attrs = {"body": body, "length": length, "consts": consts, "carries": carries, **more}
    return made(lambda *operands: rows.scan(*operands, **attrs), *types)


def cell(w: Value, c: Value, n: Value, x: Value) -> tuple[Value, ...]:
    """A float carry, a counter, and two rows of results, one of them a function of both."""
    after = rows.tanh(rows.add(rows.mul(w, c), x))
    scaled = rows.mul(after, rows.convert(n, dtype=f64))
    return after, rows.add(n, splat(1, i32[()])), rows.mul(after, after), scaled


CELL = made(cell, SCALAR, SCALAR, i32[()], SCALAR)


def cell_graph(length: int, *, reverse: bool = False) -> Graph:
    types = (SCALAR, SCALAR, i32[()], f64[length])
    return scanned(CELL, types, length, 1, 2, reverse=reverse)


def branches() -> tuple[Graph, ...]:
    bodies = (lambda x, y: rows.mul(x, y), lambda x, y: rows.sin(x), lambda x, y: y)
    return tuple(made(body, SCALAR, SCALAR) for body in bodies)


def cases() -> Graph:
    inside = branches()
    return made(lambda k, x, y: rows.case(k, x, y, branches=inside), i32[()], SCALAR, SCALAR)


GRAPHS = {
    "while": lambda: counted(3, lambda x, y: (rows.mul(x, y), y), SCALAR, SCALAR),
    "scan": lambda: cell_graph(4),
    "case": cases,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_text_and_back(name: str) -> None:
    graph = GRAPHS[name]()
    verify(graph)
    again = parse_graph(str(graph), find)
    assert again == graph
    assert str(again) == str(graph)


def test_a_loop_runs_until_its_condition_fails() -> None:
    graph = counted(5, lambda x: rows.mul(x, splat(2, SCALAR)), SCALAR)
    assert evaluate(graph, [np.float64(3)])[0] == 96
    graph = counted(0, lambda x: rows.mul(x, splat(2, SCALAR)), SCALAR)
    assert evaluate(graph, [np.float64(3)])[0] == 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_scan_is_what_python_would_loop(length: int, reverse: bool) -> None:
    x = np.linspace(-1, 1, length)
    found = evaluate(
        cell_graph(length, reverse=reverse), [np.float64(0.5), np.float64(0.1), np.int32(0), x]
    )
    carry, squares, scaled = 0.1, np.zeros(length), np.zeros(length)
    for n, i in enumerate(reversed(range(length)) if reverse else range(length)):
        carry = np.tanh(0.5 * carry + x[i])
        squares[i], scaled[i] = carry * carry, carry * n
    assert np.allclose(found[0], carry)
    assert found[1] == length
    assert np.allclose(found[2], squares)
    assert np.allclose(found[3], scaled)


def test_trips_are_known_where_a_loop_counts_between_constants() -> None:
    graph = counted(7, lambda x: x, SCALAR)
    instr = graph.instrs[-1]
    assert known_trips(instr.operands, **instr.attrs) == 7
    cond = made(lambda x: rows.compare(x, splat(7, SCALAR), direction="lt"), SCALAR)
    body = made(lambda x: rows.add(x, splat(1, SCALAR)), SCALAR)
    graph = made(lambda x: rows.while_(x, cond=cond, body=body), SCALAR)
    assert known_trips(graph.instrs[0].operands, cond, body) is None


def slopes(graph: Graph, inputs: Sequence[Any], wrt: Sequence[int], seeds: Sequence[Any]) -> None:
    """Derivatives against central differences."""
    of = [i for i, v in enumerate(graph.outputs) if v.dtype.is_float]
    pulled = evaluate(vjp_graph(graph, wrt, of), [*inputs, *seeds])[len(graph.outputs) :]

    def value(at: Sequence[Any]) -> float:
        found = evaluate(graph, at)
        return sum(float((found[o] * s).sum()) for o, s in zip(of, seeds, strict=True))

    for position, gradient in zip(wrt, pulled, strict=True):
        direction = np.random.default_rng(position).standard_normal(gradient.shape)
        ends = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[position] = inputs[position] + sign * 1e-5 * direction
            ends.append(value(moved))
        wanted = (ends[0] - ends[1]) / 2e-5
        assert abs(float((gradient * direction).sum()) - wanted) <= 1e-8 * (1 + abs(wanted))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_the_gradient_of_a_scan_is_its_slope(length: int, reverse: bool) -> None:
    inputs = [np.float64(0.7), np.float64(0.2), np.int32(1), np.linspace(-1, 1, length)]
    seeds = [np.float64(0.3), np.linspace(1, 2, length), np.linspace(-1, 0.5, length)]
    slopes(cell_graph(length, reverse=reverse), inputs, [0, 1, 3], seeds)


def test_a_scan_without_stacked_carries_is_differentiated_by_running_it_again() -> None:
    """As the row's own vjp does where nobody asked for residuals before."""
    graph = cell_graph(3)
    (instr,) = graph.instrs
    with Builder() as builder:
        operands = [builder.input(v.type) for v in instr.operands]
        results = rows.scan(*operands, **instr.attrs)
        cts = tuple(builder.input(v.type) for v in results)
        found = instr.op.vjp(cts, results, *operands, derive=vjp_graph, **instr.attrs)
        pulled = builder.build([found[0], found[1], found[3]])
    names = [i.op.name for i in pulled.instrs]
    assert names.count("scan") == 3
    inputs = [np.float64(0.7), np.float64(0.2), np.int32(1), np.linspace(-1, 1, 3)]
    seeds = [np.float64(0.3), np.int32(0), np.ones(3), np.zeros(3)]
    wanted = evaluate(vjp_graph(graph, [0, 1, 3], [0, 2]), [*inputs, seeds[0], seeds[2]])[4:]
    assert all(map(np.allclose, evaluate(pulled, [*inputs, *seeds]), wanted))


def test_the_second_derivative_of_a_scan() -> None:
    graph = cell_graph(3)
    first = vjp_graph(graph, [0, 3], [0])
    slope = made(
        lambda *given: rows.mul(first_of(first, given), first_of(first, given)),
        *[v.type for v in first.inputs],
    )
    inputs = [np.float64(0.7), np.float64(0.2), np.int32(1), np.linspace(-1, 1, 3), np.float64(1)]
    slopes(slope, inputs, [0, 1, 3], [np.float64(1.0)])


def first_of(graph: Graph, given: Sequence[Value]) -> Value:
    from bringup.graph import replay

    return replay(graph, arguments=given)[4]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 9])
def test_the_gradient_of_a_case_is_that_of_the_branch(index: int) -> None:
    inputs = [np.int32(index), np.float64(0.3), np.float64(1.7)]
    slopes(cases(), inputs, [1, 2], [np.float64(2.0)])


def test_a_loop_of_unknown_length_has_no_derivative() -> None:
    graph = counted(3, lambda x: rows.mul(x, x), SCALAR)
    with pytest.raises(UnsupportedError, match="while has no derivative") as caught:
        vjp_graph(graph, [0])
    assert "scan" in (caught.value.fix or "")


def test_dead_parts_of_a_state_go() -> None:
    graph = counted(3, lambda x, y: (rows.mul(x, x), rows.add(y, x)), SCALAR, SCALAR)
    (wanted, _) = evaluate(graph, [np.float64(1.1), np.float64(2)])
    kept = Graph(graph.inputs, graph.instrs, graph.outputs[:1], graph.name)
    smaller = eliminate_inside(kept)
    verify(smaller)
    assert len(smaller.instrs[-1].operands) == 2, "the counter and x"
    assert evaluate(smaller, [np.float64(1.1), np.float64(2)])[0] == wanted


def test_what_a_live_part_reads_stays() -> None:
    graph = counted(3, lambda x, y: (rows.mul(x, x), rows.add(y, x)), SCALAR, SCALAR)
    kept = Graph(graph.inputs, graph.instrs, graph.outputs[1:], graph.name)
    assert eliminate_inside(kept) is kept


def test_dead_stacks_and_carries_of_a_scan_go() -> None:
    graph = cell_graph(4)
    kept = Graph(graph.inputs, graph.instrs, graph.outputs[2:3], graph.name)
    smaller = eliminate_inside(kept)
    verify(smaller)
    (instr,) = smaller.instrs
    assert (instr.attrs["consts"], instr.attrs["carries"], len(instr.results)) == (1, 1, 2)
    inputs = [np.float64(0.5), np.float64(0.1), np.int32(0), np.linspace(-1, 1, 4)]
    assert np.array_equal(evaluate(smaller, inputs)[0], evaluate(graph, inputs)[2])


def test_operands_that_no_branch_reads_go() -> None:
    inside = tuple(
        made(body, SCALAR, SCALAR) for body in (lambda x, _: x, lambda x, _: rows.neg(x))
    )
    graph = made(lambda k, x, y: rows.case(k, x, y, branches=inside), i32[()], SCALAR, SCALAR)
    (instr,) = eliminate_inside(graph).instrs
    assert len(instr.operands) == 2


def ones(*types: TensorType) -> Graph:
    return made(lambda *given: given, *types)


WRONG: dict[str, Callable[[], Any]] = {
    "a condition that is no bool": lambda: counted_by(ones(SCALAR), ones(SCALAR), SCALAR),
    "a body of another state": lambda: counted_by(
        made(lambda x: rows.compare(x, x, direction="lt"), SCALAR), ones(f32[()]), SCALAR
    ),
    "a body that gives less": lambda: counted_by(
        made(lambda x, y: rows.compare(x, y, direction="lt"), SCALAR, SCALAR),
        made(lambda x, _: x, SCALAR, SCALAR),
        SCALAR,
        SCALAR,
    ),
    "an index that is an array": lambda: made(
        lambda k, x: rows.case(k, x, branches=(ones(SCALAR),)), i32[2], SCALAR
    ),
    "no branches": lambda: made(lambda k, x: rows.case(k, x, branches=()), i32[()], SCALAR),
    "branches that differ": lambda: made(
        lambda k, x: rows.case(
            k, x, branches=(ones(SCALAR), made(lambda x: rows.convert(x, dtype=f32), SCALAR))
        ),
        i32[()],
        SCALAR,
    ),
    "branches of other operands": lambda: made(
        lambda k, x: rows.case(k, x, branches=(ones(f32[()]),)), i32[()], SCALAR
    ),
    "a graph that is none": lambda: made(
        lambda x: rows.while_(x, cond="x", body=ones(SCALAR)), SCALAR
    ),
    "a stack without rows": lambda: scanned(ones(SCALAR), [SCALAR], 3, 0, 0),
    "a stack of another length": lambda: scanned(ones(SCALAR), [f64[4]], 3, 0, 0),
    "a carry of another type": lambda: scanned(
        made(lambda x: rows.convert(x, dtype=f32), SCALAR), [SCALAR], 3, 0, 1
    ),
    "a negative length": lambda: scanned(ones(SCALAR), [SCALAR], -1, 0, 1),
    "too many carries": lambda: scanned(ones(SCALAR), [SCALAR], 3, 1, 1),
    "a body that gives nothing": lambda: scanned(made(lambda x: (), SCALAR), [f64[3]], 3, 0, 0),
}


def counted_by(cond: Graph, body: Graph, *types: TensorType) -> Graph:
    return made(lambda *state: rows.while_(*state, cond=cond, body=body), *types)


@pytest.mark.parametrize("name", WRONG)
def test_the_message(name: str, snapshot: Any) -> None:
    with pytest.raises(OpTypeError) as caught:
        WRONG[name]()
    assert caught.value.fix
    assert str(caught.value) == snapshot


def test_a_condition_may_hold_at_first_only() -> None:
    flags = made(lambda a, b: (b, b), bool_[()], bool_[()])
    first = made(lambda a, b: a, bool_[()], bool_[()])
    graph = counted_by(first, flags, bool_[()], bool_[()])
    assert not evaluate(graph, [np.True_, np.False_])[0]
