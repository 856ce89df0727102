"""The launches of a program before code is made of them, and which of them are made together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from bringup.backend.adapters_run import Call
from bringup.graph import Builder
from bringup.graph.index import Axis, Expr
from bringup.kernel.form import BufferDecl, Kernel, Stage, Store
from bringup.kernel.ops import load
from bringup.program.in_place import is_one_memory
from bringup.program.program import KernelStep, LoopStep, Program, Slot, Step
from bringup.records import record
from bringup.target import Target
from bringup.types import TensorType

if TYPE_CHECKING:  # importing bringup loads nothing of loops
    from bringup.dtypes import DType
    from bringup.loops.form import Func

#: Statements of what is launched together: compilers take more than twice as long for functions
#: twice as long.
_MOST_STATEMENTS = 2000
#: Bytes of memory that take as long as an instruction.
_BYTES = 2


class Renderable(Protocol):
    """What a renderer takes: `Kernel` or `bringup.loops.Func`."""

    @property
    def name(self) -> str:
        """Of the function to render."""

    @property
    def content(self) -> str:
        """The text but for the name: equal for what does the same."""


_Code = TypeVar("_Code", bound=Renderable)


class StepLaunches(Generic[_Code]):
    """What a step launches, one after the other.

    launches: code, and which of the step's slots and ``temporaries``, counted on, it takes.
    temporaries: the types of memory that lasts from the first launch to the last.
    """

    __slots__ = ("launches", "temporaries")

    def __init__(
        self,
        launches: Sequence[tuple[_Code, Sequence[int]]],
        temporaries: Sequence[TensorType] = (),
    ) -> None:
        self.launches = launches
        self.temporaries = temporaries


#: Where a slot of the body of a loop stands in the program of the loop, in one run.
Place = Callable[[Slot], Slot]


class PlannedLaunch(Generic[_Code]):
    """A launch of a program.

    steps: what it runs, in order.  slots: of each parameter.
    end: where memory of the arena begins that none of its steps uses.
    runs: the places of the runs of loops that it belongs to, inner ones first.
    """

    __slots__ = ("code", "end", "runs", "slots", "steps")

    def __init__(
        self,
        steps: tuple[Step, ...],
        code: _Code,
        slots: tuple[Slot, ...],
        end: int,
        runs: tuple[Place, ...] = (),
    ) -> None:
        self.steps, self.code, self.slots, self.end, self.runs = steps, code, slots, end, runs

    def placed(self, place: Place) -> PlannedLaunch[_Code]:
        """The launch in a run of a loop."""
        slots, runs = tuple(map(place, self.slots)), (*self.runs, place)
        return PlannedLaunch(self.steps, self.code, slots, self.end, runs)


#: A launch, or a call of a function of the device.
Planned = PlannedLaunch[_Code] | Call


def places_of_runs(step: LoopStep, constants: int, behind: int) -> Iterator[Place]:
    """Where slots of the body of a loop of known length stand in its program, for each run.

    constants: the number that the first constant of the body has there.
    behind: where temporaries of launches begin, which all runs have in common.
    """
    step = replace(step, programs=(step.body,), flag=None)  # nobody asks the condition
    assert step.trips is not None
    count = len(step.carried)
    first_stack = count + len(step.updated)
    updated, stacks = step.results[count:first_stack], step.results[first_stack:]
    state = list(step.operands)
    for index, slot in zip(step.updated, updated, strict=True):
        state[index] = slot
    for run in range(step.trips):
        row = step.row(run)
        for index in step.stacks:
            state[index] = _row(step.operands[index], row)
        target = step.spare if step.writes_spare(run) else step.results[:count]
        outputs = (*target, *updated, *[_row(stack, row) for stack in stacks])
        yield partial(_placed, tuple(state), outputs, step.scratch, constants, behind)
        for index, slot in zip(step.carried, target, strict=True):
            state[index] = slot


def _row(stack: Slot, number: int) -> Slot:
    type_ = stack.type.with_shape(stack.type.shape[1:])
    return replace(stack, offset=stack.offset + number * type_.nbytes, type=type_)


def _placed(
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    scratch: Slot,
    constants: int,
    behind: int,
    slot: Slot,
) -> Slot:
    if slot.space == "constant":
        return replace(slot, index=constants + slot.index)
    if slot.space == "arena":
        around = scratch
        if slot.offset >= behind:
            return slot
    else:
        around = (inputs if slot.space == "input" else outputs)[slot.index]
    return replace(around, offset=around.offset + slot.offset, type=slot.type)


def copies_before(program: Program, step: LoopStep, prefix: str) -> Iterator[KernelStep]:
    """What brings the parts of the state that a loop changes where they are to its results, where
    they do not have that memory already.

    prefix: of the names of the kernels.
    """
    results, aliases = step.results[len(step.carried) :], dict(program.aliases)
    for number, (index, result) in enumerate(zip(step.updated, results, strict=False)):
        source, axis = step.operands[index], Axis(0, result.type.size)
        if is_one_memory(source, result, aliases):
            continue
        with Builder() as builder:
            element = load(buffer=0, dtype=result.type.dtype, index=Expr.of(axis), mask=())
            body = builder.build([element])
        buffers = (BufferDecl(source.type, "in"), BufferDecl(result.type, "out"))
        stage = Stage((), body, (Store(1, Expr.of(axis)),))
        kernel = Kernel(f"{prefix}copy{number}", (axis,), buffers, (stage,))
        yield KernelStep(kernel, (source, result), step.location)


def joined(
    program: Program, planned: Sequence[Planned[Func]], target: Target, buffers: int
) -> Sequence[Planned[Func]]:
    """The launches with neighbours as one where each is done before another could begin.

    buffers: how many one launch may take.
    What is joined has no parallel loop round everything, so that one thread runs it.
    """
    if not target.launch_instructions:
        return planned
    from bringup.loops.sequence import written

    outputs = ((("output", n), ("input", number)) for n, number in program.aliases)
    memory = dict[tuple[str, int], tuple[str, int]](outputs)
    codes = {id(each.code): each.code for each in planned if isinstance(each, PlannedLaunch)}
    short = {n: written(func.body) for n, func in codes.items() if _is_short(func, target)}
    groups: list[_Group | Call] = []
    for each in planned:
        last = groups[-1] if groups else None
        if isinstance(each, Call):
            groups.append(each)
        elif not isinstance(last, _Group) or not last.takes(each):
            groups.append(_Group(each, short, memory, buffers))
    made: dict[object, Func] = {}
    return [group if isinstance(group, Call) else group.launch(made) for group in groups]


def _is_short(func: Func, target: Target) -> bool:
    """Whether one thread runs a function in less time than a launch takes."""
    from bringup.loops.contents import contents
    from bringup.loops.sequence import instructions

    nbytes = sum(param.buffer.type.nbytes for param in func.params)
    work = instructions(func.body, target.lanes(32)) + nbytes / _BYTES
    return work <= target.launch_instructions and "thread" not in contents(func).kinds


@record
class _Region:
    """What a parameter stands for: memory, its first byte there, that behind it, its elements."""

    memory: tuple[str, int]
    begin: int
    end: int
    dtype: DType

    def meets(self, other: _Region) -> bool:
        """Whether they have bytes in common."""
        return self.memory == other.memory and self.begin < other.end and other.begin < self.end


class _Group:
    """Launches that are joined, whose parameters are the same memory or have none in common."""

    def __init__(
        self,
        first: PlannedLaunch[Func],
        short: Mapping[int, int],
        memory: Mapping[tuple[str, int], tuple[str, int]],
        buffers: int,
    ) -> None:
        """short: how many statements those functions have that one thread runs.
        memory: the inputs that some outputs are.  buffers: how many the group may take.
        """
        self._short, self._memory, self._buffers = short, memory, buffers
        self._launches = [first]
        self._slots: dict[_Region, Slot] = {}
        self._statements = short.get(id(first.code), 0)
        self._is_open = id(first.code) in short and self._has_room(first)

    def takes(self, launch: PlannedLaunch[Func]) -> bool:
        """Whether the next launch becomes one of the group."""
        statements = self._statements + self._short.get(id(launch.code), 0)
        takes = (
            self._is_open
            and id(launch.code) in self._short
            and statements <= _MOST_STATEMENTS
            # So that the runs of a loop have their code in common.
            and launch.runs == self._launches[-1].runs
            and self._has_room(launch)
        )
        if takes:
            self._launches.append(launch)
            self._statements = statements
        return takes

    def _has_room(self, launch: PlannedLaunch[Func]) -> bool:
        """Whether the parameters of a launch fit the others, which it is then among."""
        slots = dict(self._slots)
        for region, slot in zip(self._regions(launch), launch.slots, strict=True):
            if region not in slots and any(region.meets(other) for other in slots):
                return False
            slots.setdefault(region, slot)
        if len(slots) > self._buffers:
            return False
        self._slots = slots
        return True

    def _regions(self, launch: PlannedLaunch[Func]) -> Iterator[_Region]:
        for slot, param in zip(launch.slots, launch.code.params, strict=True):
            memory, begin = (slot.space, slot.index), slot.offset
            end = begin + param.buffer.type.nbytes
            yield _Region(self._memory.get(memory, memory), begin, end, param.buffer.dtype)

    def launch(self, made: dict[object, Func]) -> PlannedLaunch[Func]:
        """The group as one launch.  made: the functions of groups before it."""
        from bringup.loops.sequence import in_sequence

        first, *others = self._launches
        if not others:
            return first
        order = {region: number for number, region in enumerate(self._slots)}
        funcs = [each.code for each in self._launches]
        places = tuple([tuple([order[r] for r in self._regions(each)]) for each in self._launches])
        key = (tuple(map(id, funcs)), places)
        if key not in made:
            name = f"j{len(made)}_{first.code.name}_and_{len(others)}_more"
            made[key] = in_sequence(name, funcs, places)
        steps = {id(step): step for each in self._launches for step in each.steps}
        end = max(each.end for each in self._launches)
        return PlannedLaunch(tuple(steps.values()), made[key], tuple(self._slots.values()), end)


__all__ = [
    "Planned",
    "PlannedLaunch",
    "Renderable",
    "StepLaunches",
    "copies_before",
    "joined",
    "places_of_runs",
]
