"""What a plan holds where: every value of a program by the step that writes it and those that read
it, and programs in which some of them have other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bringup.program.program import KernelStep, OpStep, Program, Slot, Step
from bringup_selftest.corpus import Inject, with_programs
from bringup_selftest.editing import reads_of, writes_of

#: Bytes between values that are given places of their own.
_ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class Version:
    """A value in memory.

    slot: its place.  made: the step that writes it, -1 for inputs and constants.  read: the steps
    that read it.  last: its last reader, or the end of the program for what is returned.
    """

    slot: Slot
    made: int
    read: list[int] = field(default_factory=list)
    end: int = -1

    @property
    def last(self) -> int:
        """The last step at which its content matters."""
        return max([self.end, self.made, *self.read])

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.slot.type.nbytes

    @property
    def count(self) -> int:
        """Its elements."""
        return self.slot.type.size


@dataclass(slots=True)
class Plan:
    """The values of a program without loops and branches.

    reads, writes: of each step, in the order of `reads_of` and `writes_of`.
    """

    program: Program
    versions: list[Version]
    reads: list[list[Version]]
    writes: list[list[Version]]

    @property
    def scratch(self) -> list[Version]:
        """The values that are no inputs, constants or outputs."""
        return [v for v in self.versions if v.slot.space == "arena" and v.nbytes]

    @property
    def returned(self) -> list[Version]:
        """The values that are outputs."""
        return [v for v in self.versions if v.slot.space == "output" and v.nbytes]

    @property
    def taken(self) -> list[Version]:
        """The values that are inputs."""
        return [v for v in self.versions if v.slot.space == "input" and v.nbytes]


def planned(program: Program) -> Plan | None:
    """Who writes and reads what, or None for a program with loops or branches."""
    if not all(isinstance(step, KernelStep | OpStep) for step in program.steps):
        return None
    found = Plan(program, [], [], [])
    now: dict[tuple[str, int, int], Version] = {}
    for number, step in enumerate(program.steps):
        found.reads.append([_read(found, now, slot, number) for slot in reads_of(step)])
        made = [Version(slot, number) for slot in writes_of(step)]
        found.versions += made
        found.writes.append(made)
        now.update((_place(v.slot), v) for v in made)
    for version in now.values():
        if version.slot.space == "output":
            version.end = len(program.steps)
    return found


def _place(slot: Slot) -> tuple[str, int, int]:
    return slot.space, slot.index, slot.offset


def _read(plan: Plan, now: dict[tuple[str, int, int], Version], slot: Slot, number: int) -> Version:
    found = now.get(_place(slot))
    if found is None:
        found = now[_place(slot)] = Version(slot, -1)
        plan.versions.append(found)
    found.read.append(number)
    return found


def spread(plan: Plan, moved: Mapping[Version, Slot] | None = None) -> Program:
    """The program with a place of its own for every value in scratch, but for those of ``moved``.

    A place given there in the arena is an offset behind everything else's.
    """
    given = dict(moved or {})
    end = plan.program.arena_bytes
    places: dict[Version, Slot] = {}
    for version in plan.scratch:
        if version not in given:
            places[version] = replace(version.slot, offset=end)
            end += _room(version.nbytes)
    for version, slot in given.items():
        shift = end if slot.space == "arena" else 0
        places[version] = replace(slot, offset=slot.offset + shift, type=version.slot.type)
    inner = [s.offset + s.type.nbytes for s in places.values() if s.space == "arena"]
    return _placed(plan, places, max([end, *inner]))


def _room(nbytes: int) -> int:
    return max(_ALIGNMENT, -(-nbytes // _ALIGNMENT) * _ALIGNMENT)


def rewritten(plan: Plan, places: Mapping[Version, Slot]) -> Program:
    """The program with other places for some values."""
    ends = [s.offset + s.type.nbytes for s in places.values() if s.space == "arena"]
    return _placed(plan, places, max([plan.program.arena_bytes, *ends]))


def _placed(plan: Plan, places: Mapping[Version, Slot], arena: int) -> Program:
    steps: list[Step] = []
    for number, step in enumerate(plan.program.steps):
        reads = iter([places.get(v, v.slot) for v in plan.reads[number]])
        writes = iter([places.get(v, v.slot) for v in plan.writes[number]])
        if isinstance(step, KernelStep):
            roles = [b.role for b in step.kernel.buffers if b.role != "tile"]
            slots = tuple(next(writes if role == "out" else reads) for role in roles)
            steps.append(replace(step, slots=slots))
        elif isinstance(step, OpStep):
            steps.append(replace(step, operands=tuple(reads), results=tuple(writes)))
    return replace(plan.program, steps=tuple(steps), arena_bytes=arena)


Sharing = Callable[[Plan], Program | None]


def in_plans(share: Sharing) -> Inject:
    """Edit programs by their plans; what ``share`` cannot show stays as it is."""

    def edit(program: Program) -> Program:
        plan = planned(program)
        return (share(plan) if plan is not None else None) or program

    return with_programs(edit)


def pairs(versions: Iterable[Version]) -> Iterable[tuple[Version, Version]]:
    """Every two of them, the one written first before the other."""
    ordered = sorted(versions, key=lambda v: v.made)
    return ((a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :])
