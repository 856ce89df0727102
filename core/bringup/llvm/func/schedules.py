"""How a CPU runs the loops of a kernel, as steps that can be printed and edited.

The choices of lanes, columns and units are those of `bringup.llvm.loops.schedule`.
"""

from __future__ import annotations

from bringup.graph.index import Axis
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops import Func, lower_kernel
from bringup.loops.schedule import Schedule, Step, apply


def scheduled(plan: Plan) -> Func:
    """The loops of a kernel as this CPU runs them."""
    return apply(lower_kernel(plan.kernel), steps_of(plan))


def steps_of(plan: Plan) -> Schedule:
    """The steps that make the loops of a kernel what the plan says."""
    return Schedule(tuple(_map(plan)))


def _map(plan: Plan) -> list[Step]:
    """Units of a block of the lane axis, each in whole register tiles, then whole vectors, then a
    masked vector.
    """
    lane = plan.lane
    if lane is None or plan.lanes == 1 or any(d.role == "tile" for d in plan.kernel.buffers):
        return []
    name = f"g{lane.id}"
    steps: list[Step] = []
    whole = name
    nest = [f"g{axis.id}" for axis in plan.kernel.grid if axis not in (lane, plan.last)]
    last = [] if plan.last is None else [f"g{plan.last.id}"]
    if plan.block < lane.size:
        whole = f"{name}.i"
        steps.append(Step("split", (name, f"{name}.o", whole, plan.block)))
        nest.append(f"{name}.o")
    nest += [*last, whole]
    if len(nest) > 1:
        steps.append(Step("reorder", tuple(nest)))
        steps.append(Step("hoist", (whole,)))
    return steps + _lanes(plan, lane, whole)


def _lanes(plan: Plan, lane: Axis, whole: str) -> list[Step]:
    """The loop ``whole`` over a lane axis, or a block of it, in vectors."""
    lanes, width = plan.lanes, plan.lanes * plan.columns
    size, name = min(plan.block, lane.size), f"g{lane.id}"
    steps: list[Step] = []
    serial, vectors = [], []
    if size >= width:
        if plan.columns > 1:
            steps.append(_split(whole, f"{name}.b", f"{name}.w", width))
            steps.append(_split(f"{name}.w", f"{name}.c", f"{name}.v", lanes))
            steps.append(Step("unroll", (f"{name}.c",)))
        else:
            steps.append(_split(whole, f"{name}.b", f"{name}.v", width))
        serial.append(f"{name}.b")
        vectors.append(f"{name}.v")
        whole = f"{whole}.t"
    count, left = divmod(lane.size % width, lanes)
    if count:
        steps.append(_split(whole, f"{name}.r", f"{name}.u", lanes))
        serial.append(f"{name}.r")
        vectors.append(f"{name}.u")
        whole = f"{whole}.t"
    if left:
        vectors.append(whole)
    steps.append(Step("vectorize", tuple(vectors)))
    return [*steps, Step("serialize", tuple(serial))] if serial else steps


def _split(loop: str, outer: str, inner: str, size: int) -> Step:
    return Step("split", (loop, outer, inner, size), (("tail", "peel"),))


__all__ = ["scheduled", "steps_of"]
