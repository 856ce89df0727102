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
from bringup.program.program import BranchStep, ControlStep, LoopStep, Program, Slot
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
    if isinstance(step, LoopStep):
        control.loop(step)
    else:
        control.branch(step)


class _Control:
    def __init__(
        self, frame: Frame, step: ControlStep, addresses: Sequence[Val], function: FunctionOf
    ) -> None:
        self.frame, self.b, self.function = frame, frame.b, function
        first = len(step.operands)
        last = first + len(step.results)
        self.operands = list(addresses[:first])
        self.results = list(addresses[first:last])
        self.temporaries = list(addresses[last:])
        self.arena = self.temporaries[-1]

    def loop(self, step: LoopStep) -> None:
        b, count = self.b, len(step.carried)
        initial = self._initial_state(step)
        state = [initial[i] for i in step.carried]
        if step.cond is None and not step.trips:
            self._copy(step.results[:count], self.results, state)
            return
        results, spare = self.results[:count], self.temporaries[:count]
        targets = (spare, results) if step.writes_spare(0) else (results, spare)
        # The state, where the next run of the body writes it, and where the run after that does.
        start = [*state, *targets[0], *targets[1]]
        if step.cond is None:
            assert step.trips is not None
            table = _table(b, [*initial, *self.results])
            last = i64_const(step.trips - 1)
            with b.loop(i64_const(0), i64_const(step.trips), carried=start) as loop:
                row = b.sub(last, loop.index) if step.reverse else loop.index
                _put(b, table, step.carried, _thirds(loop.carried)[0])
                loop.next(*self._run_body(step, table, loop.carried, row))
            return
        cond, flag = step.cond, self.temporaries[count]
        test = _table(b, [*initial, flag])
        table = _table(b, [*initial, *self.results])

        def holds(carried: Sequence[Val]) -> Val:
            state, _, _ = _thirds(carried[1:])
            _put(b, test, step.carried, state)
            _put(b, table, step.carried, state)
            self._call(cond, test)
            return b.icmp("ne", b.load(ir.i8, flag, 1), const(ir.i8, 0))

        # Loops of the builder carry at least one value, but a state may have no part that changes.
        with b.while_loop([flag, *start], holds) as loop:
            loop.next(flag, *self._run_body(step, table, loop.carried[1:], None))
        self._copy(step.results[:count], self.results, _thirds(loop.carried[1:])[0])

    def _run_body(
        self, step: LoopStep, table: Val, carried: Sequence[Val], row: Val | None
    ) -> list[Val]:
        """Emit a run of the body on a table that holds the state; what the next run carries.

        row: of the stacks, in loops that have some.
        """
        b, first = self.b, len(self.operands)
        _, target, other = _thirds(carried)
        _put(b, table, range(first, first + len(target)), target)
        if row is not None and step.trips:
            stacks = [(i, self.operands[i], step.operands[i]) for i in step.stacks]
            written = enumerate(zip(self.results, step.results, strict=True), first)
            changed = first + len(step.carried) + len(step.updated)
            stacks += [(n, address, slot) for n, (address, slot) in written if n >= changed]
            for n, address, slot in stacks:
                offset = b.mul(row, i64_const(slot.type.nbytes // step.trips))
                _put(b, table, [n], [b.gep(address, offset, ir.i8)])
        self._call(step.body, table)
        return [*target, *other, *target]

    def _initial_state(self, step: LoopStep) -> list[Val]:
        """The addresses of the initial state; parts that are updated in place are copied first."""
        state = list(self.operands)
        first = len(step.carried)
        updated = slice(first, first + len(step.updated))
        sources = [state[n] for n in step.updated]
        self._copy(step.results[updated], self.results[updated], sources)
        for n, target in zip(step.updated, self.results[updated], strict=True):
            state[n] = target
        return state

    def branch(self, step: BranchStep) -> None:
        b = self.b
        table = _table(b, [*self.operands[1:], *self.results])
        number = b.load(ir.i32, self.operands[0], 4)
        blocks = [b.function.block("branch") for _ in step.programs]
        after = b.function.block("after")
        b.switch(number, blocks[-1], list(enumerate(blocks[:-1])))
        for block, program in zip(blocks, step.programs, strict=True):
            b.position(block)
            self._call(program, table)
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
