"""Running folds of columns: a thread goes down one, or down some that lie side by side."""

from __future__ import annotations

import math

from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.sizes import ScanSizes
from bringup.llvm.text import Val, const, vec
from bringup.program.program import OpStep
from bringup_cuda.commands import Argument, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._scan import Scanner
from bringup_cuda.steps.block import Block

_THREADS = 256
#: Threads that keep a GPU busy, and how far one goes down a column.
_BUSY_THREADS = 1 << 17
_SHORT_COLUMN = 32
_LONG_COLUMN = 1024
_UNROLLED = 4


class Columns(Scanner):
    """A thread goes down a column of every chunk, or down some that lie side by side.

    width: columns of a thread.
    """

    def __init__(
        self, emission: Emission, step: OpStep, scan: ScanSizes, source: Argument, target: Argument
    ) -> None:
        super().__init__(emission, step, scan, source, target)
        many = scan.outer * scan.inner >= 2 * _BUSY_THREADS
        self.width = math.gcd(scan.inner, self.vector) if many else 1
        self.across = scan.inner // self.width

    def chunks(self) -> int:
        scan = self.scan
        short = -(-scan.length // _LONG_COLUMN)
        busy = -(-_BUSY_THREADS // (scan.outer * self.across))
        wanted = max(short, min(busy, scan.length // _SHORT_COLUMN), 1)
        return -(-scan.length // -(-scan.length // wanted))

    def totals(self, chunks: int, totals: Argument) -> Command:
        block = self.block(f"totals_{self.scan.kind}", [self.source, totals], _THREADS)
        b, scan = block.b, self.scan
        with block.items(scan.outer * chunks * self.across) as item:
            start, low, high, _ = self._split(block, item, chunks)
            carry = self._down(block, start, low, high, scan.neutral(self.width), False)
            at = b.mul(item, const(ir.i64, self.width))
            self._put(block, carry, b.gep(block.args[1], at, memory_type(scan.wide)))
        return block.launch(block.blocks_for(scan.outer * chunks * self.across))

    def scans(self, chunks: int, totals: Argument | None) -> Command:
        arguments = [self.source, self.target, *([] if totals is None else [totals])]
        block = self.block(f"scan_{self.scan.kind}", arguments, _THREADS)
        scan = self.scan
        with block.items(scan.outer * chunks * self.across) as item:
            start, low, high, number = self._split(block, item, chunks)
            carry = scan.first(self.width)
            if chunks > 1:
                carry = self._before(block, item, number, carry)
            self._down(block, start, low, high, carry, True)
        return block.launch(block.blocks_for(scan.outer * chunks * self.across))

    def _split(self, block: Block, item: Val, chunks: int) -> tuple[Val, Val, Val, Val]:
        """Where the column of an item begins, the first row of its chunk and the one behind its
        last, and the number of the chunk.
        """
        b, scan = block.b, self.scan
        column = b.mul(b.urem(item, const(ir.i64, self.across)), const(ir.i64, self.width))
        rest = b.udiv(item, const(ir.i64, self.across))
        number = b.urem(rest, const(ir.i64, chunks)) if chunks > 1 else const(ir.i64, 0)
        outer = b.udiv(rest, const(ir.i64, chunks))
        start = b.add(b.mul(outer, const(ir.i64, scan.length * scan.inner)), column)
        each = -(-scan.length // chunks)
        low = b.mul(number, const(ir.i64, each))
        high = b.add(low, const(ir.i64, each))
        high = b.intrinsic("llvm.smin", ir.i64, (high, const(ir.i64, scan.length)))
        return start, low, high, number

    def _put(self, block: Block, value: Val, address: Val) -> None:
        element = value.type.scalar
        block.b.store(value, address, element.bits // 8 * self.width)

    def _before(self, block: Block, item: Val, number: Val, carry: Val) -> Val:
        """The fold of the same column in the chunks before."""
        b, wide = block.b, memory_type(self.scan.wide)
        behind = b.sub(item, b.mul(number, const(ir.i64, self.across)))
        with b.loop(const(ir.i64, 0), number, 1, [carry]) as loop:
            at = b.add(behind, b.mul(loop.index, const(ir.i64, self.across)))
            address = b.gep(block.args[2], b.mul(at, const(ir.i64, self.width)), wide)
            known = b.load(vec(wide, self.width), address, wide.bits // 8 * self.width)
            loop.next(self.scan.fold(b, loop.carried[0], known))
        return loop.carried[0]

    def _down(self, block: Block, start: Val, low: Val, high: Val, carry: Val, shown: bool) -> Val:
        """Go down a chunk of columns, several loads at a time."""
        b = block.b
        rest = b.urem(b.sub(high, low), const(ir.i64, _UNROLLED))
        stop = b.sub(high, rest)
        for begin, end, count in ((low, stop, _UNROLLED), (stop, high, 1)):
            with b.loop(begin, end, count, [carry]) as loop:
                carry = self._some(block, start, loop.index, count, loop.carried[0], shown)
                loop.next(carry)
            carry = loop.carried[0]
        return carry

    def _some(self, block: Block, start: Val, row: Val, count: int, carry: Val, shown: bool) -> Val:
        b, scan = block.b, self.scan
        element, step = memory_type(scan.dtype), -scan.inner if scan.reverse else scan.inner
        if scan.reverse:
            row = b.sub(const(ir.i64, scan.length - 1), row)
        base = b.add(start, b.mul(row, const(ir.i64, scan.inner)))
        align = scan.dtype.itemsize * self.width
        places = [b.add(base, const(ir.i64, n * step)) for n in range(count)]
        loaded = [
            b.load(vec(element, self.width), b.gep(block.args[0], place, element), align)
            for place in places
        ]
        for place, x in zip(places, loaded, strict=True):
            after = self.scan.fold(b, carry, widen(b, x))
            if shown:
                kept = narrow(b, carry if scan.exclusive else after, scan.dtype)
                b.store(kept, b.gep(block.args[1], place, element), align)
            carry = after
        return carry


__all__ = ["Columns"]
