"""Loops and branches: instances with random small bodies, and steps of programs.

Whatever the data, every loop ends: its counter is taken modulo 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bringup.dtypes import STORED, DType, bool_, i32, u8
from bringup.graph import Builder, Graph, Value
from bringup.ops.build import bitcast, rows, splat
from bringup.ops.table import OpDef
from bringup.types import TensorType
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import Choices, chance, pick
from bringup_conformance.generate.drawing import Drawing, Maker, instance

if TYPE_CHECKING:
    from bringup_conformance.generate.program_builder import ProgramBuilder

_KINDS = ("signed", "small", "special", "ramp", "wide", "ties")
_COUNTER = TensorType((), i32)
#: Beyond its end no counter goes, so that is how often a loop runs at most.
_END = 5


# -- bodies ----------------------------------------------------------------------------------------


def _graph(function: Callable[..., Sequence[Value]], *types: TensorType) -> Graph:
    with Builder() as builder:
        return builder.build(function(*map(builder.input, types)), "inside")


def _mixed(choices: Choices, x: Value, y: Value) -> Value:
    """One of a few things to do with two values of a type, none of which grows without end."""
    if x.dtype is bool_:
        bits = pick(choices, (rows.xor, rows.and_, rows.or_))
        return bits(x, y)
    if x.dtype.is_storage:
        least = rows.compare(bitcast(x, u8), bitcast(y, u8), direction="lt")
        return rows.select(least, x, y)
    way = choices.integer(0, 3)
    if way == 0:
        return rows.max(x, y)
    if way == 1:
        return rows.add(x, y)
    if way == 2:
        return rows.min(rows.add(y, y), x)
    smaller = rows.compare(x, y, direction="lt")
    return rows.select(smaller, y, rows.add(x, splat(1, x.type)))


def _loop(choices: Choices, type_: TensorType) -> dict[str, Graph]:
    """Condition and body over a value, a counter, and a value that may stay, or change places."""
    swaps, stays = chance(choices, 1, 2), chance(choices, 1, 3)

    def holds(_x: Value, counter: Value, _y: Value) -> tuple[Value]:
        wrapped = rows.and_(counter, splat(7, _COUNTER))
        return (rows.compare(wrapped, splat(_END, _COUNTER), direction="lt"),)

    def step(x: Value, counter: Value, y: Value) -> tuple[Value, ...]:
        after = rows.add(counter, splat(1, _COUNTER))
        mixed = _mixed(choices, x, y)
        if stays:
            return mixed, after, y
        return (y, after, mixed) if swaps else (mixed, after, _mixed(choices, y, x))

    types = (type_, _COUNTER, type_)
    return {"cond": _graph(holds, *types), "body": _graph(step, *types)}


def _recurrent(choices: Choices, type_: TensorType) -> Graph:
    """The body of a scan: a const, a carry, a row; the next carry, and rows made in two ways."""

    def step(held: Value, carry: Value, x: Value) -> tuple[Value, ...]:
        after = _mixed(choices, carry, x)
        return after, (carry if chance(choices, 1, 3) else _mixed(choices, held, after)), x

    return _graph(step, type_, type_, type_)


def _branches(choices: Choices, type_: TensorType, count: int) -> tuple[Graph, ...]:
    def branch(x: Value, y: Value) -> tuple[Value, ...]:
        return (x if chance(choices, 1, 4) else _mixed(choices, x, y)), _mixed(choices, y, x)

    return tuple(_graph(branch, type_, type_) for _ in range(count))


# -- instances -------------------------------------------------------------------------------------


def _types(draw: Drawing, dtype: DType) -> list[TensorType]:
    sizes = draw.sizes(2 if draw.few else 4)
    return [dtype[()], dtype[3, 0], *(dtype[n] for n in sizes), dtype[draw.shape(3)]]


def while_(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """A value that leads, as rows are named by its dtype, a counter, and another value."""
    for type_ in _types(draw, draw.dtype):
        attrs = _loop(draw.choices, type_)
        yield instance([type_, _COUNTER, type_], attrs, _KINDS)


def case(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Indices in range, at the ends and beyond; branches of every dtype."""
    for dtype in STORED:
        type_ = pick(draw.choices, _types(draw, dtype))
        branches = _branches(draw.choices, type_, draw.choices.integer(1, 4))
        kinds = (pick(draw.choices, ("small", "special", "signed")), *_KINDS[:2])
        yield instance([_COUNTER, type_, type_], {"branches": branches}, kinds)


def scan(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Both directions; no row, one, an even and an odd number of them."""
    for number, type_ in enumerate(_types(draw, draw.dtype)):
        length = (2, 3, 0, 5, 1, 4)[number % 6]
        attrs = {
            "body": _recurrent(draw.choices, type_),
            "length": length,
            "reverse": chance(draw.choices, 1, 2),
            "consts": 1,
            "carries": 1,
        }
        stack = type_.with_shape((length, *type_.shape))
        yield instance([type_, type_, stack], attrs, _KINDS)


def call(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """A body of two operands and two results, one of which may be an operand."""
    for type_ in _types(draw, draw.dtype):
        (body,) = _branches(draw.choices, type_, 1)
        yield instance([type_, type_], {"body": body}, _KINDS)


def silent(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """An empty text prints nothing, and its result is known."""
    for type_ in _types(draw, draw.dtype)[:3]:
        yield instance([type_], {"text": ""}, _KINDS)


MAKERS = {
    "while": Maker(while_),
    "case": Maker(case),
    "scan": Maker(scan),
    "call": Maker(call),
    "print": Maker(silent),
}


# -- steps -----------------------------------------------------------------------------------------


def looped(program: ProgramBuilder, x: Value) -> Value | None:
    """A loop over a value of the program, or a scan over its rows, or a branch."""
    way = program.choices.integer(0, 2)
    if way == 0:
        start = program.constant(_COUNTER, program.choices.integer(0, 7))
        return program.emit("while", x, start, program.partner(x), **_loop(program.choices, x.type))
    if way == 1:
        index = program.constant(_COUNTER, program.choices.integer(-1, 3))
        branches = _branches(program.choices, x.type, 3)
        return program.emit("case", index, x, program.partner(x), branches=branches)
    return _over_rows(program, x)


def _over_rows(program: ProgramBuilder, x: Value) -> Value | None:
    if not x.shape or x.shape[0] > 8:
        return None
    row = x.type.with_shape(x.shape[1:])
    start: Any = program.input(row)
    if start is None:
        return None
    attrs = {"length": x.shape[0], "reverse": chance(program.choices, 1, 2), "consts": 1}
    body = _recurrent(program.choices, row)
    return program.emit("scan", start, start, x, body=body, carries=1, **attrs)


__all__ = ["MAKERS", "looped"]
