"""What the threads of a block fold together: each gets folds of the values of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup.dtypes import DType
from bringup.graph.index import Bound, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, below
from bringup.loops.library.calls import OpCall
from bringup.ops.monoids import MONOIDS
from bringup.records import record


@record(eq=False)
class BlockFold:
    """Folds by a monoid among the threads of a block, which are ``warps`` of ``warp`` lanes."""

    b: FuncBuilder
    kind: str
    dtype: DType
    warps: int
    warp: int

    def fold(self, x: Scalar, y: Scalar) -> Scalar:
        """Two values combined."""
        return self.b.op(self.kind, x, y)

    def neutral(self, *, is_result: bool = False) -> Scalar:
        """The fold of no element, which is neutral if it is no result."""
        monoid = MONOIDS[self.kind]
        value = (monoid.empty if is_result else monoid.neutral)(self.dtype.numpy)
        return self.b.constant(value, self.dtype)

    def across_lanes(self, value: Scalar, lane: Expr, lanes: int = 0) -> tuple[Scalar, Scalar]:
        """The fold of the values of lower lanes, and that of all of a group of lanes.

        A group of twice the lanes comes from two groups: the upper one is behind all of the lower.
        """
        b = self.b
        before, total = self.neutral(), value
        distance = 1
        while distance < (lanes or self.warp):
            other = b.shuffle(total, lane, distance)
            is_upper = b.inside(Bound(lane // distance % 2, 1, 2))
            behind = other if distance == 1 else self.fold(other, before)
            before = b.op("select", is_upper, behind, before)
            total = self.fold(total, other)
            distance *= 2
        return before, total

    def across_warps(
        self, value: Scalar, parts: Buffer, at: Expr, place: tuple[Expr, Expr]
    ) -> tuple[Scalar, Scalar]:
        """The fold of the values of lower warps, and that of all warps.

        parts: memory of the block, from ``at`` on.  place: the warp and the lane.
        """
        b, (warp, lane) = self.b, place
        b.store(parts, at + warp, value, mask=[below(lane, 1)])
        b.barrier()
        before = total = self.neutral()
        for n in range(self.warps):
            part = b.load(parts, at + n)
            is_lower = b.inside(Bound(warp, n + 1, self.warps + 1))
            behind = self.fold(before, part) if n else part
            before = b.op("select", is_lower, behind, before)
            total = self.fold(total, part) if n else part
        return before, total

    def across_block(
        self, value: Scalar, parts: Buffer, at: Expr, place: tuple[Expr, Expr]
    ) -> tuple[Scalar, Scalar]:
        """The fold of the values of lower threads, and that of all threads."""
        within, of_warp = self.across_lanes(value, place[1])
        before, total = self.across_warps(of_warp, parts, at, place)
        return self.fold(before, within), total


@contextmanager
def threads_of(
    b: FuncBuilder, call: OpCall, threads: int
) -> Iterator[tuple[Expr, tuple[Expr, Expr]]]:
    """The threads of a block: the number of each, and its warp and lane."""
    with (
        b.loop("w", threads // call.warp, "thread") as warp,
        b.loop("l", call.warp, "thread") as lane,
    ):
        yield warp * call.warp + lane, (warp, lane)


__all__ = ["BlockFold", "threads_of"]
