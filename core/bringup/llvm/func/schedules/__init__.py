"""How a CPU runs the loops of a kernel, as steps that can be printed and edited.

The choices of lanes, columns and units are those of `bringup.llvm.loops.schedule`.  Each family of
kernels has a module.
"""

from __future__ import annotations

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
    is_tile = plan.lane is not None or plan.rows is not None
    return Schedule(tuple(tile_steps(plan) if is_tile else row_steps(plan)))


__all__ = ["scheduled", "steps_of"]
