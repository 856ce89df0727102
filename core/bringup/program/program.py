"""The program: what a backend compiles.  Steps over slots of one arena, constants, and a content
key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any
from typing import Literal as OneOf

from bringup.errors import Location
from bringup.graph import Literal, Operation, attrs_key
from bringup.kernel.form import Kernel
from bringup.records import record
from bringup.types import TensorType

Space = OneOf["input", "output", "constant", "arena"]


@record
class Slot:
    """Where a value lives: input, output or constant number ``index``, or ``offset`` bytes into the
    arena.
    """

    space: Space
    index: int
    offset: int
    type: TensorType

    def __str__(self) -> str:
        place = f"arena+{self.offset}" if self.space == "arena" else f"{self.space}{self.index}"
        return f"{self.type}@{place}"


@record
class KernelStep:
    """Launch ``kernel`` with ``slots``, one per buffer of the kernel that is no tile, in order."""

    kernel: Kernel
    slots: tuple[Slot, ...]
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return self.kernel.name


@record
class OpStep:
    """Run one op on whole buffers: ``op(*operands, out=results, **attrs)``."""

    op: Operation
    attrs: Mapping[str, Any]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return self.op.name

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads, then what it writes."""
        return self.operands + self.results


@record
class WhileStep:
    """Run ``body`` on the state as long as ``cond`` of it holds.

    cond, body: take the state; body gives those parts of it that change, first the carried ones.
    carried: positions in the state of parts with two places, which the runs of body write in turn.
    updated: of parts that body changes in place: its outputs alias these inputs.
    operands: the state at first, which stays as it is where a result does not have the same place,
    as that of an updated part may.  results: its parts that change, at the end.
    spare: the second places of the carried parts.
    flag: where cond puts its result.  scratch: arena of both programs.
    trips: how often body runs, if that is known.
    """

    cond: Program
    body: Program
    carried: tuple[int, ...]
    updated: tuple[int, ...]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    spare: tuple[Slot, ...]
    flag: Slot
    scratch: Slot
    trips: int | None = None
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return "while"

    @property
    def places(self) -> tuple[Slot, ...]:
        """Memory it needs while it runs."""
        return (*self.spare, self.flag, self.scratch)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads, then what it writes."""
        return (*self.operands, *self.results, *self.places)

    @property
    def programs(self) -> tuple[Program, ...]:
        """What it runs."""
        return (self.cond, self.body)


@record
class ScanStep:
    """Run ``body`` ``length`` times, on one row of each stack after the other.

    body: takes operands and rows; gives the parts of the carry that change, then rows.
    reverse: from the last row to the first.
    carried, updated: as in `WhileStep`, positions among the operands.
    stacks: positions of what is read by row; the other operands are the same for each run.
    operands, results: as in `WhileStep`, the stacks written after the parts that change.
    spare, scratch: as in `WhileStep`.
    """

    body: Program
    length: int
    reverse: bool
    carried: tuple[int, ...]
    updated: tuple[int, ...]
    stacks: tuple[int, ...]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    spare: tuple[Slot, ...]
    scratch: Slot
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return "scan"

    @property
    def places(self) -> tuple[Slot, ...]:
        """Memory it needs while it runs."""
        return (*self.spare, self.scratch)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads, then what it writes."""
        return (*self.operands, *self.results, *self.places)

    @property
    def programs(self) -> tuple[Program, ...]:
        """What it runs."""
        return (self.body,)


@record
class CaseStep:
    """Run one of ``branches`` on the operands after the first, which is its number.

    Any number that is none selects the last branch.  scratch: arena of all branches.
    """

    branches: tuple[Program, ...]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    scratch: Slot
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return "case"

    @property
    def places(self) -> tuple[Slot, ...]:
        """Memory it needs while it runs."""
        return (self.scratch,)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads, then what it writes."""
        return (*self.operands, *self.results, *self.places)

    @property
    def programs(self) -> tuple[Program, ...]:
        """What it may run."""
        return self.branches


#: Steps that run programs of their own.
ControlStep = WhileStep | ScanStep | CaseStep
CONTROL_STEPS = (WhileStep, ScanStep, CaseStep)

Step = KernelStep | OpStep | ControlStep


@record
class Program:
    """Everything a backend needs to run a traced function.

    inputs, outputs: types of the buffers of a call.
    steps: in an order that respects every dependency.
    constants: arrays too large to stand in kernels.
    arena_bytes: scratch for one run; ``alignment`` bytes aligned slots.
    donated: inputs whose memory the run may overwrite.
    aliases: (output, input) pairs where the output is written into the donated input's memory.
    optimize: False asks for code in little time that may be slow, of a program that is called a few
    times; a backend that knows no difference ignores it.
    """

    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    steps: tuple[Step, ...]
    constants: tuple[Literal, ...] = ()
    arena_bytes: int = 0
    donated: frozenset[int] = frozenset()
    aliases: tuple[tuple[int, int], ...] = ()
    optimize: bool = True

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of its steps, those of loops and branches among them, in order."""
        kernels: list[Kernel] = []
        for step in self.steps:
            if isinstance(step, KernelStep):
                kernels.append(step.kernel)
            elif isinstance(step, CONTROL_STEPS):
                kernels += [kernel for inner in step.programs for kernel in inner.kernels]
        return tuple(kernels)

    @property
    def programs(self) -> tuple[Program, ...]:
        """Itself and those that its steps run, each once."""
        programs = {id(self): self}
        for step in self.steps:
            if isinstance(step, CONTROL_STEPS):
                programs |= {id(p): p for inner in step.programs for p in inner.programs}
        return tuple(programs.values())

    @property
    def key(self) -> str:
        """SHA-256 of the content: equal keys mean equal behaviour.  Names and source locations do
        not enter.
        """
        digest = hashlib.sha256(self.code_key.encode())
        for program in self.programs:
            for literal in program.constants:
                digest.update(literal.elements.tobytes())
        return digest.hexdigest()

    @property
    def code_key(self) -> str:
        """SHA-256 of all of the content but the elements of constants, whose addresses are handed
        to code that knows no more than their types.
        """
        parts = [
            self.inputs,
            self.outputs,
            [literal.type for literal in self.constants],
            self.arena_bytes,
            sorted(self.donated),
            self.aliases,
            self.optimize,
        ]
        text = "\n".join([repr(parts), *map(_step_text, self.steps)])
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        takes, gives = (", ".join(map(str, types)) for types in (self.inputs, self.outputs))
        head = f"program {self.name}({takes}) -> ({gives})"
        lines = [f"{head} arena={self.arena_bytes}"]
        for step in self.steps:
            lines.append(f"  {step.name}({', '.join(map(str, step.slots))})")
            if isinstance(step, CONTROL_STEPS):
                texts = (str(inner).split("\n") for inner in step.programs)
                lines += [f"    {line}" for text in texts for line in text]
        return "\n".join(lines)


def _step_text(step: Step) -> str:
    slots = ", ".join(map(str, step.slots))
    if isinstance(step, KernelStep):
        body = str(step.kernel).split("\n", 1)[-1]
        return f"kernel {slots}\n{body}"
    if isinstance(step, CONTROL_STEPS):
        how = [
            (step.carried, step.updated) if not isinstance(step, CaseStep) else (),
            (step.length, step.reverse, step.stacks) if isinstance(step, ScanStep) else (),
        ]
        return f"{step.name} {how} {slots} {' '.join(inner.code_key for inner in step.programs)}"
    return f"op {step.op.name} {attrs_key(step.attrs)!r} {slots}"


@record
class Cost:
    """Exact counts of one run.  A loop counts as often as it is known to run, else once; of
    branches, the largest of each count.

    kernels: launches (kernels and op calls).
    bytes_read, bytes_written: global memory traffic, each element of each buffer counted once per
    kernel and distinct index map that reads it.
    flops: floating-point operations.
    arena_bytes: scratch.
    peak_bytes: memory of a call: arguments, results, constants and scratch; a result that takes the
    memory of a donated argument counts once.  Of several programs, the largest.
    """

    kernels: int
    bytes_read: int
    bytes_written: int
    flops: int
    arena_bytes: int
    peak_bytes: int
