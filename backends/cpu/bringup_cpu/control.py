"""Loops and branches as native code: each program that a step runs is a function of its own.

``void name(ptr buffers, ptr top, ptr arena, ptr scratch)``: ``buffers`` points to the addresses of
the program's inputs and outputs, ``top`` to those of the whole call, with the constants of every
program; ``arena`` is its own, and ``scratch`` the call's, whose contents last for one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Callee, Param, Val, const
from bringup.program.program import CaseStep, ControlStep, Program, ScanStep, Slot, WhileStep
from bringup_cpu.launch_table import BUFFERS, OWN, TOP, LaunchTable, Place

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
    """A function being emitted: where it stands, the addresses it got, and what it launches next.

    tables: points to the tables that a `Place` names.
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
        """Emit what is to be launched."""
        self.launches.emit(self.b, self.tables)

    def address(self, place: Place) -> Val:
        """The address of a place."""
        b = self.b
        pointer = b.load(ir.ptr, b.gep(self._pointers[place.table], place.index, ir.ptr), 8)
        return b.gep(pointer, place.offset, ir.i8)


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
        given, made = len(step.operands), len(step.results)
        self.operands = list(addresses[:given])
        self.results = list(addresses[given : given + made])
        self.places = list(addresses[given + made :])
        self.arena = self.places[-1]

    def while_(self, step: WhileStep) -> None:
        b, count = self.b, len(step.carried)
        spare, flag = self.places[:count], self.places[count]
        given = self._start(step)
        test = _table(b, [*given, flag])
        table = _table(b, [*given, *self.results])
        # The builder's loops carry something at least, and a state may have no part that changes.
        start = [flag, *(given[i] for i in step.carried), *self.results[:count], *spare]

        def holds(carried: Sequence[Val]) -> Val:
            state, _, _ = _thirds(carried[1:])
            _put(b, test, step.carried, state)
            _put(b, table, step.carried, state)
            self._call(step.cond, test)
            return b.icmp("ne", b.load(ir.i8, flag, 1), const(ir.i8, 0))

        with b.while_loop(start, holds) as loop:
            _, target, other = _thirds(loop.carried[1:])
            _put(b, table, range(len(given), len(given) + count), target)
            self._call(step.body, table)
            loop.next(flag, *target, *other, *target)
        self._keep(step.results[:count], self.results, _thirds(loop.carried[1:])[0])

    def scan(self, step: ScanStep) -> None:
        b, count = self.b, len(step.carried)
        given = self._start(step)
        state = [given[i] for i in step.carried]
        if not step.length:
            self._keep(step.results[:count], self.results, state)
            return
        spare, results = self.places[:count], self.results[:count]
        # The last run writes the results.
        sides = (results, spare) if step.length % 2 else (spare, results)
        whole = [*given, *self.results]
        table = _table(b, whole)
        first = len(given)
        changing = count + len(step.updated)
        rows = [(i, step.operands[i]) for i in step.stacks]
        rows += [(first + n, s) for n, s in enumerate(step.results) if n >= changing]
        length = const(ir.i64, step.length)
        start = [*state, *sides[0], *sides[1]]
        with b.loop(const(ir.i64, 0), length, carried=start) as loop:
            before, target, other = _thirds(loop.carried)
            last = const(ir.i64, step.length - 1)
            at = b.sub(last, loop.index) if step.reverse else loop.index
            _put(b, table, step.carried, before)
            _put(b, table, range(first, first + count), target)
            for place, slot in rows:
                offset = b.mul(at, const(ir.i64, slot.type.nbytes // step.length))
                _put(b, table, [place], [b.gep(whole[place], offset, ir.i8)])
            self._call(step.body, table)
            loop.next(*target, *other, *target)

    def _start(self, step: WhileStep | ScanStep) -> list[Val]:
        """Where the state is at first: what is changed in place is copied to its place before."""
        given = list(self.operands)
        first = len(step.carried)
        places = slice(first, first + len(step.updated))
        changed = [given[place] for place in step.updated]
        self._keep(step.results[places], self.results[places], changed)
        for place, target in zip(step.updated, self.results[places], strict=True):
            given[place] = target
        return given

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

    def _keep(self, slots: Sequence[Slot], targets: Sequence[Val], state: Sequence[Val]) -> None:
        """Copy what stands elsewhere to where it belongs."""
        b = self.b
        for slot, target, source in zip(slots, targets, state, strict=False):
            with b.if_then(b.icmp("ne", source, target)):
                arguments = (target, source, const(ir.i64, slot.type.nbytes), const(ir.i1, 0))
                b.intrinsic("llvm.memcpy", ir.void, arguments, (ir.ptr, ir.ptr, ir.i64))


def _table(b: Builder, addresses: Sequence[Val]) -> Val:
    """A table of addresses on the stack."""
    table = b.alloca(ir.array(ir.ptr, max(len(addresses), 1)), align=8)
    _put(b, table, range(len(addresses)), addresses)
    return table


def _put(b: Builder, table: Val, places: Sequence[int], addresses: Sequence[Val]) -> None:
    for place, address in zip(places, addresses, strict=True):
        b.store(address, b.gep(table, place, ir.ptr), 8)


def _thirds(values: Sequence[Val]) -> tuple[Sequence[Val], Sequence[Val], Sequence[Val]]:
    count = len(values) // 3
    return values[:count], values[count : 2 * count], values[2 * count :]
