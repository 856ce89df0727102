"""Programs as PTX, with or without a GPU: core's SIMT emitter and LLVM's NVPTX target."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from bringup.backend import Lowered
from bringup.errors import CompileError, UnsupportedError
from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.math.exponential import exp_by_branch
from bringup.llvm.math.remainder import remainder
from bringup.llvm.simt import SimtKernel, SimtTarget, emit_simt
from bringup.llvm.simt.plan import split_for
from bringup.llvm.text import Builder, Module, Val, const, vec
from bringup.program.program import CONTROL_STEPS, KernelStep, OpStep, Program, Slot
from bringup_cuda.commands import Command, Control, Launch, Scratch, Translated
from bringup_cuda.extents import note_extents
from bringup_cuda.targets import ALIGNMENT, BASELINE, BLOCK, TILE_KIB, WARP, number_of

TRIPLE = "nvptx64-nvidia-cuda"
#: Registers of a multiprocessor.
REGISTERS = 1 << 16
#: The PTX version that knows every architecture of `SHARED_KIB`.
PTX_FEATURE = "+ptx87"
#: The first architecture that has instructions for minima, maxima and rounding to bf16.
_NATIVE_FROM = 80


def _shuffle(b: Builder, word: Val, mask: int) -> Val:
    everyone, last_lane = const(ir.i32, -1), const(ir.i32, WARP - 1)
    args = (everyone, word, const(ir.i32, mask), last_lane)
    return b.intrinsic("llvm.nvvm.shfl.sync.bfly.i32", ir.i32, args, ())


def _attributes(threads: int, registers: int) -> str:
    """How many blocks must fit side by side, by which the assembler shares out registers."""
    blocks = max(1, REGISTERS // (threads * registers))
    return f'"nvvm.reqntid"="{threads}" "nvvm.minctasm"="{blocks}"'


SIMT = SimtTarget(
    calling_convention="ptx_kernel",
    thread="llvm.nvvm.read.ptx.sreg.tid.x",
    block_index="llvm.nvvm.read.ptx.sreg.ctaid.x",
    block_size="llvm.nvvm.read.ptx.sreg.ntid.x",
    grid_size="llvm.nvvm.read.ptx.sreg.nctaid.x",
    barrier="llvm.nvvm.barrier0",
    shuffle=_shuffle,
    attributes=_attributes,
    block=BLOCK,
    warp=WARP,
)


class Emission:
    """A program being translated.

    module: what kernels are emitted into.  target: the architecture, such as ``sm_90``.
    simt: the machine, as core's emitters see it.
    """

    def __init__(self, target: str) -> None:
        self.module = Module(TRIPLE)
        self.module.native = native_of(target)
        self.target = target
        self.simt = replace(SIMT, shared_bytes=TILE_KIB[target] * 1024)
        self.scratch_bytes = 0
        self.known: dict[str, SimtKernel] = {}
        self._used = 0
        self._programs: list[Program] = []

    def name(self, label: str) -> str:
        """A function name that is still free."""
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', label)}_{len(self.module.functions)}"

    def scratch(self, nbytes: int) -> Scratch:
        """Memory whose contents last until the step is done."""
        place = Scratch(self._used, nbytes)
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.scratch_bytes = max(self.scratch_bytes, self._used)
        return place

    def commands(self, program: Program) -> tuple[Command, ...]:
        """Everything its steps do.  Raises UnsupportedError for a step that nothing renders."""
        made: list[Command] = []
        self._programs.append(program)
        for step in program.steps:
            if isinstance(step, CONTROL_STEPS):
                made.append(Control(step, tuple(self.commands(p) for p in step.programs)))
            else:
                made += self._step(step)
        self._programs.pop()
        return tuple(made)

    def constant(self, reads: Sequence[Slot], writes: Sequence[Slot]) -> list[bool]:
        """Which of the slots that a launch of the step being rendered reads do not share memory
        with one it writes.
        """
        return [not any(self._overlap(r, w) for w in writes) for r in reads]

    def _overlap(self, one: Slot, other: Slot) -> bool:
        spaces = {one.space, other.space}
        if spaces == {"arena"}:
            first, second = sorted((one, other), key=lambda slot: slot.offset)
            return second.offset < first.offset + first.type.nbytes
        if len(spaces) == 1:
            return one.index == other.index
        # What loops and branches take and give may share memory in ways that the loop knows.
        nested = len(self._programs) > 1
        if spaces == {"input", "output"}:
            given, made = sorted((one, other), key=lambda slot: slot.space)
            return nested or (made.index, given.index) in self._programs[-1].aliases
        return False

    def _step(self, step: KernelStep | OpStep) -> Sequence[Command]:
        self._used = 0
        for place in RENDERERS:
            made = _renderer(place)(self, step)
            if made is not None:
                return made
        raise UnsupportedError(  # pragma: no cover - only wrong claims
            f"{step.name} stands in no kernel, and nothing else renders it for a GPU",
            location=step.location,
        )


#: Gives the commands of a step, or None for a step that is not its own.
Renderer = Callable[[Emission, KernelStep | OpStep], Sequence[Command] | None]

#: Who is asked to render a step, in order: ``module:function`` of each `Renderer`.
RENDERERS = (
    "bringup_cuda.contraction.render:render",
    "bringup_cuda.lower:render_kernel",
    "bringup_cuda.steps:render_step",
)


@lru_cache
def _renderer(place: str) -> Renderer:
    module, _, function = place.partition(":")
    found: Renderer = getattr(importlib.import_module(module), function)
    return found


def render_kernel(emission: Emission, step: KernelStep | OpStep) -> Sequence[Command] | None:
    """Any kernel, in the form of `bringup.llvm.simt`; a long fold in two launches, whose partial
    results are scratch.
    """
    if not isinstance(step, KernelStep):
        return None
    split = split_for(step.kernel, emission.simt)
    constant = _constant(emission, step)
    if split is None:
        kernel = emit_once(emission, step.kernel, {}, constant)
        return [Launch(kernel, step.slots, step)] if kernel.blocks else []
    partials = tuple(emission.scratch(t.nbytes) for t in split.scratch)
    count = len(step.kernel.buffers)
    parts = frozenset(range(count, count + len(partials)))
    kernels = [
        emit_once(emission, split.partial, split.clips, constant),
        emit_once(emission, split.final, {}, constant | parts),
    ]
    return [Launch(kernel, (*step.slots, *partials), step) for kernel in kernels]


def _constant(emission: Emission, step: KernelStep) -> frozenset[int]:
    """The buffers of a step's kernel that nobody writes while it runs."""
    outside = [(i, d.role) for i, d in enumerate(step.kernel.buffers) if d.role != "tile"]
    slots = dict(zip(outside, step.slots, strict=True))
    reads = {i: slot for (i, role), slot in slots.items() if role == "in"}
    writes = [slot for (_, role), slot in slots.items() if role == "out"]
    found = emission.constant(list(reads.values()), writes)
    return frozenset(i for i, alone in zip(reads, found, strict=True) if alone)


def emit_once(
    emission: Emission, kernel: Kernel, clips: Mapping[Axis, Expr], constant: frozenset[int]
) -> SimtKernel:
    """The function of a kernel, which equal kernels share.  constant: as in `emit_simt`."""
    stops = "".join(f"{axis} < {stop}\n" for axis, stop in clips.items())
    key = f"{sorted(constant)}\n{stops}" + str(kernel).split("\n", 1)[-1]
    found = emission.known.get(key)
    if found is None:
        name = emission.name(kernel.name)
        made = emit_simt(emission.module, kernel, name, emission.simt, clips, constant)
        found = emission.known[key] = made
    return found


def translate(program: Program, target: str = "") -> Translated:
    """Emit everything a program launches into one module, for an architecture such as ``sm_90``.

    Raises UnsupportedError for a step that nothing renders.
    """
    emission = Emission(target or BASELINE)
    commands = emission.commands(program)
    made = Translated("", commands, emission.scratch_bytes)
    note_extents(emission.module, made.launches)
    return replace(made, text=str(emission.module))


def lower(program: Program, target: str) -> Lowered:
    """LLVM IR and PTX of a program for an architecture such as ``sm_90``.  Raises CompileError."""
    source = translate(program, target).text
    return Lowered(source, to_ptx(source, target or BASELINE))


def to_ptx(source: str, architecture: str) -> str:
    """Compile LLVM IR to PTX.  Raises CompileError with LLVM's message."""
    from bringup.llvm.host.machine import LLVM

    # What it makes in LLVM is given back under the lock too.
    with LLVM:
        return _to_ptx(source, architecture)


def _to_ptx(source: str, architecture: str) -> str:
    import llvmlite.binding as llvm

    machine = _machine(architecture)
    try:
        module = llvm.parse_assembly(source)
        module.verify()
    except RuntimeError as error:  # pragma: no cover - only wrong emitters
        raise CompileError("LLVM refuses the emitted IR", log=str(error), source=source) from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return str(machine.emit_assembly(module))


@lru_cache
def _machine(architecture: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=architecture, features=PTX_FEATURE, opt=3)


def native_of(target: str) -> dict[str, Callable[..., Val]]:
    """For `bringup.llvm.text.Module.native` of an architecture such as ``sm_90``."""
    # LLVM's NVPTX target divides, cuts and subtracts where it finds ``frem``, rounding twice.
    found: dict[str, Callable[..., Val]] = {"rem": remainder, "exp": exp_by_branch}
    if number_of(target) < _NATIVE_FROM:
        return found
    return {**found, "maximum": _maximum, "minimum": _minimum, "f32_to_bf16": _to_bf16}


def _maximum(b: Builder, x: Val, y: Val) -> Val:
    return b.intrinsic("llvm.maximum", x.type, (x, y))


def _minimum(b: Builder, x: Val, y: Val) -> Val:
    return b.intrinsic("llvm.minimum", x.type, (x, y))


def _to_bf16(b: Builder, x: Val) -> Val:
    """Two at a time; LLVM's own ``fptrunc`` is not the same on every machine that runs the IR."""
    lanes = x.type.lanes
    if lanes == 1:
        return b.intrinsic("llvm.nvvm.f2bf16.rn", ir.bf16, (x,), ())
    pair = vec(ir.bf16, 2)
    made = ir.poison(vec(ir.bf16, lanes))
    for low in range(0, lanes, 2):
        parts = [b.extractelement(x, low + n) for n in (1, 0)]
        both = b.intrinsic("llvm.nvvm.ff2bf16x2.rn", pair, parts, ())
        for n in (0, 1):
            made = b.insertelement(made, b.extractelement(both, n), low + n)
    return made
