"""Sorting as native code: networks sort blocks in the cache, and merges join blocks of long lines.

Lines that are neighbours in memory are sorted each in its own lane.  Any other line is one block,
or several blocks that fit the cache and are merged pair by pair.  Threads share even a single line,
because every part of a merge's result finds its start in the two halves by itself.
"""

from __future__ import annotations

import math

from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.llvm.loops.schedule import NativeKernel
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.sort.base import FloatFixup, LineSortEmitter, SortEmitter, SortJob
from bringup.llvm.steps.sort.codecs import IndexedCodec, StridedLine, ValueCodec
from bringup.llvm.steps.sort.merge import emit_merging
from bringup.llvm.steps.sort.network import Network, Words
from bringup.llvm.text import Module, Val, i64_const
from bringup.llvm.transpose import transposed
from bringup.program.program import OpStep
from bringup.target import Target

#: The most bytes of a block, and of a line that is one block if there are many lines.
_BLOCK_BYTES = 1 << 17
_LINE_BYTES = 1 << 19
#: So many lines keep the threads busy.
_MANY_LINES = 16
#: A merge of all records takes about as long as so many levels of a network.
_MERGE_LEVELS = 26
#: The most bytes of lines that are sorted in lanes, and the longest such line if each of them is
#: contiguous.
_COLUMN_BYTES = 1 << 19
_SHORT = 64


def emit_sort(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``sort``."""
    job = _job(step, target)
    if _sorts_columns(job):
        kind = ColumnSort if job.inner > 1 else ShortLineSort
        return NativeStep((kind(module, job, name).emit(),))
    block = max(job.lanes**2, ceil_power_of_two(job.length))
    many = job.outer * job.inner >= _MANY_LINES
    if job.bytes_of(block) <= (_LINE_BYTES if many else _BLOCK_BYTES):
        return NativeStep((BlockSort(module, job, name, block).emit(),))
    return emit_merging(module, job, name, _best_block(job))


def _best_block(job: SortJob) -> int:
    """The block of a long line: large blocks need fewer merges, small ones less padding."""
    sizes = [
        n for n in range(job.lanes.bit_length() * 2, 40) if job.bytes_of(1 << n) <= _BLOCK_BYTES
    ]

    def cost(bits: int) -> int:
        count = ceil_div(job.length, 1 << bits)
        levels = bits * (bits + 1) // 2 + _MERGE_LEVELS * (count - 1).bit_length()
        return (count << bits) * levels

    return 1 << min(sizes, key=cost)


def _job(step: OpStep, target: Target) -> SortJob:
    type_, attrs = step.operands[0].type, step.attrs
    dim, descending = attrs["dim"], attrs["descending"]
    length = type_.shape[dim]
    codec: ValueCodec | IndexedCodec = ValueCodec(type_.dtype, descending)
    if len(step.operands) > 1:
        keys = tuple(slot.type.dtype for slot in step.operands[: attrs["num_keys"]])
        codec = IndexedCodec(keys, descending, length)
    levels = max(1, 5 - codec.words if target.registers >= 32 else 4 - codec.words)
    lanes = target.vector_bits // codec.type.bits
    outer, inner = math.prod(type_.shape[:dim]), math.prod(type_.shape[dim + 1 :])
    return SortJob(step, codec, outer, length, inner, lanes, levels)


def _sorts_columns(job: SortJob) -> bool:
    rows = ceil_power_of_two(job.length)
    lines, fits = job.inner, job.bytes_of(rows * job.lanes) <= _COLUMN_BYTES
    if job.inner == 1:
        lines, fits = job.outer, job.length <= _SHORT
    return fits and 2 * lines >= job.lanes


class BlockSort(LineSortEmitter):
    """Sorts lines that are one block each."""

    def __init__(self, module: Module, job: SortJob, name: str, block: int) -> None:
        super().__init__(module, job, name)
        self.block = block

    def emit(self) -> NativeKernel:
        """Emit the only phase."""
        b, job = self.b, self.job
        network = job.network(self.module, self.block)
        zero, count = i64_const(0), i64_const(job.length)
        scratch, ordered = self.phase.scratch(*[job.bytes_of(self.block)] * 2)
        block = network.words_at(b, scratch)
        with self.phase.units() as unit:
            line = self.line(unit)
            lost = self.read(line, zero, count, network, block)
            network.sort_block(b, block, self.block // job.lanes)
            self.store_ordered(network, block, ordered, self.block)
            self.write_all(line, zero, count, ordered, self.block)
            if lost is not None:
                assert isinstance(job.codec, ValueCodec)
                with b.if_then(lost, likely=False):
                    FloatFixup(self.phase, job.codec, line, job.length).fix_line()
        steps = self.block.bit_length()
        return self.phase.done(job.outer * job.inner, job.length * steps * steps // 8)


class ColumnSort(SortEmitter):
    """Sorts lines in lanes; elements of the same index are neighbours in memory."""

    def emit(self) -> NativeKernel:
        """Emit the only phase."""
        b, job = self.b, self.job
        rows = ceil_power_of_two(job.length)
        network = job.network(self.module, rows * job.lanes)
        (scratch,) = self.phase.scratch(job.bytes_of(rows * job.lanes))
        block = network.words_at(b, scratch)
        lines = self.lines
        groups = ceil_div(lines, job.lanes)
        with self.phase.units() as unit:
            start, left = self.first(unit, groups)
            lost = self.read(start, left, network, block, rows)
            network.sort_columns(b, block, rows)
            self.write_block(start, left, network, block, rows)
            if lost is not None:
                with b.if_then(lost, likely=False):
                    self.fix(start, left)
        units = groups * (job.outer if job.inner > 1 else 1)
        return self.phase.done(units, job.lanes * job.length * (2 + rows.bit_length()))

    @property
    def lines(self) -> int:
        """The number of neighbouring lines."""
        return self.job.inner

    @property
    def line_stride(self) -> int:
        """Elements from one line to the next."""
        return 1

    def first(self, unit: Val, groups: int) -> tuple[Val, Val]:
        """Where the first line of a unit begins, and how many lines there are from it on."""
        b, job = self.b, self.job
        size = i64_const(groups)
        first = b.mul(b.urem(unit, size), i64_const(job.lanes))
        length = i64_const(job.length * job.inner)
        start = b.add(b.mul(b.udiv(unit, size), length), first)
        return start, b.sub(i64_const(self.lines), first)

    def _mask(self, left: Val) -> Val | None:
        return self.below(left) if self.lines % self.job.lanes else None

    def read(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> Val | None:
        """Fill a block; returns whether there is an element that records cannot represent."""
        b, job = self.b, self.job
        line, mask = StridedLine(start, 1, job.inner, lanes_are_indices=False), self._mask(left)
        flags = self.flags(network)
        with b.loop(i64_const(0), i64_const(job.length), carried=[flags]) as loop:
            record, lost = self.encode(line, loop.index, mask)
            network.store(b, record, block, loop.index)
            loop.next(self.flagged(loop.carried[0], lost))
        with b.loop(i64_const(job.length), i64_const(rows)) as rest:
            network.store(b, job.codec.last(job.lanes), block, rest.index)
        return self.raised(loop.carried[0])

    def write_block(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> None:
        """Write the elements of a sorted block."""
        b, job = self.b, self.job
        line, mask = StridedLine(start, 1, job.inner, lanes_are_indices=False), self._mask(left)
        with b.loop(i64_const(0), i64_const(job.length)) as loop:
            self.write(line, network.load(b, block, loop.index), loop.index, mask)

    def fix(self, start: Val, left: Val) -> None:
        """Restore NaN and the signs of zeros in every line."""
        b, job, zero = self.b, self.job, i64_const(0)
        assert isinstance(job.codec, ValueCodec)
        count = b.smin(left, i64_const(job.lanes))
        with b.loop(zero, count) as loop:
            index = b.add(start, b.mul(loop.index, i64_const(self.line_stride)))
            line = StridedLine(index, job.inner, job.inner, lanes_are_indices=True)
            FloatFixup(self.phase, job.codec, line, job.length).fix_line()


class ShortLineSort(ColumnSort):
    """Sorts lines in lanes; each line is contiguous, so squares are transposed."""

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.job.outer

    @property
    def line_stride(self) -> int:
        """Elements from one line to the next."""
        return self.job.length

    def first(self, unit: Val, groups: int) -> tuple[Val, Val]:
        """Where the first line of a unit begins, and how many lines there are from it on."""
        b = self.b
        number = b.mul(unit, i64_const(self.job.lanes))
        left = b.sub(i64_const(self.lines), number)
        return b.mul(number, i64_const(self.line_stride)), left

    @property
    def end(self) -> int:
        """The length of a line in whole vectors."""
        return round_up(self.job.length, self.job.lanes)

    def _line(self, start: Val, left: Val, lane: int, index: Val) -> tuple[StridedLine, Val | None]:
        """A line of a group, and a mask of its elements from an index on."""
        b, job = self.b, self.job
        line = StridedLine(
            b.add(start, i64_const(lane * self.line_stride)), 1, 1, lanes_are_indices=True
        )
        size = i64_const(job.length)
        if self.lines % job.lanes:
            size = b.select(b.icmp("sgt", left, i64_const(lane)), size, i64_const(0))
        elif job.length % job.lanes == 0:
            return line, None
        return line, self.below(b.sub(size, index))

    def read(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> Val | None:
        """Fill a block; returns whether there is an element that records cannot represent."""
        b, lanes = self.b, self.job.lanes
        flags = self.flags(network)
        with b.loop(i64_const(0), i64_const(self.end), lanes, [flags]) as loop:
            flag: Val = loop.carried[0]
            lines: list[list[Val]] = []
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                record, lost = self.encode(line, loop.index, mask)
                lines.append(record)
                flag = self.flagged(flag, lost)
            columns = [transposed(b, list(words)) for words in zip(*lines, strict=True)]
            for n in range(min(rows, lanes)):
                row = b.add(loop.index, i64_const(n))
                network.store(b, [words[n] for words in columns], block, row)
            loop.next(flag)
        with b.loop(i64_const(self.end), i64_const(rows)) as rest:
            network.store(b, self.job.codec.last(lanes), block, rest.index)
        return self.raised(loop.carried[0])

    def write_block(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> None:
        """Write the elements of a sorted block."""
        b, lanes = self.b, self.job.lanes
        with b.loop(i64_const(0), i64_const(self.end), lanes) as loop:
            records = [
                network.load(b, block, b.add(loop.index, i64_const(n % rows))) for n in range(lanes)
            ]
            lines = [transposed(b, list(words)) for words in zip(*records, strict=True)]
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                self.write(line, [words[lane] for words in lines], loop.index, mask)
