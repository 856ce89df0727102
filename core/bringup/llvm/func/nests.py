"""Units of a function on CPUs: iterations of parallel loops, which threads may share in any way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, product

from bringup.loops.form import Alloc, Body, For, If, Stmt, Store
from bringup.loops.form import statements as all_statements
from bringup.loops.schedule.dependences import are_apart, outliving
from bringup.records import record


@record(eq=False)
class Parallel:
    """A parallel loop whose iterations are units, or parts of several.

    before: what stands before it in its block and fills private memory.  Every worker does that
    once for all the units of the block that it runs one after the other.
    """

    before: Body
    loop: For


@record(eq=False)
class Nest:
    """Parallel loops, outermost first, and what is within them: a unit for each iteration."""

    loops: tuple[Parallel, ...]
    body: Body

    @property
    def units(self) -> int:
        """How many there are."""
        return math.prod(each.loop.axis.size for each in self.loops)


def nest_of(body: Body) -> Nest:
    """The outermost parallel loops of a body."""
    nest: list[Parallel] = []
    while body:
        *before, last = body
        if not isinstance(last, For) or last.kind != "parallel":
            break
        if before and (any(each.loop.bounds for each in nest) or not _fills(before)):
            break
        nest.append(Parallel(tuple(before), last))
        body = last.body
    return Nest(tuple(nest), body)


def independent(body: Body) -> list[Body]:
    """The parts of a function whose iterations may all run side by side.

    They are parallel loops, of which none touches an element that another one writes.
    """
    parts = [(stmt,) for stmt in body if isinstance(stmt, For) and stmt.kind == "parallel"]
    if len(parts) < max(len(body), 2):
        return [body]
    groups = [outliving(part) for part in parts]
    for number, group in enumerate(groups):
        for one, other in product(group, chain(*groups[number + 1 :])):
            writes = one.kind != "load" or other.kind != "load"
            if one.buffer == other.buffer and writes and not are_apart(one, other):
                return [body]
    return list(parts)


def _fills(body: Sequence[Stmt]) -> bool:
    """Whether statements change nothing but memory that each worker has of its own."""
    if not all(isinstance(stmt, (Alloc, For, If)) for stmt in body):
        return False
    spaces = {s.buffer.space for s in all_statements(tuple(body)) if isinstance(s, (Alloc, Store))}
    return spaces <= {"scratch"}
