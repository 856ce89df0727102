"""Programs whose values crowd the arena: many of them live at once, of other sizes and dtypes, kept
while loops and later steps run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import bringup as bu
from bringup.dtypes import DType
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.bench import Bench
from bringup_conformance.runtime.programs import Sample, adds, crowded

_Fn = Callable[..., Any]


def crowds(bench: Bench, n: int) -> list[Sample]:
    """Those that the device can run, on arrays of about so many elements."""
    made = [crowded(bench), *_kept(bench, n), *_mixed(bench, n), *_looping(bench, n)]
    kept = bench.facts.capabilities
    return [s for s in made if missing_from(kept, bu.trace(s.fn, *s.types)) is None]


def _sample(name: str, fn: _Fn, reference: _Fn, *inputs: Array) -> Sample:
    right = reference(*inputs)
    right = right if isinstance(right, tuple) else (right,)
    return Sample(name, fn, inputs, tuple(np.asarray(r, order="C") for r in right))


def _kept(bench: Bench, n: int) -> Iterator[Sample]:
    """Results and values that later steps still read while others come and go."""
    x, y = bench.small(n, seed=1), bench.small(n, seed=2)

    def early(flip: Any, a: Any, b: Any) -> Any:
        first = flip(a) + b
        second = flip(first) - a
        third = flip(second) + b
        fourth = flip(third) - first
        return first, fourth, second

    def late(flip: Any, a: Any, b: Any) -> Any:
        kept = [flip(a), flip(b), flip(a) + b, flip(b) - a]
        scratch = flip(flip(kept[2]) + kept[3])
        scratch = flip(scratch) + kept[0]
        return flip(scratch - kept[1]), flip(kept[2]) + kept[0], flip(kept[3])

    for name, fn in (("results that are read again", early), ("values read late", late)):
        yield _sample(
            name,
            lambda a, b, fn=fn: fn(bu.flip, a, b),
            lambda a, b, fn=fn: fn(np.flip, a, b),
            x,
            y,
        )
    square = bench.small(9, 7, seed=3)

    def folded(lib: Any, a: Any) -> Any:
        rows = lib.sum(a, axis=1, dtype=a.dtype)
        columns = lib.sum(a, axis=0, dtype=a.dtype)
        whole = lib.sum(lib.flip(rows), dtype=a.dtype)
        return lib.flip(rows) + whole, lib.flip(columns) * 2 + whole, rows

    yield _sample("sums of sums", lambda a: folded(bu, a), lambda a: folded(np, a), square)


def _mixed(bench: Bench, n: int) -> Iterator[Sample]:
    """Values of equal length and unequal width, narrow ones first and last."""
    kinds = [d for d in bench.facts.dtypes if d.is_integer and adds(bench, d)]
    widths: dict[int, DType] = {}
    for dtype in kinds:
        widths.setdefault(dtype.itemsize, dtype)
    if len(widths) < 2:
        return
    narrow, wide = widths[min(widths)], widths[max(widths)]
    x = bench.small(n, seed=4, dtype=narrow)

    def fn(a: bu.Array) -> Any:
        held = bu.flip(a) - a
        first = bu.flip(a) + a
        grown = bu.flip(bu.astype(bu.flip(first), wide))
        other = bu.flip(grown) + grown
        small = bu.flip(bu.astype(other, narrow))
        last = bu.flip(other) + grown
        return bu.flip(small) + small, bu.flip(last) + other, first, bu.flip(held) + a

    def right(a: Array) -> Any:
        held = np.flip(a) - a
        first = np.flip(a) + a
        grown = first.astype(wide.numpy)
        other = np.flip(grown) + grown
        small = np.flip(other.astype(narrow.numpy))
        last = np.flip(other) + grown
        return np.flip(small) + small, np.flip(last) + other, first, np.flip(held) + a

    yield _sample(f"{narrow} and {wide}", fn, right, x)


def _looping(bench: Bench, n: int) -> Iterator[Sample]:
    """Loops that carry several values, with work in them and values beside them."""
    x, y = bench.small(n, seed=5), bench.small(n, seed=6)
    yield _sample("two values in turn", _fibonacci, _fibonacci_right, x, y)
    yield _sample("a loop in a loop", _nested, _nested_right, x, y)
    yield _sample("a loop until", _until, _until_right, np.abs(x), y)
    yield _sample("a loop over a large value", _reading, _reading_right, x, y)
    yield _sample("a scan", _scanned, _scanned_right, bench.small(5, n, seed=7), y)


def _fibonacci(a: bu.Array, b: bu.Array) -> Any:
    beside = bu.flip(a) + b
    inner = bu.flip(beside) - a

    def body(_i: Any, state: Any) -> Any:
        first, second, third = state
        turned = bu.flip(second) + inner
        return second, first + turned, bu.flip(third) - bu.flip(turned)

    first, second, third = bu.fori_loop(0, 5, body, (a, b, beside))
    return first, second, third, bu.flip(inner) + beside


def _fibonacci_right(a: Array, b: Array) -> Any:
    beside = np.flip(a) + b
    inner = np.flip(beside) - a
    first, second, third = a, b, beside
    for _ in range(5):
        turned = np.flip(second) + inner
        first, second, third = second, first + turned, np.flip(third) - np.flip(turned)
    return first, second, third, np.flip(inner) + beside


def _nested(a: bu.Array, b: bu.Array) -> Any:
    kept = bu.flip(a) + b

    def outer(_i: Any, state: Any) -> Any:
        one, two = state

        def inner(_j: Any, v: Any) -> Any:
            return bu.flip(v) + bu.flip(kept)

        return two, bu.fori_loop(0, 2, inner, one) - kept

    one, two = bu.fori_loop(0, 3, outer, (a, b))
    return one, two, kept


def _nested_right(a: Array, b: Array) -> Any:
    kept = np.flip(a) + b
    one, two = a, b
    for _ in range(3):
        v = one
        for _ in range(2):
            v = np.flip(v) + np.flip(kept)
        one, two = two, v - kept
    return one, two, kept


def _reading(a: bu.Array, b: bu.Array) -> Any:
    n = a.shape[0]
    kept = bu.flip(bu.concat([a, b] * 4)) + 1

    def body(_i: Any, state: Any) -> Any:
        return bu.flip(state) + kept[3 * n : 4 * n] - kept[:n]

    return bu.fori_loop(0, 4, body, a), bu.flip(b)


def _reading_right(a: Array, b: Array) -> Any:
    n = a.shape[0]
    kept = np.flip(np.concatenate([a, b] * 4)) + np.array(1, a.dtype)
    state = a
    for _ in range(4):
        state = np.flip(state) + kept[3 * n : 4 * n] - kept[:n]
    return state, np.flip(b)


def _until(a: bu.Array, b: bu.Array) -> Any:
    beside = bu.flip(b) + a

    def grows(state: Any) -> Any:
        return bu.max(state[0] + bu.flip(state[0])) < 40

    def body(state: Any) -> Any:
        one, two = state
        return bu.flip(one) + 7, bu.flip(two) + one

    one, two = bu.while_loop(grows, body, (a, beside))
    return one, two, bu.flip(beside)


def _until_right(a: Array, b: Array) -> Any:
    beside = np.flip(b) + a
    one, two = a, beside
    seven = np.array(7, a.dtype)
    while (one + np.flip(one)).max() < 40:
        one, two = np.flip(one) + seven, np.flip(two) + one
    return one, two, np.flip(beside)


def _scanned(rows: bu.Array, b: bu.Array) -> Any:
    kept = bu.flip(b) + b

    def body(carry: Any, row: Any) -> Any:
        one, two = carry
        made = bu.flip(row) + one
        return (two, bu.flip(made) - kept), made + two

    (one, two), stack = bu.scan(body, (b, kept), rows)
    return one, two, stack


def _scanned_right(rows: Array, b: Array) -> Any:
    kept = np.flip(b) + b
    one, two, stack = b, kept, []
    for row in rows:
        made = np.flip(row) + one
        stack.append(made + two)
        one, two = two, np.flip(made) - kept
    return one, two, np.stack(stack)
