"""Op steps by the op library of loops: each of its functions is a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def emit_library(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of a step: a launch for each function, a copy for one that only copies."""
    target = codegen.simt
    loops = step_loops(step, units=target.full, threads=target.block)
    assert loops is not None, f"the op library has {step.op.name}"
    arguments: dict[Buffer, Argument] = dict(zip(loops.buffers, step.slots, strict=False))
    for buffer in loops.temporaries:
        arguments[buffer] = codegen.scratch(buffer.type.nbytes)
    commands: list[Command] = []
    for number, func in enumerate(loops.funcs):
        if loops.copies and not number:
            commands += _copy(step.operands[0], step.results[0])
            continue
        memory = tuple(arguments[param.buffer] for param in func.params)
        kernel = _kernel(codegen, func, arguments)
        commands.append(Launch(kernel, memory, step))
    return commands


def _copy(source: Slot, target: Slot) -> list[Command]:
    return [] if source == target else [Copy(source, target, source.type.nbytes)]


def _kernel(
    codegen: CodegenContext, func: Func, arguments: Mapping[Buffer, Argument]
) -> SimtKernel:
    """The kernel of a function, which equal functions share."""
    writes = [slot for b in func.outputs if isinstance(slot := arguments[b], Slot)]
    constant = frozenset(
        buffer.name
        for buffer in func.inputs
        if not isinstance(slot := arguments[buffer], Slot) or codegen.is_constant(slot, writes)
    )
    scheduled = apply(func, nest_steps(func, codegen.simt))
    return codegen.emit_once(
        f"{sorted(constant)}\n{scheduled.content}",
        func.name,
        lambda name: emit_threads(
            codegen.module, scheduled, name, codegen.simt, constant, fixed=True
        ),
    )


__all__ = ["emit_library"]
