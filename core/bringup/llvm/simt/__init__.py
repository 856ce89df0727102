"""Kernels for GPUs: one native function per kernel, launched over blocks of threads.

A kernel without loops runs a few grid points per thread (`map`).  If it reads along one axis and
writes along another, as a transposition does, it goes through tiles in shared memory (`transpose`).
A kernel that folds shares each grid point among several threads (`reduction`); `plan` says which.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.kernel.form import Kernel
from bringup.llvm.simt import maps
from bringup.llvm.simt.frame import SimtFrame, has_small_blocks, registers_of
from bringup.llvm.simt.reduction import emit_reduction
from bringup.llvm.simt.render import emit_threads
from bringup.llvm.simt.target import SimtKernel, SimtTarget
from bringup.llvm.simt.transpose import emit_transpose, transpose_plan
from bringup.llvm.text import Module
from bringup.loops import lower_kernel
from bringup.loops.schedule import Schedule, Scheduled


def emit_simt(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    constant: frozenset[int] = frozenset(),
    steps: Schedule | None = None,
) -> SimtKernel:
    """Emit ``kernel`` as function ``name``, whose parameters are pointers to its buffers that are
    no tiles, in order, each aligned to 16 bytes.

    constant: buffers that nobody writes while the kernel runs.
    steps: how its loops run, in place of the choice for ``target``.
    """
    if not kernel.points:
        return SimtFrame(module, kernel, name, target, target.warp, frozenset()).done(0)
    scheduled = scheduled_kernel(kernel, target, steps)
    if scheduled is None and any(s.axes for s in kernel.stages):
        return emit_reduction(module, kernel, name, target, constant)
    if scheduled is None:
        plan = transpose_plan(kernel, target)
        assert plan is not None, "all other kernels have steps"
        return emit_transpose(module, kernel, name, target, constant, plan)
    mapping = maps.plan(kernel, target)
    registers = registers_of(kernel, maps.registers_needed(kernel, mapping))
    buffers = frozenset(f"b{number}" for number in constant)
    emitted = emit_threads(module, scheduled.after, name, target, buffers, registers)
    return replace(emitted, persistent=has_small_blocks(kernel, emitted.blocks))


def scheduled_kernel(
    kernel: Kernel, target: SimtTarget, steps: Schedule | None = None
) -> Scheduled | None:
    """The loops of a kernel as `emit_simt` renders them; None for those that it emits itself."""
    if not kernel.points or any(s.axes for s in kernel.stages):
        return None
    if steps is None:
        if transpose_plan(kernel, target) is not None:
            return None
        steps = maps.map_steps(kernel, maps.plan(kernel, target))
    return Scheduled.of(lower_kernel(kernel), steps)


__all__ = ["SimtKernel", "SimtTarget", "emit_simt", "scheduled_kernel"]
