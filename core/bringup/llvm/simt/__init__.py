"""Kernels for machines with a thread per lane: one native function per kernel, launched over blocks
of threads.

Kernels without loops run a few grid points per thread (`simt_map`), in tiles through shared memory
where they read across what they write (`simt_turn`).  Those that fold share each grid point among
the members of a group (`simt_group`); `simt_plan` says which threads those are.
"""

from __future__ import annotations

from collections.abc import Mapping

from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis, Expr
from bringup.llvm.simt.frame import SimtFrame
from bringup.llvm.simt.map import emit_map
from bringup.llvm.simt.reduction import emit_group
from bringup.llvm.simt.target import SimtKernel, SimtTarget
from bringup.llvm.simt.transpose import emit_turn, turn_of
from bringup.llvm.text import Module


def emit_simt(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    clips: Mapping[Axis, Expr] | None = None,
    constant: frozenset[int] = frozenset(),
) -> SimtKernel:
    """Emit ``kernel`` as function ``name``, whose parameters are pointers to its buffers that are
    no tiles, in order, each aligned to 16 bytes.

    clips: inner axes that stop early at an expression of grid axes, for loops cut into chunks.
    constant: buffers whose memory nobody writes while the kernel runs.
    """
    if not kernel.points:
        return SimtFrame(module, kernel, name, target, target.warp, frozenset()).done(0)
    if any(s.axes for s in kernel.stages):
        return emit_group(module, kernel, name, target, clips or {}, constant)
    turn = turn_of(kernel, target)
    if turn is not None:
        return emit_turn(module, kernel, name, target, constant, turn)
    return emit_map(module, kernel, name, target, constant)


__all__ = ["SimtKernel", "SimtTarget", "emit_simt"]
