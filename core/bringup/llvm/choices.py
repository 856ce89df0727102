"""Schedules by the row of a machine: vectors and tiles of a processor, blocks and threads of a GPU.

For devices of loops whose code another compiler makes: what `Target` says decides, and no device
is asked for.
"""

from __future__ import annotations

from bringup.backend.adapters import LoopsDevice, SimpleBackend, scheduled_loops
from bringup.kernel.form import Kernel
from bringup.loops import For, statements
from bringup.loops.schedule import Schedule, Scheduled, Step
from bringup.program.program import KernelStep
from bringup.target import Target

#: Elements of a chunk of a long fold on processors; this also bounds serial additions.
CHUNK_ELEMENTS = 1 << 15
#: Folds at more grid points stay whole, because the grid keeps the threads of a processor busy.
SPLIT_POINTS = 256


def scheduled_for(step: KernelStep, target: Target) -> Scheduled:
    """The loops of a kernel as machines of a row run them best; as they are where the row has
    neither threads in blocks nor vectors.

    Raises ScheduleError for steps of its own that do not fit.
    """
    kernel, scheduled = step.kernel, None
    if target.most_threads > 1:
        from bringup.llvm import simt

        scheduled = simt.scheduled_kernel(kernel, target, step.schedule)
    elif target.vector_bits:
        from bringup.llvm.loops.kernel import scheduled_kernel

        scheduled = scheduled_kernel(kernel, target, step.schedule)
        if scheduled is not None and step.schedule is None:
            scheduled = _with_fixed_outside(scheduled)
    return scheduled_loops(step) if scheduled is None else scheduled


def _with_fixed_outside(scheduled: Scheduled) -> Scheduled:
    """Loops of lanes without what is the same in all of them: compilers of C make gathers of loads
    that have conditions, wherever they load from.
    """
    loops = (s for s in statements(scheduled.after.body) if isinstance(s, For))
    names = dict.fromkeys(loop.name for loop in loops if loop.kind == "vector")
    if not names:
        return scheduled
    steps = Schedule((*scheduled.steps.steps, Step("hoist", tuple(names))))
    return Scheduled.of(scheduled.before, steps)


def chunk_length_for(kernel: Kernel, target: Target) -> int:
    """How long the chunks of a fold over few grid points are; see `Backend.chunk_length`."""
    if target.most_threads > 1:
        from bringup.llvm.simt.plan import chunk_length

        return chunk_length(kernel, target)
    if target.vector_bits:
        from bringup.kernel.split import even_chunks

        return even_chunks(kernel, elements=CHUNK_ELEMENTS, max_points=SPLIT_POINTS)
    return 0


class ChosenLoopsDevice(LoopsDevice):
    """A device whose loops run as core chooses them for its row, ``target``."""

    def scheduled(self, step: KernelStep) -> Scheduled:
        """By `scheduled_for`."""
        return scheduled_for(step, self.target)


class ChosenLoopsBackend(SimpleBackend):
    """The backend of `ChosenLoopsDevice`, which is given the same row, ``target``.

    >>> from bringup.backend import Capabilities
    >>> row = Target(vector_bits=256)
    >>> backend = ChosenLoopsBackend("toy", lambda index: Toy(), Capabilities(), target=row)
    >>> backend.target().vector_bits
    256
    """

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled:
        """By `scheduled_for`."""
        return scheduled_for(step, self.target(target))

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """By `chunk_length_for`."""
        return chunk_length_for(kernel, self.target(target))


__all__ = ["ChosenLoopsBackend", "ChosenLoopsDevice", "chunk_length_for", "scheduled_for"]
