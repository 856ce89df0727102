"""Programs as launches of functions of the loop level, for devices whose language core renders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.aot.c_text import Functions
from bringup.aot.host_source import ALIGNMENT
from bringup.backend.adapters import scheduled_func
from bringup.c import Dialect, geometry, scratch_bytes, symbol, units
from bringup.errors import UnsupportedError
from bringup.integers import ceil_div, round_up
from bringup.loops.form import Func
from bringup.loops.schedule import Scheduled
from bringup.program.commands import Argument, Command, Control, Launch, Scratch, SimtKernel
from bringup.program.loops import numbered_loops
from bringup.program.program import ControlStep, KernelStep, OpStep, Program
from bringup.target import Target

#: A thread of a processor is one of so many for each of its own, whose loops are long.
_ROUNDS = 8
#: The most threads of a kernel that needs scratch memory for each.
_MOST_WITH_SCRATCH = 1 << 12


class LoopCommands:
    """The commands of programs, and the functions that they launch.

    dialect: of the functions; it has threads.  row: of the machine.
    scheduled: gives the loops of a kernel.  functions: what is launched.
    """

    def __init__(
        self, dialect: Dialect, row: Target, scheduled: Callable[[KernelStep], Scheduled]
    ) -> None:
        self.dialect, self.row, self.scheduled = dialect, row, scheduled
        self.functions = Functions(dialect)

    def of(self, program: Program) -> tuple[Command, ...]:
        """The commands of a program.  Raises UnsupportedError."""
        numbers = range(len(program.steps))
        return tuple([command for n in numbers for command in self._step(program, n)])

    def _step(self, program: Program, number: int) -> Iterator[Command]:
        step = program.steps[number]
        if isinstance(step, ControlStep):
            yield Control(step, tuple([self.of(body) for body in step.programs]))
            return
        if isinstance(step, KernelStep):
            yield from self._launch(step, self.scheduled(step).after, step.slots, 0)
            return
        loops = numbered_loops(program, number, self.row)
        if loops is None:
            raise UnsupportedError(
                f"{self.dialect.name} has no function for {step.name}", location=step.location
            )
        arguments: list[Argument] = list(step.slots)
        used = 0
        for buffer in loops.temporaries:
            arguments.append(Scratch(used, buffer.type.nbytes))
            used = round_up(used + buffer.type.nbytes, ALIGNMENT)
        for func, chosen in zip(loops.funcs, loops.numbers, strict=True):
            memory = [arguments[n] for n in chosen]
            yield from self._launch(step, scheduled_func(func, None).after, memory, used)

    def _launch(
        self, step: KernelStep | OpStep, func: Func, memory: Sequence[Argument], used: int
    ) -> Iterator[Launch]:
        """The launch of a function.  used: bytes of scratch memory before its own."""
        if not units(func):
            return
        func = self.functions.add(func)
        shape, each = geometry(func), scratch_bytes(func, self.dialect)
        threads = shape.threads or min(self.row.block, units(func))
        blocks = shape.blocks if shape.threads else ceil_div(units(func), threads)
        if self.row.most_threads == 1:
            blocks = min(blocks, self.row.threads * _ROUNDS)
        if each:
            blocks = max(1, min(blocks, _MOST_WITH_SCRATCH // threads))
            memory = [*memory, Scratch(used, each * blocks * threads)]
        kernel = SimtKernel(symbol(func, self.dialect), blocks, threads)
        yield Launch(kernel, tuple(memory), step)


__all__ = ["LoopCommands"]
