"""Kernels that fold, each grid point by a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.kernel.form import Kernel, Stage
from bringup.llvm.simt.maps import MapPlan, map_steps
from bringup.llvm.simt.plan import Inner, ThreadMapping
from bringup.loops.schedule import Schedule, Step


def has_point_steps(kernel: Kernel, mapping: ThreadMapping) -> bool:
    """Whether steps say what a mapping does: one thread for each point, without tiles."""
    has_tiles = any(decl.role == "tile" for decl in kernel.buffers)
    return mapping.reducers == 1 and not has_tiles and not any(s.limits for s in kernel.stages)


def point_steps(kernel: Kernel, mapping: ThreadMapping) -> Schedule:
    """The loops of each stage in positions ``k`` that a thread works on at once, which fold into
    accumulators ``c`` of their own; then blocks and threads as of a map.
    """
    steps: list[Step] = []
    unroll: list[str] = []
    vectors: list[str] = []
    first = 0
    for number, (stage, inner) in enumerate(zip(kernel.stages, mapping.inner, strict=True)):
        if stage.axes and stage.trips:
            loop = _flat(steps, kernel.stages[number], inner, number)
            folds = [f"r{first + n}" for n in range(len(stage.folds))]
            if mapping.in_registers:
                _in_registers(steps, unroll, vectors, loop, folds, inner.lanes)
            elif mapping.unroll > 1 and stage.trips >= mapping.unroll:
                _chains(steps, unroll, loop, folds, mapping)
        first += len(stage.folds)
    if unroll:
        steps.append(Step("unroll", tuple(unroll)))
    if vectors:
        steps.append(Step("vectorize", tuple(vectors)))
    lane = mapping.lane or next(reversed(kernel.grid), None)
    threads = MapPlan(lane, mapping.lanes, 1, mapping.threads)
    return Schedule(tuple(steps)) + map_steps(kernel, threads)


def _flat(steps: list[Step], stage: Stage, inner: Inner, number: int) -> str:
    """The loops of a stage as one, in the order of the mapping."""
    names = [f"s{number}_{stage.axes.index(axis)}" for axis in inner.axes]
    if len(names) > 1:
        steps.append(Step("reorder", tuple(names)))
    name = names[0]
    for each in names[1:]:
        steps.append(Step("fuse", (name, each, f"{name}.{each}")))
        name = f"{name}.{each}"
    return name


def _in_registers(
    steps: list[Step],
    unroll: list[str],
    vectors: list[str],
    loop: str,
    folds: Sequence[str],
    lanes: int,
) -> None:
    """All positions at once, whose vectors add up lane by lane."""
    if lanes > 1:
        steps.append(Step("split", (loop, f"{loop}.k", f"{loop}.v", lanes)))
        steps += [Step("rfactor", (f"{loop}.k", fold, f"{loop}.v")) for fold in folds]
        vectors.append(f"{loop}.v")
        loop = f"{loop}.k"
    unroll.append(loop)


def _chains(
    steps: list[Step], unroll: list[str], loop: str, folds: Sequence[str], mapping: ThreadMapping
) -> None:
    """Several positions at once, and accumulators that do not wait for one another."""
    copies, chains = mapping.unroll, mapping.chains(mapping.lanes)
    inner = f"{loop}.k"
    steps.append(Step("split", (loop, f"{loop}.m", inner, copies), (("tail", "peel"),)))
    unroll.append(inner)
    if chains < copies:
        steps.append(Step("split", (inner, f"{loop}.j", f"{loop}.c", chains)))
        unroll[-1:] = [f"{loop}.j", f"{loop}.c"]
        inner = f"{loop}.c"
    if chains > 1:
        steps += [Step("rfactor", (f"{loop}.m", fold, inner)) for fold in folds]


__all__ = ["has_point_steps", "point_steps"]
