"""How a CPU runs the loops of a kernel, as steps that can be printed and edited.

The choices of lanes, columns and units are those of `bringup.llvm.loops.schedule`.  Each family of
kernels has a module.
"""

from __future__ import annotations

from bringup.llvm.func.schedules.maps import map_steps
from bringup.llvm.func.schedules.rows import row_steps
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops import lower_kernel
from bringup.loops.schedule import Schedule, Scheduled


def has_steps(plan: Plan) -> bool:
    """Whether steps say what a plan does: not yet of folds with lanes or tiles along the grid."""
    return plan.is_map or (plan.lane is None and plan.rows is None)


def scheduled(plan: Plan) -> Scheduled:
    """The loops of a kernel as this CPU runs them."""
    return Scheduled.of(lower_kernel(plan.kernel), steps_of(plan))


def steps_of(plan: Plan) -> Schedule:
    """The steps that make the loops of a kernel what the plan says."""
    return Schedule(tuple(map_steps(plan) if plan.is_map else row_steps(plan)))


__all__ = ["has_steps", "scheduled", "steps_of"]
