"""Kernels of CPUs: products that are packed, and all others by the steps of their schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.kernel.form import Kernel
from bringup.llvm.func.render import emit_func
from bringup.llvm.func.schedules import scheduled
from bringup.llvm.loops.schedule import NativeKernel, schedule
from bringup.llvm.text import Module
from bringup.loops import lower_kernel
from bringup.loops.schedule import Schedule as Steps
from bringup.loops.schedule import Scheduled
from bringup.target import Target

if TYPE_CHECKING:  # most programs have no product
    from bringup.kernel.contraction import Contraction
    from bringup.llvm.loops.blocking import Blocking


def emit_kernel(
    module: Module,
    kernel: Kernel,
    name: str,
    target: Target,
    steps: Steps | None = None,
) -> NativeKernel:
    """Emit ``kernel`` into ``module`` as function ``name``; nothing for a grid without points.

    steps: as in `scheduled_kernel`.
    """
    if not kernel.points:
        return NativeKernel(name, 0, 0, 0)
    if steps is not None:
        return emit_func(module, _applied(kernel, target, steps).after, name)
    made = scheduled_kernel(kernel, target)
    assert made is not None, "a grid with points"
    return emit_func(module, made.after, name)


def scheduled_kernel(
    kernel: Kernel, target: Target, steps: Steps | None = None
) -> Scheduled | None:
    """The loops of a kernel as `emit_kernel` renders them; None for those that it emits itself.

    steps: in place of those that this module would choose.  Raises ScheduleError if they do not
    fit.
    """
    if not kernel.points:
        return None
    if steps is not None:
        return _applied(kernel, target, steps)
    packed = _packed_plan(kernel, target)
    if packed is None:
        return scheduled(schedule(kernel, target))
    from bringup.llvm.func.schedules.packed import scheduled_packed

    return scheduled_packed(*packed)


def _applied(kernel: Kernel, target: Target, steps: Steps) -> Scheduled:
    """The loops of a kernel after steps that were not chosen here."""
    if _packed_plan(kernel, target) is None:
        kernel = schedule(kernel, target).kernel
    return Scheduled.of(lower_kernel(kernel), steps)


def _packed_plan(kernel: Kernel, target: Target) -> tuple[Contraction, Blocking] | None:
    first = kernel.stages[0]
    if first.limits or not any(f.product for f in first.folds):
        return None
    from bringup.llvm.func.schedules.packed import packed_plan

    return packed_plan(kernel, target)


__all__ = ["emit_kernel", "scheduled_kernel"]
