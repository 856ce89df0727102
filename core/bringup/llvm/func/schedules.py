"""How a CPU runs the loops of a kernel, as steps that can be printed and edited.

The choices of lanes, columns and units are those of `bringup.llvm.loops.schedule`.
"""

from __future__ import annotations

from bringup.graph.index import Axis
from bringup.integers import ceil_div
from bringup.kernel.form import Stage
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops import Func, lower_kernel
from bringup.loops.schedule import Schedule, Step, apply


def scheduled(plan: Plan) -> Func:
    """The loops of a kernel as this CPU runs them."""
    return apply(lower_kernel(plan.kernel), steps_of(plan))


def steps_of(plan: Plan) -> Schedule:
    """The steps that make the loops of a kernel what the plan says."""
    return Schedule(tuple(_map(plan) if plan.is_map else _inner(plan)))


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


def _inner(plan: Plan) -> list[Step]:
    """Lanes along the last axis of every stage that loops."""
    steps: list[Step] = []
    kinds = _Kinds()
    registers = 0
    for number, stage in enumerate(plan.kernel.stages):
        folds = [f"r{registers + n}" for n in range(len(stage.folds))]
        exact = [f.monoid.is_exact(f.dtype) for f in stage.folds]
        registers += len(folds)
        if stage.axes and stage.trips:
            rows = _Rows(plan, number, stage, kinds)
            steps += rows.loops()
            for fold, is_exact in zip(folds, exact, strict=True):
                steps += rows.accumulators(fold, 0 if is_exact else 128)
    return steps + kinds.steps()


class _Kinds:
    """How loops run, in one step for each kind at the end."""

    def __init__(self) -> None:
        self.unroll: list[str] = []
        self.vectorize: list[str] = []

    def steps(self) -> list[Step]:
        """The steps."""
        steps = [Step("unroll", tuple(self.unroll))] if self.unroll else []
        return [*steps, Step("vectorize", tuple(self.vectorize))] if self.vectorize else steps


class _Rows:
    """A stage whose lanes are along its last axis.

    A register tile is a number of columns, each a vector: additions that do not wait for another.
    outermost: the loop that is round all others, of one iteration if need be.
    """

    def __init__(self, plan: Plan, number: int, stage: Stage, kinds: _Kinds) -> None:
        self.stage = stage
        self.lanes = plan.lanes
        self.kinds = kinds
        self.names = [f"s{number}_{n}" for n in range(len(stage.axes))]
        self.size = stage.axes[-1].size
        self.columns = max(1, min(plan.columns, self.size // self.lanes))
        #: Of the loop over the last axis.
        self.name = self.names[-1]

    def loops(self) -> list[Step]:
        """The steps that make vectors, and register tiles of them."""
        steps: list[Step] = []
        name, lanes = self.name, self.lanes
        self.outermost = self.names[0]
        if len(self.names) == 1 and self.stage.folds:
            # All parts of the loop add to the same lanes.
            self.outermost, self.name = f"{name}.q", f"{name}.p"
            steps.append(Step("split", (name, self.outermost, self.name, self.size)))
        inner = self.name
        self.tile = ""
        if lanes == 1:
            return steps
        self.kinds.vectorize.append(f"{name}.v")
        steps.append(Step("split", (inner, f"{name}.k", f"{name}.v", lanes)))
        vectors = ceil_div(self.size, lanes)
        if self.size % lanes and vectors > 1:
            steps.append(Step("peel", (f"{name}.k", 0, 1)))
            vectors -= 1
        self.tile = f"{name}.k"
        if self.columns > 1:
            self.kinds.unroll.append(f"{name}.c")
            steps.append(_split(f"{name}.k", f"{name}.b", f"{name}.c", self.columns))
            self.tile = f"{name}.b"
        return steps

    def accumulators(self, fold: str, longest: int) -> list[Step]:
        """Lanes to fold into in place of one register, and those of a register tile.

        longest: the most additions into one of them, one after the other; 0 for any number.
        """
        name = self.names[-1]
        if self.lanes == 1:
            return []
        steps = [Step("rfactor", (self.outermost, fold, f"{name}.v"))]
        if self.columns > 1:
            within = f"{fold}.{self.outermost}"
            steps.append(Step("rfactor", (self.tile, within, f"{name}.c", f"{name}.v")))
        return steps


def _split(loop: str, outer: str, inner: str, size: int) -> Step:
    return Step("split", (loop, outer, inner, size), (("tail", "peel"),))


__all__ = ["scheduled", "steps_of"]
