"""The commands that a program becomes for a device which the host controls launch by launch.

Launches, copies, loops and branches run in order; each may read what those before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.integers import round_up
from bringup.program.program import ControlStep, KernelStep, OpStep, Slot
from bringup.records import record


@record
class SimtKernel:
    """An emitted kernel: its function, and the blocks and threads to launch it with (0 blocks:
    nothing to do).

    blocks: the largest number that has work to do.  Kernels loop over their work, so that any
    smaller number computes the same, such as the number that the device holds at once.
    shared_bytes: dynamic shared memory of a block, behind an external array of length 0.
    fixed: it needs exactly this many blocks.
    persistent: an iteration of a block's loop is so short that starting a block costs as much.
    Launch as many blocks as the device holds at once instead of many times more.
    """

    name: str
    blocks: int
    threads: int
    shared_bytes: int = 0
    fixed: bool = False
    persistent: bool = False


@record
class Scratch:
    """``nbytes`` bytes at ``offset`` of the block of memory that the commands of a program share.

    Its contents last for one step: the commands of the next step reuse it.
    """

    offset: int
    nbytes: int


#: The memory of a pointer argument.  Slots are those of the program whose step the command runs.
Argument = Slot | Scratch


@record
class Launch:
    """Launch ``kernel``.

    arguments: one for each parameter: a pointer to global memory, aligned to at least 16 bytes.
    step: the step that it belongs to, for errors and timelines.
    """

    kernel: SimtKernel
    arguments: tuple[Argument, ...]
    step: KernelStep | OpStep


@record
class Copy:
    """Copy ``nbytes`` bytes within the device, unless both are the same memory."""

    source: Argument
    target: Argument
    nbytes: int


@record
class Control:
    """A loop or branch that the host controls.  programs: commands of each of ``step.programs``."""

    step: ControlStep
    programs: tuple[tuple[Command, ...], ...]


Command = Launch | Copy | Control


def every_command(commands: Sequence[Command]) -> Iterator[Launch | Copy]:
    """All commands but loops and branches, whose own are among them."""
    for command in commands:
        if isinstance(command, Control):
            for inner in command.programs:
                yield from every_command(inner)
        else:
            yield command


def launches_of(commands: Sequence[Command]) -> Iterator[Launch]:
    """All launches, including those in loops and branches."""
    return (each for each in every_command(commands) if isinstance(each, Launch))


def scratch_bytes_of(commands: Sequence[Command], alignment: int) -> int:
    """The bytes of the memory that every `Scratch` of the commands is a part of."""
    memory: list[Argument] = []
    for command in every_command(commands):
        if isinstance(command, Launch):
            memory += command.arguments
        else:
            memory += [command.target, command.source]
    ends = (each.offset + each.nbytes for each in memory if isinstance(each, Scratch))
    return round_up(max(ends, default=0), alignment)


__all__ = [
    "Argument", "Command", "Control", "Copy", "Launch", "Scratch", "SimtKernel",
    "every_command", "launches_of", "scratch_bytes_of",
]  # fmt: skip
