"""Sorting many short lines: in groups of lanes, or each in a block.

A line of at most a warp's lanes has an element in each lane, which counts how many come before it.
A longer one is ordered digit by digit in the shared memory of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bringup.llvm import text as ir
from bringup.llvm.text import Val, const
from bringup.program.program import OpStep
from bringup_cuda.commands import Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._keys import Key, Lines
from bringup_cuda.steps._ranking import Ranking
from bringup_cuda.steps.block import MAX_BLOCKS, Block
from bringup_cuda.targets import WARP

_THREADS = 256
#: Elements of a thread where a block sorts a line.
_ITEMS = 16
#: The longest line of a block.
BLOCK_LENGTH = _THREADS * _ITEMS


def sort_lanes(emission: Emission, step: OpStep, lines: Lines) -> list[Command]:
    """Lines of at most `WARP` elements."""
    group = 1 << (lines.length - 1).bit_length()
    each = min(_THREADS, max(WARP, lines.count * group)) // group
    threads = -(-each * group // WARP) * WARP
    each = threads // group
    block = Block(emission, step, "sort_lanes", (*lines.operands, *lines.written), threads)
    b, count = block.b, len(lines.operands)
    with block.units(-(-lines.count // each)) as unit:
        team = b.udiv(block.thread, const(ir.i32, group))
        line = b.add(b.mul(unit, const(ir.i64, each)), b.zext(team, ir.i64))
        place = b.and_(block.lane, const(ir.i32, group - 1))
        inside = b.and_(
            b.icmp("slt", line, const(ir.i64, lines.count)),
            b.icmp("ult", place, const(ir.i32, lines.length)),
        )
        start = lines.start(b, line)

        def loaded(start: Val = start, place: Val = place) -> list[Val]:
            return [
                lines.load(b, pointer, dtype, start, place)
                for pointer, dtype in zip(block.args[:count], lines.dtypes, strict=True)
            ]

        none = [const(ir.integer(d.itemsize * 8), 0) for d in lines.dtypes]
        values = b.cond(inside, loaded, partial(list, none))
        rank = _count_before(block, lines, values[: len(lines.keys)], place, group)
        with b.if_then(inside):
            for value, pointer in zip((*values, place), block.args[count:], strict=False):
                lines.store(b, value, pointer, start, rank)
    return [block.launch(min(-(-lines.count // each), MAX_BLOCKS))]


def _count_before(block: Block, lines: Lines, raws: Sequence[Val], place: Val, group: int) -> Val:
    """How many elements of the line come before this one."""
    b = block.b
    codes = [key.code(b, raw) for key, raw in zip(lines.keys, raws, strict=True)]
    base = b.and_(block.lane, const(ir.i32, WARP - group))
    with b.loop(const(ir.i32, 0), const(ir.i32, lines.length), carried=[const(ir.i32, 0)]) as loop:
        source = b.or_(base, loop.index)
        before = b.icmp("ult", loop.index, place)
        for code in reversed(codes):
            other = block.from_lane(code, source)
            tie = b.and_(b.icmp("eq", other, code), before)
            before = b.or_(b.icmp("ult", other, code), tie)
        loop.next(b.add(loop.carried[0], b.zext(before, ir.i32)))
    return loop.carried[0]


class SortBlock:
    """A block for each line."""

    def __init__(self, emission: Emission, step: OpStep, lines: Lines) -> None:
        self.lines = lines
        wanted = 1 << max(5, (-(-lines.length // 8) - 1).bit_length())
        threads = min(_THREADS, wanted)
        self.items = -(-lines.length // threads)
        arguments = (*lines.operands, *lines.written)
        self.block = Block(emission, step, "sort_block", arguments, threads)
        self.b = self.block.b
        self.tile = threads * self.items
        widest = max(4, *(key.dtype.itemsize for key in lines.keys))
        self.shared = self.block.shared(ir.i8, self.tile * widest)
        self.rankings: dict[int, Ranking] = {}

    def commands(self) -> list[Command]:
        """The one launch."""
        b, block, lines = self.b, self.block, self.lines
        count = len(lines.operands)
        own = b.mul(block.warp, const(ir.i32, WARP * self.items))
        own = b.add(own, block.lane)
        places = [b.add(own, const(ir.i32, n * WARP)) for n in range(self.items)]
        with block.units(lines.count) as line:
            start = lines.start(b, line)
            came = list(places)
            raws: list[Val] = []
            for number in reversed(range(len(lines.keys))):
                key = lines.keys[number]
                raws = self._loaded(block.args[number], key, start, places, came)
                raws, came = self._by_key(key, places, raws, came)
            for n, place in enumerate(places):
                with b.if_then(b.icmp("ult", place, const(ir.i32, lines.length))):
                    lines.store(b, raws[n], block.args[count], start, place)
                    for other in range(1, count):
                        pointer, dtype = block.args[other], lines.dtypes[other]
                        value = lines.load(b, pointer, dtype, start, came[n])
                        lines.store(b, value, block.args[count + other], start, place)
                    if lines.places is not None:
                        lines.store(b, came[n], block.args[-1], start, place)
            if lines.count > MAX_BLOCKS:
                block.barrier()
        return [block.launch(min(lines.count, MAX_BLOCKS))]

    def _loaded(
        self, pointer: Val, key: Key, start: Val, places: Sequence[Val], came: Sequence[Val]
    ) -> list[Val]:
        """The key's elements; behind the last one, that again.  No load waits for a test."""
        b, lines = self.b, self.lines
        if self.tile == lines.length:
            return [lines.load(b, pointer, key.dtype, start, place) for place in came]
        last, found = const(ir.i32, lines.length - 1), list[Val]()
        for place, at in zip(places, came, strict=True):
            inside = b.icmp("ult", place, const(ir.i32, lines.length))
            near = b.select(inside, at, last)
            found.append(lines.load(b, pointer, key.dtype, start, near))
        return found

    def _by_key(
        self, key: Key, places: Sequence[Val], raws: Sequence[Val], came: Sequence[Val]
    ) -> tuple[list[Val], list[Val]]:
        """Order by all digits of a key, the lowest first: its elements and where they came from."""
        b, n = self.b, self.items
        if key.digit_bits not in self.rankings:
            self.rankings[key.digit_bits] = Ranking(self.block, key.digit_bits)
        ranking = self.rankings[key.digit_bits]
        moved = [] if self.lines.alone else list(came)
        zero, stop = const(ir.i32, 0), const(ir.i32, key.bits)
        with b.loop(zero, stop, key.digit_bits, [*raws, *moved]) as loop:
            digits: list[Val] = []
            for place, raw in zip(places, loop.carried, strict=False):
                digit = key.digit(b, raw, loop.index)
                # What is behind the last element stays there.
                inside = b.icmp("ult", place, const(ir.i32, self.lines.length))
                digits.append(b.select(inside, digit, const(ir.i32, key.radix - 1)))
            targets = ranking.places(digits)
            made = self._exchanged(loop.carried[:n], targets, places)
            if moved:
                self.block.barrier()
                made += self._exchanged(loop.carried[n:], targets, places)
            self.block.barrier()
            loop.next(*made)
        return list(loop.carried[:n]), list(loop.carried[n:]) or list(came)

    def _exchanged(
        self, values: Sequence[Val], targets: Sequence[Val], places: Sequence[Val]
    ) -> list[Val]:
        """What stands at this thread's places once every value is at its target."""
        block = self.block
        for value, target in zip(values, targets, strict=True):
            block.put(value, self.shared, target)
        block.barrier()
        return [block.get(self.shared, place, values[0].type) for place in places]


__all__ = ["BLOCK_LENGTH", "SortBlock", "sort_lanes"]
