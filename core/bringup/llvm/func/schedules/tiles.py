"""Kernels that fold into a register tile of points of the grid: sums of columns, small products."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm.func.schedules.parts import sum_blocks
from bringup.llvm.func.schedules.rows import Row
from bringup.llvm.loops.heuristics import SUMS, TILED
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops.schedule import Step


def tile_steps(plan: Plan) -> list[Step]:
    """Units of a tile of the grid, whose points are the innermost loops of the folds.

    The last tile of an axis has a body of its own, if it is smaller.
    """
    steps = [] if plan.lane is None else _accumulators(plan)
    sizes = {tile.axis: tile.count for tile in (plan.rows, plan.cross) if tile is not None}
    if plan.lane is not None and plan.lanes > 1:
        sizes[plan.lane] = plan.block
    units, nest = [], []
    loops = {}
    for axis in plan.kernel.grid:
        name = f"g{axis.id}"
        if axis.size > sizes.get(axis, axis.size):
            steps.append(Step("split", (name, f"{name}.o", f"{name}.i", sizes[axis])))
            units.append(f"{name}.o")
            nest.append(f"{name}.o")
            name = f"{name}.i"
        nest.append(name)
        loops[axis] = name
        if axis not in sizes:
            units.append(name)
    if not sizes:
        return steps
    if plan.rows is not None:
        # Tiles of rows are next to one another in time, because they share what they read.
        units.sort(key=f"g{plan.rows.axis.id}.o".__eq__)
    tile = [loops[axis] for axis in sizes]
    if [*units, *tile] != nest:
        steps.append(Step("reorder", (*units, *tile)))
    if plan.lane is None:
        steps.append(_distribute(tile))
        steps += _inner_lanes(plan, tile)
    else:
        steps += _grid_lanes(plan, tile)
    for axis, size in sizes.items():
        if axis.size > size and axis.size % size:
            steps.append(Step("specialize", (f"g{axis.id}.o", axis.size // size, units[-1])))
    return steps


def _accumulators(plan: Plan) -> list[Step]:
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


def _distribute(tile: Sequence[str]) -> Step:
    return Step("distribute", tuple(tile), (("to", "innermost"),))


def _grid_lanes(plan: Plan, tile: Sequence[str]) -> list[Step]:
    """The innermost loop of the tile as columns of lanes, all of which have accumulators."""
    *rows, width = tile
    steps: list[Step] = []
    vectors = [width]
    if plan.lane is not None and min(plan.lane.size, plan.block) != plan.lanes:
        vectors = [f"{width}.c", f"{width}.v"]
        steps.append(Step("split", (width, *vectors, plan.lanes)))
    steps += [_distribute([*rows, *vectors]), Step("vectorize", (vectors[-1],))]
    if not any(stage.folds for stage in plan.kernel.stages):
        # Loops that count accumulators are unrolled already.
        steps += [Step("unroll", (loop,)) for loop in (*rows, *vectors[:-1])]
    return steps


def _inner_lanes(plan: Plan, tile: Sequence[str]) -> list[Step]:
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
