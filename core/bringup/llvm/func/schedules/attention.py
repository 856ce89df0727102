"""Attention of the op library: lanes along queries, and register tiles of both products."""

from __future__ import annotations

from bringup.llvm.loops.schedule import LoopTarget
from bringup.loops.form import Func
from bringup.loops.schedule import Schedule, Step
from bringup.loops.schedule.rewrite import loops_of


def attention_steps(func: Func, target: LoopTarget) -> Schedule:
    """The steps for loops of `bringup.loops.library.attention`."""
    return Schedule(tuple(_Steps(func, target).run()))


class _Steps:
    """sizes: of the loops.  lanes, columns: of a panel of queries.  rows: of a register tile."""

    def __init__(self, func: Func, target: LoopTarget) -> None:
        self.sizes = {loop.name: loop.axis.size for loop in loops_of(func.body)}
        bits = max(32, *(p.buffer.dtype.bits for p in func.params))
        width = self.sizes["i"]
        self.lanes = min(target.vector_bits // bits, width)
        self.columns = width // self.lanes
        self.rows = target.registers * 3 // 4 // self.columns
        self.steps: list[Step] = []
        self.copies: list[str] = []
        self.vectors: list[str] = []

    def add(self, name: str, *args: str | int, **options: str) -> None:
        """One step more."""
        self.steps.append(Step(name, args, tuple(options.items())))

    def run(self) -> list[Step]:
        """All steps."""
        self.square("query.i", "query.d")
        self.add("reorder", "query.i.o", "query.d.o", "query.i.u", "query.d.v")
        for name in ("keys.d", "values.d", "y.w"):
            if name in self.sizes:
                self.along(name)
        for name in ("start.i", "i"):
            self.along(name)
        self.tile("s")
        self.tile("o")
        self.square("row.w", "row.i")
        self.add("reorder", "row.w.o", "row.i.o", "row.w.u", "row.i.v")
        self.add("unroll", *self.copies)
        self.add("vectorize", *self.vectors)
        return self.steps

    def along(self, loop: str) -> None:
        """Vectors along a loop, the last of which may be masked."""
        blocks, lanes = f"{loop}.c", f"{loop}.v"
        self.add("split", loop, blocks, lanes, self.lanes)
        if self.sizes[loop] % self.lanes and self.sizes[loop] > self.lanes:
            self.add("peel", blocks, 0, 1)
        self.vectors.append(lanes)

    def square(self, across: str, along: str) -> None:
        """Vectors along one loop, copies along the other: squares that are transposed."""
        self.add("split", across, f"{across}.o", f"{across}.u", self.lanes, tail="peel")
        self.add("split", along, f"{along}.o", f"{along}.v", self.lanes)
        self.copies.append(f"{across}.u")
        self.vectors.append(f"{along}.v")

    def tile(self, name: str) -> None:
        """A register tile of rows by the queries of a panel."""
        row = "s.n" if name == "s" else "o.w"
        self.add("split", f"{name}.i", f"{name}.i.c", f"{name}.i.v", self.lanes)
        rows = _even(self.sizes[row], self.rows)
        self.add("split", row, f"{row}.o", f"{row}.r", rows, tail="peel")
        self.add("distribute", f"{row}.r", f"{name}.i.c", f"{name}.i.v", to="innermost")
        if self.sizes[row] % rows:
            self.add("distribute", f"{row}.t", f"{name}.i.c", f"{name}.i.v", to="innermost")
        self.vectors.append(f"{name}.i.v")


def _even(size: int, most: int) -> int:
    """The rows of register tiles: all alike, if such tiles are at least two thirds of the largest."""
    even = (n for n in range(most, most * 2 // 3 - 1, -1) if size % n == 0)
    return next(even, most)


__all__ = ["attention_steps"]
