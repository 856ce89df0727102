"""Rows judged as a whole: what the suite says of right and of wrong factors, and what it draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup.backend.capabilities import Numerics, Shapes
from bringup.dtypes import f16, f32, f64
from bringup.graph import Builder, Graph
from bringup.ops.evaluate import evaluate
from bringup.ops.table import all_ops, lookup
from bringup.passes.base import as_results
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.residuals import judge_residuals

ROWS = [row.name for row in all_ops() if row.accuracy.residual is not None]


def single(name: str, *types: Any, **attrs: Any) -> Graph:
    with Builder() as b:
        return b.build(as_results(lookup(name)(*map(b.input, types), **attrs)))


def made(graph: Graph, kind: str = "signed", seed: int = 0) -> list[Any]:
    domain = lookup(graph.instrs[0].op.name).domain
    return [
        Recipe(kind, seed, matrix=domain.matrix(i)).make(v.type) for i, v in enumerate(graph.inputs)
    ]


GRAPHS = {
    "cholesky": lambda t: single("cholesky", t[9, 9]),
    "triangular_solve": lambda t: single("triangular_solve", t[9, 9], t[9, 2]),
    "lu": lambda t: single("lu", t[7, 9]),
    "qr": lambda t: single("qr", t[9, 4]),
    "eigh": lambda t: single("eigh", t[6, 6]),
    "svd": lambda t: single("svd", t[6, 4]),
    "fft": lambda t: single("fft", t[12], t[12]),
}


def test_every_such_row_is_drawn_and_checked() -> None:
    assert set(ROWS) == set(GRAPHS)
    for name in ROWS:
        found = instances(lookup(name), f32, Shapes(), 0)
        assert len(found) > 10
        assert any(t.size == 0 for each in found for t in each.operands)


@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_the_reference_is_right_and_a_changed_element_wrong(name: str, dtype: Any) -> None:
    graph = GRAPHS[name](dtype)
    inputs = made(graph)
    results = evaluate(graph, inputs)
    verdict, judged = judge_residuals(graph, results, inputs)
    assert verdict.ok
    assert verdict.compared
    assert verdict.ratio <= 1
    assert judged == frozenset(range(len(results)))
    for place, result in enumerate(results):
        wrong = [r.copy() for r in results]
        flat = wrong[place].reshape(-1)
        flat[0] = flat[0] + (1 if result.dtype.kind == "i" else np.abs(result).max() / 8)
        verdict, _ = judge_residuals(graph, wrong, inputs)
        assert not verdict.ok, place
        assert verdict.mismatches
        assert "off by" in str(verdict.mismatches[0])
        missing = [np.full_like(r, np.nan) if r.dtype.kind == "f" else r for r in results]
        assert not judge_residuals(graph, missing, inputs)[0].ok


def test_pivots_that_are_not_the_largest_are_wrong() -> None:
    graph = single("lu", f64[2, 2])
    a = np.array([[1e-3, 1.0], [1.0, 1.0]])
    right = evaluate(graph, [a])
    assert judge_residuals(graph, right, [a])[0].ok
    without = [np.array([[1e-3, 1.0], [1e3, -999.0]]), np.array([0, 1], np.int32)]
    verdict, _ = judge_residuals(graph, without, [a])
    assert any("largest pivots" in str(m) for m in verdict.mismatches)
    twice = [right[0], np.array([1, 1], np.int32)]
    verdict, _ = judge_residuals(graph, twice, [a])
    assert any("permutation" in str(m) for m in verdict.mismatches)


def test_nothing_is_said_where_the_reference_is_not_finite() -> None:
    graph = single("cholesky", f64[2, 2, 2])
    a = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]]])
    (factor,) = evaluate(graph, [a])
    changed = factor.copy()
    changed[1] = 7
    changed[1, 0, 1] = 0
    assert judge_residuals(graph, [changed], [a])[0].ok
    changed[0, 0, 0] = 7
    assert not judge_residuals(graph, [changed], [a])[0].ok


def test_values_made_of_factors_have_no_bound() -> None:
    with Builder() as b:
        graph = b.build([lookup("neg")(lookup("cholesky")(b.input(f32[2, 2])))])
    (span,) = analyse(graph, [np.eye(2, dtype=np.float32)], Numerics())
    assert span.unlimited().all()
    inputs = [np.eye(2, dtype=np.float32)]
    assert judge_residuals(graph, inputs, inputs)[1] == frozenset()


def test_recipes_of_structures() -> None:
    a = Recipe("ramp", 3, matrix="definite").make(f32[2, 5, 5])
    assert np.array_equal(a, np.swapaxes(a, -1, -2))
    assert (np.linalg.eigvalsh(a.astype(np.float64)) > 0.4).all()
    t = Recipe("signed", 3, matrix="dominant").make(f32[5, 5])
    assert np.linalg.cond(np.tril(t)) < 20
    recipe = Recipe("signed", 3, matrix="symmetric")
    assert Recipe.from_json(recipe.to_json()) == recipe
