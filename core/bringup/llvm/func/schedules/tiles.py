"""Kernels that fold into a register tile of points of the grid: products that are not packed."""

from __future__ import annotations

from bringup.llvm.func.schedules.grid import block_accumulators
from bringup.llvm.func.schedules.rows import Row
from bringup.llvm.loops.schedule import TILED
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops.schedule import Step


def tile_steps(plan: Plan) -> list[Step]:
    """Units of a tile of the grid, whose points are the innermost loops of the one fold.

    The last tile of an axis has a body of its own, if it is smaller.
    """
    steps = [] if plan.lane is None else block_accumulators(plan)
    sizes = {tile.axis: tile.count for tile in (plan.rows, plan.cross) if tile is not None}
    if plan.lane is not None:
        sizes[plan.lane] = plan.block
    units: list[str] = []
    for axis in plan.kernel.grid:
        name = f"g{axis.id}"
        if axis in sizes:
            steps.append(Step("split", (name, f"{name}.o", f"{name}.i", sizes[axis])))
            name = f"{name}.o"
        units.append(name)
    if plan.rows is not None:
        # Tiles of rows are next to one another in time, because they share what they read.
        units.sort(key=f"g{plan.rows.axis.id}.o".__eq__)
    tile = [f"g{axis.id}.i" for axis in sizes]
    steps.append(Step("reorder", (*units, *tile)))
    steps.append(Step("distribute", tuple(tile), (("to", "innermost"),)))
    steps += _inner_lanes(plan, tile) if plan.lane is None else _grid_lanes(plan, tile[-1])
    for axis, size in sizes.items():
        if axis.size > size and axis.size % size:
            at = f"g{axis.id}.o"
            steps.append(Step("specialize", (at, axis.size // size, units[-1])))
    return steps


def _grid_lanes(plan: Plan, width: str) -> list[Step]:
    """The innermost loop of the tile as columns of lanes, all of which have accumulators."""
    column, lanes = f"{width}.c", f"{width}.v"
    steps = [Step("split", (width, column, lanes, plan.lanes))]
    folds = any(stage.axes and stage.trips for stage in plan.kernel.stages)
    if folds and plan.lane is not None and plan.lane.size % plan.lanes:
        steps.append(Step("pad", (lanes,)))
    return [*steps, Step("vectorize", (lanes,))]


def _inner_lanes(plan: Plan, tile: list[str]) -> list[Step]:
    """Lanes along the last axis of the fold, with accumulators for each point of the tile."""
    steps: list[Step] = []
    registers = 0
    for number, stage in enumerate(plan.kernel.stages):
        if stage.axes and stage.trips:
            row = Row(plan, number, stage, tile, TILED)
            steps += row.steps(registers)
            steps.append(Step("vectorize", tuple(row.vectorize)))
        registers += len(stage.folds)
    return steps


__all__ = ["tile_steps"]
