"""A whole program as one LLVM module with one native entry.

``void entry(ptr buffers, ptr arena)``: ``buffers`` points to the inputs', outputs' and constants'
addresses in that order, and in a traced program to the address of its `Records`; ``arena`` to
`NativeCode.arena_bytes` bytes private to the call.  Every kernel is a function over a range of
units; long ones are shared among threads through ``bringup_parallel``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bringup.graph import Literal, attrs_key
from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis, Expr
from bringup.kernel.split import split_fold
from bringup.llvm import text as ir
from bringup.llvm.loops.kernel import emit_kernel
from bringup.llvm.loops.schedule import LoopTarget, NativeKernel
from bringup.llvm.scalar import SharedMath
from bringup.llvm.steps.base import NativeStep, emit_step
from bringup.llvm.text import Builder, Callee, Module, Param
from bringup.program.program import CONTROL_STEPS, KernelStep, OpStep, Program, Slot
from bringup.records import record
from bringup_cpu.control import PROGRAM_PARAMS, Frame, emit_control
from bringup_cpu.float_state import FloatState
from bringup_cpu.launch_table import ARENA, BUFFERS, OWN, SCRATCH, TOP, Place
from bringup_cpu.spans import emit_traced, record_bytes

#: Elements one chunk of a long reduction folds; also bounds the serial chain of additions.
CHUNK_ELEMENTS = 1 << 15
#: Reductions with more grid points than this are not cut: the grid alone keeps the threads busy.
SPLIT_POINTS = 256
_PARALLEL_WORK = 1 << 17
_GRAIN_WORK = 1 << 15
_ALIGNMENT = 64


@record
class NativeCode:
    """LLVM IR of a program.

    entry: its function.  arena_bytes: memory a call needs, the program's arena first.  constants:
    arrays whose addresses follow the outputs'.  launches: name and source line of each
    kernel, in order.  traced: the entry notes when each thread worked on each launch.
    """

    text: str
    entry: str
    arena_bytes: int
    constants: tuple[Literal, ...]
    launches: tuple[tuple[str, str], ...]
    traced: bool = False


def generate(
    program: Program, target: LoopTarget, threads: int, *, traced: bool = False
) -> NativeCode:
    """Emit ``program``.  threads: how many workers scratch memory and records are laid out for."""
    return _Generator(program, target, threads, traced).run()


def _programs(program: Program) -> Iterator[Program]:
    """A program and those that its steps run, each once."""
    found = {id(program): program}
    for step in program.steps:
        if isinstance(step, CONTROL_STEPS):
            found |= {id(p): p for inner in step.programs for p in _programs(inner)}
    yield from found.values()


def _constants(program: Program, first: int) -> Iterator[tuple[int, int]]:
    """The number of the first constant of each program."""
    for each in _programs(program):
        yield id(each), first
        first += len(each.constants)


class _Generator:
    def __init__(self, program: Program, target: LoopTarget, threads: int, traced: bool) -> None:
        self.program = program
        self.constants = dict(_constants(program, 0))
        self.literals = [literal for p in _programs(program) for literal in p.constants]
        self.target = replace(target, threads=threads)
        self.threads = threads
        self.traced = traced
        self.module = Module()
        self.module.shared_math = SharedMath()
        self.entry = "entry"
        self.scratch_bytes = 0
        self.base = -(-program.arena_bytes // _ALIGNMENT) * _ALIGNMENT
        self.known: dict[str, NativeKernel] = {}
        self.known_steps: dict[str, NativeStep] = {}
        self.launches: list[tuple[str, str]] = []
        self.line = ""
        self.functions: dict[int, str] = {}

    def run(self) -> NativeCode:
        params: list[Param] = [("buffers", ir.ptr, "nocapture readonly"), ("arena", ir.ptr)]
        function = self.module.function(self.entry, ir.void, params, attrs="nounwind")
        b = Builder(function.block("entry"))
        buffers, arena = function.args
        state = FloatState(b)
        self._steps(Frame(b, self.program, buffers, buffers, arena, b.gep(arena, self.base, ir.i8)))
        state.restore(b)
        b.ret()
        bytes_needed = self.base + self.scratch_bytes
        return NativeCode(
            str(self.module),
            self.entry,
            bytes_needed,
            tuple(self.literals),
            tuple(self.launches),
            self.traced,
        )

    def _steps(self, frame: Frame) -> None:
        """Emit the steps of a program."""
        for step in frame.program.steps:
            self.line = "" if step.location is None else str(step.location)
            if isinstance(step, OpStep):
                self._op_step(frame, step)
            elif isinstance(step, KernelStep):
                self._step(frame, step)
            else:
                frame.launch()
                addresses = [frame.address(self._place(frame, s)) for s in step.slots]
                emit_control(frame, step, addresses, self._function)
        frame.launch()

    def _function(self, program: Program) -> Callee:
        """The function of a program that a step runs; see `bringup_cpu.control`."""
        name = self.functions.get(id(program))
        if name is None:
            name = self.functions[id(program)] = f"{self.entry}.p{len(self.functions)}"
            function = self.module.function(
                name, ir.void, PROGRAM_PARAMS, attrs="nounwind", linkage="internal"
            )
            frame = Frame(Builder(function.block("entry")), program, *function.args)
            self._steps(frame)
            frame.b.ret()
        return self.module.functions[name].callee

    def _place(self, frame: Frame, slot: Slot) -> Place:
        if slot.space == "arena":
            return Place(OWN, ARENA, slot.offset)
        if slot.space == "constant":
            return self._shared(self.constants[id(frame.program)] + slot.index)
        first = len(frame.program.inputs) if slot.space == "output" else 0
        return Place(BUFFERS, first + slot.index)

    def _shared(self, number: int) -> Place:
        """What follows the entry's inputs and outputs: constants, then records."""
        return Place(TOP, len(self.program.inputs) + len(self.program.outputs) + number)

    def _records(self) -> Place:
        """Where the threads note when they worked on the launch being emitted."""
        offset = len(self.launches) * record_bytes(self.threads)
        return replace(self._shared(len(self.literals)), offset=offset)

    def _step(self, frame: Frame, step: KernelStep) -> None:
        places = [self._place(frame, s) for s in step.slots]
        split = split_fold(step.kernel, chunk_elements=CHUNK_ELEMENTS, max_points=SPLIT_POINTS)
        if split is None:
            self._launch(frame, step.kernel, places, {}, 0)
            return
        offset = 0
        partials: list[Place] = []
        for type_ in split.scratch:
            partials.append(Place(OWN, SCRATCH, offset))
            offset += -(-type_.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.scratch_bytes = max(self.scratch_bytes, offset)
        self._launch(frame, split.partial, places + partials, split.clips, offset)
        self._launch(frame, split.final, places + partials, {}, offset)

    def _op_step(self, frame: Frame, step: OpStep) -> None:
        native = self._native_step(step)
        used = -(-native.shared_bytes // _ALIGNMENT) * _ALIGNMENT
        self.scratch_bytes = max(self.scratch_bytes, used)
        places = [*(self._place(frame, s) for s in step.slots), Place(OWN, SCRATCH)]
        for phase in native.phases:
            self._run(frame, phase, step.name, places, used)

    def _launch(
        self,
        frame: Frame,
        kernel: Kernel,
        places: Sequence[Place],
        clips: Mapping[Axis, Expr],
        used: int,
    ) -> None:
        self._run(frame, self._kernel(kernel, clips), kernel.name, places, used)

    def _run(
        self, frame: Frame, native: NativeKernel, label: str, places: Sequence[Place], used: int
    ) -> None:
        """Launch a function on ``places`` and its scratch, ``used`` bytes into the call's."""
        if not native.units:
            return
        self.scratch_bytes = max(self.scratch_bytes, used + native.tile_bytes * self.threads)
        places = [*places, Place(OWN, SCRATCH, used)]
        function = self.module.functions[native.name].callee
        if self.traced:
            function = emit_traced(self.module, native.name, len(places))
            places.append(self._records())
        self.launches.append((label, self.line))
        grain = 0
        if native.units > 1 and native.units * native.work >= _PARALLEL_WORK:
            grain = max(1, _GRAIN_WORK // max(native.work, 1))
        frame.launches.add(function, places, native.units, grain)

    def _kernel(self, kernel: Kernel, clips: Mapping[Axis, Expr]) -> NativeKernel:
        stops = "".join(f"{axis} < {stop}\n" for axis, stop in clips.items())
        key = stops + str(kernel).split("\n", 1)[-1]
        found = self.known.get(key)
        if found is None:
            name = f"{self.entry}.{len(self.known)}.{kernel.name}"
            found = self.known[key] = emit_kernel(self.module, kernel, name, self.target, clips)
        return found

    def _native_step(self, step: OpStep) -> NativeStep:
        types = [slot.type for slot in step.slots]
        key = f"{step.op.name} {attrs_key(step.attrs)!r} {types}"
        found = self.known_steps.get(key)
        if found is None:
            name = f"{self.entry}.op{len(self.known_steps)}.{step.name}"
            found = self.known_steps[key] = emit_step(self.module, step, name, self.target)
        return found
