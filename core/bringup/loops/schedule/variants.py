"""Schedules near another one, for a search that measures them.

None changes the order in which values are folded, so none changes a result: only loops that come
from the grid, whose iterations are independent, are cut and ordered in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bringup.loops.form import For, Func, statements
from bringup.loops.schedule.steps import Schedule, Step


def variants(func: Func, schedule: Schedule) -> Iterator[Schedule]:
    """Every schedule that differs from one of ``func`` in one decision.

    A size of a block is doubled or halved, two neighbours of a reordered nest change places, a
    loop is not written out.  Some may not fit the loops: `apply` then raises ScheduleError.
    """
    steps = schedule.steps
    loops = {s.name for s in statements(func.body) if isinstance(s, For) and s.kind == "parallel"}
    for n, step in enumerate(steps):
        for other in _others(step, loops):
            kept = () if other is None else (other,)
            yield Schedule((*steps[:n], *kept, *steps[n + 1 :]))
        if step.name in ("split", "fuse") and _is_of(step, loops):
            loops |= {str(a) for a in step.args if isinstance(a, str)}


def _is_of(step: Step, loops: set[str]) -> bool:
    """Whether the loops that a step is about come from the grid.

    Loops that a step made of another carry its name and a suffix, such as ``g0.t``.
    """
    names = [a for a in step.args if isinstance(a, str)]
    about = names[:1] if step.name == "split" else names[:2] if step.name == "fuse" else names
    return all(any(f"{name}.".startswith(f"{loop}.") for loop in loops) for name in about)


def _others(step: Step, loops: set[str]) -> Iterator[Step | None]:
    """What may stand in the place of a step; None for nothing."""
    if not _is_of(step, loops):
        return
    if step.name == "split":
        *names, size = step.args
        assert isinstance(size, int)
        for other in (size * 2, size // 2):
            if other:
                yield replace(step, args=(*names, other))
    elif step.name == "reorder":
        for n in range(len(step.args) - 1):
            args = list(step.args)
            args[n], args[n + 1] = args[n + 1], args[n]
            yield replace(step, args=tuple(args))
    elif step.name == "unroll":
        yield None
        if len(step.args) > 1:
            for n in range(len(step.args)):
                yield replace(step, args=step.args[:n] + step.args[n + 1 :])


__all__ = ["variants"]
