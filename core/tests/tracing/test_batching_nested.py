"""The law of `batch_graph` for data-dependent indices and for sub-graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.dtypes import f64, i32, i64
from bringup.graph import Builder, Graph, Value
from bringup.graph.verify import verify
from bringup.ops import build
from bringup.ops.build import rows
from bringup.ops.evaluate import evaluate
from bringup.tracing.batching import batch_graph
from bringup.types import TensorType

SIZE = 3


def graph_of(fn: Callable[..., Any], *types: TensorType) -> Graph:
    with Builder() as builder:
        results = fn(*[builder.input(t) for t in types])
    return builder.build(results if isinstance(results, tuple | list) else [results])


def drawn(type_: TensorType, rng: np.random.Generator) -> Any:
    if type_.dtype.is_float:
        return rng.normal(size=type_.shape)
    return rng.integers(-2, 7, size=type_.shape).astype(type_.dtype.numpy)


def check(graph: Graph, flags: Sequence[bool], size: int = SIZE) -> Graph:
    rng = np.random.default_rng(len(graph.instrs))
    examples = [[drawn(v.type, rng) for v in graph.inputs] for _ in range(max(size, 1))]
    batched, given = batch_graph(graph, flags, size)
    verify(batched)
    arguments = [
        np.stack([e[i] for e in examples])[:size] if flag else examples[0][i]
        for i, flag in enumerate(flags)
    ]
    found = evaluate(batched, arguments)
    for k, flag in enumerate(given):
        singly = [
            evaluate(graph, [x if f else y for x, y, f in zip(e, examples[0], flags, strict=True)])
            for e in examples
        ]
        each = [results[k] for results in singly]
        wanted = np.stack(each)[:size] if flag else each[0]
        np.testing.assert_allclose(found[k], wanted, rtol=1e-12)
        assert found[k].dtype == wanted.dtype
    return batched


def in_every_combination(graph: Graph) -> None:
    for flags in itertools.product((False, True), repeat=len(graph.inputs)):
        check(graph, flags)
    check(graph, [True] * len(graph.inputs), 0)


# ---- indices

NUMBERS: dict[str, tuple[TensorType, TensorType, dict[str, Any]]] = {
    "elements": (
        f64[5],
        i32[4, 1],
        {"sizes": (1,), "offset": (), "collapsed": (0,), "index_map": (0,), "index_dim": 1},
    ),
    "without components": (
        f64[5, 2],
        i32[4],
        {"sizes": (1, 2), "offset": (1,), "collapsed": (0,), "index_map": (0,), "index_dim": 1},
    ),
    "windows before positions": (
        f64[5, 6],
        i64[2, 3],
        {"sizes": (2, 3), "offset": (0, 1), "index_map": (1, 0), "index_dim": 0},
    ),
    "with batch dimensions": (
        f64[4, 2, 5],
        i64[2, 3, 1, 4],
        {
            "sizes": (1, 1, 2),
            "offset": (1,),
            "index_map": (2,),
            "index_dim": 2,
            "batch": ((0, 1), (3, 0)),
        },
    ),
}


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("name", NUMBERS)
def test_gathers(name: str, mode: str) -> None:
    x, indices, attrs = NUMBERS[name]
    in_every_combination(
        graph_of(lambda a, b: ops.lookup("gather")(a, b, mode=mode, **attrs), x, indices)
    )


@pytest.mark.parametrize("kind", ["set", "add", "max"])
@pytest.mark.parametrize("name", NUMBERS)
def test_scatters(name: str, kind: str) -> None:
    x, indices, attrs = NUMBERS[name]
    taken = graph_of(lambda a, b: ops.lookup("gather")(a, b, **attrs), x, indices).outputs[0].type
    numbers = {key: value for key, value in attrs.items() if key != "sizes"}

    def scatter(a: Value, b: Value, c: Value) -> Any:
        return ops.lookup("scatter")(a, b, c, kind=kind, **numbers)

    in_every_combination(graph_of(scatter, x, indices, taken))


@pytest.mark.parametrize("sizes", [(2, 3), (5, 3), (1, 4), (0, 2)])
def test_dynamic_slices(sizes: tuple[int, ...]) -> None:
    in_every_combination(
        graph_of(
            lambda x, i, j: rows.dynamic_slice(x, i, j, sizes=sizes), f64[5, 4], i32[()], i32[()]
        )
    )


@pytest.mark.parametrize("shape", [(2, 3), (5, 4), (1, 1)])
def test_dynamic_updates(shape: tuple[int, ...]) -> None:
    in_every_combination(
        graph_of(rows.dynamic_update_slice, f64[5, 4], f64[shape], i64[()], i64[()])
    )


def test_slices_of_scalars() -> None:
    in_every_combination(graph_of(lambda x: rows.dynamic_slice(x, sizes=()), f64[()]))
    in_every_combination(graph_of(rows.dynamic_update_slice, f64[()], f64[()]))


def test_a_slice_at_a_shared_place_stays_a_slice() -> None:
    graph = graph_of(lambda x, i: rows.dynamic_slice(x, i, sizes=(2,)), f64[5], i32[()])
    names = [instr.op.name for instr in check(graph, (True, False)).instrs]
    assert names == ["constant", "dynamic_slice"]


# ---- sub-graphs


def halving(limit: Value, x: Value, w: Value) -> Any:
    """Multiplies by w and counts until a number that grows reaches the limit."""
    state = [limit, build.like(limit, -3), x, w]
    types = [v.type for v in state]
    cond = graph_of(lambda n, i, *_: build.compare("lt", i, n), *types)
    body = graph_of(lambda n, i, x, w: (n, ops.add(i, build.like(i, 1)), ops.mul(x, w), w), *types)
    return tuple(rows.while_(*state, cond=cond, body=body))


def test_loops() -> None:
    in_every_combination(graph_of(halving, i32[()], f64[2], f64[2]))


def loops_in(graph: Graph) -> list[Any]:
    return [instr for instr in graph.instrs if instr.op.name == "while"]


def test_a_shared_count_stays_shared() -> None:
    graph = graph_of(halving, i32[()], f64[2], f64[2])
    (loop,) = loops_in(check(graph, (False, True, False)))
    assert [v.type for v in loop.operands] == [i32[()], i32[()], f64[SIZE, 2], f64[2]]


def test_a_condition_per_example_is_computed_once_a_round() -> None:
    graph = graph_of(halving, i32[()], f64[2], f64[2])
    (loop,) = loops_in(check(graph, (True, False, False)))
    assert [i.op.name for i in loop.attrs["cond"].instrs] == ["reduce"]
    assert sum(i.op.name == "compare" for i in loop.attrs["body"].instrs) == 1
    shared = loop.operands[-1]
    assert shared.type is f64[2]  # what no round changes is not repeated


def chosen(index: Value, x: Value, y: Value) -> Any:
    types = (x.type, y.type)
    branches = (
        graph_of(lambda a, b: (ops.add(a, b), b), *types),
        graph_of(lambda a, b: (build.splat(4, a.type), a), *types),
        graph_of(lambda a, b: (b, ops.exp(b)), *types),
    )
    return tuple(rows.case(index, x, y, branches=branches))


def test_choices() -> None:
    in_every_combination(graph_of(chosen, i32[()], f64[2], f64[2]))


def test_a_shared_choice_runs_one_branch() -> None:
    graph = graph_of(chosen, i32[()], f64[2], f64[2])
    assert any(i.op.name == "case" for i in check(graph, (False, True, False)).instrs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [4, 0])
def test_scans(length: int, reverse: bool) -> None:
    def scan(w: Value, start: Value, fixed: Value, xs: Value) -> Any:
        body = graph_of(
            lambda w, c, k, x: (ops.add(ops.mul(c, w), x), k, ops.mul(c, x), k),
            w.type,
            start.type,
            fixed.type,
            f64[2],
        )
        return tuple(
            rows.scan(
                w, start, fixed, xs, body=body, length=length, reverse=reverse, consts=1, carries=2
            )
        )

    in_every_combination(graph_of(scan, f64[2], f64[2], f64[()], f64[length, 2]))


def test_loops_in_loops() -> None:
    def outer(limit: Value, x: Value) -> Any:
        def step(n: Value, i: Value, x: Value) -> Any:
            _, _, y, _ = halving(i, x, build.like(x, 0.5))
            return n, ops.add(i, build.like(i, 1)), y

        state = [limit, build.like(limit, 0), x]
        types = [v.type for v in state]
        cond = graph_of(lambda n, i, _: build.compare("lt", i, n), *types)
        return tuple(rows.while_(*state, cond=cond, body=graph_of(step, *types)))

    in_every_combination(graph_of(outer, i32[()], f64[2]))
