"""Op steps by the op library of loops: each of its functions is a launch."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm.simt import SimtKernel
from bringup.llvm.simt.nests import nest_steps
from bringup.llvm.simt.render import emit_threads
from bringup.loops import Func
from bringup.loops.form import Buffer
from bringup.loops.schedule import apply
from bringup.program.loops import step_loops
from bringup.program.program import OpStep, Slot
from bringup_cuda.codegen.commands import Argument, Command, Copy, Launch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import SIMT


def emit_library(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of a step: a launch for each function, a copy for one that only copies."""
    loops = step_loops(step, "", codegen.row)
    assert loops is not None, f"the op library has {step.op.name}"
    arguments: dict[Buffer, Argument] = dict(zip(loops.buffers, step.slots, strict=False))
    for buffer in loops.temporaries:
        arguments[buffer] = codegen.scratch(buffer.type.nbytes)
    commands: list[Command] = []
    for number, (func, given) in enumerate(zip(loops.funcs, loops.arguments, strict=True)):
        if loops.copies and not number:
            commands += _copy(step.operands[0], step.results[0])
            continue
        memory = [arguments[buffer] for buffer in given]
        commands.append(Launch(_kernel(codegen, func, memory), tuple(memory), step))
    return commands


def _copy(source: Slot, target: Slot) -> list[Command]:
    return [] if source == target else [Copy(source, target, source.type.nbytes)]


def _kernel(codegen: CodegenContext, func: Func, arguments: Sequence[Argument]) -> SimtKernel:
    """The kernel of a function, which equal functions share."""
    given = list(zip(func.params, arguments, strict=True))
    writes = [slot for param, slot in given if param.role != "in" and isinstance(slot, Slot)]
    constant = frozenset(
        param.buffer.name
        for param, slot in given
        if param.role == "in" and (not isinstance(slot, Slot) or codegen.is_constant(slot, writes))
    )
    row, scheduled = codegen.row, apply(func, nest_steps(func, codegen.row))

    def emit(name: str) -> SimtKernel:
        registers = row.thread_registers  # as many as it needs
        return emit_threads(
            codegen.module, scheduled, name, row, SIMT, constant, registers, fixed=True
        )

    return codegen.emit_once(f"{sorted(constant)}\n{scheduled.content}", func.name, emit)


__all__ = ["emit_library"]
