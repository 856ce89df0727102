"""Loops and branches of a program as those of C.

Their programs are functions, which get the addresses of inputs and outputs in a table.  A loop
changes the addresses of what moves: the parts of the state that have two memories, and the rows of
stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.program.program import BranchStep, ControlStep, LoopStep, Program, Slot
from bringup.records import record

#: ``call(program, table, arena)`` is the statement that runs a program.
Call = Callable[[Program, str, str], str]


@record
class Memory:
    """How C spells addresses, and statements on what stands there.

    address: the type, in front of a name that it defines.  constant: likewise, of what stays.
    null: an address of nothing.
    row: the address ``{offset}`` bytes after ``{base}``.
    copy: copies ``{size}`` bytes from ``{source}`` to ``{target}``.
    choice: the beginning of a ``switch`` over the number at ``{address}``.
    flag: leaves a loop unless the bool at ``{address}`` is true.
    row_alignment: rows of stacks whose bytes are no multiple of it are copied, in and out.
    """

    address: str
    constant: str
    null: str
    row: str
    copy: str
    choice: tuple[str, ...]
    flag: tuple[str, ...]
    row_alignment: int = 1


#: Memory that C itself reads and writes.
OWN_MEMORY = Memory(
    address="void *",
    constant="void *const ",
    null="NULL",
    row="(unsigned char *){base} + {offset}",
    copy="if ({target} != {source}) memcpy({target}, {source}, {size});",
    choice=("switch (*(const int32_t *){address}) {{",),
    flag=("if (!*(const uint8_t *){address}) break;",),
)


def control_lines(
    step: ControlStep,
    addresses: Sequence[str],
    call: Call,
    memory: Memory = OWN_MEMORY,
    room: Callable[[int], str] = str,
) -> Iterator[str]:
    """The statements of a loop or branch.

    addresses: of the step's slots.  room: the address of so many bytes, for a row that is copied.
    """
    first, last = len(step.operands), len(step.operands) + len(step.results)
    operands, results = addresses[:first], addresses[first:last]
    yield f"{{  /* {step.name} */"
    if isinstance(step, BranchStep):
        lines = _branch(step, operands, results, lambda p, t: call(p, t, addresses[-1]), memory)
    else:
        lines = _Loop(step, operands, results, addresses[last:], call, memory, room).lines()
    yield from (f"  {line}" for line in lines)
    yield "}"


def table(type_: str, name: str, addresses: Sequence[str], null: str = "NULL") -> Iterator[str]:
    """The definition of an array of addresses."""
    yield f"{type_}{name}[] = {{"
    yield from (f"  {address}," for address in addresses or [null])
    yield "};"


def _branch(
    step: BranchStep,
    operands: Sequence[str],
    results: Sequence[str],
    call: Callable[[Program, str], str],
    memory: Memory,
) -> Iterator[str]:
    yield from table(memory.constant, "t", [*operands[1:], *results], memory.null)
    for line in memory.choice:
        yield line.format(address=_parenthesised(operands[0]))
    *others, final = step.programs
    for number, program in enumerate(others):
        yield f"  case {number}: {call(program, 't')} break;"
    yield f"  default: {call(final, 't')}"
    yield "}"


class _Loop:
    """A loop: ``t`` is the table of the body, ``c`` that of the condition, and ``other`` has for
    each carried part the memory that the run after the next one writes.
    """

    def __init__(
        self,
        step: LoopStep,
        operands: Sequence[str],
        results: Sequence[str],
        temporaries: Sequence[str],
        call: Call,
        memory: Memory,
        room: Callable[[int], str],
    ) -> None:
        self.step, self.call, self.memory, self.room = step, call, memory, room
        self.operands, self.results = list(operands), list(results)
        self.temporaries, self.arena = temporaries, temporaries[-1]
        self.parts = len(step.carried)

    def lines(self) -> Iterator[str]:
        step, first = self.step, self.parts
        for n, position in enumerate(step.updated, first):
            # The body changes these where the results are.
            yield from self.copy(step.results[n], self.results[n], self.operands[position])
            self.operands[position] = self.results[n]
        if step.cond is None and not step.trips:
            for n, position in enumerate(step.carried):
                yield from self.copy(step.results[n], self.results[n], self.operands[position])
            return
        yield from self.tables()
        if step.cond is None:
            yield f"for (int64_t run = 0; run < {step.trips}; run++) {{"
            before, after = self.rows()
            yield from (f"  {line}" for line in (*before, *self.body(), *after))
            yield "}"
            return
        flag = _parenthesised(self.temporaries[self.parts])
        tests = [line.format(address=flag) for line in self.memory.flag]
        yield "for (;;) {"
        yield from (f"  {line}" for line in (self.call(step.cond, "c", self.arena), *tests))
        yield from (f"  {line}" for line in self.body())
        yield "}"
        for n, position in enumerate(step.carried):
            yield from self.copy(step.results[n], self.results[n], f"t[{position}]")

    def tables(self) -> Iterator[str]:
        """Their definitions."""
        step, parts = self.step, self.parts
        pair = self.results[:parts], self.temporaries[:parts]
        targets, others = reversed(pair) if step.writes_spare(0) else pair
        type_ = self.memory.address
        yield from table(type_, "t", [*self.operands, *targets, *self.results[parts:]])
        if step.cond is not None:
            yield from table(type_, "c", [*self.operands, self.temporaries[parts]])
        if parts:
            yield from table(type_, "other", others)

    def rows(self) -> tuple[list[str], list[str]]:
        """Statements before and after the body that give it the rows of the stacks."""
        step, count = self.step, len(self.operands)
        assert step.trips, "only loops of known length have stacks"
        slots = [*step.operands, *step.results]
        addresses = [*self.operands, *self.results]
        changed = count + len(step.carried) + len(step.updated)
        stacks = [n for n in (*step.stacks, *range(changed, len(slots))) if slots[n].type.nbytes]
        before, after = [], []
        if stacks:
            row = f"{step.trips - 1} - run" if step.reverse else "run"
            before.append(f"const int64_t row = {row};")
        for n in stacks:
            size = slots[n].type.nbytes // step.trips
            base = _parenthesised(addresses[n])
            place = self.memory.row.format(base=base, offset=f"row * {size}")
            if size % self.memory.row_alignment == 0:
                before.append(f"t[{n}] = {place};")
                continue
            copy, own = self.memory.copy, self.room(size)
            before.append(f"t[{n}] = {own};")
            if n < count:
                before.append(copy.format(target=own, source=place, size=size))
            else:
                after.append(copy.format(target=place, source=own, size=size))
        return before, after

    def body(self) -> Iterator[str]:
        """Statements that run the body and hand its state to the next run."""
        first = len(self.operands)
        yield self.call(self.step.body, "t", self.arena)
        for n, position in enumerate(self.step.carried):
            yield f"t[{position}] = t[{first + n}];"
            yield f"t[{first + n}] = other[{n}];"
            yield f"other[{n}] = t[{position}];"
            if self.step.cond is not None:
                yield f"c[{position}] = t[{position}];"

    def copy(self, slot: Slot, target: str, source: str) -> Iterator[str]:
        """A statement that copies what is not at its target already."""
        if slot.type.nbytes and target != source:
            size = slot.type.nbytes
            yield self.memory.copy.format(target=target, source=source, size=size)


def _parenthesised(text: str) -> str:
    return f"({text})" if " " in text else text


__all__ = ["OWN_MEMORY", "Call", "Memory", "control_lines", "table"]
