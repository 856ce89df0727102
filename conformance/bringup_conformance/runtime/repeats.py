"""The same call again: no state, no drift, no other way of rounding."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.runtime.bench import Bench, Promise

_N = 1543


def _rounded(bench: Bench) -> list[tuple[str, Callable[..., Any]]]:
    """Programs whose results depend on every rounding and every order of additions."""
    made: list[tuple[str, Callable[..., Any]]] = [
        ("a chain", lambda a, b: (a * b + a) * b - a),
        ("a sum", lambda a, b: bu.sum(a * b)),
        ("sums of columns", lambda a, b: bu.sum(bu.reshape(a * b, (-1, 1)) + 0 * b[:3], axis=0)),
        ("a product", lambda a, b: bu.matmul(bu.reshape(a[:900], (30, 30)), b[:30])),
        ("a quotient", lambda a, b: a / (b * b + 1)),
        ("functions", lambda a, b: bu.exp(a) + bu.sin(b)),
        ("a running sum", lambda a, b: bu.cumulative_sum(a + b)),
    ]
    type_ = bench.type(_N)

    def has(fn: Callable[..., Any]) -> bool:
        return missing_from(bench.facts.capabilities, bu.trace(fn, type_, type_)) is None

    return [(name, fn) for name, fn in made if bench.dtype.is_float and has(fn)] or made[:1]


def _data(bench: Bench) -> tuple[Array, Array]:
    type_ = bench.type(_N)
    return Recipe("signed", bench.facts.seed).make(type_), Recipe("signed", 99).make(type_)


def _run_equal(bench: Bench) -> None:
    """Again and again on equal data, with other work and other memory in between."""
    x, y = _data(bench)
    made = [(name, bench.jit(fn)) for name, fn in _rounded(bench)]
    first = {name: bench.host(fn(bench.array(x), bench.array(y))) for name, fn in made}
    for turn in range(bench.count(6, 3)):
        padding = [bench.array(np.zeros(n + turn, x.dtype)) for n in (7, 333, _N)]
        for name, fn in made if turn % 2 else made[::-1]:
            found = bench.host(fn(bench.array(x), bench.array(y)))
            bench.equal(found, first[name], f"{name}, run {turn + 2}", kind="unstable")
        del padding


def _no_state(bench: Bench) -> None:
    """A call between calls on other data, of the same program and of others, changes nothing."""
    x, y = bench.small(_N, seed=1), bench.small(_N, seed=2)
    fn = bench.jit(lambda a, b: (bu.flip(a) * b + a, bu.sum(a * 0 + 1, dtype=a.dtype)))
    right = np.flip(x) * y + x
    given = (bench.array(x), bench.array(y))
    for other in (np.zeros_like(x), np.full_like(x, 100), y):
        first, second = fn(*given)
        fn(bench.array(other), bench.array(other))
        bench.equal(bench.host(first), right, "a result with another call behind it")
        bench.equal(bench.host(fn(*given)[0]), right, "a call after one on other data")
        bench.equal(bench.host(second), np.array(_N, x.dtype), "a sum of ones")


def _float_state(bench: Bench) -> None:
    """Overflows, NaN, subnormals and divisions leave rounding here and there as it was."""
    x, y = _data(bench)
    host = _own_arithmetic()
    made = _rounded(bench)
    before = [bench.host(bench.jit(fn)(bench.array(x), bench.array(y))) for _, fn in made]
    rough = Recipe("special", 3).make(bench.type(_N))
    with np.errstate(all="ignore"):
        for _, fn in made:
            bench.host(bench.jit(fn)(bench.array(rough), bench.array(rough[::-1].copy())))
    bench.require(
        bool(same_bits(_own_arithmetic(), host).all()),
        "numpy on the host rounds or flushes otherwise after programs ran",
    )
    for (name, fn), right in zip(made, before, strict=True):
        found = bench.host(bench.jit(fn)(bench.array(x), bench.array(y)))
        bench.equal(found, right, f"{name} after programs on NaN and infinities", kind="unstable")


def _own_arithmetic() -> Array:
    """What shows the host's rounding mode and whether it keeps subnormals."""
    third = np.float64(1) / np.array([3, -3, 7, 1e308, -1e-308], np.float64)
    tiny = np.array([5e-324, -1e-310, 1e-300, 2.0], np.float64)
    single = np.array([1e-45, 1e-40, 1.1, -1.1], np.float32)
    narrow = single * np.float32(0.5) + np.float32(1e-44)
    return np.concatenate([third, tiny * 0.5, tiny * 0.3, third + 1e-17, narrow.astype(np.float64)])


def _compile_equal(bench: Bench) -> None:
    """Programs compiled anew, alone and beside other results, give the same bits."""
    x, y = _data(bench)
    for name, fn in _rounded(bench):
        first = bench.host(bench.jit(fn)(bench.array(x), bench.array(y)))
        for _ in range(2):
            bu.clear_caches()
            gc.collect()
            found = bench.host(bench.jit(fn)(bench.array(x), bench.array(y)))
            bench.equal(found, first, f"{name}, compiled anew", kind="unstable")


PROMISES: tuple[Promise, ...] = (
    Promise(("repeat.run-equal",), _run_equal, needs="deterministic"),
    Promise(("repeat.no-state",), _no_state),
    Promise(("repeat.float-state",), _float_state, needs="deterministic"),
    Promise(("repeat.compile-equal",), _compile_equal, needs="deterministic"),
)
