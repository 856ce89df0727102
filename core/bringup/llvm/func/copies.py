"""Loops that are written out statement by statement, and which of their copies are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from operator import itemgetter

from bringup.graph.index import Axis
from bringup.llvm.func.squares import is_transposed
from bringup.llvm.text import Val
from bringup.loops.form import STRAIGHT, For, Let, Load, Stmt, Store
from bringup.loops.schedule.rewrite import exprs_of, used_scalars
from bringup.records import record


@record(eq=False)
class Copies:
    """A body within ``unroll`` loops, whose copies need nothing of one another.

    nest: the loops, outermost first.
    vectors: the vector loop that is all the innermost of them holds, if there is one.
    axes: numbers of the loops on which a statement depends.  Copies that agree there are one, or
    fold into one element.
    """

    nest: tuple[For, ...]
    vectors: For | None
    body: tuple[Let | Load | Store, ...]
    axes: Mapping[Stmt, tuple[int, ...]]

    @property
    def is_plain(self) -> bool:
        """Whether one loop is written out, and no loop ends early."""
        return len(self.nest) == 1 and self.nest[0].end is None and not self.early()

    def is_transposed(self, stmt: Store) -> bool:
        """Whether copies of the innermost loop are better stored together, lane by lane."""
        if self.vectors is None or any(loop.end is not None for loop in self.nest) or self.early():
            return False
        return is_transposed(stmt, self.nest[-1].axis, self.vectors.axis)

    def points(self) -> Iterator[tuple[int, ...]]:
        """The iterations, but for ends that differ between them."""
        return product(*(range(_most(loop)) for loop in self.nest))

    def early(self) -> list[For]:
        """The loops whose ends differ between iterations, and a vector loop whose end does."""
        loops = [loop for loop in self.nest if loop.end is not None and not loop.end.is_const]
        if self.vectors is not None and self.vectors.end is not None:
            outer = {loop.axis for loop in self.nest}
            loops += [] if outer.isdisjoint(self.vectors.end.axes()) else [self.vectors]
        return loops


def _most(loop: For) -> int:
    if loop.end is not None and loop.end.is_const:
        return max(min(loop.axis.size, loop.end.const), 0)
    return loop.axis.size


@record(eq=False)
class Point:
    """A copy of loops that are written out.

    at: the iteration of each loop.  axes: the same as constants.  lanes: those of the vector loop
    within that exist; None for all.
    """

    at: tuple[int, ...]
    axes: Mapping[Axis, Val]
    lanes: Val | None


def equal(points: Sequence[Point], axes: Sequence[int]) -> list[list[int]]:
    """The numbers of the copies that agree in these loops."""
    if not axes:
        return [list(range(len(points)))] if points else []
    key = itemgetter(*axes)
    groups: dict[object, list[int]] = {}
    for number, point in enumerate(points):
        groups.setdefault(key(point.at), []).append(number)
    return list(groups.values())


def copies_of(loop: For) -> Copies | None:
    """The copies of a loop and of those that it holds alone; None if they must come in order.

    What one stores no other loads, because loads and stores are of different buffers.
    """
    nest: list[For] = []
    body: tuple[Stmt, ...] = (loop,)
    vectors: For | None = None
    while len(body) == 1 and isinstance(body[0], For) and vectors is None:
        inner = body[0]
        if inner.kind == "vector":
            vectors = inner
        elif inner.kind == "unroll":
            nest.append(inner)
        else:
            return None
        body = inner.body
    straight = tuple([stmt for stmt in body if isinstance(stmt, STRAIGHT)])
    if len(straight) < len(body):
        return None
    stores = [stmt.buffer.name for stmt in straight if isinstance(stmt, Store)]
    loads = {stmt.buffer.name for stmt in straight if isinstance(stmt, Load)}
    if len(set(stores)) < len(stores) or not loads.isdisjoint(stores):
        return None
    return Copies(tuple(nest), vectors, straight, _axes(nest, vectors, straight))


def _axes(
    nest: Sequence[For], vectors: For | None, body: Sequence[Let | Load | Store]
) -> dict[Stmt, tuple[int, ...]]:
    """The loops on which each statement depends; stores that are no plain folds count all."""
    numbers = {loop.axis: n for n, loop in enumerate(nest)}
    every = tuple(range(len(nest)))
    lane, ends = None, frozenset[int]()
    if vectors is not None and vectors.end is not None:
        lane = vectors.axis
        ends = frozenset(numbers[axis] for axis in vectors.end.axes() if axis in numbers)
    scalars: dict[str, frozenset[int]] = {}
    result: dict[Stmt, tuple[int, ...]] = {}
    for stmt in body:
        used = {axis for expr in exprs_of(stmt) for axis in expr.axes()}
        mine = frozenset([numbers[axis] for axis in used if axis in numbers])
        if not isinstance(stmt, Store):
            mine = mine.union(*(scalars.get(s.name, ()) for s in used_scalars(stmt)))
            mine |= ends if lane in used else frozenset()
            scalars[stmt.result.name] = mine
            result[stmt] = tuple(sorted(mine))
        else:
            is_plain = lane is None and _is_plain_fold(stmt)
            result[stmt] = tuple(sorted(mine)) if is_plain else every
    return result


def _is_plain_fold(stmt: Stmt) -> bool:
    return isinstance(stmt, Store) and bool(
        stmt.fold and stmt.factor is None and not stmt.operands and not stmt.mask
    )


__all__ = ["Copies", "Point", "copies_of", "equal"]
