"""How many calls or threads may share a function: its units, its blocks and their threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.loops.form import For, Func, If, Stmt, statements
from bringup.records import record


def units(func: Func) -> int:
    """The iterations of the outermost parallel loops, which calls share; 1 if there are none."""
    return math.prod(loop.axis.size for loop in nest(func.body, ("parallel", "block"))[0])


@record
class Geometry:
    """How many threads of a dialect that has them run a function.

    blocks: at most so many are of use.  threads: of each block; 0 if any number will do.
    """

    blocks: int
    threads: int


def geometry(func: Func) -> Geometry:
    """The blocks and threads that the loops of a function name."""
    loops = [s for s in statements(func.body) if isinstance(s, For)]
    sizes = [threads_of((loop,)) for loop in loops if loop.kind == "thread"]
    blocks, _ = nest(func.body, ("block",))
    return Geometry(math.prod(loop.axis.size for loop in blocks), max(sizes, default=0))


def nest(body: Sequence[Stmt], kinds: Sequence[str]) -> tuple[list[For], Sequence[Stmt]]:
    """The loops of these kinds that are alone round everything, and what is in them."""
    loops: list[For] = []
    while len(body) == 1:
        (stmt,) = body
        if not isinstance(stmt, For) or stmt.kind not in kinds or stmt.end is not None:
            break
        loops.append(stmt)
        body = stmt.body
    return loops, body


def threads_of(body: Sequence[Stmt]) -> int:
    """The threads that nested ``thread`` loops of a block need."""
    counts = [
        threads_of(s.body) * (s.axis.size if isinstance(s, For) and s.kind == "thread" else 1)
        for s in body
        if isinstance(s, For | If)
    ]
    return max(counts, default=1)


__all__ = ["Geometry", "geometry", "nest", "threads_of", "units"]
