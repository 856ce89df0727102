"""Primitives that divide folds: rfactor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Expr, Mask
from bringup.loops.form import (
    ACCESSES,
    NESTING,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    Let,
    Load,
    Scalar,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.dependences import outliving
from bringup.loops.schedule.rewrite import (
    Names,
    constant,
    loops_of,
    nested,
    points_of,
    rebuilt,
    rewrite_block,
    rewrite_loops,
    unless_same,
    with_body,
    with_kind,
)
from bringup.ops.monoids import MONOIDS
from bringup.records import record


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


def overwrite(func: Func, buffer: str) -> Func:
    """Folds into a buffer that holds the neutral element become stores, and it is not set before.

    The elements are set in a nest of loops, and next touched in one that folds into each once.
    Raises ScheduleError where there is no such pair of nests.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[8], y: out f32[8]) {
    ...   for i in 8 {
    ...     %0: f32 = -0.0
    ...     y[i] = %0
    ...   }
    ...   for j in 8 {
    ...     %1: f32 = x[j]
    ...     y[j] add= %1
    ...   }
    ... }''')
    >>> print(overwrite(func, "y"))
    func f(x: in f32[8], y: out f32[8]) {
      for j in 8 {
        %1: f32 = x[j]
        y[j] = %1
      }
    }
    """
    found = 0
    lets: dict[Scalar, Let] = {}

    def walk(body: Body) -> Body:
        nonlocal found
        result: list[Stmt] = []
        start: _Update | None = None
        for stmt in body:
            if isinstance(stmt, Let):
                lets[stmt.result] = stmt
            if not _touches(stmt, buffer):
                result.append(stmt)
                continue
            update = _Update.of(stmt, buffer)
            if start is not None and update is not None and update.begins_with(start, lets):
                found += 1
                result.remove(start.nest[0])
                result.append(update.stored())
                start = None
                continue
            start = update
            if update is None and isinstance(stmt, NESTING):
                result.append(rebuilt(stmt, walk(stmt.body)))
            else:
                result.append(stmt)
        return tuple(result)

    body = walk(func.body)
    if not found:
        raise ScheduleError(
            f"nothing folds into each element of {buffer} once after it became neutral",
            fix="divide the fold with rfactor first",
        )
    return Func(func.name, func.params, body)


def _touches(stmt: Stmt, buffer: str) -> bool:
    return any(isinstance(s, ACCESSES) and s.buffer.name == buffer for s in statements((stmt,)))


@record(eq=False)
class _Update:
    """A nest of loops that does one thing with each of some elements of a buffer.

    nest: the loops.  scalars: what stands in them before the store.
    """

    nest: tuple[For, ...]
    scalars: tuple[Let | Load, ...]
    store: Store

    @staticmethod
    def of(stmt: Stmt, buffer: str) -> _Update | None:
        """What a statement does with a buffer; None if that is more, or depends on data."""
        nest: list[For] = []
        scalars: list[Let | Load] = []
        while isinstance(stmt, For):
            nest.append(stmt)
            *before, stmt = stmt.body
            scalars += [s for s in before if isinstance(s, (Let, Load))]
            if not all(isinstance(s, (Let, Load)) and not _touches(s, buffer) for s in before):
                return None
        if not nest or not isinstance(stmt, Store) or stmt.mask or stmt.operands:
            return None
        return _Update(tuple(nest), tuple(scalars), stmt)

    def begins_with(self, start: _Update, lets: Mapping[Scalar, Let]) -> bool:
        """Whether this folds into just the elements that ``start`` has made neutral.

        lets: of the blocks round both.
        """
        mine, others = self.nest, start.nest
        if not self.store.fold or start.store.fold or self.store.factor is not None:
            return False
        if [(a.axis.size, a.end) for a in mine] != [(a.axis.size, a.end) for a in others]:
            return False
        table = {b.axis: Expr.of(a.axis) for a, b in zip(mine, others, strict=True)}
        axes = self.store.index.axes()
        if start.store.index.substitute(table) != self.store.index:
            return False
        value = next(
            (s for s in start.scalars if s.result == start.store.value), lets.get(start.store.value)
        )
        expected = neutral(start.store.value, self.store.fold).attrs
        is_neutral = isinstance(value, Let) and value.attrs == expected
        return is_neutral and axes >= {loop.axis for loop in mine if loop.axis.size > 1}

    def stored(self) -> Stmt:
        """The nest with a store in place of the fold."""
        fold = self.store
        new: Stmt = Store(fold.buffer, fold.index, fold.value)
        for loop in reversed(self.nest):
            new = with_body(loop, (*loop.body[:-1], new))
        return new


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
    points, point = points_of(within.axis for within in inner)
    name = names.buffer(f"{buffer}.{loop.name}")
    registers = Buffer(name, target.dtype, points, "register")
    scalar = buffer.replace(".", "_")
    start, part = (names.scalar(scalar, target.dtype) for _ in range(2))
    before = (neutral(start, fold), Store(registers, point, start))
    after = (Load(part, registers, point), Store(target, index, part, fold=fold))
    change = into_registers(folds, registers, point)
    changed = _changed_in((loop,), frozenset(over), change)
    if not any(isinstance(s, Store) and s.buffer == registers for s in statements(changed)):
        raise ScheduleError(
            f"nothing folds into {buffer} in all of the loops {', '.join(over)}",
            fix="name loops that hold a fold",
        )
    new = unrolled(changed, over)
    around = [with_kind(w, "vector" if w.kind == "vector" else "unroll") for w in inner]
    return (Alloc(registers), *nested(around, before), *new, *nested(around, after))


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
    mine = [access for access in outliving(loop.body) if access.buffer.name == buffer]
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
        s.fold != first.fold or s.index != first.index or s.operands or s.atomic for s in folds
    ):
        raise ScheduleError(
            f"loop {loop.name} does more with {buffer} than folds of one kind into one element",
            fix="name a loop that only folds into it",
        )
    return folds


def _changed_in(body: Body, missing: frozenset[str], change: Callable[[Stmt], Stmt]) -> Body:
    """The block with the statements changed that are in all of the loops ``missing``.

    Parts of a loop that was split may share a statement, so a fold is known by its place.
    """
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, NESTING):
            inside = missing - {stmt.name} if isinstance(stmt, For) else missing
            result.append(rebuilt(stmt, _changed_in(stmt.body, inside, change)))
        else:
            result.append(stmt if missing else change(stmt))
    return unless_same(result, body)


def neutral(scalar: Scalar, fold: str) -> Let:
    """What a fold begins with so that it changes nothing."""
    return constant(scalar, MONOIDS[fold].neutral(scalar.dtype.numpy))


def into_registers(
    folds: Sequence[Store], registers: Buffer, point: Expr
) -> Callable[[Stmt], Stmt]:
    """A change of statements by which these folds go to a register."""

    def change(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Store) or stmt not in folds:
            return stmt
        return Store(
            registers, point, stmt.value, stmt.mask, stmt.fold, stmt.factor, stmt.precision
        )

    return change


def unrolled(body: Body, names: Sequence[str]) -> Body:
    """The block with loops of these names unrolled, unless they are lanes of a vector."""

    def change(old: For, _facts: Mask) -> Body:
        return (old if old.kind == "vector" else with_kind(old, "unroll"),)

    return rewrite_block(body, frozenset(names), change)


__all__ = ["folds_into", "into_registers", "neutral", "overwrite", "rfactor", "unrolled"]
