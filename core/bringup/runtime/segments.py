"""Graphs that no one program holds, run in segments in order: on a device and its fallback, values
moved between; and around the loops and branches that core runs for a device which does not claim
them, whose state stays on the device and of which the host looks at one element before each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Executable, Handle
from bringup.backend.partition import Partition, Transfer, partition
from bringup.dtypes import bool_, i32
from bringup.graph import Graph, Instr, Value
from bringup.ops.prints import show
from bringup.ops.subgraphs import chosen
from bringup.records import record
from bringup.runtime import transfer
from bringup.runtime.devices import OpenDevice
from bringup.types import TensorType

#: Makes the executable of a sub-graph.
CompilePart = Callable[[Graph], Executable]


@record
class OfflineTarget:
    """A target that is not opened: what `partition` needs to know."""

    name: str
    capabilities: Capabilities


def driven_pieces(optimized: Graph, target: OfflineTarget) -> list[tuple[Graph, Instr | None]]:
    """What of a graph is compiled by itself, in order, if core runs its loops and branches; with
    the instruction, if a piece is one of these.
    """
    instr = only_instruction(optimized)
    if instr is not None:
        return [(part, None) for part in parts_of(instr)]
    return [(segment.graph, segment.loop) for segment in partition(optimized, target).segments]


def only_instruction(graph: Graph) -> Instr | None:
    """The instruction of a graph that is nothing but it."""
    if len(graph.instrs) != 1:
        return None
    (instr,) = graph.instrs
    given = all(v.producer is None for v in instr.operands)
    made = all(v.producer is instr for v in graph.outputs)
    return instr if given and made else None


def parts_of(instr: Instr) -> Iterator[Graph]:
    """The sub-graphs that are compiled, in the order of their attributes."""
    if instr.op.name == "print":
        return
    if instr.op.name == "case":
        yield from instr.attrs["branches"]
    else:
        yield instr.attrs["cond"]
        yield _changing(instr)


def _changed(instr: Instr) -> tuple[int, ...]:
    body = instr.attrs["body"]
    pairs = zip(body.inputs, body.outputs, strict=True)
    return tuple(i for i, (before, after) in enumerate(pairs) if before is not after)


def _changing(instr: Instr) -> Graph:
    """The body of a loop, giving what changes alone."""
    body = instr.attrs["body"]
    outputs = [body.outputs[i] for i in _changed(instr)]
    return Graph(body.inputs, body.instrs, outputs, body.name)


class DrivenExecutable:
    """An `Executable` of a graph that is one ``while`` or ``case``."""

    def __init__(self, graph: Graph, device: OpenDevice, compile_part: CompilePart) -> None:
        instr = only_instruction(graph)
        assert instr is not None
        self._device = device
        self._places = [graph.inputs.index(v) for v in instr.operands]
        self._wanted = [(v.index, v.type) for v in graph.outputs]
        self._instr = instr
        runs = {"case": self._case, "while": self._while, "print": self._print}
        self._run = runs[instr.op.name]
        self._changed = _changed(instr) if instr.op.name == "while" else ()
        self._parts = [(compile_part(part), len(part.outputs)) for part in parts_of(instr)]

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Run on handles of the device; the results are handles of their own."""
        operands = [inputs[i] for i in self._places]
        results = self._run(operands)
        taken = {id(transfer.handle_of(x)) for x in inputs}
        buffers: list[Handle] = []
        for index, type_ in self._wanted:
            buffer = results[index]
            if id(transfer.handle_of(buffer)) in taken:
                buffer = transfer.duplicate(self._device.device, buffer, type_)
            taken.add(id(transfer.handle_of(buffer)))
            buffers.append(buffer)
        return [transfer.release(buffer) for buffer in buffers]

    def _while(self, state: list[Any]) -> list[Any]:
        while self._look(self._part(0, state)[0], bool_[()]):
            made = self._part(1, state)
            for place, buffer in zip(self._changed, made, strict=True):
                state[place] = buffer
        return state

    def _case(self, operands: list[Any]) -> list[Any]:
        number = int(self._look(operands[0], i32[()]))
        return self._part(chosen(number, len(self._parts)), operands[1:])

    def _print(self, operands: list[Any]) -> list[Any]:
        pairs = zip(operands, self._instr.operands, strict=True)
        arrays = [transfer.download(self._device.device, x, v.type) for x, v in pairs]
        show(arrays, **self._instr.attrs)
        return [transfer.upload(self._device.device, np.asarray(False))]

    def _part(self, number: int, buffers: Sequence[Any]) -> list[Any]:
        executable, count = self._parts[number]
        return transfer.execute(self._device.device, executable, buffers, count)

    def _look(self, buffer: Any, type_: TensorType) -> Any:
        return transfer.download(self._device.device, buffer, type_)[()]


@record
class _Part:
    """A compiled segment.  moves: due before it.  spent: what nothing reads after it."""

    device: OpenDevice
    executable: Executable
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    moves: tuple[Transfer, ...]
    spent: tuple[Value, ...]


class MixedExecutable:
    """An `Executable` of the first device whose segments run on all of them.

    compile_part: makes a segment's graph executable on a device.
    """

    def __init__(
        self,
        graph: Graph,
        cut: Partition,
        devices: tuple[OpenDevice, ...],
        compile_part: Callable[[Graph, OpenDevice], Executable],
    ) -> None:
        self._graph = graph
        self._devices = {device.name: device for device in devices}
        self._home = devices[0].name
        self._last = tuple(t for t in cut.transfers if t.before == len(cut.segments))
        last_read = {v: n for n, segment in enumerate(cut.segments) for v in segment.inputs}
        parts: list[_Part] = []
        for number, segment in enumerate(cut.segments):
            moves = tuple(t for t in cut.transfers if t.before == number)
            device = self._devices[segment.device]
            made = compile_part(segment.graph, device)
            spent = tuple(
                v for v in segment.inputs if last_read[v] == number and v not in graph.outputs
            )
            parts.append(_Part(device, made, segment.inputs, segment.outputs, moves, spent))
        self._parts = tuple(parts)

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Run on handles of the first device; the results are its handles too."""
        held: dict[tuple[Value, str], Any] = {
            (value, self._home): handle
            for value, handle in zip(self._graph.inputs, inputs, strict=True)
        }
        for part in self._parts:
            self._move(held, part.moves)
            name = part.device.name
            buffers = [held[value, name] for value in part.inputs]
            made = transfer.execute(part.device.device, part.executable, buffers, len(part.outputs))
            held.update(zip([(value, name) for value in part.outputs], made, strict=True))
            for value in part.spent:
                for place in self._devices:
                    held.pop((value, place), None)
        self._move(held, self._last)
        return [transfer.release(held[value, self._home]) for value in self._graph.outputs]

    def _move(self, held: dict[tuple[Value, str], Any], moves: Sequence[Transfer]) -> None:
        for move in moves:
            source, target = self._devices[move.source], self._devices[move.target]
            data = transfer.download(source.device, held[move.value, move.source], move.value.type)
            held[move.value, move.target] = transfer.upload(target.device, data)


__all__ = [
    "DrivenExecutable", "MixedExecutable", "OfflineTarget", "driven_pieces", "only_instruction",
    "parts_of",
]  # fmt: skip
