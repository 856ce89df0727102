"""The passes over inputs and outputs of graphs, as text, and the values they keep."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bringup as bu
from bringup.dtypes import f32, f64, i64
from bringup.errors import UnsupportedError
from bringup.graph import Graph
from bringup.graph.verify import verify
from bringup.ops.evaluate import evaluate
from bringup.passes import Pass, PassContext, everything, passes_for, run_pipeline
from bringup.passes.check import check_values
from bringup.passes.outputs import (
    forward_loop_invariants,
    materialize_outputs,
    split_concatenates,
)
from bringup.passes.pipeline import signature_passes
from bringup.passes.scalar_inputs import cast_scalar_inputs

Parse = Callable[[str], Graph]

CASES: dict[str, tuple[Pass, str, str]] = {
    "forward_loop_invariants: the result is the operand, whoever reads it": (
        forward_loop_invariants(),
        """
        graph f(%0: i32[], %1: f32[4], %2: f32[4]) {
          %3: i32[], %4: f32[4], %5: f32[4] = while(%0, %1, %2) {
            cond=graph cond(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](9)}
              %4: bool[] = compare(%0, %3) {direction="lt"}
              return %4
            },
            body=graph body(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](1)}
              %4: i32[] = add(%0, %3)
              return %4, %1, %1
            }
          }
          return %4, %5
        }
        """,
        """
        graph f(%0: i32[], %1: f32[4], %2: f32[4]) {
          %3: i32[], %4: f32[4], %5: f32[4] = while(%0, %1, %2) {
            cond=graph cond(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](9)}
              %4: bool[] = compare(%0, %3) {direction="lt"}
              return %4
            },
            body=graph body(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](1)}
              %4: i32[] = add(%0, %3)
              return %4, %1, %1
            }
          }
          return %1, %5
        }
        """,
    ),
    "materialize_outputs: inside loops, but for what they return unchanged": (
        materialize_outputs(),
        """
        graph f(%0: i32[], %1: f32[4], %2: f32[4]) {
          %3: i32[], %4: f32[4], %5: f32[4] = while(%0, %1, %2) {
            cond=graph cond(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](9)}
              %4: bool[] = compare(%0, %3) {direction="lt"}
              return %4
            },
            body=graph body(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](1)}
              %4: i32[] = add(%0, %3)
              return %4, %1, %1
            }
          }
          return %1, %5
        }
        """,
        """
        graph f(%0: i32[], %1: f32[4], %2: f32[4]) {
          %3: i32[], %4: f32[4], %5: f32[4] = while(%0, %1, %2) {
            cond=graph cond(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](9)}
              %4: bool[] = compare(%0, %3) {direction="lt"}
              return %4
            },
            body=graph body(%0: i32[], %1: f32[4], %2: f32[4]) {
              %3: i32[] = constant() {value=i32[](1)}
              %4: i32[] = add(%0, %3)
              %5: f32[4] = reshape(%1) {shape=(4,)}
              return %4, %1, %5
            }
          }
          %6: f32[4] = reshape(%1) {shape=(4,)}
          return %6, %5
        }
        """,
    ),
    "materialize_outputs: inputs, constants and what is there already": (
        materialize_outputs(),
        """
        graph f(%0: f32[4]) {
          %1: f32[4] = constant() {value=f32[4](2.0)}
          %2: f32[4] = neg(%0)
          return %0, %1, %2, %2
        }
        """,
        """
        graph f(%0: f32[4]) {
          %1: f32[4] = constant() {value=f32[4](2.0)}
          %2: f32[4] = neg(%0)
          %3: f32[4] = reshape(%0) {shape=(4,)}
          %4: f32[4] = reshape(%1) {shape=(4,)}
          %5: f32[4] = reshape(%2) {shape=(4,)}
          return %3, %4, %2, %5
        }
        """,
    ),
    "split_concatenates: in pairs, and those in pairs": (
        split_concatenates(everything, 2),
        """
        graph f(%0: f32[1], %1: f32[1], %2: f32[1], %3: f32[1], %4: f32[1]) {
          %5: f32[5] = concatenate(%0, %1, %2, %3, %4) {dim=0}
          return %5
        }
        """,
        """
        graph f(%0: f32[1], %1: f32[1], %2: f32[1], %3: f32[1], %4: f32[1]) {
          %5: f32[2] = concatenate(%0, %1) {dim=0}
          %6: f32[2] = concatenate(%2, %3) {dim=0}
          %7: f32[4] = concatenate(%5, %6) {dim=0}
          %8: f32[5] = concatenate(%7, %4) {dim=0}
          return %8
        }
        """,
    ),
    "cast_scalar_inputs: floats to any float, and what is read as one dtype alone": (
        cast_scalar_inputs(frozenset({1, 2, 3})),
        """
        graph f(%0: f32[4], %1: f64[], %2: f64[], %3: i64[]) {
          %4: f32[] = convert(%1) {dtype=f32}
          %5: f32[4] = broadcast_in_dim(%4) {shape=(4,), dims=()}
          %6: f32[4] = mul(%0, %5)
          %7: i32[] = convert(%2) {dtype=i32}
          %8: f32[] = convert(%3) {dtype=f32}
          %9: i32[] = convert(%3) {dtype=i32}
          return %6, %7, %8, %9
        }
        """,
        """
        graph f(%0: f32[4], %1: f32[], %2: f64[], %3: i64[]) {
          %4: f32[4] = broadcast_in_dim(%1) {shape=(4,), dims=()}
          %5: f32[4] = mul(%0, %4)
          %6: i32[] = convert(%2) {dtype=i32}
          %7: f32[] = convert(%3) {dtype=f32}
          %8: i32[] = convert(%3) {dtype=i32}
          return %5, %6, %7, %8
        }
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, parse: Parse) -> None:
    each, before, after = CASES[name]
    graph = parse(before)
    found = each.run(graph)
    assert str(found) == inspect.cleandoc(after)
    verify(found)
    assert each.run(found) is found or str(each.run(found)) == str(found)
    assert str(graph) == inspect.cleandoc(before), "the pass changed its argument"


# Loops follow below, on inputs with which they end.
STRAIGHT = [
    "materialize_outputs: inputs, constants and what is there already",
    "split_concatenates: in pairs, and those in pairs",
]


@pytest.mark.parametrize("name", STRAIGHT)
def test_values_stay(name: str, parse: Parse) -> None:
    each, before, _ = CASES[name]
    graph = parse(before)
    check_values(each.name, graph, each.run(graph))


LOOPS = [
    lambda n, x, y: bu.while_loop(
        lambda s: s[0] < 5, lambda s: (s[0] + 1, s[2], s[1], s[3]), (n, x, y, x)
    ),
    lambda n, x, y: bu.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1], s[1]), (n, x, y)),
    lambda n, x, y: bu.scan(lambda c, row: ((c[0], c[0]), (row, row)), (x[0], y[0]), y),
    lambda n, x, y: bu.cond(n > 0, lambda a, b: (a, a, b), lambda a, b: (b, b, b), x, y),
]


@pytest.mark.parametrize("number", range(len(LOOPS)))
def test_loops_and_branches_keep_values(number: int) -> None:
    graph = bu.trace(LOOPS[number], bu.int32, f32[3, 4], f32[3, 4])
    passes = (forward_loop_invariants(), materialize_outputs())
    found = run_pipeline(graph, passes, context=PassContext(check=1))
    rng = np.random.default_rng(number)
    for n in (0, 3):
        arrays = [rng.standard_normal((3, 4)).astype(np.float32) for _ in range(2)]
        inputs = [np.int32(n), *arrays]
        for want, got in zip(evaluate(graph, inputs), evaluate(found, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@settings(max_examples=30)
@given(count=st.integers(1, 40), operands=st.integers(2, 9), same=st.integers(1, 3))
def test_joins_keep_their_order(count: int, operands: int, same: int) -> None:
    def join(*xs: Any) -> Any:
        return bu.concat([xs[n // same] for n in range(count)])

    graph = bu.trace(join, *[f32[n % 3] for n in range(count)])
    found = split_concatenates(everything, operands).run(graph)
    check_values("split_concatenates", graph, found)
    widths = [len(set(i.operands)) for i in found if i.op.name == "concatenate"]
    assert max(widths, default=1) <= operands


def test_a_join_that_is_an_op_of_the_device_keeps_its_operands(parse: Parse) -> None:
    graph = parse(CASES["split_concatenates: in pairs, and those in pairs"][1])
    assert split_concatenates(lambda _instr: False, 2).run(graph) is graph


def test_numbers_that_the_host_casts_give_the_values_that_the_device_would() -> None:
    graph = bu.trace(lambda x, k, n: x * k.astype(f32) + n.astype(f32), f32[3], f64, i64)
    (each,) = signature_passes(frozenset({1, 2}))
    found = run_pipeline(graph, [each], context=PassContext(check=2))
    assert [str(v.type) for v in found.inputs] == ["f32[3]", "f32[]", "f32[]"]
    x = np.float32([0.1, -3.0, 7e8])
    for k, n in ((0.1, 3), (1e300, 2**53 + 1), (-0.0, -(2**63))):
        given = [x, np.float64(k), np.int64(n)]
        with np.errstate(over="ignore", invalid="ignore"):
            host = [x, np.float32(k), np.float32(n)]
            pairs = zip(evaluate(graph, given), evaluate(found, host), strict=True)
            for want, got in pairs:
                np.testing.assert_array_equal(got, want)
    assert signature_passes(frozenset()) == ()


@pytest.mark.parametrize("name", ["forward_loop_invariants", "materialize_outputs"])
def test_what_plans_rely_on_cannot_be_left_out(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"pass {name} cannot be left out"):
        passes_for(everything, without=[name])
