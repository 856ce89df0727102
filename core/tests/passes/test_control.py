"""The pipeline on loops and branches: what it sees inside, and that its checks reach there."""

from __future__ import annotations

from typing import Any

import pytest

import bringup as bu
from bringup import float32 as f32
from bringup.errors import GraphError
from bringup.graph import Graph, rebuild
from bringup.graph.verify import subgraphs
from bringup.ops.build import rows
from bringup.passes import Pass, PassContext, everything, passes_for, run_pipeline
from bringup.passes.base import deep
from bringup.passes.check import is_strict, terminates


def optimized(fn: Any, *types: Any, check: int = 2) -> Graph:
    return run_pipeline(
        bu.trace(fn, *types), passes_for(everything), context=PassContext(check=check)
    )


def names(graph: Graph) -> list[str]:
    found = [instr.op.name for instr in graph.instrs]
    for inner in subgraphs(graph):
        found += names(inner)
    return found


def test_bodies_are_simplified() -> None:
    def body(_: Any, v: Any) -> Any:
        return bu.sin(v * 1) + bu.sin(bu.negative(bu.negative(v)))

    graph = optimized(lambda x: bu.fori_loop(0, 9, body, x), f32[4])
    assert names(graph) == ["scan", "sin", "add"]


def test_equal_loops_are_one() -> None:
    def twice(x: Any) -> Any:
        first, second = (bu.fori_loop(0, 9, lambda _, v: bu.sin(v), x) for _ in range(2))
        return first + second

    assert names(optimized(twice, f32[4])).count("scan") == 1


def test_a_counter_that_nobody_reads_goes() -> None:
    graph = optimized(lambda x: bu.fori_loop(0, 9, lambda _, v: bu.sin(v), x), f32[4])
    (instr,) = graph.instrs
    assert len(instr.operands) == 1


def test_a_loop_over_constants_is_not_run_while_compiling() -> None:
    graph = optimized(lambda: bu.fori_loop(0, 10**9, lambda i, v: v + i, 0))
    assert "scan" in names(graph)


def test_values_are_compared_where_loops_end() -> None:
    counted = bu.trace(lambda x: bu.fori_loop(0, 3, lambda _, v: v * 2, x), f32[4])
    assert terminates(counted)
    assert is_strict(counted)
    late = bu.trace(lambda x: bu.while_loop(lambda v: bu.sum(v) < 9, lambda v: v * 2, x), f32[4])
    assert not terminates(late)
    long = bu.trace(lambda x: bu.fori_loop(0, 10**6, lambda _, v: v * 2, x), f32[4])
    assert not terminates(long), "it would take numpy a minute"

    def nested(x: Any) -> Any:
        return bu.fori_loop(0, 200, lambda _, v: bu.fori_loop(0, 200, lambda _, u: u + 1, v), x)

    assert not terminates(bu.trace(nested, f32[4]))


def test_a_pass_that_is_wrong_inside_is_found() -> None:
    """Sums become differences in every body."""

    def turn(graph: Graph) -> Graph:
        return rebuild(
            graph, lambda i, v: [rows.sub(*v)] if i.op.name == "add" and len(graph) == 1 else None
        )

    wrong = Pass("wrong", "sums -> differences", deep(turn))
    graph = bu.trace(lambda x: bu.fori_loop(0, 3, lambda _, v: v + x, x), f32[4])
    run_pipeline(graph, [wrong], context=PassContext(check=1))
    with pytest.raises(GraphError, match="pass wrong changed the value"):
        run_pipeline(graph, [*passes_for(everything), wrong], context=PassContext(check=2))
