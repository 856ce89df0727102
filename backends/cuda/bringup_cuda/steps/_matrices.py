"""A matrix that a block works on: in shared memory where it fits, else in scratch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import DType, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import is_half, memory_type, narrow, widen
from bringup.llvm.text import Builder, Type, Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.commands import Argument, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps.block import MAX_BLOCKS, Block
from bringup_cuda.targets import TILE_KIB, WARP

_THREADS = 256
ZERO, ONE = const(ir.i32, 0), const(ir.i32, 1)


def number(value: int) -> Val:
    """An i32."""
    return const(ir.i32, value)


@record
class Matrix:
    """Rows of ``stride`` elements of ``type`` from an address on; indices are i32."""

    b: Builder
    base: Val
    stride: int
    type: Type

    def address(self, i: Val, j: Val) -> Val:
        """Of an element."""
        b = self.b
        row = b.mul(b.zext(i, ir.i64), const(ir.i64, self.stride))
        return b.gep(self.base, b.add(row, b.zext(j, ir.i64)), self.type)

    def get(self, i: Val, j: Val) -> Val:
        """An element."""
        return self.b.load(self.type, self.address(i, j), self.type.bits // 8)

    def put(self, i: Val, j: Val, value: Val) -> None:
        """Store an element."""
        self.b.store(value, self.address(i, j), self.type.bits // 8)

    def take(self, i: Val, j: Val, x: Val, y: Val) -> None:
        """Subtract a product from an element."""
        b = self.b
        self.put(i, j, b.fma(b.fneg(x), y, self.get(i, j)))


class Workshop:
    """A kernel with a block for each matrix of a stack.

    sizes: elements of each piece of memory that a block works in.  pieces: their addresses; all
    lie in shared memory, or all in scratch.
    """

    def __init__(
        self, emission: Emission, step: OpStep, work: int, sizes: Sequence[int], count: int = 0
    ) -> None:
        """work: what one matrix has to do.  count: units of work, if they are not the matrices."""
        self.step = step
        self.dtype: DType = step.operands[0].type.dtype
        self.type = memory_type(f32 if is_half(self.dtype) else self.dtype)
        self.count = count or math.prod(step.operands[0].type.shape[:-2])
        nbytes = [-(-n * self.type.bits // 8 // 16) * 16 + 16 for n in sizes]
        self._shared = sum(nbytes) if sum(nbytes) <= TILE_KIB[emission.target] * 1024 else 0
        scratch: list[Argument] = []
        if not self._shared:
            scratch.append(emission.scratch(sum(nbytes) * min(self.count, MAX_BLOCKS)))
        threads = min(_THREADS, max(WARP, 1 << max(work // 16 - 1, 0).bit_length()))
        self.block = Block(emission, step, step.op.name, (*step.slots, *scratch), threads)
        b = self.b = self.block.b
        if self._shared:
            base = self.block.dynamic_shared()
        else:
            own = b.mul(self.block.block, const(ir.i64, sum(nbytes)))
            base = b.gep(self.block.args[-1], own, ir.i8)
        starts = [sum(nbytes[:n]) for n in range(len(nbytes))]
        self.pieces = [b.gep(base, start, ir.i8) for start in starts]

    @contextmanager
    def each(self) -> Iterator[Val]:
        """The loop over the block's matrices; the number of one."""
        with self.block.units(self.count) as unit:
            yield unit
            if self.count > MAX_BLOCKS:
                self.block.barrier()

    def launch(self) -> list[Command]:
        """The one launch."""
        return [self.block.launch(min(self.count, MAX_BLOCKS), self._shared)]

    def matrix(self, piece: int, columns: int) -> Matrix:
        """A piece of memory as a matrix, whose rows begin in different banks of shared memory."""
        return Matrix(self.b, self.pieces[piece], columns | 1, self.type)

    def real(self, value: float) -> Val:
        """A number of the type worked in."""
        return const(self.type, value)

    # -- sharing out -------------------------------------------------------------------------------

    @contextmanager
    def threads_over(self, first: Val, stop: Val) -> Iterator[Val]:
        """Numbers from ``first`` on, shared by the block's threads."""
        start = self.b.add(first, self.block.thread)
        with self.b.loop(start, stop, self.block.threads) as loop:
            yield loop.index

    @contextmanager
    def warps_over(self, first: Val, stop: Val) -> Iterator[Val]:
        """Numbers from ``first`` on, shared by the block's warps."""
        start = self.b.add(first, self.block.warp)
        with self.b.loop(start, stop, self.block.warps) as loop:
            yield loop.index

    @contextmanager
    def lanes_over(self, first: Val, stop: Val) -> Iterator[Val]:
        """Numbers from ``first`` on, shared by the warp's lanes."""
        with self.b.loop(self.b.add(first, self.block.lane), stop, WARP) as loop:
            yield loop.index

    # -- operands and results ----------------------------------------------------------------------

    def address(self, place: int, unit: Val, i: Val, j: Val) -> Val:
        """Of an element of this matrix of an operand or result."""
        b, type_ = self.b, self.step.slots[place].type
        rows, columns = type_.shape[-2:]
        at = b.mul(unit, const(ir.i64, rows * columns))
        at = b.add(at, b.mul(b.zext(i, ir.i64), const(ir.i64, columns)))
        at = b.add(at, b.zext(j, ir.i64))
        return b.gep(self.block.args[place], at, memory_type(type_.dtype))

    def load(self, place: int, unit: Val, i: Val, j: Val) -> Val:
        """An element of an operand, in the type worked in."""
        found = self.address(place, unit, i, j)
        return widen(self.b, self.b.load(memory_type(self.dtype), found, self.dtype.itemsize))

    def store(self, value: Val, place: int, unit: Val, i: Val, j: Val) -> None:
        """Write an element of a result."""
        kept = narrow(self.b, value, self.dtype)
        self.b.store(kept, self.address(place, unit, i, j), self.dtype.itemsize)


__all__ = ["ONE", "ZERO", "Matrix", "Workshop", "number"]
