"""Running a graph in segments, in order: on a device and its fallback, values moved between, or on
one device around the loops that core runs for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.backend.device import Executable, Handle
from bringup.backend.partition import Partition, Transfer
from bringup.graph import Graph, Value
from bringup.records import record
from bringup.runtime import transfer
from bringup.runtime.devices import OpenDevice


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
