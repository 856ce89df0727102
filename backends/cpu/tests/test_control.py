"""Loops and branches as native code, against the reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup import float32 as f32
from bringup import int32 as i32
from bringup.ops.evaluate import evaluate

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
#: More than fits into a kernel's text, so it is a constant of the body's program.
TABLE = RNG.standard_normal((40, 40)).astype(np.float32)


def counted(x: Any, y: Any) -> Any:
    def body(_: Any, state: Any) -> Any:
        a, b, held = state
        return b + held, a * y, held

    return bu.fori_loop(0, 5, body, (x, x + 1, y))


def until(x: Any) -> Any:
    return bu.while_loop(lambda s: bu.sum(s[0]) < 1e4, lambda s: (s[0] * 1.5, s[1] + 1), (x, 0))


def scanned(w: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        after = bu.tanh(carry @ w + x)
        return after, (carry, bu.sum(after * after, axis=1))

    return bu.scan(step, xs[0] * 0, xs, reverse=True)


def backwards(w: Any, xs: Any) -> Any:
    def value(w: Any) -> Any:
        carry, (ys, sums) = scanned(w, xs)
        return bu.sum(carry) + bu.sum(ys * ys) + bu.sum(sums)

    return bu.grad(value)(w)


def branches(k: Any, x: Any) -> Any:
    steps = [lambda v: (v, v * 2), lambda v: (bu.sum(v) * v, v), lambda v: (bu.exp(v), v + 1)]
    return bu.switch(k, steps, x)


def tables(x: Any) -> Any:
    table = bu.asarray(TABLE)
    return bu.fori_loop(0, 4, lambda _, v: bu.tanh(v @ table) + v @ bu.asarray(TABLE[::-1]), x)


def deep(n: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        i, v = state
        v = bu.cond(i % 2 == 0, lambda u: u * 0.5, lambda u: u + 1, v)
        return i + 1, bu.fori_loop(0, i, lambda j, u: u * 0.9 + j, v)

    return bu.while_loop(lambda state: state[0] < n, body, (bu.zeros((), dtype=i32), x))


def long_rows(x: Any) -> Any:
    """Kernels that threads share, and folds that are cut, inside a loop."""
    return bu.fori_loop(0, 3, lambda _, v: bu.sin(v) + bu.mean(v), x)


def updated(n: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        i, held, last = state
        held = bu.dynamic_update_slice(held, bu.reshape(last, (1,)), (i,))
        return i + 1, held, last * 0.5 + held[3]

    start = (bu.zeros((), dtype=i32), x, bu.ones((), dtype=f32))
    return bu.while_loop(lambda state: state[0] < n, body, start)


def updated_rows(x: Any, rows: Any) -> Any:
    def step(held: Any, row: Any) -> Any:
        held = bu.dynamic_update_slice(held, row[:1], (2,))
        return held, bu.sum(held)

    return bu.scan(step, x, rows)


def array(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


RUNS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "counted": (counted, (array(7), array(7))),
    "until": (until, (np.ones(9, np.float32),)),
    "until at once": (until, (np.full(9, 1e6, np.float32),)),
    "scanned": (scanned, (array(5, 5), array(4, 3, 5))),
    "scanned an odd number of times": (scanned, (array(5, 5), array(3, 3, 5))),
    "backwards": (backwards, (array(5, 5), array(4, 3, 5))),
    "first branch": (branches, (np.int32(0), array(6))),
    "second branch": (branches, (np.int32(1), array(6))),
    "no branch": (branches, (np.int32(-7), array(6))),
    "tables": (tables, (array(3, 40),)),
    "deep": (deep, (np.int32(6), array(6))),
    "long rows": (long_rows, (array(1 << 20),)),
    "updated": (updated, (np.int32(5), array(64))),
    "updated never": (updated, (np.int32(0), array(64))),
    "updated rows": (updated_rows, (array(64), array(3, 2))),
    "nothing": (counted, (array(0), array(0))),
}


@pytest.mark.parametrize("name", RUNS)
def test_loops_and_branches(name: str) -> None:
    fn, inputs = RUNS[name]
    graph = bu.trace(fn, *inputs)
    captured = [TABLE] * (len(graph.inputs) - len(inputs))
    if len(captured) > 1:
        captured[1] = TABLE[::-1]
    found = bu.jit(fn)(*map(bu.asarray, inputs))
    leaves, _ = bu.tree.flatten(found)
    for one, wanted in zip(leaves, evaluate(graph, [*inputs, *captured]), strict=True):
        assert np.allclose(np.asarray(one), wanted, rtol=2e-4, atol=1e-5)


def test_they_are_steps_of_one_program() -> None:
    programs = {
        "while": bu.jit(until).lower(f32[9]),
        "scan": bu.jit(scanned).lower(f32[5, 5], f32[4, 3, 5]),
        "case": bu.jit(branches).lower(i32, f32[6]),
    }
    for name, lowered in programs.items():
        assert name in [step.name for step in lowered.program.steps]


def test_a_loop_of_many_short_runs() -> None:
    """Python would take minutes for it."""
    run = bu.jit(lambda x: bu.fori_loop(0, 10_000_000, lambda i, s: s + i, x))
    assert run(bu.asarray(0)).item() == sum(range(10_000_000))


def test_an_element_of_a_large_array_is_changed_where_it_is() -> None:
    """Copies would take a minute."""

    def body(i: Any, held: Any) -> Any:
        return bu.dynamic_update_slice(held, bu.reshape(i, (1,)), (i,))

    run = bu.jit(lambda x: bu.fori_loop(0, 100_000, body, x))
    found = np.asarray(run(bu.zeros(1 << 22, dtype=bu.int64)))
    assert np.array_equal(found[:100_000], np.arange(100_000))
    assert not found[100_000:].any()


def test_constants_stay_apart() -> None:
    """Each program has its own, and the entry holds them all."""

    def run(x: Any) -> Any:
        first = bu.fori_loop(0, 2, lambda _, v: v + dense(1), x + dense(2))
        return bu.cond(bu.sum(x) > 0, lambda v: v + dense(3), lambda v: v + dense(4), first)

    def dense(seed: int) -> Any:
        return np.random.default_rng(seed).integers(0, 1000, 200).astype(np.int64)

    for sign in (1, -1):
        x = np.full(200, sign)
        wanted = x + dense(2) + 2 * dense(1) + dense(3 if sign > 0 else 4)
        assert np.array_equal(np.asarray(bu.jit(run)(bu.asarray(x))), wanted)


def test_repeated_calls_take_the_native_way() -> None:
    run = bu.jit(lambda x: bu.fori_loop(0, 3, lambda _, v: v * 2, x))
    x = bu.ones(4, dtype=f32)
    slow = type(run)._call
    calls = []
    run(x)
    run(x)
    try:
        type(run)._call = lambda self, *given: calls.append(1) or slow(self, *given)
        assert run(x).tolist() == [8.0] * 4
    finally:
        del type(run)._call
    assert not calls


_TRACED = """
import bringup as bu

run = bu.jit(lambda x: bu.fori_loop(0, 10, lambda i, v: bu.sin(v), x))
run(bu.ones(4))
"""


def test_the_timeline_counts_the_runs(python: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    python(_TRACED, BRINGUP_TRACE=str(path))
    events = json.loads(path.read_text())["traceEvents"]
    found = [e for e in events if e.get("cat") == "kernel" and "sin" in e["name"]]
    assert [e["args"]["parts"] for e in found] == [10]


def test_texts_hold_the_functions_of_what_is_inside() -> None:
    lowered = bu.jit(branches).lower(i32, f32[6])
    assert lowered.source.count("define internal void @entry.p") == 3
    assert "entry" in lowered.asm
