"""What every kernel for threads begins with: its parameters, thread numbers, positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis
from bringup.llvm import text as ir
from bringup.llvm.scalar import FLOAT_ONLY, memory_type
from bringup.llvm.simt.access import accesses, fits_words
from bringup.llvm.simt.body import Kept
from bringup.llvm.simt.target import SimtKernel, SimtTarget, dynamic_shared
from bringup.llvm.text import Builder, Module, Param, Type, Val, const

#: No machine takes more blocks in one direction.
MOST_BLOCKS = (1 << 31) - 1
#: Bytes that a block moves in less time than a few starts of one take.
LITTLE = 16 << 10
Bases = dict[Axis, Val]


class SimtFrame:
    """A kernel being emitted, in blocks of ``threads`` threads.

    b: the builder.  index: the type of positions.  pointers: to every buffer that is no tile.
    kept: what the bodies of its stages share.
    """

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        name: str,
        target: SimtTarget,
        threads: int,
        constant: frozenset[int],
        registers: int = 0,
    ) -> None:
        """registers: that threads keep throughout."""
        self.module, self.kernel, self.name, self.target = module, kernel, name, target
        self.threads = threads
        outside = [i for i, d in enumerate(kernel.buffers) if d.role != "tile"]
        pointer = ir.pointer(target.global_space)
        limits = target.attributes(threads, _registers(kernel, registers))
        attrs = " ".join(w for w in ("nounwind", limits) if w)
        params: list[Param] = [(f"b{i}", pointer) for i in outside]
        function = module.function(
            name, ir.void, params, attrs=attrs, calling_convention=target.calling_convention
        )
        self.b = Builder(function.block("entry"))
        self.index: Type = ir.i32 if fits_words(kernel) else ir.i64
        missing = ir.undef(pointer)
        table = dict(zip(outside, function.args, strict=True))
        self.pointers = [table.get(i, missing) for i in range(len(kernel.buffers))]
        meta = f", !invariant.load {module.metadata('!{}')}" if constant else ""
        self.kept = Kept(self.index, constant, meta)
        self.shared_bytes = 0

    def read(self, intrinsic: str) -> Val:
        """A number of the thread, block or grid, as a position."""
        value = self.b.intrinsic(intrinsic, ir.i32, (), ())
        return self.b.zext(value, self.index)

    def number(self, value: int) -> Val:
        """A constant position."""
        return const(self.index, value)

    def barrier(self) -> None:
        """Wait for the block."""
        self.b.intrinsic(self.target.barrier, ir.void, (), ())

    def shared_array(self, name: str, element: Type, count: int) -> Val:
        """An array in shared memory."""
        return self.module.global_variable(
            f"{self.name}.{name}",
            ir.array(element, max(count, 1)),
            "undef",
            align=16,
            address_space=self.target.shared_space,
        )

    def place_tiles(self, width: int) -> None:
        """Put all tiles in dynamic shared memory, ``width`` elements for each of theirs."""
        tiles = [(i, d.type) for i, d in enumerate(self.kernel.buffers) if d.role == "tile"]
        if not tiles:
            return
        base = dynamic_shared(self.module, f"{self.name}_tiles", self.target)
        for i, type_ in tiles:
            element = memory_type(type_.dtype)
            self.pointers[i] = self.b.gep(base, self.shared_bytes, ir.i8)
            nbytes = type_.size * width * element.bits // 8
            self.shared_bytes += -(-nbytes // 16) * 16

    @contextmanager
    def units(self, count: int) -> Iterator[tuple[Val, Val]]:
        """A loop over units that blocks take in turn: the unit, and 0 or 1 by turns."""
        first, step = self.read(self.target.block_index), self.read(self.target.grid_size)
        with self.b.loop(first, self.number(count), step, [self.number(0)]) as loop:
            (turn,) = loop.carried
            yield loop.index, turn
            loop.next(self.b.xor(turn, self.number(1)))

    def split(self, flat: Val, parts: Sequence[tuple[Axis, int, int]]) -> Bases:
        """Values of axes from a row-major position.  parts: axis, how many steps it takes, and how
        long they are.
        """
        b, rest, made = self.b, flat, Bases()
        for n, (axis, count, step) in reversed(list(enumerate(parts))):
            here = rest
            if n:
                here = b.binary("urem", rest, self.number(count))
                rest = b.binary("udiv", rest, self.number(count))
            made[axis] = b.mul(here, self.number(step), "nuw nsw")
        return made

    def grid(self, flat: Val, lane: Axis | None, lanes: int) -> Bases:
        """Values of the grid axes at a point, or at ``lanes`` of them side by side."""
        return self.split(flat, steps_of(self.kernel.grid, {lane: lanes} if lane else {}))

    def clamped(self, value: Val, count: int) -> Val:
        """``value``, or the last position."""
        return self.b.umin(value, self.number(count - 1))

    def done(self, units: int) -> SimtKernel:
        """End the kernel, which has so many units."""
        self.b.ret()
        little = bool(units) and _moved(self.kernel) <= LITTLE * units
        return SimtKernel(
            self.name, min(units, MOST_BLOCKS), self.threads, self.shared_bytes, persistent=little
        )


def _moved(kernel: Kernel) -> float:
    """Bytes that threads read and write; what several stages read, once."""
    found = (a for a in accesses(kernel, kernel.stages) if not a.tile)
    each = {(a.buffer, a.index, a.mask): a.weight * a.bits for a in found}
    return kernel.points * sum(each.values()) / 8


def _registers(kernel: Kernel, kept: int) -> int:
    """What a thread wants: few where there is little to compute, so that many threads wait for
    memory at once.
    """
    names = [i.op.name for s in kernel.stages for i in s.body.instrs]
    steps = 8 if len(names) <= 12 else 16 if len(names) <= 24 else max(24, len(names) // 4)
    usual = 24 + max(kept, 16) + steps
    if any(stage.axes for stage in kernel.stages):
        return usual + 8 * sum(name in FLOAT_ONLY for name in names)
    return usual


def steps_of(axes: Sequence[Axis], lanes: Mapping[Axis, int]) -> list[tuple[Axis, int, int]]:
    """Axes with their numbers of steps and the length of one; whole steps alone."""
    return [(a, a.size // lanes.get(a, 1), lanes.get(a, 1)) for a in axes]
