"""How many bytes stand behind each pointer that a kernel is launched with, noted in its module.

Buffers lie side by side in one allocation, so that nothing else tells an access of one from an
access beyond another's end.  The note is metadata: NVPTX takes no notice, the emulator checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.llvm.text import Module
from bringup_cuda.commands import Argument, Launch, Scratch

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
