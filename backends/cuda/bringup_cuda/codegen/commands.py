"""A program as LLVM IR for NVPTX with the commands that launch it; one stream runs them in order.

A module also notes how many bytes stand behind each pointer that a kernel is launched with.
Buffers lie side by side in one allocation, so nothing else tells an access of one from an access
beyond the end of another.  The note is metadata: NVPTX ignores it, the emulator checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.llvm.text import Module
from bringup.program.commands import (
    Argument,
    Command,
    Control,
    Copy,
    Launch,
    Scratch,
    SimtKernel,
    launches_of,
)
from bringup.records import record


@record
class Translated:
    """A program's LLVM IR for NVPTX, and the commands that run it.

    scratch_bytes: the size of the memory that `Scratch` is a part of.
    """

    text: str
    commands: tuple[Command, ...]
    scratch_bytes: int

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, including those in loops and branches."""
        return tuple(launches_of(self.commands))

    @property
    def kernels(self) -> tuple[SimtKernel, ...]:
        """All kernels of the text, each once."""
        return tuple({launch.kernel.name: launch.kernel for launch in self.launches}.values())


#: The named metadata: for each kernel a node with its name and the bytes behind each parameter.
METADATA = "bringup.extents"


def note_extents(module: Module, launches: Iterable[Launch]) -> None:
    """Note the bytes behind the arguments of every kernel; the most, where its launches differ."""
    extents: dict[str, list[int]] = {}
    for launch in launches:
        sizes = [_bytes(argument) for argument in launch.arguments]
        known = extents.get(launch.kernel.name, sizes)
        extents[launch.kernel.name] = [max(pair) for pair in zip(sizes, known, strict=True)]
    for name, sizes in extents.items():
        members = ", ".join([f'!"{name}"', *(f"i64 {size}" for size in sizes)])
        module.named_metadata(METADATA, module.metadata(f"!{{{members}}}"))


def read_extents(lines: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """The bytes behind each parameter by kernel, from a module's text as LLVM prints it."""
    nodes: dict[str, str] = {}
    kernels: list[str] = []
    for line in lines:
        if not line.startswith("!"):
            continue
        name, _, body = line.partition(" = ")
        inside = body[body.index("{") + 1 : body.rindex("}")]
        if name == f"!{METADATA}":
            kernels = inside.split(", ")
        else:
            nodes[name] = inside
    extents = {}
    for node in kernels:
        kernel, *sizes = nodes[node].split(", ")
        extents[kernel.strip('!"')] = [int(size.removeprefix("i64 ")) for size in sizes]
    return extents


def _bytes(argument: Argument) -> int:
    return argument.nbytes if isinstance(argument, Scratch) else argument.type.nbytes


__all__ = [
    "METADATA", "Argument", "Command", "Control", "Copy", "Launch", "Scratch",
    "Translated", "launches_of", "note_extents", "read_extents",
]  # fmt: skip
