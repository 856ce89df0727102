"""Counted loops of decompositions: written out while they are short, else one `while`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.dtypes import i32
from bringup.graph import Builder, Graph, Value
from bringup.ops import build
from bringup.ops.build import rows

#: The number of an iteration: known while emitting, or an i32 scalar of the loop.
Index = int | Value
State = tuple[Value, ...]
Body = Callable[..., State]

#: Loops of no more iterations are written out, so that their bodies fuse.
UNROLLED = 8


def repeat(count: int, body: Body, state: State) -> State:
    """``state = body(i, *state)`` for i = 0 … count − 1; the body reads nothing but its arguments.

    The size of what is emitted does not depend on the count.
    """
    if count <= UNROLLED:
        for i in range(count):
            state = body(i, *state)
        return state
    counter = build.splat(0, i32[()])
    results: Any = rows.while_(counter, *state, cond=_below(count, state), body=_body(body, state))
    return tuple(results[1:])


def _below(count: int, state: State) -> Graph:
    with Builder() as builder:
        counter = builder.input(i32[()])
        for value in state:
            builder.input(value.type)
        return builder.build([build.compare("lt", counter, build.like(counter, count))], "cond")


def _body(body: Body, state: State) -> Graph:
    with Builder() as builder:
        counter = builder.input(i32[()])
        inside = [builder.input(value.type) for value in state]
        after = body(counter, *inside)
        return builder.build([rows.add(counter, build.like(counter, 1)), *after], "body")
