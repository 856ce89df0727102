"""Functions that run one after the other as one function, for machines that start them slowly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bringup.loops.form import (
    ACCESSES,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    If,
    Param,
    Role,
    Stmt,
)
from bringup.loops.schedule.rewrite import Names, Substitution, map_statements, with_place


def in_sequence(name: str, funcs: Sequence[Func], places: Sequence[Sequence[int]]) -> Func:
    """A function that does what several do, in their order.

    Its parameters are called ``b0, b1, …``, so that equal sequences have equal text.  No parallel
    loop is round everything any more, so one thread runs it.
    places: of each function, the numbers of the parameters that its own stand for.  No two of them
    share memory.

    >>> from bringup.loops import parse_func
    >>> twice = parse_func('''
    ... func twice(x: in f32[4], y: out f32[4]) {
    ...   for i in 4 {
    ...     %0: f32 = x[i]
    ...     %1: f32 = add(%0, %0)
    ...     y[i] = %1
    ...   }
    ... }''')
    >>> print(in_sequence("four_times", [twice, twice], [(0, 1), (1, 2)]))
    func four_times(b0: in f32[4], b1: out f32[4], b2: out f32[4]) {
      for i in 4 {
        %0: f32 = b0[i]
        %1: f32 = add(%0, %0)
        b1[i] = %1
      }
      for i in 4 {
        %0_1: f32 = b1[i]
        %1_1: f32 = add(%0_1, %0_1)
        b2[i] = %1_1
      }
    }
    """
    params: dict[int, Param] = {}
    for func, numbers in zip(funcs, places, strict=True):
        pairs = zip(numbers, func.params, strict=True)
        # What one function reads and writes, it reads first, whatever the order of its parameters.
        for number, param in sorted(pairs, key=lambda pair: pair[1].role != "in"):
            buffer = replace(param.buffer, name=f"b{number}")
            role = param.role
            if number in params:
                role = _role(params[number].role, param.role)
            params[number] = Param(buffer, role)
    ordered = tuple(params[number] for number in range(len(params)))
    names = Names(Func(name, ordered, ()))
    body: list[Stmt] = []
    for func, numbers in zip(funcs, places, strict=True):
        table = {
            param.buffer: params[number].buffer
            for number, param in zip(numbers, func.params, strict=True)
        }
        body += _with_buffers(Substitution({}, names=names)(func.body), table, names)
    return Func(name, ordered, tuple(body))


def _role(first: Role, then: Role) -> Role:
    """What a buffer is to two functions together."""
    if first == "in":
        return "in" if then == "in" else "inout"
    return first


def _with_buffers(body: Body, table: dict[Buffer, Buffer], names: Names) -> Body:
    """The block with other parameters, its own buffers by names that are free."""
    table = dict(table)

    def change(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc):
            if stmt.buffer not in table:
                table[stmt.buffer] = replace(stmt.buffer, name=names.buffer(stmt.buffer.name))
            return Alloc(table[stmt.buffer])
        if isinstance(stmt, ACCESSES):
            return with_place(stmt, table[stmt.buffer], stmt.index)
        return stmt

    return map_statements(body, change)


def instructions(body: Sequence[Stmt], lanes: int) -> float:
    """About how many instructions a function runs, with so many elements in a vector."""
    return _count(body, lambda loop: loop.axis.size / (lanes if loop.kind == "vector" else 1))


def written(body: Sequence[Stmt]) -> int:
    """How many statements a compiler gets, with the copies of loops that are written out."""
    return int(_count(body, lambda loop: loop.axis.size if loop.kind == "unroll" else 1))


def _count(body: Sequence[Stmt], times: Callable[[For], float]) -> float:
    """Statements without others in them, those of a loop so many times."""
    total = 0.0
    for stmt in body:
        if isinstance(stmt, For):
            total += times(stmt) * _count(stmt.body, times)
        else:
            total += _count(stmt.body, times) if isinstance(stmt, If) else 1
    return total


__all__ = ["in_sequence", "instructions", "written"]
