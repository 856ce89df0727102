"""Buffer planning: every value of the fused graph gets a place, with as little memory as its
lifetime allows.

Intermediates share one arena.  A kernel that reads an element only where it writes the same element
may write over a dying operand, and so may an op that changes its first one; likewise an output over
a donated input.  Offsets are assigned largest
block first, each at the lowest offset free during its lifetime.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bringup.graph import Graph, Instr, Literal, Value
from bringup.graph.index import Expr
from bringup.integers import round_up
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.ops.subgraphs import is_control
from bringup.program.control import Inner, control_step, written_results
from bringup.program.in_place import loop_replaces, replaces
from bringup.program.program import ControlStep, KernelStep, LoopStep, OpStep, Program, Slot, Step


@dataclass(slots=True, eq=False)
class _Block:
    """A stretch of arena with its tenants' common lifetime, in steps."""

    nbytes: int
    first: int
    last: int
    offset: int = -1


@dataclass(slots=True)
class _Lives:
    """First write and last read of every value, by step."""

    written: dict[Value, int] = field(default_factory=dict)
    read: dict[Value, int] = field(default_factory=dict)


def plan(
    graph: Graph,
    launches: Sequence[Launch],
    *,
    alignment: int = 64,
    donated: frozenset[int] = frozenset(),
    keep_constants: bool = False,
    inner: Inner | None = None,
    donors: Mapping[int, int] | None = None,
) -> Program:
    """Place every value and return the program.

    graph: the fused graph; each output must be made by a launch and appear once.
    donated: input positions whose memory may be overwritten.
    keep_constants: leave dense constants as op steps instead of program constants.
    inner: makes the programs of sub-graphs; without it, instructions that hold some stay op steps.
    donors: for outputs, the only input whose memory each may take; by default any donated one.
    """
    return _Planner(graph, launches, alignment, donated, keep_constants, inner, donors).run()


class _Planner:
    def __init__(
        self,
        graph: Graph,
        launches: Sequence[Launch],
        alignment: int,
        donated: frozenset[int],
        keep_constants: bool,
        inner: Inner | None,
        donors: Mapping[int, int] | None,
    ) -> None:
        self.graph = graph
        self.donors = donors
        self.alignment = alignment
        self.donated = donated
        self.constants: list[Literal] = []
        self.slots: dict[Value, Slot] = {}
        for i, value in enumerate(graph.inputs):
            self.slots[value] = Slot("input", i, 0, value.type)
        self.launches = [
            launch for launch in launches if keep_constants or not self._constant(launch)
        ]
        for i, value in enumerate(graph.outputs):
            assert value not in self.slots, "outputs are made by launches, once each"
            self.slots[value] = Slot("output", i, 0, value.type)
        self.lives = _lifetimes(self.launches)
        #: Loops and branches, and the blocks of their temporaries, by number of the launch.
        self.control: dict[int, ControlStep] = {
            n: control_step(launch.instr, inner)
            for n, launch in enumerate(self.launches)
            if inner is not None and launch.instr is not None and is_control(launch.instr)
        }
        self.temporaries: dict[int, list[_Block]] = {}

    def run(self) -> Program:
        firsts = {o: self._first_tenant(o) for o in self.graph.outputs}
        aliases = self._alias_outputs(firsts)
        blocks = self._blocks()
        # Each once, in an order that every process finds again.
        temporaries = [block for blocks in self.temporaries.values() for block in blocks]
        arena = _assign(dict.fromkeys([*blocks.values(), *temporaries]), self.alignment)
        for value, block in blocks.items():
            self.slots[value] = Slot("arena", 0, block.offset, value.type)
        return Program(
            self.graph.name,
            tuple(v.type for v in self.graph.inputs),
            tuple(v.type for v in self.graph.outputs),
            tuple(self._step(n, launch) for n, launch in enumerate(self.launches)),
            tuple(self.constants),
            arena,
            self.donated,
            aliases,
        )

    def _constant(self, launch: Launch) -> bool:
        instr = launch.instr
        if instr is None or instr.literal is None:
            return False
        self.slots[instr.result] = Slot("constant", len(self.constants), 0, instr.result.type)
        self.constants.append(instr.literal)
        return True

    def _first_tenant(self, value: Value) -> Value:
        """Give what becomes an output by changes in place the output's memory from the start; the
        value that is written there first.
        """
        slot = self.slots[value]
        while True:
            step = self.lives.written.get(value, -1)
            launch = self.launches[step] if step >= 0 else None
            if launch is None or launch.instr is None or step in self.control:
                return value
            before = launch.reads[0] if launch.reads else None
            if before is None or before in self.slots or self.lives.read[before] != step:
                return value
            made = self.lives.written[before]
            if made in self.control or not _may_replace(launch, before, value):
                return value
            self.slots[before], value = slot, before

    def _alias_outputs(self, firsts: Mapping[Value, Value]) -> tuple[tuple[int, int], ...]:
        taken: set[int] = set()
        pairs: list[tuple[int, int]] = []
        for o, value in enumerate(map(firsts.__getitem__, self.graph.outputs)):
            step = self.lives.written.get(value, -1)
            mine = self.donated if self.donors is None else {self.donors.get(o, -1)} & self.donated
            for i in sorted(mine - taken):
                source = self.graph.inputs[i]
                if source.type.nbytes == value.type.nbytes and self._may_overwrite(
                    source, value, step
                ):
                    taken.add(i)
                    pairs.append((o, i))
                    break
        return tuple(pairs)

    def _may_overwrite(self, source: Value, value: Value, step: int) -> bool:
        last = self.lives.read.get(source, -1)
        if last < step:
            return True
        return last == step and self._may_replace(step, source, value)

    def _may_replace(self, number: int, source: Value, value: Value) -> bool:
        """Whether a launch may write ``value`` over ``source``, which it reads last."""
        launch, step = self.launches[number], self.control.get(number)
        if step is None:
            return _may_replace(launch, source, value)
        written = self._written(number, launch)
        return isinstance(step, LoopStep) and loop_replaces(
            step, launch.reads, written, source, value
        )

    def _blocks(self) -> dict[Value, _Block]:
        blocks: dict[Value, _Block] = {}
        for number, launch in enumerate(self.launches):
            taken: set[_Block] = set()
            for value in self._written(number, launch):
                if value in self.slots:
                    continue
                last = self.lives.read.get(value, number)
                host = self._dying(launch, number, value, blocks)
                if host is not None and host not in taken:
                    taken.add(host)
                    host.last = last
                    blocks[value] = host
                else:
                    blocks[value] = _Block(_padded(value.type.nbytes, self.alignment), number, last)
            if number in self.control:
                slots = self.control[number].temporaries
                sizes = [_padded(slot.type.nbytes, self.alignment) for slot in slots]
                self.temporaries[number] = [_Block(size, number, number) for size in sizes]
        return blocks

    def _written(self, number: int, launch: Launch) -> Sequence[Value]:
        """What a launch writes: not the state that a loop returns as it got it."""
        step = self.control.get(number)
        if step is None or launch.instr is None:
            return launch.writes
        return [launch.writes[i] for i in written_results(launch.instr, step)]

    def _dying(
        self, launch: Launch, number: int, value: Value, blocks: Mapping[Value, _Block]
    ) -> _Block | None:
        """The block of an operand that this launch reads last and may write over."""
        for source in launch.reads:
            block = blocks.get(source)
            if (
                block is not None
                and block.last == number
                and self.lives.read[source] == number
                and source.type.nbytes == value.type.nbytes
                and self._may_replace(number, source, value)
            ):
                return block
        return None

    def _step(self, number: int, launch: Launch) -> Step:
        if launch.instr is not None:
            instr: Instr = launch.instr
            operands = tuple(self.slots[v] for v in launch.reads)
            results = tuple(self.slots[v] for v in self._written(number, launch))
            if number in self.control:
                offsets = [block.offset for block in self.temporaries[number]]
                return self.control[number].placed(operands, results, offsets)
            return OpStep(instr.op, instr.attrs, operands, results, launch.location)
        assert launch.kernel is not None
        slots = tuple(self.slots[v] for v in launch.values)
        return KernelStep(launch.kernel, slots, launch.location)


def _may_replace(launch: Launch, source: Value, value: Value) -> bool:
    """Whether a launch may write ``value`` over ``source``, which it reads last."""
    if launch.kernel is not None:
        return overwrites(launch.kernel, _position(launch, source), _position(launch, value))
    assert launch.instr is not None
    return source.type is value.type and replaces(launch.instr.op, launch.reads, source)


def overwrites(kernel: Kernel, source: int, target: int) -> bool:
    """Whether buffer ``target`` may be the memory of ``source``: every element is read only where
    it is written.
    """
    if kernel.buffers[source].type.dtype.itemsize != kernel.buffers[target].type.dtype.itemsize:
        return False
    stores = [
        (n, s) for n, stage in enumerate(kernel.stages) for s in stage.stores if s.buffer == target
    ]
    if len(stores) != 1 or stores[0][1].mask:
        return False
    last, store = stores[0]
    return all(
        n <= last and index == store.index and kernel.stages[n].axes == kernel.stages[last].axes
        for n, index in _load_indices(kernel, source)
    )


def _load_indices(kernel: Kernel, buffer: int) -> Iterable[tuple[int, Expr]]:
    for n, stage in enumerate(kernel.stages):
        for instr in stage.loads():
            if instr.attrs["buffer"] == buffer:
                yield n, instr.attrs["index"]


def _position(launch: Launch, value: Value) -> int:
    return launch.values.index(value)


def _lifetimes(launches: Sequence[Launch]) -> _Lives:
    lives = _Lives()
    for number, launch in enumerate(launches):
        for value in launch.reads:
            lives.read[value] = number
        for value in launch.writes:
            lives.written.setdefault(value, number)
    return lives


def _padded(nbytes: int, alignment: int) -> int:
    return max(alignment, round_up(nbytes, alignment))


def _assign(blocks: Iterable[_Block], alignment: int) -> int:
    """Offsets for all blocks; returns the arena's size."""
    placed: list[_Block] = []  # by offset
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.first, b.last)):
        offset = 0
        for other in placed:
            if other.offset >= offset + block.nbytes:
                break
            together = other.first <= block.last and block.first <= other.last
            if together and offset < other.offset + other.nbytes:
                offset = _padded(other.offset + other.nbytes, alignment)
        block.offset = offset
        insort(placed, block, key=lambda b: b.offset)
    return max((b.offset + b.nbytes for b in placed), default=0)


__all__ = ["overwrites", "plan"]
