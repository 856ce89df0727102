"""Programs whose values fill the arena: many of them live at once, of other sizes and dtypes, kept
while loops and later steps run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import bringup as bu
from bringup.dtypes import DType
from bringup_conformance.execution.targets import missing_from
from bringup_conformance.runtime.fixture import DeviceFixture
from bringup_conformance.runtime.programs import Sample, adds, many_live_values, sample


def arena_samples(dut: DeviceFixture, n: int) -> list[Sample]:
    """Those that the device can run, on arrays of about so many elements."""
    x, y = dut.small(n, seed=1), dut.small(n, seed=2)
    samples = [
        many_live_values(dut),
        sample("results that are read again", _read_again, x, y),
        sample("values read late", _read_late, x, y),
        sample("sums of sums", _sums_of_sums, dut.small(9, 7, seed=3)),
        *_mixed_widths(dut, n),
    ]
    x, y = dut.small(n, seed=5), dut.small(n, seed=6)
    samples += [
        sample("two values in turn", _fibonacci, x, y),
        sample("a loop in a loop", _nested, x, y),
        sample("a loop until", _until, np.abs(x), y),
        sample("a loop over a large value", _reading, x, y),
        sample("a scan", _scanned, dut.small(5, n, seed=7), y),
    ]
    capabilities = dut.info.capabilities
    return [s for s in samples if missing_from(capabilities, bu.trace(s.fn, *s.types)) is None]


def _read_again(lib: Any, a: Any, b: Any) -> Any:
    """Results that later steps still read while others come and go."""
    flip = lib.flip
    first = flip(a) + b
    second = flip(first) - a
    third = flip(second) + b
    fourth = flip(third) - first
    return first, fourth, second


def _read_late(lib: Any, a: Any, b: Any) -> Any:
    flip = lib.flip
    early = [flip(a), flip(b), flip(a) + b, flip(b) - a]
    scratch = flip(flip(early[2]) + early[3])
    scratch = flip(scratch) + early[0]
    return flip(scratch - early[1]), flip(early[2]) + early[0], flip(early[3])


def _sums_of_sums(lib: Any, a: Any) -> Any:
    rows = lib.sum(a, axis=1, dtype=a.dtype)
    columns = lib.sum(a, axis=0, dtype=a.dtype)
    whole = lib.sum(lib.flip(rows), dtype=a.dtype)
    return lib.flip(rows) + whole, lib.flip(columns) * 2 + whole, rows


def _mixed_widths(dut: DeviceFixture, n: int) -> Iterator[Sample]:
    """Values of equal length and unequal width, narrow ones first and last."""
    widths: dict[int, DType] = {}
    for dtype in dut.info.dtypes:
        if dtype.is_integer and adds(dut, dtype):
            widths.setdefault(dtype.itemsize, dtype)
    if len(widths) < 2:
        return
    narrow, wide = widths[min(widths)], widths[max(widths)]

    def fn(lib: Any, a: Any) -> Any:
        flip: Callable[[Any], Any] = lib.flip
        held = flip(a) - a
        first = flip(a) + a
        grown = flip(lib.astype(flip(first), wide))
        other = flip(grown) + grown
        small = flip(lib.astype(other, narrow))
        last = flip(other) + grown
        return flip(small) + small, flip(last) + other, first, flip(held) + a

    yield sample(f"{narrow} and {wide}", fn, dut.small(n, seed=4, dtype=narrow))


# -- loops that carry several values, with work in them and values beside them ---------------------


def _fibonacci(lib: Any, a: Any, b: Any) -> Any:
    flip = lib.flip
    beside = flip(a) + b
    inner = flip(beside) - a

    def body(_i: Any, state: Any) -> Any:
        first, second, third = state
        turned = flip(second) + inner
        return second, first + turned, flip(third) - flip(turned)

    first, second, third = lib.fori_loop(0, 5, body, (a, b, beside))
    return first, second, third, flip(inner) + beside


def _nested(lib: Any, a: Any, b: Any) -> Any:
    kept = lib.flip(a) + b

    def outer(_i: Any, state: Any) -> Any:
        one, two = state

        def inner(_j: Any, v: Any) -> Any:
            return lib.flip(v) + lib.flip(kept)

        return two, lib.fori_loop(0, 2, inner, one) - kept

    one, two = lib.fori_loop(0, 3, outer, (a, b))
    return one, two, kept


def _reading(lib: Any, a: Any, b: Any) -> Any:
    n = a.shape[0]
    early = lib.flip(lib.concat([a, b] * 4)) + 1

    def body(_i: Any, state: Any) -> Any:
        return lib.flip(state) + early[3 * n : 4 * n] - early[:n]

    return lib.fori_loop(0, 4, body, a), lib.flip(b)


def _until(lib: Any, a: Any, b: Any) -> Any:
    beside = lib.flip(b) + a

    def grows(state: Any) -> Any:
        return lib.max(state[0] + lib.flip(state[0])) < 40

    def body(state: Any) -> Any:
        one, two = state
        return lib.flip(one) + 7, lib.flip(two) + one

    one, two = lib.while_loop(grows, body, (a, beside))
    return one, two, lib.flip(beside)


def _scanned(lib: Any, rows: Any, b: Any) -> Any:
    outer = lib.flip(b) + b

    def body(carry: Any, row: Any) -> Any:
        one, two = carry
        made = lib.flip(row) + one
        return (two, lib.flip(made) - outer), made + two

    (one, two), stack = lib.scan(body, (b, outer), rows)
    return one, two, stack
