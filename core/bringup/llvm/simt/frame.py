"""What every GPU kernel begins with: parameters, thread numbers, grid positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bringup.graph.index import Axis
from bringup.integers import round_up
from bringup.kernel.form import Kernel
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import accesses, fits_words
from bringup.llvm.simt.body import ThreadState
from bringup.llvm.simt.target import MAX_BLOCKS, SimtDialect, SimtKernel, dynamic_shared
from bringup.llvm.text import Builder, Module, Param, Type, Val, const
from bringup.loops.target import Target
from bringup.maths import ELEMENTARY

#: A block that moves fewer bytes than this takes less time than a few block starts.
SMALL_BLOCK_BYTES = 16 << 10
#: The value of every axis at a grid point.
AxisValues = dict[Axis, Val]


class SimtFrame:
    """A kernel being emitted, in blocks of ``threads`` threads.

    b: the builder.  index: the integer type of positions.  pointers: to every buffer that is no
    tile.  state: what the bodies of the stages share.
    """

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        name: str,
        target: Target,
        dialect: SimtDialect,
        threads: int,
        constant: frozenset[int],
        registers: int = 0,
    ) -> None:
        """registers: that each thread holds from the beginning to the end."""
        self.module, self.kernel, self.name = module, kernel, name
        self.target, self.dialect = target, dialect
        self.threads = threads
        outside = [i for i, d in enumerate(kernel.buffers) if d.role != "tile"]
        pointer = ir.pointer(dialect.global_space)
        attributes = dialect.attributes(threads, registers_of(kernel, registers))
        attrs = " ".join(w for w in ("nounwind", attributes) if w)
        params: list[Param] = [(f"b{i}", pointer) for i in outside]
        function = module.function(
            name, ir.void, params, attrs=attrs, calling_convention=dialect.calling_convention
        )
        self.b = Builder(function.block("entry"))
        self.index: Type = ir.i32 if fits_words(kernel) else ir.i64
        missing = ir.undef(pointer)
        table = dict(zip(outside, function.args, strict=True))
        self.pointers = [table.get(i, missing) for i in range(len(kernel.buffers))]
        meta = f", !invariant.load {module.metadata('!{}')}" if constant else ""
        self.state = ThreadState(self.index, constant, meta)
        self.shared_bytes = 0

    def read(self, intrinsic: str) -> Val:
        """The number of the thread or block, or the size of the block or grid, as a position."""
        value = self.b.intrinsic(intrinsic, ir.i32, (), ())
        return self.b.zext(value, self.index)

    def const(self, value: int) -> Val:
        """A constant position."""
        return const(self.index, value)

    def barrier(self) -> None:
        """Wait until all threads of the block have come here."""
        self.b.intrinsic(self.dialect.barrier, ir.void, (), ())

    def shared_array(self, name: str, element: Type, count: int) -> Val:
        """An array in shared memory."""
        return self.module.global_variable(
            f"{self.name}.{name}",
            ir.array(element, max(count, 1)),
            "undef",
            align=16,
            address_space=self.dialect.shared_space,
        )

    def place_tiles(self, width: int) -> None:
        """Put all tiles in dynamic shared memory, each of their elements ``width`` times."""
        tiles = [(i, d.type) for i, d in enumerate(self.kernel.buffers) if d.role == "tile"]
        if not tiles:
            return
        base = dynamic_shared(self.module, f"{self.name}_tiles", self.dialect)
        for i, type_ in tiles:
            element = memory_type(type_.dtype)
            self.pointers[i] = self.b.gep(base, self.shared_bytes, ir.i8)
            nbytes = type_.size * width * element.bits // 8
            self.shared_bytes += round_up(nbytes, 16)

    @contextmanager
    def units(self, count: int) -> Iterator[tuple[Val, Val]]:
        """A grid-stride loop over units of work: the unit, and the parity of the iteration."""
        first, step = self.read(self.dialect.block_index), self.read(self.dialect.grid_size)
        with self.b.loop(first, self.const(count), step, [self.const(0)]) as loop:
            (parity,) = loop.carried
            yield loop.index, parity
            loop.next(self.b.xor(parity, self.const(1)))

    def split(self, flat: Val, parts: Sequence[tuple[Axis, int, int]]) -> AxisValues:
        """Values of axes at a row-major position.

        parts: of each axis the number of steps and the length of a step.
        """
        b, values = self.b, AxisValues()
        for n, (axis, count, step) in reversed(list(enumerate(parts))):
            digit = flat
            if n:
                digit = b.binary("urem", flat, self.const(count))
                flat = b.binary("udiv", flat, self.const(count))
            values[axis] = b.mul(digit, self.const(step), "nuw nsw")
        return values

    def grid(self, flat: Val, lane: Axis | None, lanes: int) -> AxisValues:
        """Values of the grid axes at a point, or at the first of ``lanes`` neighbouring points."""
        return self.split(flat, steps_of(self.kernel.grid, {lane: lanes} if lane else {}))

    def clamped(self, value: Val, count: int) -> Val:
        """``value``, or the last position if that is smaller."""
        return self.b.umin(value, self.const(count - 1))

    def done(self, units: int) -> SimtKernel:
        """End the kernel, which has ``units`` units of work."""
        self.b.ret()
        small = has_small_blocks(self.kernel, units)
        return SimtKernel(
            self.name, min(units, MAX_BLOCKS), self.threads, self.shared_bytes, persistent=small
        )


def has_small_blocks(kernel: Kernel, units: int) -> bool:
    """Whether a block moves so little that starting it takes as long.

    What several stages read is counted once.
    """
    distinct = {
        (a.buffer, a.index, a.mask): a.weight * a.bits
        for a in accesses(kernel, kernel.stages)
        if not a.tile
    }
    moved = kernel.points * sum(distinct.values()) / 8
    return bool(units) and moved <= SMALL_BLOCK_BYTES * units


def registers_of(kernel: Kernel, held: int) -> int:
    """Registers of a thread: few where there is little to compute, so that many threads can wait
    for memory at once.
    """
    names = [i.op.name for s in kernel.stages for i in s.body.instrs]
    steps = 8 if len(names) <= 12 else 16 if len(names) <= 24 else max(24, len(names) // 4)
    usual = 24 + max(held, 16) + steps
    if any(stage.axes for stage in kernel.stages):
        return usual + 8 * sum(name in ELEMENTARY for name in names)
    return usual


def steps_of(axes: Sequence[Axis], lanes: Mapping[Axis, int]) -> list[tuple[Axis, int, int]]:
    """Axes with the number of whole steps along each and the length of a step."""
    return [(a, a.size // lanes.get(a, 1), lanes.get(a, 1)) for a in axes]
