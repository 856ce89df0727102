"""Kernels that fold into a register tile of points of the grid: products that are not packed."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.kernel.form import Stage
from bringup.llvm.func.schedules.rows import Row
from bringup.llvm.loops.schedule import TILED
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops.schedule import Step


def tile_steps(plan: Plan) -> list[Step]:
    """Units of a tile of the grid, whose points are the innermost loops of the one fold."""
    steps: list[Step] = []
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
    tile = [f"g{axis.id}.i" for axis in plan.kernel.grid if axis in sizes]
    steps.append(Step("reorder", (*units, *tile)))
    steps.append(Step("distribute", tuple(tile)))
    registers = 0
    for number, stage in enumerate(plan.kernel.stages):
        if stage.axes and stage.trips:
            steps += _fold(plan, number, stage, tile, registers)
        registers += len(stage.folds)
    if plan.lane is not None:
        width = tile[-1]
        steps.append(Step("split", (width, f"{width}.c", f"{width}.v", plan.lanes)))
        steps.append(Step("vectorize", (f"{width}.v",)))
    for axis, size in sizes.items():
        if axis.size > size and axis.size % size:
            at = f"g{axis.id}.o"
            steps.append(Step("specialize", (at, axis.size // size, units[-1])))
    return steps


def _fold(plan: Plan, number: int, stage: Stage, tile: Sequence[str], first: int) -> list[Step]:
    """The loops of the fold, with those of the tile inside them.

    first: the number of its first register.
    """
    steps: list[Step] = []
    loops: list[str] = []
    between = _scalars_between(stage)
    for depth in range(len(stage.axes)):
        loops.append(f"s{number}_{depth}")
        if depth + 1 in between or depth + 1 == len(stage.axes):
            steps.append(Step("reorder", (*loops, *tile)))
            loops.clear()
        if depth + 1 in between:
            steps.append(Step("distribute", tuple(tile)))
    row = Row(plan, number, stage, tile, TILED)
    steps += row.steps(first)
    if row.vectorize:
        steps.append(Step("vectorize", tuple(row.vectorize)))
    return steps


def _scalars_between(stage: Stage) -> set[int]:
    """The numbers of loops round scalars that do not depend on all loops of the stage."""
    depths: dict[object, int] = dict.fromkeys(stage.body.inputs, 0)
    found: set[int] = set()
    for instr in stage.body.instrs:
        exprs = [bound.expr for bound in instr.attrs.get("mask", ())]
        exprs += [instr.attrs["index"]] if instr.op.name in ("load", "index") else []
        axes = frozenset[object]().union(*(expr.axes() for expr in exprs))
        used = [depths[operand] for operand in instr.operands]
        used += [n + 1 for n, axis in enumerate(stage.axes) if axis in axes]
        depths[instr.result] = max(used, default=0)
        found.add(depths[instr.result])
    return {depth for depth in found if 0 < depth < len(stage.axes)}


__all__ = ["tile_steps"]
