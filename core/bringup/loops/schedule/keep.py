"""The primitive by which what several nests touch of a buffer stays in registers: keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from bringup.loops.schedule.dependences import Access, accesses, meets_only_within
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
    """An access in a nest.

    number: of the nest among the statements.
    place: what it touches and when, whatever its loops are called.
    """

    number: int
    access: Access
    place: object

    @staticmethod
    def of(number: int, access: Access) -> _Use:
        """The use that an access is."""
        table = {axis: Expr.of(named_axis(f"{n}", axis.size)) for n, axis in enumerate(access.axes)}
        facts = frozenset((b.expr.substitute(table), b.low, b.high) for b in access.facts)
        sizes = tuple((loop.axis.size, loop.kind == "vector") for loop in access.loops)
        return _Use(number, access, (sizes, access.index.substitute(table), facts))

    @property
    def point(self) -> Expr:
        """The number of an iteration of its loops."""
        return points_of(self.access.axes)[1]


class _Keeping:
    """What one loop keeps of a buffer."""

    def __init__(self, at: For, buffer: str, names: Names) -> None:
        self.at, self.buffer, self.names = at, buffer, names
        self.is_local = any(isinstance(s, Alloc) and s.buffer.name == buffer for s in at.body)
        self.uses = [
            _Use.of(number, access)
            for number, stmt in enumerate(at.body)
            for access in accesses((stmt,))
            if access.buffer.name == buffer
        ]

    def error(self, why: str, fix: str) -> ScheduleError:
        return ScheduleError(
            f"loop {self.at.name} cannot keep {self.buffer} in registers: {why}", fix=fix
        )

    def groups(self) -> list[list[_Use]]:
        """The accesses that touch the same, in the order of the nests."""
        groups: dict[object, list[_Use]] = {}
        for use in self.uses:
            if not use.access.stmt.operands:
                groups.setdefault(use.place, []).append(use)
        found = [group for group in groups.values() if len({use.number for use in group}) > 1]
        self.check_stores(groups)
        if not found:
            raise self.error("no two nests touch the same", "name a buffer that is read twice")
        for loop in (loop for group in found for use in group for loop in use.access.loops):
            if loop.kind in CONCURRENT:
                raise self.error(f"loop {loop.name} is {loop.kind}", "name a loop inside it")
        return found

    def check_stores(self, groups: Mapping[object, Sequence[_Use]]) -> None:
        """Raise ScheduleError for what registers would not hold."""
        stores = [use.access for use in self.uses if isinstance(use.access.stmt, Store)]
        if stores and (not self.is_local or any(access.kind != "store" for access in stores)):
            raise self.error("it is written in between", "name another buffer")
        if not self.is_local:
            return
        if len(groups) > 1 or self.uses[0].access.kind != "store" or len(stores) > 1:
            raise self.error("nests touch other elements of it", "split their loops in one way")
        inner = frozenset(stores[0].axes)
        if not all(meets_only_within(stores[0], stores[0], axis, inner) for axis in inner):
            raise self.error("iterations write one element", "name a buffer with one for each")

    def body(self) -> Body:
        """What the loop holds now."""
        changed: dict[Stmt, Sequence[Stmt]] = {}
        unrolled: set[str] = set()
        allocs: list[Stmt] = []
        for group in self.groups():
            first = group[0].access
            name = self.names.buffer(f"{self.buffer}.{self.at.name}")
            kept = Buffer(name, first.buffer.dtype, points_of(first.axes)[0], "register")
            allocs.append(Alloc(kept))
            for use in group:
                stmt, point = use.access.stmt, use.point
                unrolled |= {loop.name for loop in use.access.loops}
                if isinstance(stmt, Store):
                    changed[stmt] = (Store(kept, point, stmt.value),)
                elif use.number == group[0].number and first.kind == "load":
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
