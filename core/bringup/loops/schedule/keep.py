"""The primitive by which what several nests touch of a buffer stays in registers: keep."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Expr, Mask
from bringup.loops.form import (
    CONCURRENT,
    NESTING,
    Alloc,
    Body,
    Buffer,
    For,
    Func,
    Load,
    Stmt,
    Store,
    named_axis,
)
from bringup.loops.schedule.rewrite import (
    Names,
    points_of,
    rebuilt,
    rewrite_loops,
    with_body,
    with_kind,
)
from bringup.records import record


def keep(func: Func, buffer: str, at: str) -> Func:
    """What nests of loop ``at`` touch of a buffer stays in registers from one nest to the next.

    The nests stand beside one another, have loops of the same lengths, and touch the same element
    in each iteration.  The first one loads or stores it, and the others read a register, one for
    each iteration of these loops, which are unrolled.  A buffer that ``at`` allocates is nothing
    but these registers then.
    Raises ScheduleError for an unknown loop, where no two nests touch the same, and where elements
    are written in between.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(x: in f32[8], y: out f32[8]) {
    ...   for g in 2 {
    ...     alloc r: register f32[1]
    ...     %0: f32 = -inf
    ...     r[0] = %0
    ...     for i in 4 {
    ...       %1: f32 = x[4*g + i]
    ...       r[0] max= %1
    ...     }
    ...     %2: f32 = r[0]
    ...     for j in 4 {
    ...       %3: f32 = x[4*g + j]
    ...       %4: f32 = sub(%3, %2)
    ...       y[4*g + j] = %4
    ...     }
    ...   }
    ... }''')
    >>> print(keep(func, "x", "g"))
    func f(x: in f32[8], y: out f32[8]) {
      for g in 2 {
        alloc x.g: register f32[4]
        alloc r: register f32[1]
        %0: f32 = -inf
        r[0] = %0
        for i in 4 unroll {
          %1: f32 = x[4*g + i]
          x.g[i] = %1
          r[0] max= %1
        }
        %2: f32 = r[0]
        for j in 4 unroll {
          %3: f32 = x.g[j]
          %4: f32 = sub(%3, %2)
          y[4*g + j] = %4
        }
      }
    }
    """
    names = Names(func)

    def change(old: For, _facts: Mask) -> Body:
        return (with_body(old, _Keeping(old, buffer, names).body()),)

    # Private memory alone changes.
    return rewrite_loops(func, (at,), change, check=lambda new: new)


@record(eq=False)
class _Use:
    """An access of a nest.

    number: of the nest among the statements.  nest: the loops round the access.
    place: what it touches and when, whatever its loops are called.
    """

    number: int
    stmt: Load | Store
    nest: tuple[For, ...]
    place: object


class _Keeping:
    def __init__(self, at: For, buffer: str, names: Names) -> None:
        self.at, self.buffer, self.names = at, buffer, names
        self.is_local = any(isinstance(s, Alloc) and s.buffer.name == buffer for s in at.body)
        self.uses: list[_Use] = []
        for number, stmt in enumerate(at.body):
            self.find(number, (stmt,), (), ())

    def error(self, why: str, fix: str) -> ScheduleError:
        return ScheduleError(
            f"loop {self.at.name} cannot keep {self.buffer} in registers: {why}", fix=fix
        )

    def find(self, number: int, body: Body, nest: tuple[For, ...], facts: Mask) -> None:
        """Note the accesses of a statement."""
        for stmt in body:
            if isinstance(stmt, Load | Store) and stmt.buffer.name == self.buffer:
                table = {
                    loop.axis: Expr.of(named_axis(f"{n}", loop.axis.size))
                    for n, loop in enumerate(nest)
                }
                mask = frozenset(
                    (bound.expr.substitute(table), bound.low, bound.high)
                    for bound in facts + stmt.mask
                )
                sizes = tuple((loop.axis.size, loop.kind == "vector") for loop in nest)
                place = (sizes, stmt.index.substitute(table), mask)
                self.uses.append(_Use(number, stmt, nest, place))
            elif isinstance(stmt, NESTING):
                inner = (*nest, stmt) if isinstance(stmt, For) else nest
                more = stmt.bounds if isinstance(stmt, For) else stmt.mask
                self.find(number, stmt.body, inner, facts + more)

    def groups(self) -> list[list[_Use]]:
        """The accesses that touch the same, in the order of the nests."""
        groups: dict[object, list[_Use]] = {}
        for use in self.uses:
            if use.stmt.operands:
                continue
            groups.setdefault(use.place, []).append(use)
        found = [group for group in groups.values() if len({use.number for use in group}) > 1]
        for use in self.uses:
            if isinstance(use.stmt, Store) and (not self.is_local or use.stmt.fold):
                raise self.error("it is written in between", "name another buffer")
        if self.is_local and (len(groups) > 1 or not isinstance(self.uses[0].stmt, Store)):
            raise self.error("nests touch other elements of it", "split their loops in one way")
        if not found:
            raise self.error("no two nests touch the same", "name a buffer that is read twice")
        for loop in (loop for group in found for use in group for loop in use.nest):
            if loop.kind in CONCURRENT:
                raise self.error(f"loop {loop.name} is {loop.kind}", "name a loop inside it")
        return found

    def body(self) -> Body:
        """What the loop holds now."""
        changed: dict[Stmt, Sequence[Stmt]] = {}
        unrolled: set[str] = set()
        allocs: list[Stmt] = []
        for group in self.groups():
            first = group[0]
            size, _ = points_of(loop.axis for loop in first.nest)
            name = self.names.buffer(f"{self.buffer}.{self.at.name}")
            kept = Buffer(name, first.stmt.buffer.dtype, size, "register")
            allocs.append(Alloc(kept))
            for use in group:
                _, point = points_of(loop.axis for loop in use.nest)
                unrolled |= {loop.name for loop in use.nest}
                stmt = use.stmt
                if isinstance(stmt, Store):
                    changed[stmt] = (Store(kept, point, stmt.value),)
                elif use.number == first.number and isinstance(first.stmt, Load):
                    changed[stmt] = (stmt, Store(kept, point, stmt.result))
                else:
                    changed[stmt] = (Load(stmt.result, kept, point),)
        local = [s for s in self.at.body if isinstance(s, Alloc) and s.buffer.name == self.buffer]
        changed |= dict.fromkeys(local, ())
        return (*allocs, *_changed(self.at.body, changed, unrolled))


def _changed(body: Body, changed: dict[Stmt, Sequence[Stmt]], unrolled: set[str]) -> Body:
    """The block with other statements in place of some, and with loops of these names unrolled."""
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, NESTING):
            new = rebuilt(stmt, _changed(stmt.body, changed, unrolled))
            if isinstance(new, For) and new.name in unrolled and new.kind != "vector":
                new = with_kind(new, "unroll")
            result.append(new)
        else:
            result += changed.get(stmt, (stmt,))
    return tuple(result)


__all__ = ["keep"]
