"""The program: what a backend compiles.  Steps over slots of one arena, constants, and a content
key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any
from typing import Literal as OneOf

from bringup.errors import Location
from bringup.graph import Literal, Operation, attrs_key
from bringup.kernel.form import Kernel
from bringup.records import record
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.loops.schedule import Schedule

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
    """Launch ``kernel`` with ``slots``, one per buffer of the kernel that is no tile, in order.

    location: the line of the user's code that it comes from.
    schedule: steps that were found for the kernel's loops; None for those of the device's choice.
    """

    kernel: Kernel
    slots: tuple[Slot, ...]
    location: Location | None = field(default=None, compare=False)
    schedule: Schedule | None = None

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return self.kernel.name

    @property
    def roles(self) -> tuple[str, ...]:
        """Of each slot: ``in`` if the kernel reads it, ``out`` if it writes it."""
        return tuple(buffer.role for buffer in self.kernel.buffers if buffer.role != "tile")

    @property
    def operands(self) -> tuple[Slot, ...]:
        """What it reads."""
        return tuple(s for s, role in zip(self.slots, self.roles, strict=True) if role == "in")

    @property
    def results(self) -> tuple[Slot, ...]:
        """What it writes."""
        return tuple(s for s, role in zip(self.slots, self.roles, strict=True) if role == "out")


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
class LoopStep:
    """Run a body on a state again and again: as long as a condition holds, or a known number of
    times.

    programs: the body alone, or the condition and the body.  Both take the operands, the body one
    row of each stack.  The body gives the parts of the state that change, carried ones before
    updated ones, then one row of each stacked result; the condition gives a ``bool[]``.
    carried: positions among the operands of the parts of the state that have two memories, which
    the runs of the body write alternately.
    updated: positions of the parts that the body changes in place: its outputs alias these inputs.
    operands: the initial state.  The step does not change it, except for an updated part whose
    result has the same slot.
    results: the parts that change, at the end, then the stacked results.
    spare: the second memories of the carried parts.
    scratch: the arena of the programs.
    flag: where the condition puts its result; None without one.
    trips: how often the body runs, None if that is unknown; without a condition it is known.
    stacks: positions of the operands that are read row by row.
    reverse: the first run reads and writes the last rows.
    """

    programs: tuple[Program, ...]
    carried: tuple[int, ...]
    updated: tuple[int, ...]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    spare: tuple[Slot, ...]
    scratch: Slot
    flag: Slot | None = None
    trips: int | None = None
    stacks: tuple[int, ...] = ()
    reverse: bool = False
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return "scan" if self.cond is None else "while"

    @property
    def body(self) -> Program:
        """What runs once per iteration."""
        return self.programs[-1]

    @property
    def cond(self) -> Program | None:
        """The condition, which is asked before each run of the body."""
        return self.programs[0] if len(self.programs) > 1 else None

    @property
    def temporaries(self) -> tuple[Slot, ...]:
        """Memory it needs while it runs; the scratch memory is the last."""
        flag = () if self.flag is None else (self.flag,)
        return (*self.spare, *flag, self.scratch)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads, then what it writes."""
        return (*self.operands, *self.results, *self.temporaries)

    def placed(
        self, operands: tuple[Slot, ...], results: tuple[Slot, ...], offsets: Sequence[int]
    ) -> LoopStep:
        """The step on other slots.  offsets: of the temporaries in the arena."""
        *spare, scratch = _at_offsets(self.temporaries, offsets)
        flag = spare.pop() if self.flag is not None else None
        return replace(
            self,
            operands=operands,
            results=results,
            spare=tuple(spare),
            flag=flag,
            scratch=scratch,
        )

    def row(self, run: int) -> int:
        """The row of the stacks that a run of the body reads and writes, counted from 0."""
        return run if not self.reverse or self.trips is None else self.trips - 1 - run

    def writes_spare(self, run: int) -> bool:
        """Whether a run of the body writes the carried parts to the spare memory, not to the
        results.  Without a condition the last run writes the results.
        """
        if self.cond is None and self.trips is not None:
            run = self.trips - 1 - run
        return run % 2 == 1


@record
class BranchStep:
    """Run one of the programs on the operands after the first, which is its number.

    Any number that is none selects the last program.  scratch: the arena of all programs.
    """

    programs: tuple[Program, ...]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    scratch: Slot
    location: Location | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What runs, as traces and placement reports call it."""
        return "case"

    @property
    def temporaries(self) -> tuple[Slot, ...]:
        """Memory it needs while it runs."""
        return (self.scratch,)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads, then what it writes."""
        return (*self.operands, *self.results, *self.temporaries)

    def placed(
        self, operands: tuple[Slot, ...], results: tuple[Slot, ...], offsets: Sequence[int]
    ) -> BranchStep:
        """The step on other slots.  offsets: of the temporaries in the arena."""
        (scratch,) = _at_offsets(self.temporaries, offsets)
        return replace(self, operands=operands, results=results, scratch=scratch)


def _at_offsets(slots: Sequence[Slot], offsets: Sequence[int]) -> list[Slot]:
    return [replace(slot, offset=n) for slot, n in zip(slots, offsets, strict=True)]


#: Steps that run programs of their own.
ControlStep = LoopStep | BranchStep

#: What a program has in order: launches, op calls, loops and branches.
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
        return tuple(step.kernel for step in self.kernel_steps)

    @property
    def kernel_steps(self) -> tuple[KernelStep, ...]:
        """The steps that launch kernels, those of loops and branches among them, in order."""
        found: list[KernelStep] = []
        for step in self.steps:
            if isinstance(step, KernelStep):
                found.append(step)
            elif isinstance(step, ControlStep):
                found += [launch for inner in step.programs for launch in inner.kernel_steps]
        return tuple(found)

    @property
    def programs(self) -> tuple[Program, ...]:
        """Itself and those that its steps run, each once."""
        programs = {id(self): self}
        for step in self.steps:
            if isinstance(step, ControlStep):
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
            if isinstance(step, ControlStep):
                texts = (str(inner).split("\n") for inner in step.programs)
                lines += [f"    {line}" for text in texts for line in text]
        return "\n".join(lines)


def _step_text(step: Step) -> str:
    slots = ", ".join(map(str, step.slots))
    if isinstance(step, KernelStep):
        schedule = "" if step.schedule is None else f"schedule\n{step.schedule}\n"
        return f"kernel {slots}\n{schedule}{step.kernel.content}"
    if isinstance(step, ControlStep):
        keys = " ".join(program.code_key for program in step.programs)
        loop = ""
        if isinstance(step, LoopStep):
            loop = repr((step.carried, step.updated, step.trips, step.stacks, step.reverse))
        return f"{step.name} {loop} {slots} {keys}"
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
