"""A whole program as one LLVM module with one native entry.

``void entry(ptr buffers, ptr arena)``: ``buffers`` points to the inputs', outputs' and constants'
addresses in that order, and in a traced program to the address of its `Records`; ``arena`` to
`NativeCode.arena_bytes` bytes private to the call.  Every kernel is a function over a range of
units; long ones are shared among threads through ``bringup_parallel``.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bringup.graph import attrs_key
from bringup.integers import round_up
from bringup.llvm import text as ir
from bringup.llvm.loops.kernel import emit_kernel
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel
from bringup.llvm.scalar import SharedMath
from bringup.llvm.text import Builder, Callee, Module, Param
from bringup.program.program import KernelStep, OpStep, Program, Slot
from bringup.runtime import timeline
from bringup.target import Target
from bringup_cpu.control import PROGRAM_PARAMS, Frame, emit_control
from bringup_cpu.executable import ENTRY, NativeCode
from bringup_cpu.float_state import FloatState
from bringup_cpu.launch_table import ARENA, BUFFERS, OWN, SCRATCH, TOP, MemoryRef
from bringup_cpu.spans import emit_traced, record_bytes

if TYPE_CHECKING:  # most programs have no op step
    from bringup.llvm.loops.library import NativeStep

_PARALLEL_WORK = 1 << 17
_GRAIN_WORK = 1 << 15


def generate(program: Program, target: Target, *, traced: bool = False) -> NativeCode:
    """Emit ``program``; scratch memory and records are laid out for the threads of ``target``."""
    code = SharedCode(Module())
    arena_bytes, launches = emit_program(code, ENTRY, program, target, traced=traced)
    return NativeCode(str(code.module), arena_bytes, launches, traced)


class SharedCode:
    """A module and the functions that its programs share, by what they compute.

    architecture: of the machine that runs it, as `platform.machine` calls it.
    """

    def __init__(self, module: Module, architecture: str = "") -> None:
        self.module = module
        self.architecture = architecture or platform.machine()
        self.kernels: dict[str, NativeKernel] = {}
        self.op_steps: dict[str, NativeStep] = {}
        module.shared_math = SharedMath()


def emit_program(
    code: SharedCode, name: str, program: Program, target: Target, *, traced: bool = False
) -> tuple[int, tuple[tuple[str, Mapping[str, Any]], ...]]:
    """Emit ``program`` as the function ``name``; the bytes of its arena, and its launches."""
    generator = _Generator(code, name, program, target, traced)
    return generator.run(), tuple(generator.launches)


def _constants(program: Program, first: int) -> Iterator[tuple[int, int]]:
    """The number of the first constant of each program."""
    for each in program.programs:
        yield id(each), first
        first += len(each.constants)


class _Generator:
    def __init__(
        self, code: SharedCode, name: str, program: Program, target: Target, traced: bool
    ) -> None:
        self.code, self.name = code, name
        self.program = program
        self.constants = dict(_constants(program, 0))
        self.literals = sum(len(each.constants) for each in program.programs)
        self.target = target
        self.traced = traced
        self.module = code.module
        self.scratch_bytes = 0
        self.base = round_up(program.arena_bytes, LINE_BYTES)
        self.launches: list[tuple[str, Mapping[str, Any]]] = []
        #: What the timeline says of the step being emitted.
        self.facts: Mapping[str, Any] = {}
        self.functions: dict[int, str] = {}

    def run(self) -> int:
        """Emit everything; the bytes that a call needs."""
        params: list[Param] = [("buffers", ir.ptr, "nocapture readonly"), ("arena", ir.ptr)]
        function = self.module.function(self.name, ir.void, params, attrs="nounwind")
        b = Builder(function.block("entry"))
        buffers, arena = function.args
        state = FloatState(b, self.code.architecture)
        self._steps(Frame(b, self.program, buffers, buffers, arena, b.gep(arena, self.base, ir.i8)))
        state.restore(b)
        b.ret()
        return self.base + self.scratch_bytes

    def _steps(self, frame: Frame) -> None:
        """Emit the steps of a program."""
        for step in frame.program.steps:
            if self.traced:
                self.facts = timeline.step_facts(step)
            if isinstance(step, OpStep):
                self._op_step(frame, step)
            elif isinstance(step, KernelStep):
                refs = [self._ref(frame, slot) for slot in step.slots]
                self._run(frame, self._kernel(step), step.name, refs, 0)
            else:
                frame.launch()
                addresses = [frame.address(self._ref(frame, s)) for s in step.slots]
                emit_control(frame, step, addresses, self._function)
        frame.launch()

    def _function(self, program: Program) -> Callee:
        """The function of a program that a step runs; see `bringup_cpu.control`."""
        name = self.functions.get(id(program))
        if name is None:
            name = self.functions[id(program)] = f"{self.name}.p{len(self.functions)}"
            function = self.module.function(
                name, ir.void, PROGRAM_PARAMS, attrs="nounwind", linkage="internal"
            )
            frame = Frame(Builder(function.block("entry")), program, *function.args)
            self._steps(frame)
            frame.b.ret()
        return self.module.functions[name].callee

    def _ref(self, frame: Frame, slot: Slot) -> MemoryRef:
        if slot.space == "arena":
            return MemoryRef(OWN, ARENA, slot.offset)
        if slot.space == "constant":
            return self._shared(self.constants[id(frame.program)] + slot.index)
        first = len(frame.program.inputs) if slot.space == "output" else 0
        return MemoryRef(BUFFERS, first + slot.index)

    def _shared(self, number: int) -> MemoryRef:
        """What follows the entry's inputs and outputs: constants, then records."""
        return MemoryRef(TOP, len(self.program.inputs) + len(self.program.outputs) + number)

    def _records(self) -> MemoryRef:
        """Where the threads note when they worked on the launch being emitted."""
        offset = len(self.launches) * record_bytes(self.target.threads)
        return replace(self._shared(self.literals), offset=offset)

    def _op_step(self, frame: Frame, step: OpStep) -> None:
        from bringup.program.loops import is_in_place  # most programs have no such step

        native = self._native_step(step, in_place=is_in_place(frame.program, step))
        used = round_up(native.shared_bytes, LINE_BYTES)
        self.scratch_bytes = max(self.scratch_bytes, used)
        refs = [self._ref(frame, s) for s in step.slots]
        refs += [MemoryRef(OWN, SCRATCH, offset) for offset in native.shared]
        for number, phase in enumerate(native.phases):
            chosen = [refs[n] for n in native.buffers[number]] if native.buffers else refs
            self._run(frame, phase, step.name, chosen, used)
            # The first phase stands for all that the step moves and computes.
            self.facts = {name: fact for name, fact in self.facts.items() if name == "line"}

    def _run(
        self, frame: Frame, native: NativeKernel, label: str, refs: Sequence[MemoryRef], used: int
    ) -> None:
        """Launch a function on ``refs`` and its scratch, ``used`` bytes into the call's."""
        if not native.units:
            return
        refs = [*refs, MemoryRef(OWN, SCRATCH, used)]
        function = self.module.functions[native.name].callee
        if self.traced:
            function = emit_traced(self.module, native.name, len(refs))
            refs.append(self._records())
        self.launches.append((label, self.facts))
        grain = 0
        if native.units > 1 and native.units * native.work >= _PARALLEL_WORK:
            grain = max(1, _GRAIN_WORK // max(native.work, 1))
        # A launch without grain runs in one thread, whose number is 0.
        workers = self.target.threads if grain else 1
        self.scratch_bytes = max(self.scratch_bytes, used + native.tile_bytes * workers)
        frame.launches.add(function, refs, native.units, grain)

    def _kernel(self, step: KernelStep) -> NativeKernel:
        kernel, schedule = step.kernel, step.schedule
        key = kernel.content if schedule is None else f"{schedule}\n{kernel.content}"
        kernels = self.code.kernels
        native = kernels.get(key)
        if native is None:
            name = f"{self.name}.{len(kernels)}.{kernel.name}"
            native = emit_kernel(self.module, kernel, name, self.target, schedule)
            kernels[key] = native
        return native

    def _native_step(self, step: OpStep, *, in_place: bool) -> NativeStep:
        types = [slot.type for slot in step.slots]
        key = f"{step.op.name} {attrs_key(step.attrs)!r} {types} {in_place}"
        steps = self.code.op_steps
        native = steps.get(key)
        if native is None:
            from bringup.llvm.loops.library import emit_step

            name = f"{self.name}.op{len(steps)}.{step.name}"
            native = steps[key] = emit_step(self.module, step, name, self.target, in_place=in_place)
        return native
