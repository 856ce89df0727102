"""Primitives that divide folds: rfactor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Expr
from bringup.loops.form import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Scalar,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.dependences import accesses
from bringup.loops.schedule.rewrite import (
    Body,
    Mask,
    Names,
    constant,
    loops_of,
    rebuilt,
    rewrite_loops,
    with_kind,
)
from bringup.ops.monoids import MONOIDS


def rfactor(func: Func, at: str, buffer: str, *over: str) -> Func:
    """Folds into ``buffer`` within loop ``at`` go to a register for each point of loops ``over``.

    The registers, named ``buffer.at``, start with the neutral element before the loop and are
    folded into the buffer after it, in loops of the same names, all of them unrolled.  So a fold
    becomes several that do not wait for one another, and one into ``buffer.at`` becomes several
    shorter chains.  Folds within ``at`` that are not in all loops ``over`` stay as they are.
    Raises ScheduleError for an unknown loop, where nothing folds into the buffer, where the loop
    does something else with it, and where other loops than ``over`` choose the element.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[32], y: out f32[1]) {
    ...   for i in 4 {
    ...     for j in 8 {
    ...       %0: f32 = x[8*i + j]
    ...       y[0] add= %0
    ...     }
    ...   }
    ... }''')
    >>> print(rfactor(func, "i", "y", "j"))
    func f(x: in f32[32], y: out f32[1]) {
      alloc y.i: register f32[8]
      for j in 8 unroll {
        %y: f32 = -0.0
        y.i[j] = %y
      }
      for i in 4 {
        for j in 8 unroll {
          %0: f32 = x[8*i + j]
          y.i[j] add= %0
        }
      }
      for j in 8 unroll {
        %y_1: f32 = y.i[j]
        y[0] add= %y_1
      }
    }
    """
    names = Names(func)

    def change(old: For, _facts: Mask) -> Body:
        return _divided(old, buffer, over, names)

    return rewrite_loops(func, (at,), change)


def _divided(loop: For, buffer: str, over: Sequence[str], names: Names) -> Body:
    inner = _loops_over(loop, over)
    folds = folds_into(loop, buffer)
    target, index, fold = folds[0].buffer, folds[0].index, folds[0].fold
    chosen = index.axes() & {loop.axis, *(within.axis for within in loops_of(loop.body))}
    if not chosen <= {within.axis for within in inner}:
        names_of = ", ".join(sorted(axis.name for axis in chosen))
        raise ScheduleError(
            f"the element of {buffer} depends on the loops {names_of}",
            fix="name all of them, so that each element has registers of its own",
        )
    if index.first < 0 or index.last >= target.size:
        raise ScheduleError(
            f"some folds into {buffer}[{index}] do not exist", fix="pad the loops round them first"
        )
    points, point = 1, Expr()
    for within in inner:
        points *= within.axis.size
        point = point * within.axis.size + Expr.of(within.axis)
    name = names.buffer(f"{buffer}.{loop.name}")
    registers = Buffer(name, target.dtype, points, "register")
    scalar = buffer.replace(".", "_")
    start, part = (names.scalar(scalar, target.dtype) for _ in range(2))
    before = (neutral(start, fold), Store(registers, point, start))
    after = (Load(part, registers, point), Store(target, index, part, fold=fold))
    change = into_registers(folds, registers, point)
    changed = _with_folds((loop,), folds, frozenset(over), change)
    if not any(isinstance(s, Store) and s.buffer == registers for s in statements(changed)):
        raise ScheduleError(
            f"nothing folds into {buffer} in all of the loops {', '.join(over)}",
            fix="name loops that hold a fold",
        )
    new = unrolled(changed, over)
    return (Alloc(registers), *_nested(inner, before), *new, *_nested(inner, after))


def _loops_over(loop: For, over: Sequence[str]) -> list[For]:
    """The loops of these names within a loop, or the loop itself, without their bodies.

    Copies that are written out have the end that all loops of the name have, if it is known round
    the loop.  Lanes beyond an end cost nothing.
    """
    result: list[For] = []
    inside = {within.axis for within in loops_of((loop,))}
    for name in over:
        axes = [within for within in loops_of((loop,)) if within.name == name]
        if not axes:
            present = ", ".join(dict.fromkeys(within.name for within in loops_of((loop,))))
            raise ScheduleError(
                f"there is no loop {name} within loop {loop.name}",
                notes=(f"loops there: {present}",),
                fix="name loops within it",
            )
        if len({within.axis for within in axes}) > 1:
            raise ScheduleError(
                f"loops {name} within loop {loop.name} differ in length",
                fix="split them in the same way",
            )
        if axes[0].kind in ("block", "thread"):
            raise ScheduleError(
                f"loop {name} is bound, so its iterations would not share registers",
                fix="divide folds before loops are bound",
            )
        ends = {within.end for within in axes}
        end = ends.pop() if len(ends) == 1 and axes[0].kind == "unroll" else None
        if end is not None and (end.first < 1 or not inside.isdisjoint(end.axes())):
            end = None
        result.append(For(axes[0].axis, (), axes[0].kind, end))
    return result


def folds_into(loop: For, buffer: str) -> list[Store]:
    """The folds into a buffer within a loop, which must be all that the loop does with it."""
    mine = [access for access in accesses(loop.body) if access.buffer.name == buffer]
    folds = [a.stmt for a in mine if isinstance(a.stmt, Store) and a.stmt.fold]
    if not folds:
        buffers = {s.buffer.name for s in statements(loop.body) if isinstance(s, Store) and s.fold}
        raise ScheduleError(
            f"nothing folds into {buffer} within loop {loop.name}",
            notes=(f"folds there: {', '.join(sorted(buffers)) or 'none'}",),
            fix="name a buffer that is folded into there",
        )
    first = folds[0]
    if len(folds) < len(mine) or any(
        s.fold != first.fold or s.index != first.index or s.operands for s in folds
    ):
        raise ScheduleError(
            f"loop {loop.name} does more with {buffer} than folds of one kind into one element",
            fix="name a loop that only folds into it",
        )
    return folds


def _with_folds(
    body: Body,
    folds: Sequence[Store],
    missing: frozenset[str],
    change: Callable[[Load | Store], Load | Store],
) -> Body:
    """The block with the folds changed that are in all of the loops ``missing``.

    Parts of a loop that was split may share a statement, so a fold is known by its place.
    """
    result: list[Stmt] = []
    for stmt in body:
        match stmt:
            case For() | If():
                inside = missing - {stmt.name} if isinstance(stmt, For) else missing
                result.append(rebuilt(stmt, _with_folds(stmt.body, folds, inside, change)))
            case Store() if not missing and stmt in folds:
                result.append(change(stmt))
            case _:
                result.append(stmt)
    return tuple(result)


def neutral(scalar: Scalar, fold: str) -> Let:
    """What a fold begins with so that it changes nothing."""
    return constant(scalar, MONOIDS[fold].neutral(scalar.dtype.numpy))


def into_registers(
    folds: Sequence[Store], registers: Buffer, point: Expr
) -> Callable[[Load | Store], Load | Store]:
    """A change of accesses by which these folds go to a register."""

    def change(stmt: Load | Store) -> Load | Store:
        if stmt not in folds or isinstance(stmt, Load):
            return stmt
        return Store(
            registers, point, stmt.value, stmt.mask, stmt.fold, stmt.factor, stmt.precision
        )

    return change


def unrolled(body: Body, names: Sequence[str]) -> Body:
    """The block with loops of these names unrolled, unless they are lanes of a vector."""
    result: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, For | If):
            result.append(stmt)
            continue
        new = rebuilt(stmt, unrolled(stmt.body, names))
        if isinstance(new, For) and new.name in names and new.kind != "vector":
            new = with_kind(new, "unroll")
        result.append(new)
    return tuple(result)


def _nested(loops: Sequence[For], body: Body) -> Body:
    """A block within loops over all points, run as those that it belongs to."""
    for loop in reversed(loops):
        kind: LoopKind = "vector" if loop.kind == "vector" else "unroll"
        body = (For(loop.axis, body, kind, loop.end),)
    return body


__all__ = ["folds_into", "into_registers", "neutral", "rfactor", "unrolled"]
