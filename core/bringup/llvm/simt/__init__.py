"""Kernels for GPUs: one native function per kernel, launched over blocks of threads.

A kernel without loops runs a few grid points per thread (`map`).  If it reads along one axis and
writes along another, as a transposition does, it goes through tiles in shared memory (`transpose`).
A kernel that folds shares each grid point among several threads (`reduction`); `plan` says which.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.kernel.form import Kernel
from bringup.llvm.simt import maps, points, transposes
from bringup.llvm.simt.frame import SimtFrame, has_small_blocks, registers_of
from bringup.llvm.simt.plan import plan, registers_needed
from bringup.llvm.simt.reduction import emit_reduction
from bringup.llvm.simt.render import emit_threads
from bringup.llvm.simt.target import SimtKernel, SimtTarget
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
    if scheduled is None:
        return emit_reduction(module, kernel, name, target, constant)
    tiles = None if steps is not None else transposes.transpose_plan(kernel, target)
    if any(s.axes for s in kernel.stages):
        held = registers_needed(kernel, plan(kernel, target))
    elif tiles is not None:
        held = transposes.registers_needed(kernel, tiles, target)
    else:
        held = maps.registers_needed(kernel, maps.plan(kernel, target))
    buffers = frozenset(f"b{number}" for number in constant)
    registers = registers_of(kernel, held)
    emitted = emit_threads(module, scheduled.after, name, target, buffers, registers)
    return replace(emitted, persistent=has_small_blocks(kernel, emitted.blocks))


def scheduled_kernel(
    kernel: Kernel, target: SimtTarget, steps: Schedule | None = None
) -> Scheduled | None:
    """The loops of a kernel as `emit_simt` renders them; None for those that it emits itself."""
    if not kernel.points:
        return None
    if steps is None:
        if any(s.axes for s in kernel.stages):
            mapping = plan(kernel, target)
            if not points.has_point_steps(kernel, mapping):
                return None
            return Scheduled.of(lower_kernel(kernel), points.point_steps(kernel, mapping))
        tiles = transposes.transpose_plan(kernel, target)
        if tiles is not None:
            steps = transposes.transpose_steps(kernel, tiles, target)
        else:
            steps = maps.map_steps(kernel, maps.plan(kernel, target))
    return Scheduled.of(lower_kernel(kernel), steps)


__all__ = ["SimtKernel", "SimtTarget", "emit_simt", "scheduled_kernel"]
