"""Exact counts of what one run of a program moves and computes."""

from __future__ import annotations

from bringup.kernel.form import Kernel
from bringup.program.program import Cost, OpStep, Program

_FLOPS = frozenset(
    [
        "neg",
        "abs",
        "floor",
        "round",
        "exp",
        "log",
        "sqrt",
        "sin",
        "cos",
        "tanh",
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "pow",
        "max",
        "min",
        "compare",
        "erf",
        "log1p",
        "expm1",
        "rsqrt",
    ]
)


def program_cost(program: Program) -> Cost:
    """The `Cost` of a program.

    A kernel reads each input buffer once per grid point set it covers: a buffer read through
    several index maps, or again in a later stage of the same row, counts once, since its row stays
    close; see `Limits.row_elements`.  A broadcast operand counts its own size, not the size it is
    spread over.
    """
    read = written = flops = 0
    for step in program.steps:
        if isinstance(step, OpStep):
            read += sum(s.type.nbytes for s in step.operands)
            written += sum(s.type.nbytes for s in step.results)
            flops += sum(s.type.size for s in step.results) if step.op.name in _FLOPS else 0
            continue
        kernel = step.kernel
        read += sum(kernel.buffers[i].type.nbytes for i in kernel.inputs)
        written += sum(kernel.buffers[i].type.nbytes for i in kernel.outputs)
        flops += kernel_flops(kernel)
    return Cost(len(program.steps), read, written, flops, program.arena_bytes)


def kernel_flops(kernel: Kernel) -> int:
    """Floating-point operations of a launch: one per arithmetic op on floats and per fold step; a
    transcendental counts one.

    Work that no loop axis changes is counted once per grid point.
    """
    total = 0
    for stage in kernel.stages:
        trips = kernel.points * stage.trips
        for instr in stage.body.instrs:
            if instr.op.name in _FLOPS and instr.operands and instr.operands[0].dtype.is_float:
                total += trips
        total += trips * sum(f.dtype.is_float for f in stage.folds)
    return total
