"""Updates of an array at places that data decide.

Updates that never meet are written by a thread each.  Of those that may, the last one set is found
by an atomic maximum over their numbers; folds that are the same in any order are atomic.  Sums and
products of floats are not: there updates are sorted by place, and each place folds its own in
order, long ones in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.program.program import OpStep
from bringup_cuda.commands import Command, Copy
from bringup_cuda.lower import Emission
from bringup_cuda.steps._places import Places
from bringup_cuda.steps._segments import Segments
from bringup_cuda.steps._updates import fold_atomically, set_last, write, write_clamped


def render(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``scatter``."""
    source, target = step.operands[0], step.results[0]
    made: list[Command] = []
    if source != target:
        made.append(Copy(source, target, source.type.nbytes))
    if not step.operands[2].type.size:
        return made
    places, kind = Places.of_scatter(step), step.attrs["kind"]
    if step.attrs["unique"] or places.apart:
        return [*made, write(emission, step, places)]
    if kind == "set":
        return [*made, *set_last(emission, step, places)]
    if kind in ("add", "mul") and source.type.dtype.is_float:
        return [*made, *Segments(emission, step, places).commands()]
    return [*made, fold_atomically(emission, step, places)]


def render_update(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``dynamic_update_slice``."""
    source, target = step.operands[0], step.results[0]
    made: list[Command] = []
    if source != target:
        made.append(Copy(source, target, source.type.nbytes))
    if not step.operands[1].type.size:  # pragma: no cover - folded before
        return made
    return [*made, write_clamped(emission, step, Places.of_update(step))]


__all__ = ["render", "render_update"]
