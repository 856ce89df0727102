"""Kernels with lanes along the last axis of every stage that loops: sums of rows, softmax."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph.index import Expr
from bringup.kernel.form import Stage
from bringup.llvm.func.schedules.parts import split_whole, sum_blocks
from bringup.llvm.loops.heuristics import SUMS, Chain
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops.schedule import Step


def row_steps(plan: Plan) -> list[Step]:
    """Lanes along the last axis of every stage that loops."""
    steps: list[Step] = []
    unroll: list[str] = []
    vectorize: list[str] = []
    registers = 0
    for number, stage in enumerate(plan.kernel.stages):
        first, registers = registers, registers + len(stage.folds)
        if stage.axes and stage.trips:
            row = Row(plan, number, stage)
            steps += row.steps(first)
            unroll += row.unroll
            vectorize += row.vectorize
    # One step for all stages, because each goes over the whole function.
    steps += [Step("unroll", tuple(unroll))] if unroll else []
    return [*steps, Step("vectorize", tuple(vectorize))] if vectorize else steps


class Row:
    """A stage whose lanes are along its last axis.

    A register tile is a number of columns, each a vector: additions that do not wait for another.

    tile: loops over points of the grid, innermost, that have accumulators of their own.
    chain: how many additions may wait for one another.
    around: a loop that is round all parts of the loop over the last axis.
    levels: for every axis its loop, or those of blocks of blocks, outermost first.  The last are of
    register tiles.
    unroll, vectorize: loops to run so, the first of them those of a register tile.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        stage: Stage,
        tile: Sequence[str] = (),
        chain: Chain = SUMS,
    ) -> None:
        self.stage, self.tile, self.chain = stage, tuple(tile), chain
        self.lanes = plan.lanes
        self.name = f"s{number}_{len(stage.axes) - 1}"
        self.size = stage.axes[-1].size
        self.columns = max(1, min(plan.columns, self.size // self.lanes))
        self.levels = [[f"s{number}_{n}"] for n in range(len(stage.axes))]
        self.around = ""
        self.unroll: list[str] = []
        self.vectorize: list[str] = []
        width = self.lanes * self.columns
        #: Whether the last axis, and there is no other, is whole register tiles.
        self.is_whole = (
            len(stage.axes) == 1
            and not self.tile
            and stage.end_of(stage.axes[-1]) is None
            and self.columns > 1
            and self.size % width == 0
        )
        self.has_rest = False

    def steps(self, first: int) -> list[Step]:
        """The loops, then the accumulators.  first: the number of the first register."""
        steps: list[Step] = []
        inner = self.name
        if len(self.levels) == 1 and self.stage.folds and not self.is_whole:
            self.around, inner = f"{self.name}.q", f"{self.name}.p"
            steps.append(Step("split", (self.name, self.around, inner, self.size)))
        end = self.stage.end_of(self.stage.axes[-1])
        if self.lanes == 1:
            self.levels[-1] = [inner]
        else:
            steps += self._vectors(inner) if end is None else self._until(inner, end)
        if self.stage.folds:
            steps += self._blocks()
            self.around = self.around or self.levels[0][0]
        for n, fold in enumerate(self.stage.folds):
            steps += self._accumulators(f"r{first + n}", fold.monoid.is_exact(fold.dtype))
        return steps

    def _vectors(self, inner: str) -> list[Step]:
        """Register tiles, vectors, and a masked vector."""
        vectors, tiles, lanes = f"{self.name}.k", f"{self.name}.b", f"{self.name}.v"
        self.vectorize.append(lanes)
        self.levels[-1] = [vectors]
        steps = [Step("split", (inner, vectors, lanes, self.lanes))]
        whole, left = divmod(self.size, self.lanes)
        if left and whole:
            steps.append(Step("peel", (vectors, 0, 1)))
        if self.columns > 1:
            self.unroll.append(f"{self.name}.c")
            self.levels[-1] = [tiles]
            steps.append(split_whole(vectors, tiles, self.unroll[0], self.columns))
            self.has_rest = bool(whole % self.columns or left)
        return steps

    def _until(self, inner: str, end: Expr) -> list[Step]:
        """Of an axis that ends early: register tiles, then masked vectors."""
        tiles, lanes, width = f"{self.name}.b", f"{self.name}.v", self.lanes * self.columns
        self.vectorize.append(lanes)
        self.levels[-1] = [tiles]
        whole = self.size - self.size % width
        steps: list[Step] = []
        if not whole:
            return [Step("split", (inner, tiles, lanes, self.lanes))]
        if whole < self.size:
            steps.append(Step("peel", (inner, whole, 0)))
            steps.append(self._masked(inner, "m"))
            inner = f"{inner}.first"
        if self.columns == 1:
            steps.append(split_whole(inner, tiles, lanes, width))
        else:
            self.unroll.append(f"{self.name}.c")
            steps.append(split_whole(inner, tiles, f"{self.name}.w", width))
            steps.append(split_whole(f"{self.name}.w", self.unroll[0], lanes, self.lanes))
        if end.first < whole and (end % width).last:
            steps.append(self._masked(f"{inner}.t", "r"))
        return steps

    def _masked(self, loop: str, letter: str) -> Step:
        """A loop that is shorter than a register tile, in masked vectors."""
        lanes = f"{self.name}.{letter}v"
        self.vectorize.append(lanes)
        return Step("split", (loop, f"{self.name}.{letter}", lanes, self.lanes))

    def _blocks(self) -> list[Step]:
        """Blocks of loops in which more additions would be made than rounding errors allow."""
        if all(fold.monoid.is_exact(fold.dtype) for fold in self.stage.folds):
            return []
        return sum_blocks(self.stage.axes, self.levels, self.chain, self.lanes * self.columns)

    def _accumulators(self, fold: str, is_exact: bool) -> list[Step]:
        """Lanes to fold into in place of one register, those of register tiles, and of blocks."""
        steps: list[Step] = []
        names: list[str] = []

        def divide(at: str, buffer: str, over: Sequence[str]) -> str:
            steps.append(Step("rfactor", (at, buffer, *over)))
            name = f"{buffer}.{at}"
            names.append(name)
            repeated = names.count(name) - 1
            return f"{name}_{repeated}" if repeated else name

        *outer, tiles = self.levels
        lanes = (*self.tile, *self.vectorize[:1])
        main = (*self.unroll, *lanes)
        first_loop = outer[0][0] if outer else tiles[0]
        # What is folded where: by the loops that choose the element.
        parts: dict[tuple[str, ...], str] = {}
        if self.is_whole:
            parts[main] = divide(first_loop, fold, main)
        else:
            parts = {
                (*self.tile, v): divide(self.around, fold, (*self.tile, v)) for v in self.vectorize
            }
            if self.unroll:
                parts[main] = divide(first_loop, parts[lanes], main)
            if self.unroll and not self.has_rest:
                del parts[lanes]
        parts = parts or {main: fold}
        if is_exact:
            return steps
        for block in (loop for loops in outer for loop in loops[1:]):
            # The smallest parts first, because those of register tiles add to the lanes.
            for over in reversed(parts):
                parts[over] = divide(block, parts[over], over)
        for block in tiles[1:]:
            parts[main] = divide(block, parts[main], main)
        return steps


__all__ = ["Row", "row_steps"]
