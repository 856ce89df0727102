"""Graphs that no one program holds: each segment is a program of a device or its fallback, between
which values move, or a loop, a branch or a print that the host runs for the device.  The state of a
loop stays on the device; where the number of runs is not known, the host looks at one element
before each run of the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bringup.backend.device import Executable, Handle, Lowered
from bringup.backend.partition import Partition, Segment, Transfer
from bringup.backend.placement import Placement
from bringup.dtypes import bool_, i32
from bringup.graph import Graph, Instr, Value, has_effects
from bringup.ops.prints import show
from bringup.ops.subgraphs import chosen, is_branch, is_loop, trips_of
from bringup.program.cost import host_cost, sum_costs
from bringup.program.program import Cost
from bringup.records import record
from bringup.runtime import transfer
from bringup.runtime.compiled import Compiled, ScheduledStep
from bringup.runtime.devices import OpenDevice
from bringup.types import TensorType


def parts_of(segment: Segment) -> Iterator[Graph]:
    """What of a segment is compiled: its graph, or the condition, if it is asked, and the body, or
    branches, or nothing.
    """
    loop = segment.loop
    if loop is None:
        yield segment.graph
    elif is_branch(loop):
        yield from loop.attrs["branches"]
    elif is_loop(loop):
        if _runs(loop) is None:
            yield loop.attrs["cond"]
        body = loop.attrs["body"]
        outputs = [body.outputs[i] for i in _changed(loop)]
        yield Graph(body.inputs, body.instrs, outputs, body.name)


def _runs(loop: Instr) -> int | None:
    """How often a body runs without a look at the condition; None where that has to be asked."""
    asked = any(has_effects(instr.op, instr.attrs) for instr in loop.attrs["cond"].instrs)
    return None if asked else trips_of(loop)


def _changed(loop: Instr) -> tuple[int, ...]:
    """The parts of the state that the body of a while changes."""
    body = loop.attrs["body"]
    pairs = zip(body.inputs, body.outputs, strict=True)
    return tuple(i for i, (before, after) in enumerate(pairs) if before is not after)


def compiled_segments(
    graph: Graph,
    optimized: Graph,
    cut: Partition,
    parts: Sequence[Sequence[Compiled]],
    executable: Executable | None,
) -> Compiled:
    """A graph whose segments were compiled.

    parts: of each segment, those of `parts_of`.  executable: None without hardware.
    """
    every = [part for segment in parts for part in segment]

    def lower() -> Lowered:
        return Lowered("\n".join(p.source for p in every), "\n".join(p.asm for p in every))

    def scheduled() -> list[ScheduledStep]:
        return [step for part in every for step in part.scheduled()]

    def report() -> Iterator[Placement]:
        if executable is None:
            return
        yield from cut.report
        for segment, compiled in zip(cut.segments, parts, strict=True):
            for part in compiled if segment.loop is not None else ():
                for row in part.placement():
                    yield replace(row, node=f"{part.graph.name}: {row.node}")

    def cost() -> Cost:
        pairs = zip(cut.segments, parts, strict=True)
        return sum_costs(_cost_of(segment, compiled) for segment, compiled in pairs)

    programs = tuple(program for part in every for program in part.programs)
    return Compiled(graph, optimized, programs, executable, lower, scheduled, report, cost)


def _cost_of(segment: Segment, parts: Sequence[Compiled]) -> Cost:
    costs = [part.cost() for part in parts]
    if segment.loop is None or not costs:  # what the host prints costs nothing
        return sum_costs(costs)
    return host_cost(segment.loop, costs)


class _HostLoop:
    """An `Executable` of a segment that is one loop, branch or print, run by the host.

    parts: executables of `parts_of` the segment, on the device.
    """

    def __init__(
        self, segment: Segment, device: OpenDevice, parts: Sequence[tuple[Executable, int]]
    ) -> None:
        assert segment.loop is not None
        (instr,) = segment.graph.instrs
        self._device, self._parts, self._instr = device, parts, instr
        self._operands = [segment.graph.inputs.index(v) for v in instr.operands]
        self._outputs = [(v.index, v.type) for v in segment.graph.outputs]
        self._changed = _changed(instr) if is_loop(instr) else ()
        self._runs = _runs(segment.loop) if is_loop(instr) else None

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Run on handles of the device; the results are handles of their own."""
        operands = [inputs[i] for i in self._operands]
        if is_loop(self._instr):
            results = self._loop(operands)
        else:
            results = (self._branch if is_branch(self._instr) else self._print)(operands)
        taken = {id(transfer.handle_of(x)) for x in inputs}
        buffers: list[Handle] = []
        for index, type_ in self._outputs:
            buffer = results[index]
            if id(transfer.handle_of(buffer)) in taken:
                buffer = transfer.duplicate(self._device.device, buffer, type_)
            taken.add(id(transfer.handle_of(buffer)))
            buffers.append(buffer)
        return [transfer.release(buffer) for buffer in buffers]

    def _loop(self, state: list[Any]) -> list[Any]:
        for _ in self._asked(state) if self._runs is None else range(self._runs):
            results = self._part(-1, state)
            for position, buffer in zip(self._changed, results, strict=True):
                state[position] = buffer
        return state

    def _asked(self, state: list[Any]) -> Iterator[None]:
        """As often as the condition holds of the state, which changes meanwhile."""
        while self._look(self._part(0, state)[0], bool_[()]):
            yield

    def _branch(self, operands: list[Any]) -> list[Any]:
        index = int(self._look(operands[0], i32[()]))
        return self._part(chosen(index, len(self._parts)), operands[1:])

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
class _Run:
    """A segment ready to run.

    transfers: due before it.  dead: values that nothing reads after it.
    """

    device: OpenDevice
    executable: Executable
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    transfers: tuple[Transfer, ...]
    dead: tuple[Value, ...]


class SegmentedExecutable:
    """An `Executable` of the first device whose segments run in order on all of them.

    parts: of each segment, what `parts_of` it became.
    """

    def __init__(
        self,
        graph: Graph,
        cut: Partition,
        devices: Sequence[OpenDevice],
        parts: Sequence[Sequence[Compiled]],
    ) -> None:
        self._graph = graph
        self._devices = {device.name: device for device in devices}
        self._home = devices[0].name
        self._last = tuple(t for t in cut.transfers if t.before == len(cut.segments))
        last_read = {v: n for n, segment in enumerate(cut.segments) for v in segment.inputs}
        runs: list[_Run] = []
        for number, (segment, compiled) in enumerate(zip(cut.segments, parts, strict=True)):
            device = self._devices[segment.device]
            dead = tuple(
                v for v in segment.inputs if last_read[v] == number and v not in graph.outputs
            )
            due = tuple(t for t in cut.transfers if t.before == number)
            executable = _executable_of(segment, device, compiled)
            runs.append(_Run(device, executable, segment.inputs, segment.outputs, due, dead))
        self._runs = tuple(runs)

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Run on handles of the first device; the results are its handles too."""
        buffers: dict[tuple[Value, str], Any] = {
            (value, self._home): handle
            for value, handle in zip(self._graph.inputs, inputs, strict=True)
        }
        for run in self._runs:
            self._transfer(buffers, run.transfers)
            name, device = run.device.name, run.device.device
            operands = [buffers[value, name] for value in run.inputs]
            results = transfer.execute(device, run.executable, operands, len(run.outputs))
            buffers.update(zip([(value, name) for value in run.outputs], results, strict=True))
            for value in run.dead:
                for where in self._devices:
                    buffers.pop((value, where), None)
        self._transfer(buffers, self._last)
        return [transfer.release(buffers[value, self._home]) for value in self._graph.outputs]

    def _transfer(
        self, buffers: dict[tuple[Value, str], Any], transfers: Sequence[Transfer]
    ) -> None:
        for each in transfers:
            source, target = self._devices[each.source], self._devices[each.target]
            data = transfer.download(
                source.device, buffers[each.value, each.source], each.value.type
            )
            buffers[each.value, each.target] = transfer.upload(target.device, data)


def _executable_of(segment: Segment, device: OpenDevice, parts: Sequence[Compiled]) -> Executable:
    executables: list[tuple[Executable, int]] = []
    for part in parts:
        assert part.executable is not None
        executables.append((part.executable, len(part.optimized.outputs)))
    if segment.loop is not None:
        return _HostLoop(segment, device, executables)
    ((executable, _),) = executables
    return executable


__all__ = ["SegmentedExecutable", "compiled_segments", "parts_of"]
