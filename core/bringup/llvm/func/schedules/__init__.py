"""How a CPU runs the loops of a kernel, as steps that can be printed and edited.

The choices of lanes, columns and units are those of `bringup.llvm.loops.schedule`.  Each family of
kernels has a module.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.lazy import LazyTable
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops import lower_kernel
from bringup.loops.schedule import Schedule, Scheduled, Step

_FAMILIES = {"maps": "map", "rows": "row", "tiles": "tile"}
#: The steps of each family.  A program has few of them, so the modules of others are not imported.
STEPS: LazyTable[Callable[[Plan], list[Step]]] = LazyTable(
    {family: (f"{__name__}.{module}", f"{family}_steps") for module, family in _FAMILIES.items()}
)


def scheduled(plan: Plan) -> Scheduled:
    """The loops of a kernel as this CPU runs them."""
    return Scheduled.of(lower_kernel(plan.kernel), steps_of(plan))


def steps_of(plan: Plan) -> Schedule:
    """The steps that make the loops of a kernel what the plan says; none without any point."""
    if not plan.kernel.points:
        return Schedule()
    if plan.is_map:
        family = "map"
    else:
        family = "row" if plan.lane is None and plan.rows is None else "tile"
    return Schedule(tuple(STEPS[family](plan)))


__all__ = ["STEPS", "scheduled", "steps_of"]
