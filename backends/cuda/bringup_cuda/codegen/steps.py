"""Op steps on NVIDIA GPUs: ops on whole buffers that are no loop nest of a kernel.

They are functions of the op library of loops, each of which is a launch.  Every launch takes
pointers to what it reads and writes.  Results never depend on the order in which blocks or threads
run: atomics only combine values whose fold is the same in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import UnsupportedError
from bringup.graph import attrs_key
from bringup.llvm.simt import SimtKernel
from bringup.llvm.simt.matrix import emit_tiles
from bringup.llvm.simt.nests import nest_steps
from bringup.llvm.simt.render import emit_threads
from bringup.loops import Func
from bringup.loops.contents import contents
from bringup.loops.form import Buffer
from bringup.loops.schedule import apply
from bringup.program.loops import step_loops
from bringup.program.program import OpStep, Slot
from bringup_cuda.codegen.commands import Argument, Command, Copy, Launch, Scratch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import SIMT


def translate_op_step(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of an op step; none if its results have no element.

    Raises UnsupportedError for a step that the op library does not have.
    """
    if not any(slot.type.size for slot in step.results):  # pragma: no cover - folded before
        return []
    # What is copied depends on which operands and results are the same memory, and how a kernel
    # loads on whether anybody writes there.
    aliases = tuple(step.slots.index(slot) for slot in step.slots)
    constant = tuple(codegen.is_constant(slot, step.results) for slot in step.operands)
    types = tuple(slot.type for slot in step.slots)
    key = step.op.name, attrs_key(step.attrs), types, aliases, constant
    if key in codegen.op_steps:
        equal_step, commands = codegen.op_steps[key]
        return [_with_slots(command, equal_step, step) for command in commands]
    commands = _emit_library(codegen, step)
    codegen.op_steps[key] = step, commands
    return commands


def _with_slots(command: Command, source: OpStep, step: OpStep) -> Command:
    """A command of ``source`` as one of ``step``, which differs in its slots alone."""

    def renamed(argument: Argument) -> Argument:
        if isinstance(argument, Scratch):
            return argument
        return step.slots[source.slots.index(argument)]

    if isinstance(command, Launch):
        return Launch(command.kernel, tuple(map(renamed, command.arguments)), step)
    assert isinstance(command, Copy), f"{command} is no command of an op step"
    return Copy(renamed(command.source), renamed(command.target), command.nbytes)


def _emit_library(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """A launch for each function of a step, a copy for one that only copies."""
    loops = step_loops(step, "", codegen.row)
    if loops is None:  # pragma: no cover - only wrong claims
        raise UnsupportedError(
            f"{step.name} stands in no kernel, and nothing else renders it for a GPU",
            location=step.location,
        )
    arguments: dict[Buffer, Argument] = dict(zip(loops.buffers, step.slots, strict=False))
    for buffer in loops.temporaries:
        arguments[buffer] = codegen.scratch(buffer.type.nbytes)
    commands: list[Command] = []
    kernels: dict[tuple[Func, frozenset[str]], SimtKernel] = {}
    for number, (func, given) in enumerate(zip(loops.funcs, loops.arguments, strict=True)):
        if loops.copies and not number:
            source, target = step.operands[0], step.results[0]
            commands += [] if source == target else [Copy(source, target, source.type.nbytes)]
            continue
        memory = [arguments[buffer] for buffer in given]
        form = func, _constant_params(codegen, func, memory)
        if form not in kernels:
            kernels[form] = _kernel(codegen, *form)
        commands.append(Launch(kernels[form], tuple(memory), step))
    return commands


def _constant_params(
    codegen: CodegenContext, func: Func, arguments: Sequence[Argument]
) -> frozenset[str]:
    """The parameters that nobody writes while the function runs."""
    given = list(zip(func.params, arguments, strict=True))
    writes = [slot for param, slot in given if param.role != "in" and isinstance(slot, Slot)]
    return frozenset(
        param.buffer.name
        for param, slot in given
        if param.role == "in" and (not isinstance(slot, Slot) or codegen.is_constant(slot, writes))
    )


def _kernel(codegen: CodegenContext, func: Func, constant: frozenset[str]) -> SimtKernel:
    """The kernel of a function, which equal functions share.  constant: see `emit_threads`."""
    row, scheduled = codegen.row, apply(func, nest_steps(func, codegen.row))

    def emit(name: str) -> SimtKernel:
        if "fragment" in contents(scheduled).spaces:
            return emit_tiles(codegen.module, scheduled, name, row, SIMT, 0)
        registers = row.thread_registers  # as many as it needs
        return emit_threads(
            codegen.module, scheduled, name, row, SIMT, constant, registers, fixed=True
        )

    return codegen.emit_once(f"{sorted(constant)}\n{scheduled.content}", func.name, emit)


__all__ = ["translate_op_step"]
