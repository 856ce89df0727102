"""Kernels for GPUs: one native function per kernel, launched over blocks of threads.

A kernel without loops runs a few grid points per thread (`maps`).  If it reads along one axis and
writes along another, as a transposition does, it goes through tiles in shared memory
(`transposes`).  A kernel that folds has a thread for each grid point, or shares it among several
threads (`folds`); `plan` says which.  All are steps that make loops, which `render` emits.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.kernel.form import Kernel
from bringup.llvm.simt import folds, maps, transposes
from bringup.llvm.simt.access import has_small_blocks, registers_of
from bringup.llvm.simt.plan import plan, registers_needed
from bringup.llvm.simt.render import emit_threads
from bringup.llvm.simt.target import Copies, GroupUnit, MatrixUnit, SimtDialect
from bringup.llvm.text import Module
from bringup.loops import Func, lower_kernel
from bringup.loops.schedule import Schedule, Scheduled, apply
from bringup.program.commands import SimtKernel
from bringup.target import Target


def emit_simt(
    module: Module,
    kernel: Kernel,
    name: str,
    target: Target,
    dialect: SimtDialect,
    constant: frozenset[int] = frozenset(),
    steps: Schedule | None = None,
) -> SimtKernel:
    """Emit ``kernel`` as function ``name``, whose parameters are pointers to its buffers that are
    no tiles, in order, each aligned to 16 bytes.

    target: the machine that the loops are chosen for.  dialect: its names in LLVM.
    constant: buffers that nobody writes while the kernel runs.
    steps: how its loops run, in place of the choice for ``target``.
    """
    if not kernel.points:
        func, registers = Func(kernel.name, lower_kernel(kernel).params, ()), 0
    else:
        own, registers = _chosen(kernel, target)
        func = apply(lower_kernel(kernel), own if steps is None else steps)
    buffers = frozenset(f"b{number}" for number in constant)
    registers = registers_of(kernel, registers)
    made = emit_threads(module, func, name, target, dialect, buffers, registers)
    if not kernel.points:
        return replace(made, blocks=0)
    return replace(made, persistent=has_small_blocks(kernel, made.blocks))


def scheduled_kernel(
    kernel: Kernel, target: Target, steps: Schedule | None = None
) -> Scheduled | None:
    """The loops of a kernel as `emit_simt` renders them; None for one that computes nothing."""
    if not kernel.points:
        return None
    return Scheduled.of(
        lower_kernel(kernel), _chosen(kernel, target)[0] if steps is None else steps
    )


def _chosen(kernel: Kernel, target: Target) -> tuple[Schedule, int]:
    """The steps of a kernel and the registers that its threads hold."""
    if any(stage.axes for stage in kernel.stages):
        mapping = plan(kernel, target)
        return folds.fold_steps(kernel, mapping, target), registers_needed(kernel, mapping)
    tiles = transposes.transpose_plan(kernel, target)
    if tiles is not None:
        held = transposes.registers_needed(kernel, tiles, target)
        return transposes.transpose_steps(kernel, tiles, target), held
    lanes = maps.plan(kernel, target)
    return maps.map_steps(kernel, lanes), maps.registers_needed(kernel, lanes)


__all__ = [
    "Copies",
    "GroupUnit",
    "MatrixUnit",
    "SimtDialect",
    "SimtKernel",
    "emit_simt",
    "scheduled_kernel",
]
