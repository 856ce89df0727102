"""Functions of parallel loops for GPUs: a thread for each iteration."""

from __future__ import annotations

from bringup.loops.form import For, Func
from bringup.loops.schedule import Schedule, Step
from bringup.target import Target


def nest_steps(func: Func, target: Target) -> Schedule:
    """The parallel loops round everything else as one, in blocks of threads.

    There are no steps for a function that has blocks itself, or no such loops.
    """
    nest: list[For] = []
    body = func.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "parallel":
        nest.append(body[0])
        body = body[0].body
    if not nest:
        return Schedule()
    steps: list[Step] = []
    name, count = nest[0].name, nest[0].axis.size
    for loop in nest[1:]:
        steps.append(Step("fuse", (name, loop.name, f"{name}.{loop.name}")))
        name, count = f"{name}.{loop.name}", count * loop.axis.size
    threads = min(count, target.block)
    return Schedule((*steps, Step("split", (name, "b", "t", threads)), *_BOUND))


_BOUND = (Step("bind", ("b", "block")), Step("bind", ("t", "thread")))

__all__ = ["nest_steps"]
