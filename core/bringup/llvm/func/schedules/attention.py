"""Attention of the op library: lanes along queries, and register tiles of both products."""

from __future__ import annotations

from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Func
from bringup.loops.schedule import Schedule, Step
from bringup.loops.schedule.rewrite import loops_of
from bringup.target import Target

#: Lanes of squares that are transposed once: LLVM compiles larger ones slowly.
_SQUARE = 8


def attention_steps(func: Func, target: Target) -> Schedule:
    """The steps for loops of `bringup.loops.library.attention`, if there are keys."""
    steps = _Steps(func, target)
    return Schedule(tuple(steps.run()) if "top.i" in steps.sizes else ())


class _Steps:
    """sizes: of the loops.  lanes: of a vector.  sums: vectors that a register tile may have."""

    def __init__(self, func: Func, target: Target) -> None:
        self.sizes = {loop.name: loop.axis.size for loop in loops_of(func.body)}
        bits = max(32, *(p.buffer.dtype.bits for p in func.params))
        self.lanes = target.lanes(bits)
        self.sums = target.registers * 3 // 4
        self.steps: list[Step] = []
        self.copies: list[str] = []
        self.vectors: list[str] = []

    def add(self, name: str, *args: str | int, **options: str) -> None:
        """One step more."""
        self.steps.append(Step(name, args, tuple(options.items())))

    def run(self) -> list[Step]:
        """All steps."""
        for name in ("start.i", "sums.i", "keys.d", "values.d", "y.w"):
            self.along(name)
        if "row.w" in self.sizes:
            self.lanes_of_queries()
        else:
            self.lanes_within_queries()
        if self.copies:
            self.add("unroll", *self.copies)
        self.add("vectorize", *self.vectors)
        return self.steps

    def along(self, loop: str) -> None:
        """Vectors along a loop, the last of which may be masked."""
        size, blocks, lanes = self.sizes.get(loop, 0), f"{loop}.c", f"{loop}.v"
        if not size:
            return
        self.add("split", loop, blocks, lanes, self.lanes)
        if size % self.lanes and size > self.lanes:
            self.add("peel", blocks, 0, 1)
        self.vectors.append(lanes)

    # -- lanes along the queries of a panel --------------------------------------------------------

    def lanes_of_queries(self) -> None:
        """What is contiguous along other loops is transposed."""
        self.square("query.d", "query.i")
        if "bias.i" in self.sizes:
            self.square("bias.n", "bias.i", self.sizes["bias.n"])
        for name in ("top.i", "factors.i", "total.i"):
            self.along(name)
        self.tile("s.n", "s.i")
        self.tile("o.w", "o.i")
        self.square("row.i", "row.w")

    def square(self, across: str, along: str, most: int = _SQUARE) -> None:
        """Vectors along one loop, copies along the other: squares that are transposed."""
        if across not in self.sizes:
            return
        size = min(self.lanes, most)
        for loop, inner in ((across, "u"), (along, "v")):
            self.add("split", loop, f"{loop}.o", f"{loop}.{inner}", size)
        self.add("reorder", f"{along}.o", f"{across}.o", f"{across}.u", f"{along}.v")
        self.copies.append(f"{across}.u")
        self.vectors.append(f"{along}.v")

    def tile(self, rows: str, columns: str) -> None:
        """A register tile, which has all queries of a panel."""
        size, vectors = self.sizes[rows], self.sizes[columns] // self.lanes
        each = _even(size, min(size, max(1, self.sums // vectors)))
        self.add("split", columns, f"{columns}.c", f"{columns}.v", self.lanes)
        self.add("split", rows, f"{rows}.o", f"{rows}.r", each, tail="peel")
        for part in ("r", "t") if size % each else ("r",):
            self.add("distribute", f"{rows}.{part}", f"{columns}.c", f"{columns}.v", to="innermost")
        self.vectors.append(f"{columns}.v")

    # -- lanes along depth, keys and values --------------------------------------------------------

    def lanes_within_queries(self) -> None:
        """A register tile has all queries."""
        queries = self.sizes["top.i"]
        self.along("query.d")
        self.along("factors.i")
        if "s.d" in self.sizes:
            self.add("split", "s.d", "s.d.b", "s.d.v", self.lanes)
            self.add("distribute", "s.i", to="innermost")
            self.add("reorder", "s.d.b", "s.i", "s.d.v")
            self.add("rfactor", "s.d.b", "score", "s.i", "s.d.v")
            self.vectors.append("s.d.v")
        for name in ("top", "total"):
            self.add("split", f"{name}.n", f"{name}.n.b", f"{name}.n.v", self.lanes)
            self.add("distribute", f"{name}.i", to="innermost")
            self.add("reorder", f"{name}.n.b", f"{name}.i", f"{name}.n.v")
            self.add("rfactor", f"{name}.n.b", name, f"{name}.i", f"{name}.n.v")
            self.vectors.append(f"{name}.n.v")
        vectors = ceil_div(self.sizes["o.w"], self.lanes)
        columns = min(max(1, ceil_power_of_two(self.sums // queries + 1) // 2), vectors)
        self.add("split", "o.w", "o.w.b", "o.w.v", self.lanes)
        self.add("split", "o.w.b", "o.w.o", "o.w.c", columns, tail="peel")
        for part in ("o.w.c", "o.w.b.t") if vectors % columns else ("o.w.c",):
            self.add("reorder", "o.i", part, "o.w.v")
            self.add("distribute", "o.i", part, "o.w.v", to="innermost")
        self.vectors.append("o.w.v")


def _even(size: int, most: int) -> int:
    """The rows of register tiles: all alike, if each has two thirds of the most or more."""
    even = (n for n in range(most, most * 2 // 3 - 1, -1) if size % n == 0)
    return next(even, most)


__all__ = ["attention_steps"]
