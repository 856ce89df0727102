"""Registers combined among the members of a group: shuffles in a warp, a slot of shared memory for
each warp.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.kernel.form import Fold
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine
from bringup.llvm.simt_frame import SimtFrame
from bringup.llvm.simt_plan import Grouping
from bringup.llvm.simt_target import shuffled, stored_type
from bringup.llvm.text import Val, const


class Across:
    """Combines what the members of each group hold, so that each of them knows the whole.

    turn: 0 or 1 by turns of the block, to have slots of its own for each.  Where a turn combines
    twice, the second barrier tells that the first slots were read.
    """

    def __init__(self, frame: SimtFrame, grouping: Grouping, thread: Val) -> None:
        self.frame, self.g, self.thread = frame, grouping, thread
        self.b = frame.b
        self.turn: Val | None = None
        #: Threads that have one slot in common for each of their columns.
        self.run = max(frame.target.warp, grouping.columns)
        size = grouping.columns * grouping.members
        self.slots = size // self.run if size > self.run else 1

    def combine(self, name: str, folds: Sequence[Fold], values: Sequence[Val]) -> list[Val]:
        """The folds of one stage."""
        made = [self._in_warp(f, v) for f, v in zip(folds, values, strict=True)]
        if self.slots == 1 or not folds:
            return made
        arrays = [self._put(f"{name}f{n}", v) for n, v in enumerate(made)]
        self.frame.barrier()
        return [self._get(f, v, a) for f, v, a in zip(folds, made, arrays, strict=True)]

    def _in_warp(self, fold: Fold, value: Val) -> Val:
        g, offset = self.g, self.g.columns
        while offset < min(g.columns * g.members, self.frame.target.warp):
            other = shuffled(self.b, value, offset, self.frame.target)
            value = combine(self.b, fold.kind, fold.dtype, value, other)
            offset *= 2
        return value

    def _put(self, name: str, value: Val) -> Val:
        """Write one value for each warp and column."""
        b, f, g = self.b, self.frame, self.g
        kind = stored_type(value.type)
        count = self.slots * g.columns
        array = f.shared_array(name, kind, count * (1 if self.turn is None else 2))
        if self.turn is not None:
            mine = b.mul(self.turn, f.number(count))
            array = b.gep(array, b.zext(mine, ir.i64), kind)
        lane = b.and_(self.thread, f.number(self.run - 1))
        slot = b.lshr(self.thread, f.number(self.run.bit_length() - 1))
        place = b.add(b.mul(slot, f.number(g.columns)), lane)

        def write() -> None:
            kept = b.zext(value, ir.i8) if kind is not value.type else value
            b.store(kept, b.gep(array, b.zext(place, ir.i64), kind), _align(kind))

        if g.columns == self.run:
            write()
        else:
            with b.if_then(b.icmp("ult", lane, f.number(g.columns))):
                write()
        return array

    def _get(self, fold: Fold, like: Val, array: Val) -> Val:
        b, f, g = self.b, self.frame, self.g
        warp = f.target.warp
        if g.columns == 1 and self.slots <= warp:
            lane = b.and_(self.thread, f.number(self.slots - 1))
            value = self._read(array, lane, like)
            offset = 1
            while offset < self.slots:
                other = shuffled(b, value, offset, f.target)
                value = combine(b, fold.kind, fold.dtype, value, other)
                offset *= 2
            return value
        column = b.and_(self.thread, f.number(g.columns - 1))
        # One after another: all at once would take too many registers.
        total = self._read(array, column, like)
        for s in range(1, self.slots):
            other = self._read(array, b.add(column, f.number(s * g.columns)), like)
            total = combine(b, fold.kind, fold.dtype, total, other)
        return total

    def _read(self, array: Val, place: Val, like: Val) -> Val:
        b, kind = self.b, stored_type(like.type)
        value = b.load(kind, b.gep(array, b.zext(place, ir.i64), kind), _align(kind))
        return value if kind is like.type else b.icmp("ne", value, const(kind, 0))


def _align(kind: ir.Type) -> int:
    return min(16, kind.bits * kind.lanes // 8)


__all__ = ["Across"]
