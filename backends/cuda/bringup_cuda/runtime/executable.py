"""Compiled programs: their commands as calls of the driver, and the memory of a call.

The commands of a program run on a table of addresses.  Loops and branches are driven by the host:
it queues their bodies, and reads from the device only to decide.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count, takewhile
from operator import itemgetter
from struct import Struct
from typing import Any

from bringup import config
from bringup.backend.adapters_run import dense_bytes, locator
from bringup.errors import BringupError
from bringup.integers import round_up
from bringup.ops.subgraphs import chosen
from bringup.program.program import (
    BranchStep,
    ControlStep,
    LoopStep,
    Program,
    Slot,
)
from bringup_cuda.codegen.commands import (
    Argument,
    Command,
    Control,
    Copy,
    Launch,
    launches_of,
)
from bringup_cuda.codegen.compile import CompiledProgram
from bringup_cuda.runtime.command_list import Action, CommandList
from bringup_cuda.runtime.gpu import Gpu
from bringup_cuda.runtime.memory import Block
from bringup_cuda.runtime.modules import LoadedModule, blocks_to_launch
from bringup_cuda.targets import ALIGNMENT, ROW_ALIGNMENT


class CudaExecutable:
    """A loaded program.  Calls from several threads may overlap."""

    __slots__ = (
        "__weakref__", "_aliases", "_donated", "_gpu", "_input_count", "_launches", "_output_bytes",
        "_scratch_bytes", "_scratch_offset", "commands", "program",
    )  # fmt: skip

    def __init__(
        self, gpu: Gpu, program: Program, compiled: CompiledProgram, module: LoadedModule
    ) -> None:
        self.program = program
        self._gpu = gpu
        loader = _Loader(gpu, module, waits=config.level("BRINGUP_CHECK") > 0)
        # A finaliser, so that all is given back after an error in this method too.
        weakref.finalize(self, loader.close)
        self.commands = loader.load(program, compiled.commands)
        self._launches = tuple((x.step, x.kernel.name) for x in launches_of(compiled.commands))
        self._input_count = len(program.inputs)
        self._aliases = dict(program.aliases)
        outputs = enumerate(program.outputs)
        self._output_bytes = [t.nbytes for i, t in outputs if i not in self._aliases]
        # The arena and scratch memory are one block.
        self._scratch_offset = round_up(program.arena_bytes, ALIGNMENT)
        self._scratch_bytes = self._scratch_offset + compiled.scratch_bytes
        aliased = set(self._aliases.values())
        self._donated = [i for i in sorted(program.donated) if i not in aliased]

    def __call__(self, inputs: Sequence[Block]) -> list[Block]:
        """Queue all commands and return; see `bringup.backend.Executable`.

        After an error nothing stays allocated, and donated inputs are gone.
        """
        gpu = self._gpu
        assert len(inputs) == self._input_count
        allocated: list[Block] = []
        try:
            for nbytes in self._output_bytes:
                allocated.append(gpu.alloc(nbytes))
            outputs = self._with_aliases(inputs, allocated) if self._aliases else list(allocated)
            arena = gpu.alloc(self._scratch_bytes) if self._scratch_bytes else None
            if arena is not None:
                allocated.append(arena)
            address = 0 if arena is None else arena.address
            # Before the work is queued: an error while queueing may be about launches just queued.
            gpu.pending.append((gpu.streams.latest + 1, locator(), self._launches))
            gpu.queue(
                self.commands.run,
                [block.address for block in inputs],
                [block.address for block in outputs],
                address,
                address + self._scratch_offset,
            )
        except BaseException:
            self._give_back(inputs, allocated)
            raise
        used = gpu.streams.tick()
        for block in inputs:
            block.used = used
        for block in allocated:
            block.used = used
        if arena is not None:
            gpu.free(arena)
        for i in self._donated:
            gpu.free(inputs[i])
        return outputs

    def _with_aliases(self, inputs: Sequence[Block], allocated: Sequence[Block]) -> list[Block]:
        """The outputs in order: new blocks, and donated inputs that are overwritten."""
        new, aliases = iter(allocated), self._aliases
        return [
            inputs[aliases[i]] if i in aliases else next(new)
            for i in range(len(self.program.outputs))
        ]

    def _give_back(self, inputs: Sequence[Block], allocated: Sequence[Block]) -> None:
        gpu = self._gpu
        # Some commands may be queued already.
        used = gpu.streams.tick()
        for block in (*allocated, *(inputs[i] for i in self.program.donated)):
            block.used = used
            with suppress(BringupError):  # The first error is the one to report.
                gpu.free(block)


class _Loader:
    """Prepares the commands of a program and of the bodies of its loops; owns their resources."""

    def __init__(self, gpu: Gpu, module: LoadedModule, *, waits: bool) -> None:
        self.gpu, self.module, self.waits = gpu, module, waits
        self.constants: list[Block] = []
        self.programs: list[ProgramCommands] = []

    def load(self, program: Program, commands: Sequence[Command]) -> ProgramCommands:
        """The commands of a program, ready to run."""
        constants = [self._upload(literal) for literal in program.constants]
        prepared = ProgramCommands(self.gpu, self.module, program, constants, waits=self.waits)
        self.programs.append(prepared)
        for command in commands:
            if isinstance(command, Control):
                step = command.step
                pairs = zip(step.programs, command.programs, strict=True)
                prepared.add_control(step, [self.load(body, inner) for body, inner in pairs])
            else:
                prepared.add(command)
        prepared.finish()
        return prepared

    def _upload(self, literal: Any) -> int:
        block = self.gpu.alloc(literal.type.nbytes)
        self.constants.append(block)
        self.gpu.upload(block, dense_bytes(literal))
        return block.address

    def close(self) -> None:
        """Give back graphs, code and constants, while queued work still runs."""
        gpu = self.gpu
        used = gpu.streams.latest
        with suppress(Exception), gpu.activated():
            # The driver needs the context to be current when code is dropped.
            while self.programs:
                self.programs.pop().close()
            self.module.release()
        while self.constants:
            block = self.constants.pop()
            block.used = max(block.used, used)
            with suppress(BringupError):
                gpu.free(block)


class ProgramCommands:
    """The commands of one program, which may be the body of a loop.

    They run on a table: addresses of inputs, outputs, constants, the arena and scratch memory,
    then addresses inside these.
    """

    __slots__ = (
        "_constants", "_entries", "_first_entry", "_gpu", "_items", "_module", "_offsets",
        "_space_starts", "_waits",
    )  # fmt: skip

    def __init__(
        self,
        gpu: Gpu,
        module: LoadedModule,
        program: Program,
        constants: Sequence[int],
        *,
        waits: bool,
    ) -> None:
        self._gpu = gpu
        self._module = module
        self._waits = waits
        self._constants = tuple(constants)
        inputs, outputs = len(program.inputs), len(program.outputs)
        arena = inputs + outputs + len(constants)
        self._space_starts = {
            "input": 0,
            "output": inputs,
            "constant": inputs + outputs,
            "arena": arena,
            "scratch": arena + 1,
        }
        self._first_entry = arena + 2
        #: Index in the table by base and offset; an integer has no base.
        self._offsets: dict[tuple[int, int], int] = {}
        self._entries: list[tuple[int, int]] = []
        self._items: list[CommandList | ControlCommand] = []

    def add(self, command: Launch | Copy) -> None:
        """Append a command."""
        if not self._items or not isinstance(self._items[-1], CommandList):
            self._items.append(CommandList(self._gpu, waits=self._waits))
        commands = self._items[-1]
        assert isinstance(commands, CommandList)
        if isinstance(command, Launch):
            commands.add(self._launch(command), command.step)
        elif command.nbytes and command.source != command.target:
            commands.add(self._copy(command), None)

    def add_control(self, step: ControlStep, bodies: Sequence[ProgramCommands]) -> None:
        """Append a loop or branch over bodies of its own."""
        slots = [self._table_index(slot) for slot in step.slots]
        scratch = self._space_starts["scratch"]
        self._items.append(ControlCommand(self._gpu, step, slots, scratch, bodies))

    def finish(self) -> None:
        """End the list of commands."""
        self._entries = list(self._offsets)
        for item in self._items:
            if isinstance(item, CommandList):
                item.finish(self._first_entry)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], arena: int, scratch: int) -> None:
        """Queue all commands, on these addresses.  The context must be current."""
        table = [*inputs, *outputs, *self._constants, arena, scratch]
        if self._entries:
            table += [table[base] + offset for base, offset in self._entries]
        for item in self._items:
            item.run(table)

    def close(self) -> None:
        """Drop code and graphs."""
        for item in self._items:
            item.close()
        self._items.clear()

    def _table_index(self, argument: Argument) -> int:
        if isinstance(argument, Slot):
            base, offset = self._space_starts[argument.space], argument.offset
            base += argument.index if argument.space != "arena" else 0
        else:
            base, offset = self._space_starts["scratch"], argument.offset
        if not offset:
            return base
        new_index = self._first_entry + len(self._offsets)
        return self._offsets.setdefault((base, offset), new_index)

    def _launch(self, command: Launch) -> Action:
        kernel, gpu = command.kernel, self._gpu
        letters = "P" * len(command.arguments)
        arguments = _tuple_getter([self._table_index(a) for a in command.arguments])
        function = self._module.function(kernel.name, letters, kernel.shared_bytes)
        blocks = blocks_to_launch(kernel, function, gpu.driver, gpu.processors)
        grid, block, shared = (blocks, 1), (kernel.threads, 1, 1), kernel.shared_bytes
        launch = getattr(function, "_launch_kernel", None)
        if launch is not None:  # pragma: no cover on cuda-emulated - only drivers
            # pycuda's public call ends in this one; before that it sets the shape of the block,
            # which is one more call of the driver and without effect since CUDA 4.
            pack = Struct(letters).pack
            return lambda table, stream: launch(
                grid, block, pack(*arguments(table)), shared, stream
            )
        call = function.prepared_async_call
        return lambda table, stream: call(
            grid, block, stream, *arguments(table), shared_size=shared
        )

    def _copy(self, command: Copy) -> Action:
        source, target = self._table_index(command.source), self._table_index(command.target)
        nbytes, memcpy = command.nbytes, self._gpu.driver.memcpy_dtod_async

        def copy(table: Sequence[int], stream: Any) -> None:
            if table[source] != table[target]:
                memcpy(table[target], table[source], nbytes, stream)

        return copy


def _tuple_getter(indices: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The entries of a table at these indices, at least one, as a tuple."""
    if len(indices) == 1:
        (index,) = indices
        return lambda table: (table[index],)
    return itemgetter(*indices)


# -- loops and branches ----------------------------------------------------------------------------


class ControlCommand:
    """One loop or branch.

    slots: indices of the step's slots in the table of the program around it.
    scratch: index of the scratch memory, which all commands share.
    bodies: the commands of the step's programs.
    """

    __slots__ = ("_bodies", "_gpu", "_scratch", "_slots", "_step")

    def __init__(
        self,
        gpu: Gpu,
        step: ControlStep,
        slots: Sequence[int],
        scratch: int,
        bodies: Sequence[ProgramCommands],
    ) -> None:
        self._gpu = gpu
        self._step = step
        self._slots = tuple(slots)
        self._scratch = scratch
        self._bodies = tuple(bodies)

    def run(self, table: Sequence[int]) -> None:
        """Queue all of it; waits for the device where the host must decide."""
        addresses, step = [table[index] for index in self._slots], self._step
        operands, results = len(step.operands), len(step.operands) + len(step.results)
        run = _ControlRun(
            self._gpu,
            self._bodies,
            addresses[:operands],
            addresses[operands:results],
            addresses[results:],
            table[self._scratch],
        )
        if isinstance(step, LoopStep):
            run.loop(step)
        else:
            run.branch(step)

    def close(self) -> None:
        """Drop the bodies, which the loader closes."""
        self._bodies = ()


class _ControlRun:
    """One run of a loop or branch, on the addresses of its slots.

    temporaries: the spare state of a loop, the flag of a while loop, and the arena of the bodies.
    """

    def __init__(
        self,
        gpu: Gpu,
        bodies: Sequence[ProgramCommands],
        operands: list[int],
        results: list[int],
        temporaries: list[int],
        scratch: int,
    ) -> None:
        self.gpu, self.bodies = gpu, bodies
        self.operands, self.results, self.temporaries = operands, results, temporaries
        self.arena, self.scratch = temporaries[-1], scratch

    def loop(self, step: LoopStep) -> None:
        """Run the body while the condition holds, or a known number of times."""
        carried = len(step.carried)
        first_stack = carried + len(step.updated)
        state, in_place = self._initial_state(step)
        rows = _StackRows(self.gpu, step.trips or 0)
        try:
            read = [rows.of(self.operands[i], step.operands[i]) for i in step.stacks]
            result_stacks = zip(self.results[first_stack:], step.results[first_stack:], strict=True)
            written = [rows.of(address, slot) for address, slot in result_stacks]
            targets = [self.results[:carried], self.temporaries[:carried]]
            if step.writes_spare(0):
                targets.reverse()
            for run in self._runs(step, state):
                row = step.row(run)
                for index, stack in zip(step.stacks, read, strict=True):
                    state[index] = stack.fetch(row)
                target = targets[run % 2]
                row_addresses = [stack.address(row) for stack in written]
                self._run_body(-1, state, [*target, *in_place, *row_addresses])
                for stack in written:
                    stack.store(row)
                for index, address in zip(step.carried, target, strict=True):
                    state[index] = address
        finally:
            rows.close()
        self._copy_results(step.results, [state[index] for index in step.carried])

    def _runs(self, step: LoopStep, state: Sequence[int]) -> Iterable[int]:
        """The runs of a loop's body, counted; waits for the condition where it decides."""
        if step.trips is not None:
            return range(step.trips)
        flag = self.temporaries[len(step.carried)]

        def holds(_run: int) -> bool:
            self._run_body(0, state, [flag])
            return bool(self.gpu.read_bytes(flag, 1)[0])

        return takewhile(holds, count())

    def branch(self, step: BranchStep) -> None:
        """Run the program that the first operand chooses."""
        index = int.from_bytes(self.gpu.read_bytes(self.operands[0], 4), "little", signed=True)
        self._run_body(chosen(index, len(step.programs)), self.operands[1:], self.results)

    def _initial_state(self, step: LoopStep) -> tuple[list[int], list[int]]:
        """The addresses of the initial state, and of the values that the body updates in place."""
        state, first = list(self.operands), len(step.carried)
        in_place = self.results[first : first + len(step.updated)]
        for index, target in zip(step.updated, in_place, strict=True):
            self._copy(target, state[index], step.operands[index].type.nbytes)
            state[index] = target
        return state, in_place

    def _copy_results(self, slots: Sequence[Slot], state: Sequence[int]) -> None:
        """Copy the final state to the results where it lies elsewhere."""
        for slot, target, source in zip(slots, self.results, state, strict=False):
            self._copy(target, source, slot.type.nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        if nbytes and target != source:
            self.gpu.copy_within(target, source, nbytes)

    def _run_body(self, index: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.bodies[index].run(inputs, outputs, self.arena, self.scratch)


class _StackRows:
    """The stacks of a scan, row by row.

    Kernels take addresses that are multiples of `ROW_ALIGNMENT`: rows at other addresses are copied
    to a buffer and back.
    """

    def __init__(self, gpu: Gpu, length: int) -> None:
        self.gpu, self.length = gpu, length
        self._buffers: list[Block] = []

    def of(self, address: int, slot: Slot) -> _StackRow:
        """The rows of one stack."""
        nbytes = slot.type.nbytes // max(self.length, 1)
        buffer = None
        if nbytes % ROW_ALIGNMENT:
            self._buffers.append(self.gpu.alloc(nbytes))
            buffer = self._buffers[-1].address
        return _StackRow(self.gpu, address, nbytes, buffer)

    def close(self) -> None:
        """Free the buffers, which queued work still uses."""
        if not self._buffers:
            return
        used = self.gpu.streams.tick()
        for block in self._buffers:
            block.used = used
            self.gpu.free(block)


class _StackRow:
    """The rows of a stack at ``stack``.  buffer: the address that rows are copied to, or None."""

    def __init__(self, gpu: Gpu, stack: int, nbytes: int, buffer: int | None) -> None:
        self.gpu, self.stack, self.nbytes, self.buffer = gpu, stack, nbytes, buffer

    def address(self, position: int) -> int:
        """The address of a row, as the body reads or writes it."""
        return self.stack + position * self.nbytes if self.buffer is None else self.buffer

    def fetch(self, position: int) -> int:
        """The address of a row, with its contents."""
        if self.buffer is not None:
            self.gpu.copy_within(self.buffer, self.stack + position * self.nbytes, self.nbytes)
        return self.address(position)

    def store(self, position: int) -> None:
        """Put the row that the body wrote into the stack."""
        if self.buffer is not None:
            self.gpu.copy_within(self.stack + position * self.nbytes, self.buffer, self.nbytes)
