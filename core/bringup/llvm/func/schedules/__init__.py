"""How a CPU runs the loops of a kernel, as steps that can be printed and edited.

The choices of lanes, columns and units are those of `bringup.llvm.loops.schedule`.  Each family of
kernels has a module.
"""

from __future__ import annotations

from bringup.llvm.func.schedules.grid import grid_steps
from bringup.llvm.func.schedules.maps import map_steps
from bringup.llvm.func.schedules.rows import row_steps
from bringup.llvm.func.schedules.tiles import tile_steps
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops import lower_kernel
from bringup.loops.schedule import Schedule, Scheduled


def scheduled(plan: Plan) -> Scheduled:
    """The loops of a kernel as this CPU runs them."""
    return Scheduled.of(lower_kernel(plan.kernel), steps_of(plan))


def steps_of(plan: Plan) -> Schedule:
    """The steps that make the loops of a kernel what the plan says."""
    if plan.is_map:
        return Schedule(tuple(map_steps(plan)))
    if plan.rows is not None and not _is_double(plan):
        return Schedule(tuple(tile_steps(plan)))
    return Schedule(tuple(grid_steps(plan) if plan.lane is not None else row_steps(plan)))


def _is_double(plan: Plan) -> bool:
    """Whether a register tile has two rows that share no operand."""
    rows = plan.rows
    return plan.lane is not None and rows is not None and rows.count == plan.columns == 2


__all__ = ["scheduled", "steps_of"]
