"""Hazards of loops and branches: no trip, one and several; a loop inside another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bringup.dtypes import i32
from bringup.graph import Builder, Graph, Value
from bringup.ops.build import like, reshape, rows, slice_dim, splat
from bringup.passes.base import as_results
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup_conformance.generate.hazards import PatternInputs

Values = Sequence[Value]
_COUNTER = i32[()]


def inside(function: Callable[..., Sequence[Value]], *types: TensorType) -> Graph:
    """A body of these operand types."""
    with Builder() as builder:
        return builder.build(function(*map(builder.input, types)), "inside")


def _below(limit: int) -> Callable[..., Sequence[Value]]:
    """The condition of a loop whose state begins with its counter."""

    def holds(counter: Value, *_rest: Value) -> Sequence[Value]:
        return (rows.compare(counter, splat(limit, _COUNTER), direction="lt"),)

    return holds


def _after(counter: Value) -> Value:
    after: Value = rows.add(counter, splat(1, _COUNTER))
    return after


def mixed(x: Value, y: Value) -> Value:
    """Something of both that does not program without end, whatever the order of its operands."""
    result: Value = rows.max(rows.min(x, y), rows.sub(x, y))
    return result


def loop(limit: int, step: Callable[..., Sequence[Value]], *state: Value) -> Values:
    """A loop whose state begins with its counter, which ends at the limit."""
    types = [v.type for v in state]
    cond, body = inside(_below(limit), *types), inside(step, *types)
    return as_results(rows.while_(*state, cond=cond, body=body))


def _trips(inputs: PatternInputs) -> Values:
    """Loops of no, one and three trips, and of as many as an input says."""

    def step(counter: Value, x: Value, y: Value) -> Values:
        return _after(counter), mixed(x, y), y

    x, y = inputs.row(), inputs.row()
    given = rows.and_(inputs.new(dtype=i32), splat(7, _COUNTER))
    results: list[Value] = []
    for start in (3, 2, 0):
        results += loop(3, step, splat(start, _COUNTER), x, y)[:2]
    return *results, *loop(3, step, given, x, y)[:2]


def _fibonacci(inputs: PatternInputs) -> Values:
    """Two values of one type, each made of both."""

    def step(counter: Value, x: Value, y: Value) -> Values:
        return _after(counter), y, mixed(x, y)

    x, y = inputs.row(), inputs.row()
    return loop(4, step, splat(0, _COUNTER), x, y)[1:]


def _temporaries(inputs: PatternInputs) -> Values:
    """A body with values of its own in memory, and one that all runs read."""
    x, y = inputs.square(), inputs.square()

    def step(counter: Value, x: Value, y: Value, fixed: Value) -> Values:
        one = rows.dot_general(x, fixed, batch=((), ()), contract=((1,), (0,)))
        two = rows.dot_general(y, fixed, batch=((), ()), contract=((0,), (0,)))
        return _after(counter), mixed(rows.sub(one, two), x), mixed(two, rows.max(one, y)), fixed

    fixed = rows.min(rows.max(inputs.square(), like(x, 0)), like(x, 1))
    held = rows.dot_general(fixed, fixed, batch=((), ()), contract=((1,), (0,)))
    limited = rows.min(held, like(x, 1))
    ended = loop(3, step, splat(0, _COUNTER), rows.max(x, y), rows.min(x, y), limited)
    return *ended[1:3], rows.add(ended[3], x)


def _product(x: Value, y: Value) -> Value:
    """A product of squares, which is in memory before anything reads it."""
    result: Value = rows.dot_general(x, y, batch=((), ()), contract=((1,), (0,)))
    return result


def _clipped(x: Value) -> Value:
    result: Value = rows.min(rows.max(x, like(x, 0)), like(x, 1))
    return result


def _waiting(inputs: PatternInputs) -> Values:
    """Values that wait in memory while a loop and branches with values of their own run."""
    first = _product(inputs.square(), inputs.square())
    unit = _clipped(first)

    def combine(x: Value, y: Value) -> Value:
        return mixed(rows.min(_product(x, y), x), rows.max(_product(y, x), y))

    def step(counter: Value, x: Value, y: Value) -> Values:
        return _after(counter), _clipped(combine(x, y)), y

    def branch(x: Value, y: Value) -> Values:
        return (combine(x, y),)

    def other(x: Value, y: Value) -> Values:
        return (rows.sub(x, y),)

    looped = loop(2, step, splat(0, _COUNTER), unit, unit)[1]
    second = _product(looped, unit)
    branches = tuple(inside(each, unit.type, unit.type) for each in (branch, other))
    start = rows.and_(inputs.new(dtype=i32), splat(1, _COUNTER))
    (last,) = as_results(rows.case(start, _clipped(second), unit, branches=branches))
    return rows.sub(first, looped), rows.sub(second, last)


def _nested(inputs: PatternInputs) -> Values:
    """A loop in a loop, each with a counter of its own."""

    def inner(counter: Value, x: Value, y: Value) -> Values:
        return _after(counter), mixed(x, y), y

    def outer(counter: Value, x: Value, y: Value) -> Values:
        made = loop(3, inner, splat(1, _COUNTER), x, y)
        return _after(counter), y, made[1]

    x, y = inputs.row(), inputs.row()
    return loop(3, outer, splat(0, _COUNTER), x, y)[1:]


def _branches(inputs: PatternInputs) -> Values:
    """Every branch, and numbers of none."""
    x, y = inputs.row(), inputs.row()

    def branch_graph(number: int) -> Graph:
        def branch(x: Value, y: Value) -> Values:
            return rows.add(x, like(x, number)), (rows.max, rows.min, rows.sub)[number](x, y)

        return inside(branch, x.type, y.type)

    branches = tuple(branch_graph(n) for n in range(3))
    results: list[Value] = []
    for number in (0, 1, 2, -1, 3):
        results += as_results(rows.case(splat(number, _COUNTER), x, y, branches=branches))
    index = rows.and_(inputs.new(dtype=i32), splat(3, _COUNTER))
    return *results, *as_results(rows.case(index, x, y, branches=branches))


def _scanned(inputs: PatternInputs) -> Values:
    """Rows that depend on the carry, both ways, of an odd and an even number."""
    results: list[Value] = []
    for length in (4, 5):
        stack, start = inputs.new(length, inputs.w + 1), inputs.new(inputs.w + 1)

        def step(held: Value, carry: Value, row: Value) -> Values:
            after = mixed(carry, row)
            return after, rows.add(held, carry), row

        for reverse in (False, True):
            types = (start.type, start.type, start.type)
            attrs = {"length": length, "reverse": reverse, "consts": 1, "carries": 1}
            body = inside(step, *types)
            results += as_results(rows.scan(start, start, stack, body=body, **attrs))
    return results


def _changed(table: Value, counter: Value, row: Value) -> Value:
    """A table after a trip: row `at + 1` is made of the row before it, then a part of another."""
    count, width = table.shape
    none = splat(0, _COUNTER)
    before = rows.dynamic_slice(table, counter, none, sizes=(1, width))
    after = mixed(before, reshape(row, (1, width)))
    written = rows.dynamic_update_slice(table, after, _after(counter), none)
    half = slice_dim(reshape(row, (1, width)), 1, 0, width // 2)
    last = splat(count - 1, _COUNTER)
    result: Value = rows.dynamic_update_slice(
        written, half, rows.sub(last, counter), _after(counter)
    )
    return result


def _rewritten(inputs: PatternInputs) -> Values:
    """Tables of which every trip changes a small part, which a device may do in place; what they
    were at first is read afterwards.
    """
    table, row = inputs.new(9, 2 * inputs.w + 1), inputs.new(2 * inputs.w + 1)

    def step(counter: Value, table: Value, row: Value) -> Values:
        return _after(counter), _changed(table, counter, row), mixed(row, like(row, 1))

    def scattered(counter: Value, table: Value, row: Value) -> Values:
        numbers = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
        place, new = reshape(counter, (1,)), reshape(row, (1, *row.shape))
        return _after(counter), rows.scatter(table, place, new, kind="max", **numbers), row

    def scanned(counter: Value, table: Value, row: Value) -> Values:
        return _after(counter), _changed(table, counter, row), rows.add(row, like(row, 1))

    start = splat(0, _COUNTER)
    ended = loop(4, step, start, table, row)[1]
    other = loop(3, scattered, start, table, row)[1]
    stack = inputs.new(4, *row.shape)
    body = inside(scanned, start.type, table.type, row.type)
    attrs = {"length": 4, "reverse": True, "consts": 0, "carries": 2}
    _, last, results = as_results(rows.scan(start, table, stack, body=body, **attrs))
    return ended, rows.sub(ended, table), rows.max(other, table), last, results


PROGRAMS = {
    "trips": _trips,
    "fibonacci": _fibonacci,
    "temporaries": _temporaries,
    "waiting": _waiting,
    "nested": _nested,
    "branches": _branches,
    "scanned": _scanned,
    "rewritten": _rewritten,
}
