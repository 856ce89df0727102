"""Where elements go that a block orders by a digit: the heart of a radix sort.

Every warp counts its own elements, one at a time in each lane: lanes with equal digits find each
other by votes, the first of them counts for all.  So an element's place among equal digits follows
from the order of items, lanes and warps, and is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm import text as ir
from bringup.llvm.text import Val, const
from bringup_cuda.steps.block import Block
from bringup_cuda.targets import WARP


class Ranking:
    """Places by digits of ``bits`` bits.  starts: of shared memory, where each digit begins."""

    def __init__(self, block: Block, bits: int) -> None:
        self.block = block
        self.bits = bits
        self.radix = 1 << bits
        self._counts = block.shared(ir.i32, self.radix * block.warps)
        self._sums = block.shared(ir.i32, block.warps)
        self.starts = block.shared(ir.i32, self.radix)

    def places(self, digits: Sequence[Val]) -> list[Val]:
        """Where the block's elements go, by digit and then as they come: warp by warp, in a warp
        item by item, of an item lane by lane.

        digits: of this thread's items.  All threads must come; call it again after a barrier.
        """
        block, b = self.block, self.block.b
        mine = b.gep(self._counts, b.mul(block.warp, const(ir.i32, self.radix)), ir.i32)
        lane = b.zext(block.lane, ir.i64)
        with b.loop(lane, const(ir.i64, self.radix), WARP) as loop:
            block.put(const(ir.i32, 0), mine, loop.index)
        block.converge()
        ranks = [self._count(digit, mine) for digit in digits]
        block.barrier()
        self._sum()
        block.barrier()
        places: list[Val] = []
        for digit, rank in zip(digits, ranks, strict=True):
            begin = b.add(block.get(self.starts, digit, ir.i32), block.get(mine, digit, ir.i32))
            places.append(b.add(begin, rank))
        return places

    def _count(self, digit: Val, counts: Val) -> Val:
        """How many of the warp's elements with this digit come before this one."""
        block, b = self.block, self.block.b
        alike = const(ir.i32, -1)
        for n in range(self.bits):
            bit = b.icmp("ne", b.and_(digit, const(ir.i32, 1 << n)), const(ir.i32, 0))
            turned = b.select(bit, const(ir.i32, 0), const(ir.i32, -1))
            alike = b.and_(alike, b.xor(block.ballot(bit), turned))
        below = b.intrinsic("llvm.ctpop", ir.i32, (b.and_(alike, block.lanes_below()),))
        size = b.intrinsic("llvm.ctpop", ir.i32, (alike,))
        first = b.intrinsic("llvm.cttz", ir.i32, (alike, const(ir.i1, 1)), (ir.i32,))

        def counted() -> Val:
            known = block.get(counts, digit, ir.i32)
            block.put(b.add(known, size), counts, digit)
            return known

        leads = b.icmp("eq", below, const(ir.i32, 0))
        (known,) = b.cond(leads, counted, lambda: const(ir.i32, 0))
        rank = b.add(block.from_lane(known, first), below)
        block.converge()
        return rank

    def _sum(self) -> None:
        """Turn counts into the sums of what comes before: by digit, and in it by warp."""
        block, b = self.block, self.block.b
        each = max(1, self.radix // block.threads)
        own = b.mul(block.thread, const(ir.i32, each))
        has = b.icmp("ult", own, const(ir.i32, self.radix))

        def counted() -> list[Val]:
            return [self._sum_digit(b.add(own, const(ir.i32, n))) for n in range(each)]

        if each * block.threads == self.radix:
            totals = counted()
        else:
            totals = list(b.cond(has, counted, lambda: [const(ir.i32, 0)] * each))
        before = [const(ir.i32, 0)]
        for total in totals:
            before.append(b.add(before[-1], total))
        upto = block.scan_lanes(before[-1], b.add)
        warp = block.from_lane(upto, const(ir.i32, WARP - 1))
        earlier, _ = block.spread(warp, self._sums, b.add, const(ir.i32, 0))
        begin = b.add(earlier, b.sub(upto, before[-1]))
        with b.if_then(has):
            for n in range(each):
                place = b.add(own, const(ir.i32, n))
                block.put(b.add(begin, before[n]), self.starts, place)

    def _sum_digit(self, digit: Val) -> Val:
        """Sums of one digit's counts warp by warp; the total."""
        block, b = self.block, self.block.b
        total = const(ir.i32, 0)
        for warp in range(block.warps):
            place = b.add(digit, const(ir.i32, warp * self.radix))
            known = block.get(self._counts, place, ir.i32)
            block.put(total, self._counts, place)
            total = b.add(total, known)
        return total


__all__ = ["Ranking"]
