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
from bringup.loops.schedule import Scheduled


def emit_simt(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    constant: frozenset[int] = frozenset(),
) -> SimtKernel:
    """Emit ``kernel`` as function ``name``, whose parameters are pointers to its buffers that are
    no tiles, in order, each aligned to 16 bytes.

    constant: buffers that nobody writes while the kernel runs.
    """
    if not kernel.points:
        return SimtFrame(module, kernel, name, target, target.warp, frozenset()).done(0)
    if any(s.axes for s in kernel.stages):
        return emit_reduction(module, kernel, name, target, constant)
    plan = transpose_plan(kernel, target)
    emitted = plan and emit_transpose(module, kernel, name, target, constant, plan)
    if emitted is not None:
        return emitted
    mapping = maps.plan(kernel, target)
    func = Scheduled.of(lower_kernel(kernel), maps.map_steps(kernel, mapping)).after
    registers = registers_of(kernel, maps.registers_needed(kernel, mapping))
    buffers = frozenset(f"b{number}" for number in constant)
    done = emit_threads(module, func, name, target, buffers, mapping.threads, registers)
    return replace(done, persistent=has_small_blocks(kernel, done.blocks))


def scheduled_kernel(kernel: Kernel, target: SimtTarget) -> Scheduled | None:
    """The loops of a kernel as `emit_simt` renders them; None for those that it emits itself."""
    if not kernel.points or any(s.axes for s in kernel.stages):
        return None
    if transpose_plan(kernel, target) is not None:
        return None
    steps = maps.map_steps(kernel, maps.plan(kernel, target))
    return Scheduled.of(lower_kernel(kernel), steps)


__all__ = ["SimtKernel", "SimtTarget", "emit_simt", "scheduled_kernel"]
