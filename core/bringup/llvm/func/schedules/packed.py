"""Contractions by packed panels: blocks that stay in a core's cache, tiles that stay in registers.

A unit is a block of rows by a block of columns.  For each block of inner indices both factors are
computed first, in panels: the columns of the unit, then its rows, one band at a time that fits a
core's cache.  Each tile of sums is in registers while the inner indices run, and in scratch memory
until the last block of them; the epilogue runs on each tile as soon as its sums are complete, while
they are in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.dtypes import i16
from bringup.integers import ceil_power_of_two
from bringup.kernel.contraction import Contraction, Factor, Panel, panel, recognise, size
from bringup.kernel.form import Kernel, Stage
from bringup.llvm.loops.blocking import Blocking, blocking, panels
from bringup.llvm.loops.heuristics import PRODUCTS
from bringup.llvm.loops.schedule import score
from bringup.loops.form import Let, Scalar, Store, statements
from bringup.loops.lower import lower_kernel
from bringup.loops.schedule import Schedule, Scheduled, Step
from bringup.loops.schedule.rewrite import loops_of
from bringup.target import Target


def packed_plan(kernel: Kernel, target: Target) -> tuple[Contraction, Blocking] | None:
    """How to block ``kernel`` if it is a contraction for which packing pays."""
    contraction = recognise(kernel)
    if contraction is None:
        return None
    other = replace(contraction, left=contraction.right, right=contraction.left)
    if panels(contraction, target) is None and panels(other, target) is not None:
        # Panels in memory are worth stores that are not contiguous.
        contraction = other
    plan = blocking(contraction, target)
    return None if plan is None else (contraction, plan)


def scheduled_packed(contraction: Contraction, plan: Blocking) -> Scheduled:
    """The loops of a contraction as this CPU runs them."""
    packed = _Packed(contraction, plan)
    before = packed.func
    packed.run()
    return Scheduled(before, Schedule(tuple(packed.steps)), packed.func)


class _Packed:
    """The steps of one contraction, each applied as soon as it is chosen.

    The loops over rows are ``r.u`` over units, ``r.b`` over bands, ``r.t`` over tiles and ``r.i``
    within a tile; those over columns are ``c.u``, ``c.t`` and ``c.i``; those over inner indices are
    ``k.o`` over blocks and ``k.i``.  A loop that would have one iteration is left out.

    copies, vectors: the loops that are unrolled and vectorized at last.
    """

    def __init__(self, contraction: Contraction, plan: Blocking) -> None:
        self.contraction, self.plan = contraction, plan
        self.func = lower_kernel(contraction.kernel)
        self.left, self.right = self.factors()
        self.rows = size(contraction.left.axes)
        self.columns = size(contraction.right.axes)
        stage = contraction.kernel.stages[0]
        names = {axis: f"s0_{n}" for n, axis in enumerate(stage.axes)}
        self.inner = [names[axis] for axis in plan.cut.axes]
        cut = plan.cut
        #: Whether the last block of inner indices is shorter.
        self.is_ragged = cut.axes[cut.level].size % cut.piece > 0
        self.steps: list[Step] = []
        self.vectors: list[str] = []
        self.copies: list[str] = []

    def add(self, name: str, *args: str | int, **options: str) -> None:
        """Apply a step."""
        step = Step(name, args, tuple(options.items()))
        self.func = step(self.func)
        self.steps.append(step)

    def factors(self) -> tuple[str, str]:
        """The scalars that are multiplied: of rows, and of columns."""
        body = list(statements(self.func.body))
        fold = next(s for s in body if isinstance(s, Store) and s.fold)
        scalars = [fold.value, fold.factor]
        if fold.factor is None:
            product = next(s for s in body if isinstance(s, Let) and s.result == fold.value)
            scalars = list(product.operands)
        instr = self.contraction.kernel.stages[0].body.outputs[0].producer
        assert instr is not None
        named = dict(zip(instr.operands, map(str, scalars), strict=False))
        return named[self.contraction.left.value], named[self.contraction.right.value]

    def run(self) -> None:
        """Choose and apply all steps."""
        tile, cut = self.plan.tile, self.plan.cut
        self.grid()
        if self.rows % tile.rows or self.columns % tile.columns:
            self.add("pad", "r.i", "c.i")
        blocks = self.blocks() if cut.blocks > 1 else []
        inner = self.inner
        if blocks:
            inner = self.inner[cut.level :]
        if cut.pieces > 1:
            inner = ["k.i", *self.inner[cut.level + 1 :]]
        if tile.pair:
            self.pairs(inner)
            inner = ["k.p"]
        self.pack(blocks, inner)
        if tile.pair:
            self.product_of_pairs()
        else:
            self.product(self.fused(inner, "k"))
        self.add("unroll", *self.copies)
        self.add("vectorize", *self.vectors)

    # -- loops -------------------------------------------------------------------------------------

    def grid(self) -> None:
        """Units, bands and tiles, and in a tile first the inner indices."""
        plan, tile = self.plan, self.plan.tile
        batch = [f"g{axis.id}" for axis in self.contraction.batch]
        rows, columns = (
            [f"g{axis.id}" for axis in side.axes]
            for side in (self.contraction.left, self.contraction.right)
        )
        grid = [f"g{axis.id}" for axis in self.contraction.kernel.grid]
        if grid != [*batch, *rows, *columns]:
            self.add("reorder", *batch, *rows, *columns)
        row = self.fused(rows, "r")
        column = self.fused(columns, "c")
        downs = [("u", plan.rows), ("b", plan.band), ("t", tile.rows)]
        self.down = self.parts(row, "r", self.rows, downs)
        self.across = self.parts(
            column, "c", self.columns, [("u", plan.columns), ("t", tile.columns)]
        )
        self.units = [name for name in ("c.u", "r.u") if name in (*self.down, *self.across)]
        self.bands = [name for name in self.down if name == "r.b"]
        self.around = batch[-1] if batch else "."
        inside = [*self.bands, "c.t", "r.t"]
        self.add("reorder", *self.units, *inside, "r.i", "c.i")
        self.add("serialize", *inside)
        self.add("distribute", "r.i", "c.i", space="scratch", scalars="repeat")
        self.add("reorder", *self.inner, "r.i", "c.i")

    def fused(self, loops: Sequence[str], name: str) -> str:
        """One loop over all of some nested ones; its name."""
        whole = loops[0]
        for number, loop in enumerate(loops[1:], 2):
            outer, whole = whole, name if number == len(loops) else f"{name}{number}"
            self.add("fuse", outer, loop, whole)
        return whole

    def parts(
        self, loop: str, name: str, count: int, sizes: Sequence[tuple[str, int]]
    ) -> list[str]:
        """Split a loop into parts of parts; the names of the loops over parts."""
        result: list[str] = []
        for number, (letter, each) in enumerate(sizes):
            is_last = number == len(sizes) - 1
            if each < count or is_last:
                rest = f"{name}.i" if is_last else f"{name}.{letter}x"
                self.add("split", loop, f"{name}.{letter}", rest, each)
                result.append(f"{name}.{letter}")
                loop, count = rest, each
        return result

    def blocks(self) -> list[str]:
        """Blocks of inner indices round all tiles; the loops over them."""
        cut = self.plan.cut
        blocks = self.inner[: cut.level]
        if cut.pieces > 1:
            self.add("split", self.inner[cut.level], "k.o", "k.i", cut.piece)
            blocks = [*blocks, "k.o"]
        for block in blocks:
            self.add("sink", block)
        self.add("reorder", *blocks, *self.bands, "c.t", "r.t")
        return blocks

    def pairs(self, inner: Sequence[str]) -> None:
        """Neighbours along the inner axis as pairs of i16, the last of which may have a zero."""
        cut = self.plan.cut
        self.add("split", self.fused(inner, "k"), "k.p", "k.q", 2)
        left_over = cut.axes[cut.level].size % cut.piece * cut.tail
        if cut.depth % 2 or left_over % 2:
            self.add("pad", "k.q")
        self.left, self.right = map(self.narrowed, (self.left, self.right))

    def narrowed(self, scalar: str) -> str:
        """The scalar of 16 bits that a factor is converted from."""
        before = self.converted(scalar)
        if before.dtype is not i16:
            self.add("narrow", scalar, "i16")
            before = self.converted(scalar)
        return str(before)

    def converted(self, scalar: str) -> Scalar:
        """What a scalar is converted from."""
        found = (s for s in statements(self.func.body) if isinstance(s, Let))
        return next(let.operands[0] for let in found if str(let.result) == scalar)

    # -- panels ------------------------------------------------------------------------------------

    def pack(self, blocks: Sequence[str], inner: Sequence[str]) -> None:
        """Both factors in panels."""
        unit = {name: name if name in self.units else self.around for name in ("c.u", "r.u")}
        at = blocks[-1] if blocks else ""
        band = self.bands[0] if self.bands else at
        pair = ["k.q"] if self.plan.tile.pair else []
        left = ",".join(["r.t", *inner, "r.i", *pair])
        self.add("precompute", self.left, band or unit["r.u"], "left", left)
        if self.plan.ready is None:
            right = ",".join(["c.t", *inner, "c.i", *pair])
            self.add("precompute", self.right, at or unit["c.u"], "right", right)
        self.fill("left", self.contraction.left, self.plan.tile.rows, inner)
        if self.plan.ready is None:
            self.fill("right", self.contraction.right, self.plan.tile.columns, inner)

    def fill(self, name: str, factor: Factor, width: int, inner: Sequence[str]) -> None:
        """How a panel is filled: with vectors along it, or along memory, which are transposed."""
        lanes = self.plan.tile.lanes
        alone = panel(self.contraction, factor)
        loops = [f"{name}.{n + 1}" for n in range(len(inner))]
        last = f"{name}.{len(inner) + 1}"
        if len(alone.inner) == 1:
            loops = [self.fused(loops, f"{name}.k")]
        pair = [f"{name}.3"] if self.plan.tile.pair else []
        stage = Stage((), alone.body, ())
        across, along = alone.axes[-1], alone.inner[-1]
        by_panel, by_inner = (score((stage,), axis, lanes) for axis in (across, along))
        if max(by_panel, by_inner) <= 0 and across.size < lanes:
            return
        if by_panel >= by_inner or max(by_panel, by_inner) <= 0:
            self.along_panel(name, loops, [*pair, last], width, alone)
        else:
            (count,) = {
                loop.axis.size for loop in loops_of(self.func.body) if loop.name == loops[-1]
            }
            self.across_panel(name, loops, [last, *pair], min(lanes, ceil_power_of_two(count)))

    def along_panel(
        self, name: str, loops: Sequence[str], within: Sequence[str], width: int, alone: Panel
    ) -> None:
        """Vectors along a panel, a few inner indices of every panel at a time.

        within: the loop over a pair, if there are any, and that over the width.
        """
        lanes = self.plan.tile.lanes
        first, *others = loops
        *pair, last = within
        has_rows = len(alone.axes) > 1
        row = alone.axes[-1].size
        fits = lanes % row == 0 and width % row == 0
        if has_rows and fits:
            # A vector for each short row needs no masks.
            lanes = row
        most = PRODUCTS.patches_at_once if has_rows else PRODUCTS.rows_at_once
        step = max(1, most // (2 if pair else size(alone.inner[1:])))
        if self.is_ragged and not pair:
            step = next(n for n in range(step, 0, -1) if self.plan.cut.piece % n == 0)
        self.add("split", first, f"{name}.o", f"{name}.w", step)
        order = [f"{name}.w", *others]
        vectors: list[str] = []
        if width > lanes:
            self.add("split", last, f"{name}.v", f"{name}.l", lanes)
            last, vectors = f"{name}.l", [f"{name}.v"]
        self.copies += pair
        self.vectors.append(last)
        if has_rows:
            # The masks of a vector are computed once for copies of the last inner loops.
            self.copies += [
                loop
                for n, loop in enumerate(others, 1)
                if size(self.plan.cut.axes[self.plan.cut.level :][n:]) <= PRODUCTS.unrolled
            ]
            self.add("reorder", f"{name}.o", f"{name}.0", *vectors, *order, *pair, last)
            if not fits:
                self.add("segment", last, f"{name}.s", order[0])
        else:
            self.copies += vectors
            self.add("reorder", f"{name}.o", f"{name}.0", *order, *vectors, *pair, last)

    def across_panel(
        self, name: str, loops: Sequence[str], within: Sequence[str], lanes: int
    ) -> None:
        """Vectors along the last inner axis.

        within: the loop over the width, and that over a pair, if there are any.
        """
        *outer, along = loops
        last, *pair = within
        if self.is_ragged and not outer and not pair and self.plan.cut.depth % lanes:
            self.add("pad", along)
        vector = f"{name}.l"
        self.add("split", along, f"{name}.s", vector, lanes)
        self.add("reorder", f"{name}.0", *outer, f"{name}.s", last, vector, *pair)
        if pair:
            self.add("fuse", vector, *pair, f"{name}.q")
            vector = f"{name}.q"
        self.copies.append(last)
        self.vectors.append(vector)

    # -- sums --------------------------------------------------------------------------------------

    def product(self, loop: str) -> None:
        """A tile of sums in registers, and a row of columns."""
        self.add("hoist", "c.i")
        self.add("split", "c.i", "c.v", "c.l", self.plan.tile.lanes)
        self.add("precompute", self.right, loop, "row", "c.v,c.l", space="register")
        self.copies.append("row.0")
        self.vectors.append("row.1")
        self.sums(loop)

    def product_of_pairs(self) -> None:
        """The same where a vector has pairs, whose products are added up."""
        self.add("reorder", "k.p", "r.i", "c.i", "k.q")
        self.add("hoist", "k.q", "c.i")
        self.add("split", "c.i", "c.v", "c.l", self.plan.tile.lanes)
        if self.plan.ready is not None:
            self.add("precompute", self.right, "k.p", "row", "c.v,c.l,k.q", space="register")
            self.add("reorder", "row.0", "row.2", "row.1")
            self.copies += ["row.0", "row.2"]
            self.vectors.append("row.1")
        self.sums("k.p")
        self.add("unroll", "k.q")
        self.add("fuse", "c.l", "k.q", "c.q")
        self.vectors.append("c.q")

    def sums(self, loop: str) -> None:
        """Sums in registers along a loop over inner indices."""
        self.add("rfactor", loop, "r0", "r.i", "c.v", "c.l")
        if self.plan.cut.blocks == 1:
            self.add("overwrite", "r0")
        if len(self.contraction.right.axes) > 1:
            self.add("segment", "c.l", "c.s")
        self.copies.append("c.v")
        self.vectors.append("c.l")


__all__ = ["packed_plan", "scheduled_packed"]
