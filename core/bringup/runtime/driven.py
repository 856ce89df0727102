"""Loops and branches that core runs for a device which does not claim them: the state stays on the
device, and the host looks at one element before each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Executable, Handle
from bringup.backend.partition import partition
from bringup.dtypes import bool_, i32
from bringup.graph import Graph, Instr
from bringup.ops.prints import show
from bringup.ops.subgraphs import chosen
from bringup.records import record
from bringup.runtime import transfer
from bringup.runtime.devices import OpenDevice
from bringup.runtime.programs import materialized
from bringup.types import TensorType

#: Makes the executable of a sub-graph.
CompilePart = Callable[[Graph], Executable]


@record
class PaperTarget:
    """A target that is not opened: what `partition` needs to know."""

    name: str
    capabilities: Capabilities


def driven_pieces(optimized: Graph, target: PaperTarget) -> list[tuple[Graph, Instr | None]]:
    """What of a graph is compiled by itself, in order, if core runs its loops and branches; with
    the instruction, if a piece is one of these.
    """
    ready = materialized(optimized)
    instr = lone(ready)
    if instr is not None:
        return [(part, None) for part in parts_of(instr)]
    return [(segment.graph, segment.loop) for segment in partition(ready, target).segments]


def lone(graph: Graph) -> Instr | None:
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
    kept = [body.outputs[i] for i in _changed(instr)]
    return Graph(body.inputs, body.instrs, kept, body.name)


class DrivenExecutable:
    """An `Executable` of a graph that is one ``while`` or ``case``."""

    def __init__(self, graph: Graph, device: OpenDevice, compile_part: CompilePart) -> None:
        instr = lone(graph)
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
        found: list[Handle] = []
        for index, type_ in self._wanted:
            buffer = results[index]
            if id(transfer.handle_of(buffer)) in taken:
                buffer = transfer.duplicate(self._device.device, buffer, type_)
            taken.add(id(transfer.handle_of(buffer)))
            found.append(buffer)
        return [transfer.release(buffer) for buffer in found]

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


__all__ = ["DrivenExecutable", "PaperTarget", "driven_pieces", "lone", "parts_of"]
