"""Loops and branches as native code: each program that a step runs is a function.

``void name(ptr buffers, ptr top, ptr arena, ptr scratch)``: ``buffers`` points to the addresses of
the program's inputs and outputs, ``top`` to those of the whole call, with the constants of every
program.  ``arena`` belongs to the program, and ``scratch`` to the call; the contents of ``scratch``
last for one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Callee, Param, Val, const, i64_const
from bringup.program.program import CaseStep, ControlStep, Program, ScanStep, Slot, WhileStep
from bringup_cpu.launch_table import BUFFERS, OWN, TOP, LaunchTable, MemoryRef

#: Of the function of a program that a step runs.
PROGRAM_PARAMS: list[Param] = [
    ("buffers", ir.ptr, "nocapture readonly"),
    ("top", ir.ptr, "nocapture readonly"),
    ("arena", ir.ptr),
    ("scratch", ir.ptr),
]

#: Gives the function of a program, emitting it when first asked.
FunctionOf = Callable[[Program], Callee]


class Frame:
    """A function that is being emitted: its builder, its arguments, and its next launches.

    tables: address of the tables that a `MemoryRef` names.
    """

    __slots__ = ("_pointers", "b", "launches", "program", "scratch", "tables", "top")

    def __init__(
        self, b: Builder, program: Program, buffers: Val, top: Val, arena: Val, scratch: Val
    ) -> None:
        self.b, self.program = b, program
        self.top, self.scratch = top, scratch
        self._pointers = {OWN: _table(b, [arena, scratch]), BUFFERS: buffers, TOP: top}
        self.tables = _table(b, [self._pointers[n] for n in (OWN, BUFFERS, TOP)])
        self.launches = LaunchTable(b.function.module, b.function.name)

    def launch(self) -> None:
        """Emit the launches that have been added."""
        self.launches.emit(self.b, self.tables)

    def address(self, ref: MemoryRef) -> Val:
        """The address of some memory."""
        b = self.b
        pointer = b.load(ir.ptr, b.gep(self._pointers[ref.table], ref.index, ir.ptr), 8)
        return b.gep(pointer, ref.offset, ir.i8)


def emit_control(
    frame: Frame, step: ControlStep, addresses: Sequence[Val], function: FunctionOf
) -> None:
    """Emit a loop or branch.  addresses: of the step's slots."""
    control = _Control(frame, step, addresses, function)
    if isinstance(step, WhileStep):
        control.while_(step)
    elif isinstance(step, ScanStep):
        control.scan(step)
    else:
        control.case(step)


class _Control:
    def __init__(
        self, frame: Frame, step: ControlStep, addresses: Sequence[Val], function: FunctionOf
    ) -> None:
        self.frame, self.b, self.function = frame, frame.b, function
        first = len(step.operands)
        last = first + len(step.results)
        self.operands = list(addresses[:first])
        self.results = list(addresses[first:last])
        #: Spare memory for the state, memory for the condition, and the arena.
        self.spare = list(addresses[last:])
        self.arena = self.spare[-1]

    def while_(self, step: WhileStep) -> None:
        b, count = self.b, len(step.carried)
        spare, flag = self.spare[:count], self.spare[count]
        initial = self._start(step)
        test = _table(b, [*initial, flag])
        table = _table(b, [*initial, *self.results])
        # Loops of the builder carry at least one value, but a state may have no part that changes.
        start = [flag, *(initial[i] for i in step.carried), *self.results[:count], *spare]

        def holds(carried: Sequence[Val]) -> Val:
            state, _, _ = _thirds(carried[1:])
            _put(b, test, step.carried, state)
            _put(b, table, step.carried, state)
            self._call(step.cond, test)
            return b.icmp("ne", b.load(ir.i8, flag, 1), const(ir.i8, 0))

        with b.while_loop(start, holds) as loop:
            _, target, other = _thirds(loop.carried[1:])
            _put(b, table, range(len(initial), len(initial) + count), target)
            self._call(step.body, table)
            loop.next(flag, *target, *other, *target)
        self._copy(step.results[:count], self.results, _thirds(loop.carried[1:])[0])

    def scan(self, step: ScanStep) -> None:
        b, count = self.b, len(step.carried)
        initial = self._start(step)
        state = [initial[i] for i in step.carried]
        if not step.length:
            self._copy(step.results[:count], self.results, state)
            return
        spare, results = self.spare[:count], self.results[:count]
        # The last iteration writes the results.
        sides = (results, spare) if step.length % 2 else (spare, results)
        addresses = [*initial, *self.results]
        table = _table(b, addresses)
        first = len(initial)
        changing = count + len(step.updated)
        rows = [(i, step.operands[i]) for i in step.stacks]
        rows += [(first + n, s) for n, s in enumerate(step.results) if n >= changing]
        length = i64_const(step.length)
        start = [*state, *sides[0], *sides[1]]
        with b.loop(i64_const(0), length, carried=start) as loop:
            before, target, other = _thirds(loop.carried)
            last = i64_const(step.length - 1)
            row = b.sub(last, loop.index) if step.reverse else loop.index
            _put(b, table, step.carried, before)
            _put(b, table, range(first, first + count), target)
            for n, slot in rows:
                offset = b.mul(row, i64_const(slot.type.nbytes // step.length))
                _put(b, table, [n], [b.gep(addresses[n], offset, ir.i8)])
            self._call(step.body, table)
            loop.next(*target, *other, *target)

    def _start(self, step: WhileStep | ScanStep) -> list[Val]:
        """The addresses of the initial state; parts that are updated in place are copied first."""
        state = list(self.operands)
        first = len(step.carried)
        updated = slice(first, first + len(step.updated))
        sources = [state[n] for n in step.updated]
        self._copy(step.results[updated], self.results[updated], sources)
        for n, target in zip(step.updated, self.results[updated], strict=True):
            state[n] = target
        return state

    def case(self, step: CaseStep) -> None:
        b = self.b
        table = _table(b, [*self.operands[1:], *self.results])
        number = b.load(ir.i32, self.operands[0], 4)
        blocks = [b.function.block("branch") for _ in step.branches]
        after = b.function.block("after")
        b.switch(number, blocks[-1], list(enumerate(blocks[:-1])))
        for block, branch in zip(blocks, step.branches, strict=True):
            b.position(block)
            self._call(branch, table)
            b.br(after)
        b.position(after)

    def _call(self, program: Program, table: Val) -> None:
        frame = self.frame
        self.b.call(self.function(program), [table, frame.top, self.arena, frame.scratch])

    def _copy(self, slots: Sequence[Slot], targets: Sequence[Val], state: Sequence[Val]) -> None:
        """Copy the parts of a state that are not at their targets."""
        b = self.b
        for slot, target, source in zip(slots, targets, state, strict=False):
            with b.if_then(b.icmp("ne", source, target)):
                arguments = (target, source, i64_const(slot.type.nbytes), const(ir.i1, 0))
                b.intrinsic("llvm.memcpy", ir.void, arguments, (ir.ptr, ir.ptr, ir.i64))


def _table(b: Builder, addresses: Sequence[Val]) -> Val:
    """A table of addresses on the stack."""
    table = b.alloca(ir.array(ir.ptr, max(len(addresses), 1)), align=8)
    _put(b, table, range(len(addresses)), addresses)
    return table


def _put(b: Builder, table: Val, indices: Sequence[int], addresses: Sequence[Val]) -> None:
    for index, address in zip(indices, addresses, strict=True):
        b.store(address, b.gep(table, index, ir.ptr), 8)


def _thirds(values: Sequence[Val]) -> tuple[Sequence[Val], Sequence[Val], Sequence[Val]]:
    count = len(values) // 3
    return values[:count], values[count : 2 * count], values[2 * count :]
