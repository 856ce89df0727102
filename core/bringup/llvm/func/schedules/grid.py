"""Kernels with lanes along the grid: sums over leading axes, norms of columns."""

from __future__ import annotations

from bringup.llvm.func.schedules.parts import split_whole, sum_blocks
from bringup.llvm.loops.schedule import SUMS, TILED
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops.schedule import Step


def grid_steps(plan: Plan) -> list[Step]:
    """Units of a register tile of grid points, whose loops run for all points of it at once."""
    return [*block_accumulators(plan), *_Lanes(plan).steps()]


def block_accumulators(plan: Plan) -> list[Step]:
    """Blocks of long sums, each with an accumulator of its own."""
    steps: list[Step] = []
    chain = SUMS if plan.rows is None else TILED
    register = 0
    for number, stage in enumerate(plan.kernel.stages):
        folds = {f"r{register + n}": fold for n, fold in enumerate(stage.folds)}
        register += len(folds)
        sums = [r for r, fold in folds.items() if not fold.monoid.is_exact(fold.dtype)]
        if not sums or not stage.trips:
            continue
        levels = [[f"s{number}_{n}"] for n in range(len(stage.axes))]
        steps += sum_blocks(stage.axes, levels, chain)
        for block in (loop for loops in levels for loop in loops[1:]):
            steps += [Step("rfactor", (block, buffer)) for buffer in sums]
            sums = [f"{buffer}.{block}" for buffer in sums]
    return steps


class _Lanes:
    """The loops of a register tile: rows of columns of lanes.

    tiles: the loops of each kind of tile, from the outermost to the lanes.  The last unit of an
    axis has a smaller tile, if its length is no multiple.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.lane is not None
        self.plan, self.lane = plan, plan.lane
        self.name = f"g{plan.lane.id}"
        self.tiles: list[list[str]] = []
        self.rows: list[str] = []

    def steps(self) -> list[Step]:
        """The loops, in vectors, inside of those of the stages."""
        if self.plan.lanes == 1:
            return []
        width, whole = self.plan.block, self.name
        steps: list[Step] = []
        units = width < self.lane.size
        if units:
            whole = f"{self.name}.i"
            steps.append(Step("split", (self.name, f"{self.name}.o", whole, width)))
        steps += self._rows(whole, has_units=units)
        left = self.lane.size % width
        if units and left:
            steps.append(split_whole(whole, f"{self.name}.b", f"{self.name}.w", width))
        if units:
            steps += self._columns(f"{self.name}.w" if left else whole, width, "cv")
        if left:
            steps += self._columns(f"{whole}.t" if units else whole, left, "ru")
        elif not units:
            steps += self._columns(whole, width, "cv")
        return steps + self._kinds()

    def _rows(self, whole: str, *, has_units: bool) -> list[Step]:
        """Two points of another axis, inside of the loop over the lane axis."""
        rows = self.plan.rows
        if rows is None:
            return []
        outer, row = f"g{rows.axis.id}.o", f"g{rows.axis.id}.d"
        self.rows = [row]
        nest = [f"g{a.id}" for a in self.plan.kernel.grid if a not in (rows.axis, self.lane)]
        nest += [f"{self.name}.o"] if has_units else []
        split = Step("split", (f"g{rows.axis.id}", outer, row, rows.count))
        return [split, Step("reorder", (*nest, outer, whole, row))]

    def _columns(self, whole: str, size: int, letters: str) -> list[Step]:
        """A loop in vectors.  letters: what the loops over vectors and over lanes are called."""
        lanes = self.plan.lanes
        steps: list[Step] = []
        if size == lanes:
            tile = [whole]
        else:
            tile = [f"{self.name}.{letter}" for letter in letters]
            steps.append(Step("split", (whole, *tile, lanes)))
        if self.rows:
            steps.append(Step("reorder", (*self.rows, *tile)))
        self.tiles.append([*self.rows, *tile])
        return steps

    def _kinds(self) -> list[Step]:
        """Lanes and registers, then the loops of stages round them."""
        steps = [Step("distribute", tuple(tile), (("to", "innermost"),)) for tile in self.tiles]
        steps.append(Step("vectorize", tuple(tile[-1] for tile in self.tiles)))
        unroll = dict.fromkeys(loop for tile in self.tiles for loop in tile[:-1])
        if unroll and not any(stage.folds for stage in self.plan.kernel.stages):
            # Loops over registers are unrolled already.
            steps.append(Step("unroll", tuple(unroll)))
        return steps


__all__ = ["block_accumulators", "grid_steps"]
