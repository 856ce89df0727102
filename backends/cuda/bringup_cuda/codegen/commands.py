"""What a program becomes for a GPU: launches, and the few other things a stream does in order.

One stream runs the commands in order; each may read what those before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Module
from bringup.program.program import ControlStep, KernelStep, OpStep, Slot
from bringup.records import record


@record
class Scratch:
    """``nbytes`` bytes at ``offset`` of the block of memory that the commands of a program share.

    What is written there lasts for one step: commands of the next reuse it.
    """

    offset: int
    nbytes: int


#: Where a pointer argument points.  A slot is one of the program whose step the command runs.
Argument = Slot | Scratch


@record
class Launch:
    """Launch ``kernel``.

    arguments: one for each of its parameters, all of which are pointers to global memory, aligned
    to 16 bytes at least.
    step: what it belongs to, for errors and timelines.
    """

    kernel: SimtKernel
    arguments: tuple[Argument, ...]
    step: KernelStep | OpStep


@record
class Clear:
    """Set ``nbytes`` bytes to 0."""

    target: Argument
    nbytes: int


@record
class Copy:
    """Copy ``nbytes`` bytes within the device; nothing to do where both are one place."""

    source: Argument
    target: Argument
    nbytes: int


@record
class Control:
    """A loop or branch the host drives.  programs: commands of each of ``step.programs``."""

    step: ControlStep
    programs: tuple[tuple[Command, ...], ...]


Command = Launch | Clear | Copy | Control


@record
class Translated:
    """A program's LLVM IR for NVPTX and what runs it.

    scratch_bytes: size of the block that `Scratch` is a part of, aligned as any buffer.
    """

    text: str
    commands: tuple[Command, ...]
    scratch_bytes: int

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch, those of loops and branches among them."""
        return tuple(_launches(self.commands))

    @property
    def kernels(self) -> tuple[SimtKernel, ...]:
        """Every kernel of the text that is launched, once."""
        return tuple({launch.kernel.name: launch.kernel for launch in self.launches}.values())


def _launches(commands: tuple[Command, ...]) -> Iterator[Launch]:
    for command in commands:
        if isinstance(command, Launch):
            yield command
        elif isinstance(command, Control):
            for inner in command.programs:
                yield from _launches(inner)


#: The named metadata: a node for each kernel, its name and the bytes behind each parameter.
METADATA = "bringup.extents"


def note_extents(module: Module, launches: Iterable[Launch]) -> None:
    """Note the bytes behind the arguments of every kernel; the most, where its launches differ."""
    found: dict[str, Sequence[int]] = {}
    for launch in launches:
        sizes = [_bytes(argument) for argument in launch.arguments]
        known = found.get(launch.kernel.name, sizes)
        found[launch.kernel.name] = [max(pair) for pair in zip(sizes, known, strict=True)]
    for name, most in found.items():
        members = ", ".join([f'!"{name}"', *(f"i64 {size}" for size in most)])
        module.named_metadata(METADATA, module.metadata(f"!{{{members}}}"))


def read_extents(lines: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """The notes in a module's text, as LLVM prints it."""
    nodes: dict[str, str] = {}
    wanted: list[str] = []
    for line in lines:
        if not line.startswith("!"):
            continue
        name, _, body = line.partition(" = ")
        inside = body[body.index("{") + 1 : body.rindex("}")]
        if name == f"!{METADATA}":
            wanted = inside.split(", ")
        else:
            nodes[name] = inside
    found = {}
    for node in wanted:
        kernel, *sizes = nodes[node].split(", ")
        found[kernel.strip('!"')] = [int(size.removeprefix("i64 ")) for size in sizes]
    return found


def _bytes(argument: Argument) -> int:
    return argument.nbytes if isinstance(argument, Scratch) else argument.type.nbytes
