"""What every primitive is made of: find loops by name, substitute axes, name copies.

A substitution decides what it can: a bound that always holds is dropped, a load whose mask never
holds becomes the constant 0, a `select` of a constant becomes its operand, and the scalars that
nobody reads any more are dropped.  Statements that do not change stay the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from operator import is_
from typing import Any, get_args

from bringup.dtypes import DType
from bringup.errors import ScheduleError
from bringup.graph import Literal
from bringup.graph.index import Axis, Bound, Div, Expr, Mask, Mod
from bringup.graph.printer import NAME
from bringup.kernel.ranges import span
from bringup.loops.contents import contents, contents_of
from bringup.loops.form import (
    DEFINING,
    NESTING,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Scalar,
    Shuffle,
    Stmt,
    Store,
    statements,
)
from bringup.ops.table import lookup

#: What a primitive makes of one loop, given the conditions that hold wherever the loop runs.
Change = Callable[[For, Mask], Sequence[Stmt]]


def with_body(loop: For, body: Body) -> For:
    """The same loop round other statements."""
    return For(loop.axis, body, loop.kind, loop.end, loop.by)


def rebuilt(stmt: For | If, body: Body) -> For | If:
    """The same loop or condition round other statements; itself round the same."""
    if body is stmt.body:
        return stmt
    return with_body(stmt, body) if isinstance(stmt, For) else If(stmt.mask, body, stmt.test)


def guarded(mask: Mask, body: Body) -> Body:
    """The block under a condition, which joins that of a block that is all a condition."""
    if not mask:
        return body
    if len(body) == 1 and isinstance(body[0], If):
        inner = body[0]
        more = tuple(bound for bound in inner.mask if bound not in mask)
        return (If(mask + more, inner.body, inner.test),)
    return (If(mask, body),)


def loop_until(
    axis: Axis, body: Body, kind: LoopKind, end: Expr | None, facts: Mask
) -> tuple[Stmt, ...]:
    """A loop that ends early, with a condition inside if it may have no iteration at all."""
    if end is None or end.first >= axis.size:
        return (For(axis, body, kind),)
    low, high = span(end, facts)
    if low >= axis.size:
        return (For(axis, body, kind),)
    if low >= 1:
        return (For(axis, body, kind, end),)
    if high < 1:
        return ()
    return (For(axis, guarded(For(axis, (), kind, end).bounds, body), kind),)


def map_statements(body: Body, change: Callable[[Stmt], Stmt]) -> Body:
    """The block with each statement changed that holds no others."""
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, NESTING):
            result.append(rebuilt(stmt, map_statements(stmt.body, change)))
        else:
            result.append(change(stmt))
    return unless_same(result, body)


def nested(loops: Iterable[For], body: Body) -> Body:
    """The block within loops, given from the outermost in, whatever they hold now."""
    for loop in reversed(tuple(loops)):
        body = (with_body(loop, body),)
    return body


def points_of(axes: Iterable[Axis]) -> tuple[int, Expr]:
    """How many iterations the loops over these axes have together, and the number of each."""
    count, point = 1, Expr()
    for axis in axes:
        count *= axis.size
        point = point * axis.size + Expr.of(axis)
    return count, point


def with_place(stmt: Load | Store, buffer: Buffer, index: Expr) -> Load | Store:
    """The same access to another place."""
    if isinstance(stmt, Load):
        return Load(stmt.result, buffer, index, stmt.mask, stmt.operands)
    how = stmt.fold, stmt.factor, stmt.precision, stmt.operands, stmt.atomic, stmt.later
    return Store(buffer, index, stmt.value, stmt.mask, *how)


def with_kind(loop: For, kind: LoopKind) -> For:
    """The same loop, run in another way."""
    return For(loop.axis, loop.body, kind, loop.end, loop.by)


def checked(func: Func, bound: Mapping[str, bool] | None = None) -> Func:
    """The function, if its threads stand in blocks and find the memory that they share as it is.

    Raises ScheduleError otherwise.  bound: as in `check_threads`.
    """
    found = contents(func)
    if "thread" in found.kinds or "shared" in found.spaces:
        # It stands on this module, and most functions have no threads.
        from bringup.loops.schedule.barriers import check_threads

        check_threads(func, bound)
    return with_fragments(func)


def with_fragments(func: Func) -> Func:
    """The function, if threads agree which of them has an element of a fragment.

    Raises ScheduleError otherwise.
    """
    if "fragment" in contents(func).spaces:
        from bringup.loops.fragments import disagreements

        for _, what in disagreements(func):
            raise ScheduleError(
                what, fix="bind the same loops round all accesses, and unroll those within them"
            )
    return func


def rewrite_loops(
    func: Func, names: Sequence[str], change: Change, check: Callable[[Func], Func] = checked
) -> Func:
    """Replace every loop of these names, inner ones first.

    Raises ScheduleError if one of the names has no loop, and as ``check`` does.
    """
    func = _with_unique_scalars(func)
    check_loops(func, names)
    body = rewrite_block(func.body, frozenset(names), change)
    return func if body is func.body else check(Func(func.name, func.params, body))


def rewrite_block(body: Body, names: frozenset[str], change: Change, facts: Mask = ()) -> Body:
    """The block with every loop of these names replaced, inner ones first."""
    result: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, NESTING):
            result.append(stmt)
            continue
        new = stmt
        if not contents_of(stmt).loops.keys().isdisjoint(names):
            more = stmt.bounds if isinstance(stmt, For) else stmt.mask
            new = rebuilt(stmt, rewrite_block(stmt.body, names, change, facts + more))
        if isinstance(new, For) and new.axis.name in names:
            result += change(new, facts)
        else:
            result.append(new)
    return unless_same(result, body)


def _with_unique_scalars(func: Func) -> Func:
    """Each scalar with a name of its own, so that scalars of two blocks may meet in one."""
    scalars = contents(func).scalars
    if len(set(scalars)) == len(scalars):
        return func
    return Func(func.name, func.params, Substitution({}, names=Names())(func.body))


def unless_same(result: Sequence[Stmt], body: Body) -> Body:
    """The statements as a block, which is ``body`` itself if they are the same objects."""
    if len(result) == len(body) and all(map(is_, result, body)):
        return body
    return tuple(result)


def loops_of(body: Body) -> Iterator[For]:
    """Every loop, outer ones first."""
    return (stmt for stmt in statements(body) if isinstance(stmt, For))


def loop_names(func: Func) -> tuple[str, ...]:
    """The names of the loops, each once, outer ones first."""
    return tuple(contents(func).loops)


def check_loops(func: Func, names: Iterable[str]) -> None:
    """Raise ScheduleError for a name that no loop has."""
    present = contents(func).loops
    for name in names:
        if name not in present:
            close = get_close_matches(name, present, 1)
            raise ScheduleError(
                f"there is no loop {name} in {func.name}",
                notes=(f"loops: {', '.join(present)}",),
                fix=f"did you mean {close[0]}?" if close else "name one of these loops",
            )


def check_word(subject: str, word: str, *choices: str) -> None:
    """Raise ScheduleError if an argument is none of the words that it may be."""
    if word not in choices:
        *others, last = choices
        raise ScheduleError(f"{subject} {word!r}", fix=f"use {', '.join(others)} or {last}")


def check_new_names(func: Func, *names: str, but: Sequence[str] = ()) -> None:
    """Raise ScheduleError for names that loops cannot have.

    A loop has one of them already, unless it is one of those that go, or one is given twice, or it
    is a kind of loop or no name at all.
    """
    present = contents(func).loops
    for name in names:
        if name in get_args(LoopKind) or not NAME.fullmatch(name):
            raise ScheduleError(
                f"a loop cannot be called {name}",
                fix="choose letters, digits and dots, and none of the kinds of loops",
            )
        if (name in present and name not in but) or names.count(name) > 1:
            raise ScheduleError(
                f"a loop {name} exists already in {func.name}",
                notes=(f"loops: {', '.join(present)}",),
                fix="choose a name that no loop has",
            )


class Names:
    """The names of scalars and buffers of a function, for copies that must not repeat them."""

    def __init__(self, func: Func | None = None) -> None:
        found = contents(func) if func is not None else None
        self._scalars = set(found.scalars) if found else set[str]()
        names = [p.buffer.name for p in func.params] if func is not None else []
        names += found.buffers if found else []
        self._buffers = set(names)
        self._repeated = {name for name in self._buffers if names.count(name) > 1}

    def scalar(self, wanted: str, dtype: DType) -> Scalar:
        """A scalar of a name that is free, ``wanted`` or one like it."""
        return Scalar(_free(self._scalars, wanted), dtype)

    def buffer(self, wanted: str) -> str:
        """A free name for a buffer."""
        return _free(self._buffers, wanted)

    def outside(self, name: str) -> str:
        """The name for a buffer whose `Alloc` leaves its block: a free one if others have it."""
        return self.buffer(name) if name in self._repeated else name


def _free(taken: set[str], wanted: str) -> str:
    """A name that is not taken, which it is then."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def decided(mask: Iterable[Bound], facts: Mask = ()) -> Mask | None:
    """The bounds that are still open where the facts hold; None if one never holds."""
    still: list[Bound] = []
    for bound in mask:
        if bound.always or bound in still:
            continue
        if bound.never:
            return None
        if facts:
            low, high = span(bound.expr, facts)
            if low >= bound.low and high < bound.high:
                continue
            if high < bound.low or low >= bound.high:
                return None
        still.append(bound)
    return tuple(still)


def constant(result: Scalar, value: object) -> Let:
    """The statement that gives a scalar a constant."""
    return Let(result, lookup("constant"), (), {"value": Literal.of(value, result.dtype)})


def used_scalars(stmt: Stmt) -> tuple[Scalar, ...]:
    """The scalars that a statement reads by itself, not those within its body."""
    match stmt:
        case Let() | Load():
            return stmt.operands
        case Shuffle():
            return (stmt.value,)
        case Store():
            factor = (stmt.factor,) if stmt.factor is not None else ()
            return (stmt.value, *factor, *stmt.operands)
        case If() if stmt.test is not None:
            return (stmt.test,)
    return ()


def exprs_of(stmt: Stmt) -> Iterator[Expr]:
    """The index expressions that a statement has by itself, those of its bounds included."""
    match stmt:
        case Load() | Store():
            yield stmt.index
            yield from (bound.expr for bound in stmt.mask)
        case Let():
            if "index" in stmt.attrs and isinstance(stmt.attrs["index"], Expr):
                yield stmt.attrs["index"]
            elif stmt.op.name == "inside":
                yield from (bound.expr for bound in stmt.attrs["mask"])
        case If():
            yield from (bound.expr for bound in stmt.mask)
        case For() if stmt.end is not None:
            yield stmt.end


def without_dead(body: Body) -> Body:
    """Without scalars that nothing reads, and without loops and conditions that became empty."""
    return _live(body, set())


def without_unread(body: Body) -> Body:
    """Without private buffers of the block that nothing reads, and what only they need."""
    read = {stmt.buffer for stmt in statements(body) if isinstance(stmt, Load)}
    own = {stmt.buffer for stmt in statements(body) if isinstance(stmt, Alloc)} - read

    def walk(block: Body) -> Body:
        return tuple(
            rebuilt(stmt, walk(stmt.body)) if isinstance(stmt, NESTING) else stmt
            for stmt in block
            if not (isinstance(stmt, (Alloc, Store)) and stmt.buffer in own)
        )

    return without_dead(walk(body))


def _live(body: Body, used: set[Scalar]) -> Body:
    result: list[Stmt] = []
    for stmt in reversed(body):
        if isinstance(stmt, DEFINING) and stmt.result not in used:
            continue
        new: Stmt = stmt
        if isinstance(stmt, NESTING):
            inner = _live(stmt.body, used)
            if not inner:
                continue
            new = rebuilt(stmt, inner)
        used.update(used_scalars(stmt))
        result.append(new)
    result.reverse()
    return unless_same(result, body)


class Substitution:
    """Axes as expressions of others, in a block.

    table: what stands for each axis.
    facts: conditions that hold wherever the new block runs.
    names: makes the block a copy beside the original: its scalars get free names.
    scalars: what is read in place of scalars from outside the block.
    quotients: what stands for a quotient or a remainder; None keeps it.
    """

    def __init__(
        self,
        table: Mapping[Axis, Expr],
        facts: Mask = (),
        names: Names | None = None,
        scalars: Mapping[Scalar, Scalar] | None = None,
        quotients: Callable[[Div | Mod], Expr | None] | None = None,
    ) -> None:
        self._table = table
        self._quotients = quotients
        self._facts = facts
        self._names = names
        self._exprs: dict[Expr, Expr] = {}
        self._scalars: dict[Scalar, Scalar] = dict(scalars or {})
        self._constants: dict[Scalar, Any] = {}
        self._has_dead = False

    def __call__(self, body: Body) -> Body:
        """The block after the substitution."""
        result = self._block(body)
        return without_dead(result) if self._has_dead else result

    def expr(self, expr: Expr) -> Expr:
        """An expression after the substitution."""
        known = self._exprs.get(expr)
        if known is None:
            known = expr.substitute(self._table) if self._table else expr
            if self._quotients is not None:
                known = _with_quotients(known, self._quotients)
            self._exprs[expr] = known
        return known

    def bounds(self, mask: Sequence[Bound]) -> Mask:
        """Conditions after the substitution, none of them dropped."""
        return tuple(self._bound(bound) for bound in mask)

    def _bound(self, bound: Bound) -> Bound:
        expr = self.expr(bound.expr)
        return bound if expr is bound.expr else Bound(expr, bound.low, bound.high)

    def mask(self, mask: Mask) -> Mask | None:
        """Conditions after the substitution; None if one of them never holds."""
        if not mask:
            return mask
        result = decided(self.bounds(mask), self._facts)
        return mask if result == mask else result

    def _block(self, body: Body) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            match stmt:
                case Let():
                    new = self._let(stmt)
                    if new is not None:
                        result.append(new)
                case Load():
                    result.append(self._load(stmt))
                case Store():
                    mask = self.mask(stmt.mask)
                    if mask is None:
                        self._has_dead = True
                    else:
                        result.append(self._store(stmt, mask))
                case For():
                    result += self._loop(stmt)
                case If():
                    result += self._branch(stmt)
                case Shuffle():
                    result.append(self._shuffle(stmt))
                case _:
                    result.append(stmt)
        return unless_same(result, body)

    def _read(self, scalars: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        table = self._scalars
        if table and any(s in table for s in scalars):
            return tuple(table.get(s, s) for s in scalars)
        return scalars

    def _defined(self, scalar: Scalar) -> Scalar:
        if self._names is None:
            return scalar
        new = self._scalars[scalar] = self._names.scalar(scalar.name, scalar.dtype)
        return new

    def _let(self, stmt: Let) -> Let | None:
        operands, attrs, name = self._read(stmt.operands), stmt.attrs, stmt.op.name
        if name == "index":
            index = self.expr(attrs["index"])
            attrs = attrs if index is attrs["index"] else {**attrs, "index": index}
        elif name == "inside":
            mask = self.mask(attrs["mask"])
            if not mask:
                return self._constant(stmt.result, mask is not None)
            attrs = attrs if mask is attrs["mask"] else {"mask": mask}
        elif name == "select" and operands[0] in self._constants:
            # Readers of the choice read the chosen operand in its place.
            self._scalars[stmt.result] = operands[1 if self._constants[operands[0]] else 2]
            return None
        result = self._defined(stmt.result)
        if result is stmt.result and operands is stmt.operands and attrs is stmt.attrs:
            return stmt
        return Let(result, stmt.op, operands, attrs)

    def _shuffle(self, stmt: Shuffle) -> Shuffle:
        if stmt.axis in self._table:
            raise ScheduleError(
                f"threads exchange values over loop {stmt.axis.name}",
                fix="change the loop before they do",
            )
        value = self._scalars.get(stmt.value, stmt.value)
        result = self._defined(stmt.result)
        if value is stmt.value and result is stmt.result:
            return stmt
        return Shuffle(result, value, stmt.axis, stmt.mask)

    def _constant(self, result: Scalar, value: object) -> Let:
        self._has_dead = True
        new = self._defined(result)
        self._constants[new] = value
        return constant(new, value)

    def _load(self, stmt: Load) -> Let | Load:
        mask = self.mask(stmt.mask)
        if mask is None:
            self._has_dead = True
            return constant(self._defined(stmt.result), 0)
        index, operands = self.expr(stmt.index), self._read(stmt.operands)
        result = self._defined(stmt.result)
        new = (result, index, mask, operands)
        old = (stmt.result, stmt.index, stmt.mask, stmt.operands)
        if all(map(is_, new, old)):
            return stmt
        return Load(result, stmt.buffer, index, mask, operands)

    def _store(self, stmt: Store, mask: Mask) -> Store:
        index, operands = self.expr(stmt.index), self._read(stmt.operands)
        value = self._scalars.get(stmt.value, stmt.value)
        factor = stmt.factor and self._scalars.get(stmt.factor, stmt.factor)
        new = (index, value, mask, factor, operands)
        old = (stmt.index, stmt.value, stmt.mask, stmt.factor, stmt.operands)
        if all(map(is_, new, old)):
            return stmt
        how = stmt.fold, factor, stmt.precision, operands, stmt.atomic, stmt.later
        return Store(stmt.buffer, index, value, mask, *how)

    def _loop(self, stmt: For) -> Sequence[Stmt]:
        end = None if stmt.end is None else self.expr(stmt.end)
        before = self._facts
        if end is not None:
            self._facts += For(stmt.axis, (), stmt.kind, end).bounds
        body = self._block(stmt.body)
        self._facts = before
        if body is stmt.body and end is stmt.end and (end is None or not before):
            return (stmt,)
        if end is None:
            return (with_body(stmt, body),)
        loop = loop_until(stmt.axis, body, stmt.kind, end, before)
        self._has_dead |= not loop
        return loop

    def _branch(self, stmt: If) -> Sequence[Stmt]:
        mask = self.mask(stmt.mask)
        test = stmt.test and self._scalars.get(stmt.test, stmt.test)
        if test in self._constants:
            mask = mask if self._constants[test] else None
            test = None
        if mask is None:
            self._has_dead = True
            return ()
        before = self._facts
        self._facts += mask
        body = self._block(stmt.body)
        self._facts = before
        if not mask and test is None:
            return body
        if body is stmt.body and mask is stmt.mask and test is stmt.test:
            return (stmt,)
        return (If(mask, body, test),)


def _with_quotients(expr: Expr, change: Callable[[Div | Mod], Expr | None]) -> Expr:
    """An expression with others in place of quotients and remainders."""
    result = Expr(expr.const)
    for atom, c in expr.terms:
        part = change(atom) if isinstance(atom, (Div, Mod)) else None
        if part is None and isinstance(atom, (Div, Mod)):
            inner = _with_quotients(atom.of, change)
            part = inner // atom.by if isinstance(atom, Div) else inner % atom.by
        result = result + (Expr.of(atom) if part is None else part) * c
    return result


__all__ = [
    "Names",
    "Substitution",
    "check_loops",
    "check_new_names",
    "check_word",
    "checked",
    "constant",
    "decided",
    "exprs_of",
    "guarded",
    "loop_names",
    "loop_until",
    "loops_of",
    "map_statements",
    "nested",
    "points_of",
    "rebuilt",
    "rewrite_block",
    "rewrite_loops",
    "unless_same",
    "used_scalars",
    "with_body",
    "with_kind",
    "with_place",
    "without_dead",
]
