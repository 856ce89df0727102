"""A search for faster schedules: each kernel of a program is measured on the device.

The search is greedy: it takes the first variant (`bringup.loops.schedule.variants`) that is faster
than the best schedule so far, and goes on from there until none is or the time is over.  Two
schedules are compared by turns, by the median of the ratios of their times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from bringup.backend.device import Executable
from bringup.backend.vendor_errors import REPORT
from bringup.errors import BackendError, CompileError, ScheduleError, UnsupportedError
from bringup.kernel.form import Kernel
from bringup.loops.schedule import Schedule, Scheduled
from bringup.loops.schedule.variants import variants
from bringup.program.program import KernelStep, Slot
from bringup.records import record
from bringup.runtime.compiled import Compiled
from bringup.runtime.devices import OpenDevice
from bringup.runtime.timing import Timer, step_alone
from bringup.runtime.tuned import Entry, key_of

#: A schedule must take at most this share of the time of another one to be called faster.
_FASTER = 0.97
#: A run for a comparison lasts at least so many seconds.
_LEAST = 2e-3
#: Turns of a comparison: of a first look, and of one that decides.
_LOOK, _TURNS = 3, 11


@record
class Tuned:
    """What a search found for a kernel.

    loops: `bringup.runtime.tuned.key_of` its loops before any step.
    schedule: the fastest; the device's own if none was faster.
    ratio: its time by that of the device's own.
    tried: variants that were measured.  why: why none was; empty if one was.
    """

    kernel: Kernel
    loops: str
    schedule: Schedule
    ratio: float
    tried: int
    why: str = ""

    @property
    def is_faster(self) -> bool:
        """Whether a schedule other than the device's own is worth keeping."""
        return self.ratio <= _FASTER

    @property
    def entry(self) -> tuple[str, Entry]:
        """The name of the kernel in a table, and what the table has for it."""
        return key_of(self.kernel), Entry(self.loops, str(self.schedule))


def tune(
    compiled: Compiled,
    device: OpenDevice,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Tuned]:
    """Search for schedules of all kernels of a program that run by loops, each once.

    seconds: for the whole search; each kernel gets an equal share of what is left.
    Raises UnsupportedError if no kernel runs by loops, BackendError if a schedule changes results.
    """
    end = clock() + seconds
    pairs = zip(compiled.kernels, compiled.schedules, strict=True)
    found = {key_of(kernel): (kernel, s) for kernel, s in pairs if s is not None}
    if not found:
        raise UnsupportedError(f"{device.name} runs no kernel of {compiled.graph.name} by loops")
    for n, (kernel, scheduled) in enumerate(found.values()):
        share = clock() + (end - clock()) / (len(found) - n)
        yield _Search(kernel, scheduled, device, clock).run(share)


class _Search:
    """The search for one kernel, on inputs of its own."""

    def __init__(
        self, kernel: Kernel, scheduled: Scheduled, device: OpenDevice, clock: Callable[[], float]
    ) -> None:
        self.kernel = kernel
        self.scheduled = scheduled
        self.device = device
        self.clock = clock
        slots = [Slot("input", 0, 0, b.type) for b in kernel.buffers if b.role != "tile"]
        self.program = step_alone(KernelStep(kernel, tuple(slots)))
        self.timer = Timer(device, self.program.inputs, self.program.outputs, clock)
        self.right: list[bytes] | None = None

    def run(self, end: float) -> Tuned:
        """The best schedule that is found before ``end``."""
        own = best = self.scheduled.steps
        runs = {str(own): self._compiled(own)}
        tried: set[str] = {str(own)}
        measured = 0
        improved = True
        while improved:
            improved = False
            for variant in variants(self.scheduled.before, best):
                if self.clock() >= end:
                    break
                if str(variant) in tried:
                    continue
                tried.add(str(variant))
                try:
                    candidate = self._compiled(variant)
                except (ScheduleError, CompileError, UnsupportedError):
                    continue  # it does not fit the loops, or the machine
                measured += 1
                if self._is_faster(candidate, runs[str(best)]):
                    self._check(candidate, variant)
                    runs[str(variant)], best, improved = candidate, variant, True
                    break
        ratio = 1.0 if best == own else self._ratio(runs[str(best)], runs[str(own)], _TURNS)
        if ratio > _FASTER:
            best, ratio = own, 1.0
        why = "" if measured else self._why(len(tried) - 1)
        return Tuned(self.kernel, key_of(self.scheduled.before), best, ratio, measured, why)

    def _why(self, refused: int) -> str:
        """Why no variant was measured.  refused: variants that could not be compiled."""
        own = self.scheduled.steps
        if not own.steps:
            return "its schedule has no steps: give the device and its backend a `schedule`"
        if next(variants(self.scheduled.before, own), None) is None:
            return "no step of its schedule cuts, orders or unrolls loops of the grid"
        if not refused:
            return "the time was over before its first variant"
        return f"none of its {refused} variants fits the loops or the machine"

    def _compiled(self, schedule: Schedule) -> Executable:
        steps = tuple(replace(s, schedule=schedule) for s in self.program.kernel_steps)
        return self.device.device.compile(replace(self.program, steps=steps))

    def _check(self, executable: Executable, schedule: Schedule) -> None:
        """Raises BackendError if a schedule gives other bits than the device's own."""
        if self.right is None:
            self.right = self.timer.results(self._compiled(self.scheduled.steps))
        if self.timer.results(executable) != self.right:
            raise BackendError(
                f"another schedule changes results of {self.kernel.name}",
                notes=(str(schedule),),
                fix=REPORT,
            )

    def _is_faster(self, one: Executable, other: Executable) -> bool:
        """A short comparison, and a longer one if that promises something."""
        return all(self._ratio(one, other, turns) <= _FASTER for turns in (_LOOK, _TURNS))

    def _ratio(self, one: Executable, other: Executable, turns: int) -> float:
        """The median of the ratios of times that were taken by turns, after a run to warm up."""
        seconds = self.timer.seconds
        for executable in (one, other):
            seconds(executable)
        count = max(1, round(_LEAST / max(seconds(other), 1e-7)))
        return statistics.median(seconds(one, count) / seconds(other, count) for _ in range(turns))


__all__ = ["Tuned", "tune"]
