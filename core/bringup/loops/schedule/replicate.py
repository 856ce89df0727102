"""The primitive by which all threads of a block run its statements: replicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

from bringup.errors import ScheduleError
from bringup.graph.index import Bound, Expr, Mask
from bringup.loops.contents import contents_in
from bringup.loops.form import (
    ACCESSES,
    STRAIGHT,
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
    Stmt,
    Store,
    named_axis,
    statements,
)
from bringup.loops.schedule.dependences import (
    Access,
    accesses,
    conflicts,
    is_apart,
    may_conflict,
    meets_only_within,
)
from bringup.loops.schedule.folds import neutral
from bringup.loops.schedule.rewrite import (
    Names,
    Substitution,
    check_loops,
    check_new_names,
    check_word,
    guarded,
    loops_of,
    map_statements,
    nested,
    points_of,
    rewrite_loops,
    used_scalars,
    with_body,
    with_place,
)
from bringup.records import record


def replicate(
    func: Func,
    at: str,
    threads: str,
    *loops: str,
    lanes: int = 1,
    tiles: OneOf["private", "shared"] = "private",
) -> Func:
    """Every thread of a new loop ``threads`` in loop ``at`` runs the body that this loop had.

    loops: loops of the body, all of one length, whose iterations the threads share, one each.
    Everything else each thread does for itself, in private memory of its own; stores to memory that
    all see the first one does.  Folds of shared loops into private memory are exchanged before that
    is read.  Loops round the body, of threads or a vector, come to stand inside ``threads``.
    lanes: threads of a warp, a power of two, that exchange registers; others use shared memory.
    tiles: where a scratch buffer is that shared loops write; ``private`` if each thread reads only
    what it wrote, else ``shared``.
    Raises ScheduleError for loops that cannot be shared, for folds into memory that does not begin
    neutral, and where a thread needs what another one has in private memory.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[2], y: out f32[1], z: out f32[2]) {
    ...   for b in 1 block {
    ...     %0: f32 = 2.0
    ...     y[0] = %0
    ...     for i in 2 {
    ...       %1: f32 = x[i]
    ...       %2: f32 = mul(%1, %0)
    ...       z[i] = %2
    ...     }
    ...   }
    ... }''')
    >>> print(replicate(func, "b", "t", "i"))
    func f(x: in f32[2], y: out f32[1], z: out f32[2]) {
      for b in 1 block {
        for t in 2 thread {
          %0: f32 = 2.0
          if 0 <= t < 1 {
            y[0] = %0
          }
          %1: f32 = x[t]
          %2: f32 = mul(%1, %0)
          z[t] = %2
        }
      }
    }
    """
    check_word("tiles cannot be", tiles, "private", "shared")
    check_new_names(func, threads, but=loops)
    check_loops(func, loops)
    names = Names(func)

    def change(old: For, facts: Mask) -> Body:
        made = _Replication(old, threads, loops, lanes, names, facts)
        made.divide(tiles == "shared")
        return (with_body(old, made.body()),)

    # What threads may do has been looked at.
    return rewrite_loops(func, (at,), change, check=lambda new: new)


@record(eq=False)
class _Part:
    """Statements of the body as one thread runs them.

    is_shared: whether they are an iteration of a loop that the threads share; all run others.
    """

    stmts: Body
    is_shared: bool


class _Replication:
    """One body that threads run.

    pending: buffers of which each thread has a part of a fold, each with a statement that folds.
    constants: the scalars that are some.  held: buffers that hold one, with it.
    stored: what iterations that threads share write to private memory.
    touched: what happened to memory that all threads see since they met.
    """

    def __init__(
        self, at: For, threads: str, loops: Sequence[str], lanes: int, names: Names, facts: Mask
    ) -> None:
        self.at, self.names, self.lanes = at, names, lanes
        self.nest: list[For] = []
        body = at.body
        while len(body) == 1 and isinstance(body[0], For) and body[0].name not in loops:
            self.nest.append(body[0])
            body = body[0].body
        shared = [loop for stmt in body if (loop := _inside(stmt)[1]) and loop.name in loops]
        self.check_loops(loops, shared, body)
        self.axis = named_axis(threads, shared[0].axis.size)
        bounds = (bound for loop in (at, *self.nest) for bound in loop.bounds)
        self.facts = (*facts, *bounds)
        self.columns, self.column = points_of(loop.axis for loop in self.nest)
        self.stmts, self.shared = body, shared
        self.allocs: list[Stmt] = []
        self.parts: list[_Part] = []
        self.private: set[Buffer] = set()
        self.inner = frozenset((self.axis, *(loop.axis for loop in loops_of(body))))
        self.pending: dict[Buffer, Store] = {}
        self.constants: dict[Scalar, Let] = {}
        self.held: dict[Buffer, Let] = {}
        self.stored: dict[Buffer, list[Access]] = {}
        self.touched: list[tuple[_Part, Access]] = []
        self.result: list[Stmt] = []

    def check_loops(self, loops: Sequence[str], shared: Sequence[For], body: Body) -> None:
        """Raise ScheduleError for loops that threads cannot share."""
        if self.at.kind not in ("block", "thread"):
            raise ScheduleError(
                f"{self.at.kind} loop {self.at.name} is no block and no thread of one",
                fix="bind it first",
            )
        missing = set(loops) - {loop.name for loop in shared}
        if missing or not shared:
            raise ScheduleError(
                f"loop {self.at.name} does not hold {', '.join(sorted(missing)) or 'a loop'} "
                "beside the other statements that threads are to run",
                fix="name loops that are in no other loop of its body",
            )
        sizes = {loop.axis.size for loop in shared}
        if len(sizes) > 1:
            raise ScheduleError(
                f"the loops {', '.join(loops)} have {', '.join(map(str, sorted(sizes)))} "
                "iterations",
                fix="split them so that each has one for each thread",
            )
        wrong = [v for v in (*self.nest, *loops_of(body)) if v.kind in ("parallel", "block")]
        if wrong:
            raise ScheduleError(
                f"{wrong[0].kind} loop {wrong[0].name} would be in a thread loop",
                fix="bind it to thread, or serialize it",
            )
        inside = contents_in(body)
        if inside.has_barrier or "thread" in inside.kinds:
            raise ScheduleError(
                f"there are threads in loop {self.at.name} already", fix="name an inner loop"
            )
        size, lanes = sizes.pop(), self.lanes
        if lanes < 1 or lanes & (lanes - 1) or size % lanes:
            raise ScheduleError(
                f"{lanes} of {size} threads exchange registers",
                fix="choose a power of two that divides the loops",
            )

    def divide(self, has_shared_tiles: bool) -> None:
        """Find the parts, with one iteration in place of each loop that threads share.

        Buffers that the threads share stand outside, with a part for each point of the nest.
        """
        written = {
            stmt.buffer
            for loop in self.shared
            for stmt in statements(loop.body)
            if isinstance(stmt, Store) and stmt.buffer.space == "scratch"
        }
        wide: dict[Buffer, Buffer] = {}

        def moved(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, ACCESSES) or stmt.buffer not in wide:
                return stmt
            index = stmt.index * self.columns + self.column
            return with_place(stmt, wide[stmt.buffer], index)

        for stmt in self.stmts:
            if isinstance(stmt, Alloc) and stmt.buffer.space == "shared":
                self.allocs.append(stmt)
                continue
            if isinstance(stmt, Alloc) and has_shared_tiles and stmt.buffer in written:
                name = self.names.outside(stmt.buffer.name)
                wide[stmt.buffer] = self.allocated(name, stmt.buffer, stmt.buffer.size)
                continue
            if isinstance(stmt, Alloc):
                self.private.add(stmt.buffer)
            mask, loop = _inside(stmt)
            new: Body = (stmt,)
            if loop in self.shared and loop is not None:
                bounds = mask + For(self.axis, (), "thread", loop.end).bounds
                place = Substitution({loop.axis: Expr.of(self.axis)}, self.facts + bounds)
                new = guarded(bounds, place(loop.body))
            self.parts.append(_Part(map_statements(new, moved), loop in self.shared))

    def allocated(self, name: str, like: Buffer, size: int) -> Buffer:
        """A buffer of the block, with ``size`` elements for each point of the nest."""
        buffer = Buffer(name, like.dtype, size * self.columns, "shared")
        self.allocs.append(Alloc(buffer))
        return buffer

    # -- the body of a thread ----------------------------------------------------------------------

    def body(self) -> Body:
        """What loop ``at`` holds now."""
        scalars: list[Let | Load | Store] = []
        for number, part in enumerate(self.parts):
            stmt = part.stmts[0]
            is_outside = isinstance(stmt, Store) and stmt.buffer not in self.private
            if not part.is_shared and (isinstance(stmt, (Let, Load)) or is_outside):
                assert isinstance(stmt, STRAIGHT)
                scalars.append(stmt)
                continue
            self.flush(scalars, self.parts[number:])
            scalars = []
            self.add(part)
        self.flush(scalars, ())
        if self.allocs and self.at.kind != "block":
            raise ScheduleError(
                f"threads of loop {self.at.name} would share memory with those of others",
                fix="name a block loop, or let all threads exchange registers with lanes",
            )
        inner = nested(self.nest, tuple(self.result))
        return (*self.allocs, For(self.axis, inner, "thread"))

    def flush(self, scalars: Sequence[Let | Load | Store], rest: Sequence[_Part]) -> None:
        """Add scalars, and stores that all see, which the first thread does.

        It alone computes what nothing else needs.
        """
        if not scalars:
            return
        needed = {s for part in rest for stmt in statements(part.stmts) for s in used_scalars(stmt)}
        all_run: list[Stmt] = []
        one_runs: list[Stmt] = []
        for stmt in reversed(scalars):
            if isinstance(stmt, Store) or stmt.result not in needed:
                one_runs.append(stmt)
            else:
                all_run.append(stmt)
                needed.update(used_scalars(stmt))
        written = {stmt.buffer for stmt in one_runs if isinstance(stmt, Store)}
        if any(isinstance(stmt, Load) and stmt.buffer in written for stmt in all_run):
            raise ScheduleError(
                "all threads need what the first one of them writes",
                fix="name a loop that holds less",
            )
        if all_run:
            self.add(_Part(tuple(reversed(all_run)), is_shared=False))
        if one_runs:
            self.add(_Part(tuple(reversed(one_runs)), is_shared=False))

    def add(self, part: _Part) -> None:
        """Add statements, behind an exchange of what they read and the barrier that they need."""
        found = list(accesses(part.stmts, self.facts))
        folds = self.divided(part, found)
        if any(a.buffer in self.pending and a.buffer not in folds for a in found):
            self.exchange()
        self.pending |= folds
        self.check(part, found)
        owned = self.owned(part)
        outer = [access for access in found if access.buffer not in owned]
        if any(self.needs_barrier(part, access) for access in outer):
            self.meet()
        self.touched += [(part, access) for access in outer]
        self.note_constants(part, found)
        is_seen = [a.kind != "load" and a.buffer not in owned for a in found]
        if not part.is_shared and any(is_seen):
            if not all(seen or a.kind == "load" for seen, a in zip(is_seen, found, strict=True)):
                raise ScheduleError(
                    "a loop writes memory of each thread and memory that all see",
                    fix="distribute the loop",
                )
            self.result.append(If((Bound(Expr.of(self.axis), 0, 1),), part.stmts))
        else:
            self.result += part.stmts

    def owned(self, part: _Part) -> set[Buffer]:
        """The buffers of which each thread has its own."""
        if not contents_in(part.stmts).buffers:
            return self.private
        return self.private | {s.buffer for s in statements(part.stmts) if isinstance(s, Alloc)}

    def note_constants(self, part: _Part, found: Sequence[Access]) -> None:
        """Remember which buffers hold a constant."""
        for access in found:
            if access.kind != "load":
                self.held.pop(access.buffer, None)
        for stmt in part.stmts:
            if isinstance(stmt, Let) and not stmt.operands:
                self.constants[stmt.result] = stmt
            elif isinstance(stmt, Store) and not (part.is_shared or stmt.fold):
                value = self.constants.get(stmt.value)
                if value is not None and stmt.buffer.size == 1:
                    self.held[stmt.buffer] = value

    # -- what threads have of one another ----------------------------------------------------------

    def divided(self, part: _Part, found: Sequence[Access]) -> dict[Buffer, Store]:
        """The private buffers into whose elements several threads fold, each with such a fold."""
        result: dict[Buffer, Store] = {}
        for access in found if part.is_shared else ():
            stmt = access.stmt
            if not isinstance(stmt, Store) or not stmt.fold or access.buffer not in self.private:
                continue
            if not self.inner.isdisjoint(stmt.index.axes()):
                continue
            mine = [a.stmt for a in found if a.buffer == stmt.buffer]
            same = all(
                isinstance(s, Store) and (s.fold, s.index) == (stmt.fold, stmt.index) for s in mine
            )
            if not same:
                raise ScheduleError(
                    f"threads do more with {stmt.buffer.name} than folds of one kind into one "
                    "element",
                    fix="divide the fold with rfactor first",
                )
            before = self.pending.get(stmt.buffer)
            value, start = self.held.get(stmt.buffer), neutral(stmt.value, stmt.fold)
            is_neutral = value is not None and value.attrs == start.attrs
            if not is_neutral and (before is None or before.fold != stmt.fold):
                raise ScheduleError(
                    f"threads fold into {stmt.buffer.name}, which does not begin neutral",
                    fix="give the threads a register of their own with rfactor",
                )
            result[stmt.buffer] = stmt
        return result

    def check(self, part: _Part, found: Sequence[Access]) -> None:
        """Raise ScheduleError where iterations that threads share need an order, or what another
        thread has.
        """
        owned = self.owned(part)
        outer = [access for access in found if access.buffer not in owned]
        mine = [access for access in found if access.buffer in self.private]
        if part.is_shared:
            pairs = [*conflicts(outer), *((a, a) for a in outer if a.kind != "load")]
            for one, other in pairs:
                if not self.is_own(one, other):
                    raise ScheduleError(
                        f"iterations that threads share meet at elements of {one.buffer.name}",
                        fix="share loops whose iterations are independent",
                    )
        for access in mine:
            for before in self.stored.get(access.buffer, ()) if access.kind == "load" else ():
                if not (part.is_shared and self.is_own(before, access)):
                    raise ScheduleError(
                        f"a thread needs elements of {access.buffer.name} that another one has",
                        fix="write tiles=shared",
                    )
        for access in mine if part.is_shared else ():
            if access.kind != "load" and access.buffer not in self.pending:
                self.stored.setdefault(access.buffer, []).append(access)

    def needs_barrier(self, part: _Part, access: Access) -> bool:
        """Whether threads touched elements that others touch now."""
        for before, other in self.touched:
            if not may_conflict(other, access) or is_apart(other, access, self.inner):
                continue
            # Nothing is read where another buffer has replaced it.
            is_another = other.buffer != access.buffer
            if is_another and (access.kind == "load" or self.reads_more(other, access)):
                continue
            if not (part.is_shared and before.is_shared and self.is_own(other, access)):
                return True
        return False

    def reads_more(self, load: Access, store: Access) -> bool:
        """Whether one access reads several elements of a buffer and another one writes one element.

        Then the two buffers are not the same memory, of which each point reads what it writes.
        """
        several = any(axis.size > 1 for axis in load.index.axes() & self.inner)
        return several and self.inner.isdisjoint(store.index.axes())

    def meet(self) -> None:
        """Add a barrier."""
        self.result.append(Barrier())
        self.touched.clear()

    def is_own(self, one: Access, other: Access) -> bool:
        """Whether only one thread touches an element by both."""
        return meets_only_within(one, other, self.axis, self.inner)

    # -- exchanges ---------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Give every thread the whole of the folds of which each has a part."""
        size, thread = self.axis.size, Expr.of(self.axis)
        count = size // self.lanes
        folds = [(b, s.index, s.fold) for b, s in self.pending.items()]
        self.pending.clear()
        for buffer, index, fold in folds:
            self.result += self.exchanged(buffer, index, fold, self.lanes)
        if count == 1:
            return
        arrays: list[Buffer] = []
        for buffer, index, _ in folds:
            arrays.append(self.allocated(self.names.buffer(f"{buffer.name}.parts"), buffer, count))
            place = (thread // self.lanes) * self.columns + self.column
            stmts = self.copied(buffer, index, arrays[-1], place)
            self.result += guarded(
                (Bound(thread % self.lanes, 0, 1),) if self.lanes > 1 else (), stmts
            )
        self.meet()
        has_threads = any(loop.kind == "thread" for loop in self.nest)
        for (buffer, index, fold), parts in zip(folds, arrays, strict=True):
            if has_threads or count > self.lanes or count & (count - 1):
                self.result += self.copied(parts, self.column, buffer, index)
                rest = named_axis(f"{parts.name}.i", count - 1)
                place = (Expr.of(rest) + 1) * self.columns + self.column
                # One after another, because all at once would take many registers.
                self.result.append(For(rest, self.copied(parts, place, buffer, index, fold)))
            else:
                place = (thread % count) * self.columns + self.column
                self.result += self.copied(parts, place, buffer, index)
                self.result += self.exchanged(buffer, index, fold, count)

    def exchanged(self, buffer: Buffer, index: Expr, fold: str, lanes: int) -> Body:
        """Folds of what neighbouring threads have, until all have the same."""
        result: list[Stmt] = []
        name, step = buffer.name.replace(".", "_"), 1
        while step < lanes:
            own, other = (self.names.scalar(name, buffer.dtype) for _ in range(2))
            result += [Load(own, buffer, index), Shuffle(other, own, self.axis, step)]
            result.append(Store(buffer, index, other, fold=fold))
            step *= 2
        return tuple(result)

    def copied(self, source: Buffer, at: Expr, to: Buffer, place: Expr, fold: str = "") -> Body:
        """An element that goes from one buffer to another."""
        name = (to if to in self.private else source).name.replace(".", "_")
        scalar = self.names.scalar(name, source.dtype)
        return (Load(scalar, source, at), Store(to, place, scalar, fold=fold))


def _inside(stmt: Stmt) -> tuple[Mask, For | None]:
    """A loop, and the bounds under which alone it stands."""
    mask: Mask = ()
    while isinstance(stmt, If) and stmt.test is None and len(stmt.body) == 1:
        mask, stmt = mask + stmt.mask, stmt.body[0]
    return mask, stmt if isinstance(stmt, For) else None


__all__ = ["replicate"]
