"""Primitives that compute scalars in other places and dtypes: precompute, narrow, widen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bringup.dtypes import DType, as_dtype
from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Bound, Expr, Mask
from bringup.kernel.ranges import span
from bringup.loops.form import (
    NESTING,
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    Scalar,
    Shuffle,
    Space,
    Stmt,
    Store,
    named_axis,
    statements,
)
from bringup.loops.schedule.dependences import may_conflict, outliving
from bringup.loops.schedule.folds import unrolled
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_new_names,
    check_word,
    checked,
    exprs_of,
    loop_until,
    rebuilt,
    rewrite_loops,
    with_body,
    without_dead,
)
from bringup.ops.table import lookup
from bringup.records import record


def precompute(
    func: Func,
    scalar: str,
    at: str,
    buffer: str,
    layout: str,
    space: Space = "scratch",
    pad: int = 0,
    swizzle: int = 0,
) -> Func:
    """Each iteration of loop ``at`` computes a scalar for all points of loops inside it first.

    scalar: as the text writes it, ``%0``.  at: a loop, or ``.`` for the whole function.
    buffer: the name of the buffer that has the values.  The loops that fill it are named
    ``buffer.0``, ``buffer.1``, …
    layout: the loops, as ``j.o,k,j.i``; the last are neighbours in memory.
    space: ``scratch``; ``register``, which unrolls the loops of the layout; or ``shared``, where
    all threads meet behind the loops that fill the buffer, and at the end of ``at``.
    pad: elements between two lines of the last loop, so that a column is in several banks.
    swizzle: 1 if chunks change places in these lines instead; see `Buffer`.
    Raises ScheduleError for a scalar of other loops inside ``at``, and for one that ``at`` changes.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[5], y: out f32[4]) {
    ...   for i in 4 {
    ...     %0: f32 = x[i]
    ...     y[i] = %0
    ...   }
    ... }''')
    >>> print(precompute(func, "%0", ".", "e", "i"))
    func f(x: in f32[5], y: out f32[4]) {
      alloc e: scratch f32[4]
      for e.0 in 4 {
        %0_1: f32 = x[e.0]
        e[e.0] = %0_1
      }
      for i in 4 {
        %0: f32 = e[i]
        y[i] = %0
      }
    }
    """
    wanted, names, found = layout.split(","), Names(func), 0
    check_new_names(func, *(f"{buffer}.{n}" for n in range(len(wanted))))
    _check_copy(buffer, space, pad or swizzle, names)

    def change(body: Body, facts: Mask) -> Body:
        nonlocal found
        place = _Place.of(body, scalar.removeprefix("%"))
        found += place is not None
        filling = place and _Filling(place, body, scalar, at, facts)
        return filling.filled(buffer, wanted, space, (pad, swizzle), names) if filling else body

    if at != ".":
        result = rewrite_loops(func, (at,), lambda loop, facts: _changed(loop, facts, change))
    else:
        result = checked(Func(func.name, func.params, change(func.body, ())))
    if not found:
        raise ScheduleError(f"{scalar} is not computed in {at}", fix="name a loop round it")
    return result


def _changed(loop: For, facts: Mask, change: Callable[[Body, Mask], Body]) -> Body:
    return (with_body(loop, change(loop.body, facts + loop.bounds)),)


def _check_copy(buffer: str, space: Space, pad: int, names: Names) -> None:
    """Raise ScheduleError for a buffer that values cannot be computed into."""
    check_word("values are not computed first in", space, "scratch", "register", "shared")
    if pad and space == "register":
        raise ScheduleError("registers have no banks", fix="leave out pad")
    if names.buffer(buffer) != buffer:
        raise ScheduleError(f"a buffer {buffer} exists already", fix="choose a free name")


def narrow(func: Func, scalar: str, dtype: str) -> Func:
    """A scalar that is a converted one is converted to another dtype first.

    That dtype holds every number of the one before, so that a scalar of less memory may be computed
    first in place of this one.
    Raises ScheduleError where the scalar is none or the dtype does not hold all its numbers.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in i8[4], y: out i32[4]) {
    ...   for i in 4 {
    ...     %0: i8 = x[i]
    ...     %1: i32 = convert(%0) {dtype=i32}
    ...     y[i] = %1
    ...   }
    ... }''')
    >>> print(narrow(func, "%1", "i16"))
    func f(x: in i8[4], y: out i32[4]) {
      for i in 4 {
        %0: i8 = x[i]
        %1_1: i16 = convert(%0) {dtype=i16}
        %1: i32 = convert(%1_1) {dtype=i32}
        y[i] = %1
      }
    }
    """
    target, names, found = as_dtype(dtype), Names(func), 0

    def walk(body: Body) -> Body:
        nonlocal found
        result: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, NESTING):
                result.append(rebuilt(stmt, walk(stmt.body)))
            elif isinstance(stmt, Let) and str(stmt.result) == scalar and stmt.op.name == "convert":
                (before,) = stmt.operands
                if not np.can_cast(before.dtype.numpy, target.numpy, "safe"):
                    raise ScheduleError(
                        f"{target} does not hold every {before.dtype}", fix="name a wider dtype"
                    )
                found += 1
                middle = names.scalar(stmt.result.name, target)
                result.append(Let(middle, stmt.op, (before,), {**stmt.attrs, "dtype": target}))
                result.append(Let(stmt.result, stmt.op, (middle,), stmt.attrs))
            else:
                result.append(stmt)
        return tuple(result)

    body = walk(func.body)
    if not found:
        raise ScheduleError(f"{scalar} is no converted scalar", fix="name one that convert gives")
    return Func(func.name, func.params, body)


def widen(func: Func, buffer: str, dtype: str) -> Func:
    """A buffer of integers whose elements are sums keeps them in more bits.

    Sums and products of the low bits are the low bits of those of all bits, so that what is read is
    the same.
    Raises ScheduleError for a parameter, for other folds than sums, and for a dtype that is no
    wider integer.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in i8[4], y: out i8[1]) {
    ...   alloc r: register i8[1]
    ...   %0: i8 = 0
    ...   r[0] = %0
    ...   for i in 4 {
    ...     %1: i8 = x[i]
    ...     %2: i8 = mul(%1, %1)
    ...     r[0] add= %2
    ...   }
    ...   %3: i8 = r[0]
    ...   y[0] = %3
    ... }''')
    >>> print(widen(func, "r", "i32"))
    func f(x: in i8[4], y: out i8[1]) {
      alloc r: register i32[1]
      %0: i8 = 0
      %0_1: i32 = convert(%0) {dtype=i32}
      r[0] = %0_1
      for i in 4 {
        %1: i8 = x[i]
        %1_1: i32 = convert(%1) {dtype=i32}
        %1_2: i32 = convert(%1) {dtype=i32}
        %2_1: i32 = mul(%1_1, %1_2)
        r[0] add= %2_1
      }
      %3_1: i32 = r[0]
      %3: i8 = convert(%3_1) {dtype=i8}
      y[0] = %3
    }
    """
    body = _Widening(func, buffer, as_dtype(dtype)).block(func.body)
    return Func(func.name, func.params, without_dead(body))


class _Widening:
    """A buffer whose elements get more bits."""

    def __init__(self, func: Func, buffer: str, dtype: DType) -> None:
        self.buffer, self.dtype, self.names = buffer, dtype, Names(func)
        self.convert, self.lets = lookup("convert"), dict[Scalar, Let]()
        old = next(
            (s.buffer for s in statements(func.body) if isinstance(s, Alloc)
             and s.buffer.name == buffer), None,
        )  # fmt: skip
        if old is None:
            raise ScheduleError(
                f"{func.name} allocates no buffer {buffer}", fix="name one of its alloc statements"
            )
        if not (old.dtype.is_integer and dtype.is_integer and dtype.bits > old.dtype.bits):
            raise ScheduleError(
                f"{dtype} is no wider integer than {old.dtype}", fix="name a wider integer"
            )
        self.new = Buffer(old.name, dtype, old.size, old.space)

    def block(self, body: Body) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            match stmt:
                case For() | If():
                    result.append(rebuilt(stmt, self.block(stmt.body)))
                case Alloc() if stmt.buffer.name == self.buffer:
                    result.append(Alloc(self.new))
                case Load() if stmt.buffer.name == self.buffer:
                    wide = self.names.scalar(stmt.result.name, self.dtype)
                    result.append(Load(wide, self.new, stmt.index, stmt.mask, stmt.operands))
                    result.append(self.converted(stmt.result, wide))
                case Store() if stmt.buffer.name == self.buffer:
                    result += self.stored(stmt)
                case Let():
                    self.lets[stmt.result] = stmt
                    result.append(stmt)
                case _:
                    result.append(stmt)
        return tuple(result)

    def converted(self, result: Scalar, source: Scalar) -> Let:
        return Let(result, self.convert, (source,), {"dtype": result.dtype})

    def wide(self, scalar: Scalar) -> Let:
        return self.converted(self.names.scalar(scalar.name, self.dtype), scalar)

    def stored(self, stmt: Store) -> list[Stmt]:
        """A store of the low bits, as one of all bits."""
        if stmt.fold not in ("", "add") or stmt.factor is not None:
            raise ScheduleError(
                f"{self.buffer} is no sum of integers", fix="name a buffer into which add folds"
            )
        let = self.lets.get(stmt.value)
        before: list[Let] = []
        if stmt.fold and let is not None and let.op.name == "mul":
            before = [self.wide(operand) for operand in let.operands]
            value = self.names.scalar(stmt.value.name, self.dtype)
            before.append(Let(value, let.op, tuple(b.result for b in before), {}))
        else:
            before = [self.wide(stmt.value)]
        how = stmt.fold, None, stmt.precision, stmt.operands, stmt.atomic
        return [*before, Store(self.new, stmt.index, before[-1].result, stmt.mask, *how)]


@record(eq=False)
class _Place:
    """Where a scalar is computed in a block.

    around: the loops and conditions round it, outermost first.
    before: the scalars that its statement may read, in order, and at last that statement.
    """

    around: tuple[For | If, ...]
    before: tuple[Let | Load, ...]

    @staticmethod
    def of(body: Body, name: str) -> _Place | None:
        """The place of the scalar of this name; None if the block does not compute it."""
        before: list[Let | Load] = []
        for stmt in body:
            if isinstance(stmt, (Let, Load)):
                before.append(stmt)
                if stmt.result.name == name:
                    return _Place((), tuple(before))
            elif isinstance(stmt, NESTING):
                inner = _Place.of(stmt.body, name)
                if inner is not None:
                    return _Place((stmt, *inner.around), (*before, *inner.before))
        return None


class _Filling:
    """The loops that compute a scalar, and the load that stands for it where it was computed."""

    def __init__(self, place: _Place, body: Body, scalar: str, at: str, facts: Mask) -> None:
        self.place, self.body, self.scalar, self.at, self.facts = place, body, scalar, at, facts
        self.inner = {stmt.axis.name: stmt for stmt in place.around if isinstance(stmt, For)}
        self.slice = self.needed()

    def error(self, why: str, fix: str) -> ScheduleError:
        where = "the function" if self.at == "." else f"loop {self.at}"
        return ScheduleError(f"{self.scalar} cannot be computed first in {where}: {why}", fix=fix)

    def needed(self) -> Body:
        """The statements that the scalar is computed by."""
        wanted: set[Scalar] = {self.place.before[-1].result}
        result: list[Let | Load] = []
        for stmt in reversed(self.place.before):
            if stmt.result in wanted:
                result.append(stmt)
                wanted.update(stmt.operands)
        allocated = {s.buffer for s in statements(self.body) if isinstance(s, Alloc)}
        if any(isinstance(s, Load) and s.buffer in allocated for s in result):
            raise self.error("it reads a buffer of one iteration", "name an inner loop")
        if any(isinstance(s, Shuffle) and s.result in wanted for s in statements(self.body)):
            raise self.error("threads exchange what it needs", "name an inner loop")
        found = outliving(self.body)
        for one in found:
            if one.stmt in result and any(may_conflict(one, other) for other in found):
                raise self.error(f"{one.buffer.name} may be written there", "name an inner loop")
        return tuple(reversed(result))

    def filled(
        self, buffer: str, wanted: Sequence[str], space: Space, gaps: tuple[int, int], names: Names
    ) -> Body:
        """The body with the values computed first and loaded later."""
        loops = [self.inner.get(name) for name in wanted]
        missing = [name for name, loop in zip(wanted, loops, strict=True) if loop is None]
        if missing:
            raise self.error(
                f"there is no loop {missing[0]} round it", f"name loops of {', '.join(self.inner)}"
            )
        nest = [loop for loop in loops if loop is not None]
        used = {axis for stmt in self.slice for expr in exprs_of(stmt) for axis in expr.axes()}
        others = {loop.axis for loop in self.inner.values() if loop not in nest}
        if not others.isdisjoint(used):
            raise self.error(
                f"it depends on loop {', '.join(sorted(a.name for a in others & used))}",
                "name that loop in the layout too",
            )
        old = self.place.before[-1].result
        pad, swizzle = gaps
        index = _flat([loop.axis for loop in nest], pad)
        line = nest[-1].axis.size if swizzle else 0
        copy = Buffer(buffer, old.dtype, index.last + 1, space, line)
        filling = self.filling(copy, nest, others, pad, names)
        body = _replaced(self.body, self.place.before[-1], Load(old, copy, index))
        body = without_dead(body)
        if space == "register":
            body = unrolled(body, wanted)
            filling = unrolled(filling, [f"{buffer}.{n}" for n in range(len(wanted))])
        if space == "shared":
            body = _met(body, copy)
        return (Alloc(copy), *filling, *body)

    def filling(
        self, copy: Buffer, nest: Sequence[For], others: set[Axis], pad: int, names: Names
    ) -> Body:
        """The loops that fill the buffer; they end where those that read it do."""
        axes = [named_axis(f"{copy.name}.{n}", loop.axis.size) for n, loop in enumerate(nest)]
        table = {loop.axis: Expr.of(axis) for loop, axis in zip(nest, axes, strict=True)}
        known = [self.facts]
        ends: list[Expr | None] = []
        for loop, axis in zip(nest, axes, strict=True):
            end = loop.end
            if end is not None and not others.isdisjoint(end.axes()):
                raise self.error(
                    f"loop {loop.name} ends where a loop says that is not in the layout",
                    "pad the loop",
                )
            ends.append(None if end is None else end.substitute(table))
            known.append(known[-1] + For(axis, (), "serial", ends[-1]).bounds)
        body = Substitution(table, known[-1], names)(self.slice)
        body = tuple(_inside(stmt, known[-1]) for stmt in body)
        last = body[-1]
        assert isinstance(last, (Let, Load))
        body += (Store(copy, _flat(axes, pad), last.result),)
        for axis, end, facts in zip(
            reversed(axes), reversed(ends), reversed(known[:-1]), strict=True
        ):
            body = loop_until(axis, body, "serial", end, facts)
        return body


def _inside(stmt: Stmt, facts: Mask) -> Stmt:
    """A load with a mask where its loops could leave the buffer: conditions round it are gone."""
    if not isinstance(stmt, Load):
        return stmt
    low, high = span(stmt.index, facts + stmt.mask)
    if low >= 0 and high < stmt.buffer.size:
        return stmt
    mask = (*stmt.mask, Bound(stmt.index, 0, stmt.buffer.size))
    return Load(stmt.result, stmt.buffer, stmt.index, mask, stmt.operands)


def _flat(axes: Sequence[Axis], pad: int) -> Expr:
    """The row-major index of loops, with ``pad`` elements behind each line of the last one."""
    *outer, last = axes
    index, size = Expr.of(last), last.size + pad
    for axis in reversed(outer):
        index, size = Expr.of(axis) * size + index, size * axis.size
    return index


def _met(body: Body, copy: Buffer) -> Body:
    """The block with a barrier before the first statement that reads the copy, and one at its end,
    unless they are there.
    """
    first = next(
        number
        for number, stmt in enumerate(body)
        if any(isinstance(s, Load) and s.buffer == copy for s in statements((stmt,)))
    )
    if not any(isinstance(stmt, Barrier) for stmt in body[:first]):
        body = (*body[:first], Barrier(), *body[first:])
    return body if isinstance(body[-1], Barrier) else (*body, Barrier())


def _replaced(body: Body, old: Stmt, new: Stmt) -> Body:
    """The block with one statement in place of another."""
    result: list[Stmt] = []
    for stmt in body:
        if stmt is old:
            result.append(new)
        elif isinstance(stmt, NESTING):
            result.append(rebuilt(stmt, _replaced(stmt.body, old, new)))
        else:
            result.append(stmt)
    same = all(a is b for a, b in zip(result, body, strict=True))
    return body if same else tuple(result)


__all__ = ["narrow", "precompute", "widen"]
