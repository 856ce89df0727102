"""Loops and branches: the host queues their bodies, and looks at the device only to decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bringup.ops.subgraphs import chosen
from bringup.program.program import CaseStep, ControlStep, ScanStep, Slot, WhileStep
from bringup.records import record

if TYPE_CHECKING:
    from bringup_cuda.bodies import Body
    from bringup_cuda.device import CudaDevice
    from bringup_cuda.memory import Block

#: Of the widest load that kernels make of a buffer's start.
ROW_ALIGNMENT = 16


class Driven:
    """One loop or branch.

    places: of the step's slots in the table of the program around it.
    scratch: place of the memory that all commands share.
    bodies: of the step's programs.
    """

    __slots__ = ("_bodies", "_device", "_places", "_scratch", "_step")

    def __init__(
        self,
        device: CudaDevice,
        step: ControlStep,
        places: Sequence[int],
        scratch: int,
        bodies: Sequence[Body],
    ) -> None:
        self._device = device
        self._step = step
        self._places = tuple(places)
        self._scratch = scratch
        self._bodies = tuple(bodies)

    def run(self, table: Sequence[int]) -> None:
        """Queue all of it; waits for the device wherever it decides."""
        addresses = [table[place] for place in self._places]
        given, made = len(self._step.operands), len(self._step.results)
        run = _Run(
            self._device,
            self._bodies,
            addresses[:given],
            addresses[given : given + made],
            addresses[given + made :],
            table[self._scratch],
        )
        if isinstance(self._step, WhileStep):
            run.while_(self._step)
        elif isinstance(self._step, ScanStep):
            run.scan(self._step)
        else:
            run.case(self._step)

    def close(self) -> None:
        """Let go of the bodies, which their maker closes."""
        self._bodies = ()


class _Run:
    """One run of a step, over addresses of its slots."""

    def __init__(
        self,
        device: CudaDevice,
        bodies: Sequence[Body],
        operands: list[int],
        results: list[int],
        places: list[int],
        scratch: int,
    ) -> None:
        self.device, self.bodies = device, bodies
        self.operands, self.results, self.places = operands, results, places
        self.arena, self.scratch = places[-1], scratch

    def while_(self, step: WhileStep) -> None:
        count = len(step.carried)
        state, rest = self._start(step)
        target, other = self.results[:count], self.places[:count]
        flag, left = self.places[count], step.trips
        while self._holds(state, flag) if left is None else left:
            left = left if left is None else left - 1
            self._body(1, state, [*target, *rest])
            for place, address in zip(step.carried, target, strict=True):
                state[place] = address
            target, other = other, target
        self._keep(step.results, [state[place] for place in step.carried])

    def _holds(self, state: Sequence[int], flag: int) -> bool:
        self._body(0, state, [flag])
        return bool(self.device.look(flag, 1)[0])

    def scan(self, step: ScanStep) -> None:
        if not step.length:
            self._keep(step.results, [self.operands[place] for place in step.carried])
            return
        count = len(step.carried)
        state, rest = self._start(step)
        changing = count + len(step.updated)
        rows = _Rows(self.device, step.length)
        try:
            read = [rows.of(self.operands[place], step.operands[place]) for place in step.stacks]
            written = [
                rows.of(address, slot)
                for address, slot in zip(
                    self.results[changing:], step.results[changing:], strict=True
                )
            ]
            # The last run writes the results.
            sides = (self.results[:count], self.places[:count])
            for left in reversed(range(step.length)):
                at = left if step.reverse else step.length - 1 - left
                for place, row in zip(step.stacks, read, strict=True):
                    state[place] = row.fetched(at)
                target = sides[left % 2]
                self._body(0, state, [*target, *rest, *(row.place(at) for row in written)])
                for row in written:
                    row.store(at)
                for place, address in zip(step.carried, target, strict=True):
                    state[place] = address
        finally:
            rows.close()
        self._keep(step.results, [state[place] for place in step.carried])

    def case(self, step: CaseStep) -> None:
        number = int.from_bytes(self.device.look(self.operands[0], 4), "little", signed=True)
        self._body(chosen(number, len(step.branches)), self.operands[1:], self.results)

    def _start(self, step: WhileStep | ScanStep) -> tuple[list[int], list[int]]:
        """The state at first, and the places of what the body changes where it is."""
        state, first = list(self.operands), len(step.carried)
        rest = self.results[first : first + len(step.updated)]
        for place, target in zip(step.updated, rest, strict=True):
            self._copy(target, state[place], step.operands[place].type.nbytes)
            state[place] = target
        return state, rest

    def _keep(self, slots: Sequence[Slot], state: Sequence[int]) -> None:
        """Copy what stands elsewhere to where it belongs."""
        for slot, target, source in zip(slots, self.results, state, strict=False):
            self._copy(target, source, slot.type.nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        if nbytes and target != source:
            self.device.copy_within(target, source, nbytes)

    def _body(self, number: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.bodies[number].run(inputs, outputs, self.arena, self.scratch)


class _Rows:
    """The stacks of a scan, row by row.

    Kernels take addresses that are multiples of `ROW_ALIGNMENT`: rows that lie at others are copied
    to a place of their own and back.
    """

    def __init__(self, device: CudaDevice, length: int) -> None:
        self.device, self.length = device, length
        self._blocks: list[Block] = []

    def of(self, address: int, slot: Slot) -> _Row:
        """The rows of one stack."""
        nbytes = slot.type.nbytes // self.length
        if nbytes % ROW_ALIGNMENT == 0:
            return _Row(self.device, address, nbytes, None)
        self._blocks.append(self.device.alloc(nbytes))
        return _Row(self.device, address, nbytes, self._blocks[-1].address)

    def close(self) -> None:
        """Give their places back; work that is queued uses them still."""
        used = self.device.streams.tick()
        for block in self._blocks:
            block.used = used
            self.device.free(block)


@record
class _Row:
    """Any row of the stack at ``address``.  own: the place that it is copied to, if it is."""

    device: CudaDevice
    address: int
    nbytes: int
    own: int | None

    def place(self, at: int) -> int:
        """Where the body finds or leaves it."""
        return self.address + at * self.nbytes if self.own is None else self.own

    def fetched(self, at: int) -> int:
        """Its place, with what stands in the stack."""
        if self.own is not None:
            self.device.copy_within(self.own, self.address + at * self.nbytes, self.nbytes)
        return self.place(at)

    def store(self, at: int) -> None:
        """What the body left goes to the stack."""
        if self.own is not None:
            self.device.copy_within(self.address + at * self.nbytes, self.own, self.nbytes)


__all__ = ["Driven"]
