"""Loops and branches of a program as those of C.

Their programs are functions, which get the addresses of inputs and outputs in a table.  A loop
changes the addresses of what moves: the parts of the state that have two memories, and the rows of
stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.program.program import BranchStep, ControlStep, LoopStep, Program, Slot

#: ``call(program, table, arena)`` is the statement that runs a program.
Call = Callable[[Program, str, str], str]


def control_lines(step: ControlStep, addresses: Sequence[str], call: Call) -> Iterator[str]:
    """The statements of a loop or branch.  addresses: of the step's slots."""
    first, last = len(step.operands), len(step.operands) + len(step.results)
    operands, results = addresses[:first], addresses[first:last]
    yield f"{{  /* {step.name} */"
    if isinstance(step, BranchStep):
        lines = _branch(step, operands, results, lambda p, t: call(p, t, addresses[-1]))
    else:
        lines = _Loop(step, operands, results, addresses[last:], call).lines()
    yield from (f"  {line}" for line in lines)
    yield "}"


def table(type_: str, name: str, addresses: Sequence[str]) -> Iterator[str]:
    """The definition of an array of addresses."""
    yield f"{type_}{name}[] = {{"
    yield from (f"  {address}," for address in addresses or ["NULL"])
    yield "};"


def _branch(
    step: BranchStep,
    operands: Sequence[str],
    results: Sequence[str],
    call: Callable[[Program, str], str],
) -> Iterator[str]:
    yield from table("void *const ", "t", [*operands[1:], *results])
    yield f"switch (*(const int32_t *){_parenthesised(operands[0])}) {{"
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
    ) -> None:
        self.step, self.call = step, call
        self.operands, self.results = list(operands), list(results)
        self.temporaries, self.arena = temporaries, temporaries[-1]
        self.parts = len(step.carried)

    def lines(self) -> Iterator[str]:
        step, first = self.step, self.parts
        for n, position in enumerate(step.updated, first):
            # The body changes these where the results are.
            yield from _copy(step.results[n], self.results[n], self.operands[position])
            self.operands[position] = self.results[n]
        if step.cond is None and not step.trips:
            for n, position in enumerate(step.carried):
                yield from _copy(step.results[n], self.results[n], self.operands[position])
            return
        yield from self.tables()
        if step.cond is None:
            yield f"for (int64_t run = 0; run < {step.trips}; run++) {{"
            yield from (f"  {line}" for line in (*self.rows(), *self.body()))
            yield "}"
            return
        flag = self.temporaries[self.parts]
        test = f"if (!*(const uint8_t *){_parenthesised(flag)}) break;"
        yield "for (;;) {"
        yield from (f"  {line}" for line in (self.call(step.cond, "c", self.arena), test))
        yield from (f"  {line}" for line in self.body())
        yield "}"
        for n, position in enumerate(step.carried):
            yield from _copy(step.results[n], self.results[n], f"t[{position}]")

    def tables(self) -> Iterator[str]:
        """Their definitions."""
        step, parts = self.step, self.parts
        pair = self.results[:parts], self.temporaries[:parts]
        targets, others = reversed(pair) if step.writes_spare(0) else pair
        yield from table("void *", "t", [*self.operands, *targets, *self.results[parts:]])
        if step.cond is not None:
            yield from table("void *", "c", [*self.operands, self.temporaries[parts]])
        if parts:
            yield from table("void *", "other", others)

    def rows(self) -> Iterator[str]:
        """Statements that set the rows of the stacks."""
        step, count = self.step, len(self.operands)
        assert step.trips, "only loops of known length have stacks"
        slots = [*step.operands, *step.results]
        addresses = [*self.operands, *self.results]
        changed = count + len(step.carried) + len(step.updated)
        stacks = [n for n in (*step.stacks, *range(changed, len(slots))) if slots[n].type.nbytes]
        if stacks:
            yield f"const int64_t row = {f'{step.trips - 1} - run' if step.reverse else 'run'};"
        for n in stacks:
            row_bytes = slots[n].type.nbytes // step.trips
            yield f"t[{n}] = (unsigned char *){_parenthesised(addresses[n])} + row * {row_bytes};"

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


def _copy(slot: Slot, target: str, source: str) -> Iterator[str]:
    """A statement that copies what is not at its target already."""
    if slot.type.nbytes and target != source:
        size = slot.type.nbytes
        yield f"if ({target} != {source}) memcpy({target}, {source}, {size});"


def _parenthesised(text: str) -> str:
    return f"({text})" if " " in text else text


__all__ = ["Call", "control_lines", "table"]
