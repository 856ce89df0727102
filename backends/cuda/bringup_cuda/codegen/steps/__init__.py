"""Op steps on NVIDIA GPUs: ops on whole buffers that are no loop nest of a kernel.

Every launch takes pointers to what it reads and writes.  Results never depend on the order in which
blocks or threads run: atomics only combine integers, or values whose fold is the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from bringup.errors import UnsupportedError
from bringup.graph import attrs_key
from bringup.program.program import OpStep
from bringup_cuda.codegen.commands import Argument, Clear, Command, Copy, Launch, Scratch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.targets import STEP_EMITTERS

Emit = Callable[[CodegenContext, OpStep], Sequence[Command]]


def translate_op_step(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of an op step; none if its results have no element.

    Raises UnsupportedError for a step that has no emitter.
    """
    if step.op.name not in STEP_EMITTERS:  # pragma: no cover - only wrong claims
        raise UnsupportedError(
            f"{step.name} stands in no kernel, and nothing else renders it for a GPU",
            location=step.location,
        )
    if not any(slot.type.size for slot in step.results):  # pragma: no cover - folded before
        return []
    # What is copied depends on which operands and results are the same memory.
    aliases = tuple(step.slots.index(slot) for slot in step.slots)
    key = step.op.name, attrs_key(step.attrs), tuple(s.type for s in step.slots), aliases
    if key in codegen.op_steps:
        equal_step, commands = codegen.op_steps[key]
        return [_with_slots(command, equal_step, step) for command in commands]
    module, _, function = STEP_EMITTERS[step.op.name].partition(":")
    emit: Emit = getattr(import_module(f"bringup_cuda.codegen.{module}"), function)
    commands = emit(codegen, step)
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
    if isinstance(command, Clear):
        return Clear(renamed(command.target), command.nbytes)
    assert isinstance(command, Copy), f"{command} is no command of an op step"
    return Copy(renamed(command.source), renamed(command.target), command.nbytes)


__all__ = ["translate_op_step"]
