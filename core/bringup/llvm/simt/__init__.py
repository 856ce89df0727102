"""Kernels for GPUs: one native function per kernel, launched over blocks of threads.

A kernel without loops runs a few grid points per thread (`map`).  If it reads along one axis and
writes along another, as a transposition does, it goes through tiles in shared memory (`transpose`).
A kernel that folds shares each grid point among several threads (`reduction`); `plan` says which.
"""

from __future__ import annotations

from bringup.kernel.form import Kernel
from bringup.llvm.simt.frame import SimtFrame
from bringup.llvm.simt.map import emit_map
from bringup.llvm.simt.reduction import emit_reduction
from bringup.llvm.simt.target import SimtKernel, SimtTarget
from bringup.llvm.simt.transpose import emit_transpose, transpose_plan
from bringup.llvm.text import Module


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
    if plan is not None:
        return emit_transpose(module, kernel, name, target, constant, plan)
    return emit_map(module, kernel, name, target, constant)


__all__ = ["SimtKernel", "SimtTarget", "emit_simt"]
