"""The primitive that fills shared memory while its older copies are used: double_buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Bound, Expr, Mask
from bringup.loops.contents import contents_in
from bringup.loops.form import (
    ACCESSES,
    Alloc,
    Barrier,
    Body,
    Buffer,
    Commit,
    For,
    Func,
    Let,
    Load,
    Scalar,
    Stmt,
    Store,
    Wait,
    named_axis,
    statements,
)
from bringup.loops.schedule.dependences import conflicts, outliving
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_new_names,
    guarded,
    map_statements,
    nested,
    points_of,
    rebuilt,
    rewrite_loops,
    with_place,
)
from bringup.records import record


def double_buffer(
    func: Func, loop: str, count: int, *later: str, ahead: int = 0, pending: int = 0
) -> Func:
    """Shared memory that each iteration fills for itself is filled some iterations ahead.

    The loop fills buffers in shared memory, and threads meet before they are read and at its end.
    Each buffer becomes ``count`` copies, used in turn.  The first iterations' are filled in a loop
    ``loop.f`` before; then the threads meet once in each iteration.
    later: buffers whose elements are copied while the threads go on; those of the others are in
    registers until the iteration is at its end.
    ahead: how many iterations; ``count - 1 - pending`` if 0.
    pending: how many iterations' products are on their way when threads meet again.  If it is not
    0, instructions alone read the buffers, which are asked for products as soon as threads meet.
    Raises ScheduleError where the loop has another form, or writes what fills the buffers.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[16], y: out f32[12]) {
    ...   for b in 1 block {
    ...     for k in 3 {
    ...       alloc s: shared f32[4]
    ...       for t in 4 thread {
    ...         %0: f32 = x[4*k + t]
    ...         s[t] = %0
    ...       }
    ...       barrier
    ...       for t in 4 thread {
    ...         %1: f32 = s[-1*t + 3]
    ...         y[4*k + t] = %1
    ...       }
    ...       barrier
    ...     }
    ...   }
    ... }''')
    >>> text = str(double_buffer(func, "k", 2, "s"))
    >>> print(text[text.index("for k in") : text.rindex("barrier")].rstrip())
    for k in 3 {
          wait 0
          barrier
          if 0 <= k < 2 {
            for t in 4 thread {
              %0_2: f32 = x[4*k + t + 4]
              s[t + 4*(k + 1)%2] later = %0_2
            }
          }
          commit
          for t in 4 thread {
            %1: f32 = s[-1*t + 4*(k)%2 + 3]
            y[4*k + t] = %1
          }
        }
    """
    check_new_names(func, f"{loop}.f")
    names = Names(func)

    def change(old: For, facts: Mask) -> Body:
        copies = _Copies(count, ahead or count - 1 - pending, pending)
        return _Pipeline(old, copies, later, names, facts).stages()

    # What is apart by its copy only, no check of threads sees.
    return rewrite_loops(func, (loop,), change, lambda changed: changed)


@record
class _Copies:
    """How many copies a buffer has; of how many iterations they are filled, and multiplied, while
    those of another one are.
    """

    count: int
    ahead: int
    pending: int


@record(eq=False)
class _Fill:
    """What fills one buffer: loops round straight code that stores one element."""

    nest: tuple[For, ...]
    body: Body
    store: Store


class _Pipeline:
    """A loop whose shared memory is filled ahead.

    buffers: what is filled, with its copies.  fills: the loops that do that.  used: the statements
    between the two places where threads meet.
    """

    def __init__(
        self,
        loop: For,
        copies: _Copies,
        later: Sequence[str],
        names: Names,
        facts: Mask,
    ) -> None:
        self.loop, self.later, self.names, self.facts = loop, later, names, facts
        self.count, self.ahead, self.pending = copies.count, copies.ahead, copies.pending
        if not 0 < self.ahead < self.count - self.pending or self.pending < 0:
            busy = f", and {self.pending} more are multiplied" if self.pending else ""
            raise self.error(
                f"{self.ahead} of {self.count} copies are filled ahead{busy}", "fill fewer ahead"
            )
        meetings = [n for n, stmt in enumerate(loop.body) if isinstance(stmt, Barrier)]
        if len(meetings) != 2 or meetings[1] != len(loop.body) - 1 or loop.end is not None:
            raise self.error(
                "threads do not meet once before its buffers are read and once at its end",
                "compute a scalar first in shared memory at this loop",
            )
        filling, self.used = loop.body[: meetings[0]], loop.body[meetings[0] + 1 : -1]
        if contents_in((*filling, *self.used)).has_barrier:
            raise self.error("threads meet in loops inside it", "name the innermost such loop")
        self.buffers: dict[Buffer, Buffer] = {}
        self.fills: list[_Fill] = []
        for stmt in filling:
            if isinstance(stmt, Alloc) and stmt.buffer.space == "shared":
                old = stmt.buffer
                size = old.size * self.count
                self.buffers[old] = Buffer(old.name, old.dtype, size, "shared", old.swizzle)
            else:
                self.fills.append(self.fill(stmt))
        missing = set(later) - {buffer.name for buffer in self.buffers}
        if missing or not self.fills:
            raise self.error(f"it fills no {', '.join(missing) or 'buffer'}", "name its buffers")
        self.check()
        if self.pending:
            self.used = _asked_for(self.used, self.error)

    def error(self, why: str, fix: str) -> ScheduleError:
        return ScheduleError(f"loop {self.loop.name} cannot fill ahead: {why}", fix=fix)

    def fill(self, stmt: Stmt) -> _Fill:
        """A statement that fills a buffer."""
        nest: list[For] = []
        body: Body = (stmt,)
        while len(body) == 1 and isinstance(body[0], For):
            nest.append(body[0])
            body = body[0].body
        *scalars, last = body
        if (
            not (isinstance(last, Store) and all(isinstance(s, (Let, Load)) for s in scalars))
            or last.buffer not in self.buffers
            or last.fold
            or last.operands
        ):
            raise self.error(
                "a statement before the threads meet is no nest of loops that stores an element",
                "put other statements behind the barrier",
            )
        if last.buffer.name in self.later:
            source = body[0]
            if len(body) != 2 or not isinstance(source, Load) or source.buffer.space != "global":
                raise self.error(
                    f"{last.buffer.name} is computed, so it does not come by itself",
                    "leave it out of those that come later",
                )
        else:
            serial = [v.name for v in nest if v.kind not in ("unroll", "vector", "thread")]
            if serial:
                raise self.error(
                    f"registers would be indexed by loop {serial[0]}", "unroll it, or bind it"
                )
        return _Fill(tuple(nest), body, last)

    def check(self) -> None:
        """Raise ScheduleError if what is used changes what is filled ahead."""
        filled = [a for fill in self.fills for a in outliving(fill.body) if a.kind == "load"]
        for one, other in conflicts([*filled, *outliving(self.used)]):
            if (one in filled) != (other in filled):
                raise self.error(
                    f"it writes {one.buffer.name}, which fills a buffer", "fill at an inner loop"
                )

    def stages(self) -> Body:
        """The loop with what comes before and after it."""
        loop, size = self.loop, self.loop.axis.size
        at = Expr.of(loop.axis)
        start = named_axis(f"{loop.name}.f", min(self.ahead, size))
        groups: Body = (Commit(),) if self.later else ()
        before: list[Stmt] = []
        for fill in self.fills:
            before += self.placed(fill, Expr.of(start), ())
        more = (Bound(at, 0, size - self.ahead),)
        begin: list[Stmt] = []
        end: list[Stmt] = []
        for fill in self.fills:
            if fill.store.buffer.name in self.later:
                begin += guarded(more, self.placed(fill, at + self.ahead, more))
                continue
            register, parts = self.by_registers(fill)
            begin.append(Alloc(register))
            first, second = (
                guarded(more, self.placed(part, at + self.ahead, more)) for part in parts
            )
            begin += first
            end += second
        used = map_statements(self.used, self.in_copy)
        waits: Body = (Wait(self.ahead - 1),) if self.later else ()
        filled: Body = (*begin, *groups) if size > self.ahead else groups
        stored = end if size > self.ahead else []
        body = (*waits, Barrier(), *filled, *used, *stored)
        last: Body = ()
        if self.pending:
            waits = (*waits, Wait(self.pending, "products"))
            body = (*waits, Barrier(), *used, Commit("products"), *filled, *stored)
            last = (Wait(0, "products"),)
        allocs = tuple(Alloc(buffer) for buffer in self.buffers.values())
        return (
            *allocs,
            For(start, (*before, *groups), "unroll"),
            *(groups * max(self.ahead - size, 0)),
            For(loop.axis, body, loop.kind),
            *last,
            Barrier(),
        )

    def in_copy(self, stmt: Stmt) -> Stmt:
        """An access to a buffer: to the copy of the iteration."""
        slot = Expr.of(self.loop.axis) % self.count
        if not isinstance(stmt, ACCESSES) or stmt.buffer not in self.buffers:
            return stmt
        return with_place(stmt, self.buffers[stmt.buffer], stmt.index + slot * stmt.buffer.size)

    def placed(self, fill: _Fill, at: Expr, facts: Mask) -> Body:
        """The loops that fill the copy of an iteration.  facts: what holds where they run."""
        *body, store = map_statements(fill.body, self.in_copy)
        if isinstance(store, Store) and store.buffer.name in self.later:
            store = Store(store.buffer, store.index, store.value, store.mask, later=True)
        nest = nested(fill.nest, (*body, store))
        table = {self.loop.axis: at}
        return Substitution(table, self.facts + facts, self.names)(nest)

    def by_registers(self, fill: _Fill) -> tuple[Buffer, tuple[_Fill, _Fill]]:
        """A fill in two parts, one to registers and one from there."""
        points, point = points_of(loop.axis for loop in fill.nest)
        name, dtype = self.names.buffer(f"{fill.store.buffer.name}.r"), fill.store.value.dtype
        register = Buffer(name, dtype, points, "fragment")
        value: Scalar = self.names.scalar(fill.store.value.name, dtype)
        first = Store(register, point, fill.store.value)
        second = Store(fill.store.buffer, fill.store.index, value, fill.store.mask)
        parts = (
            _Fill(fill.nest, (*fill.body[:-1], first), first),
            _Fill(fill.nest, (Load(value, register, point), second), second),
        )
        return register, parts


def _asked_for(body: Body, error: Callable[[str, str], ScheduleError]) -> Body:
    """A block whose products, all of instructions, come later.  Raises what ``error`` makes."""
    asked: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, For):
            raise error("it does more than multiply by instructions", "leave out pending")
        inner = map_statements(stmt.body, _later) if stmt.by else _asked_for(stmt.body, error)
        asked.append(rebuilt(stmt, inner))
    for access in statements(body):
        space = "shared" if isinstance(access, Load) else "fragment"
        if isinstance(access, Load | Store) and access.buffer.space != space:
            raise error(f"{access.buffer.name} is not in space {space}", "give it that space first")
    return tuple(asked)


def _later(stmt: Stmt) -> Stmt:
    """A fold that comes later; any other statement as it is."""
    if not isinstance(stmt, Store):
        return stmt
    how = stmt.fold, stmt.factor, stmt.precision, stmt.operands
    return Store(stmt.buffer, stmt.index, stmt.value, stmt.mask, *how, later=True)


__all__ = ["double_buffer"]
