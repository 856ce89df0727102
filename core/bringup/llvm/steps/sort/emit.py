"""Sorting as native code: blocks by a network in the cache, long lines by merging their blocks.

Lines that lie side by side are sorted each in a lane of its own.  Any other line is one block, or
so many that each fits the cache: then they are merged pair by pair, and because every stretch of a
merge's result finds its own beginning in the two halves, threads share even a single line.
"""

from __future__ import annotations

import math

from bringup.llvm.loops.schedule import LoopTarget, NativeKernel
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.sort.base import Blocks, Emission, Job, Oddities
from bringup.llvm.steps.sort.codecs import Line, Numbers, Places
from bringup.llvm.steps.sort.merge import emit_merging
from bringup.llvm.steps.sort.network import Network, Words
from bringup.llvm.text import Module, Val, i64_const
from bringup.llvm.transpose import transposed
from bringup.program.program import OpStep

#: Bytes of the largest block; of so many lines that they alone keep the threads busy.
_BLOCK_BYTES = 1 << 17
_LINE_BYTES = 1 << 19
_MANY_LINES = 16
#: A merge of all records takes about as long as so many levels of a network.
_MERGE_LEVELS = 26
#: Bytes of lines sorted side by side, and how long a line may be if they are contiguous each.
_SIDE_BYTES = 1 << 19
_SHORT = 64


def emit_sort(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``sort``."""
    job = _job(step, target)
    if _lies_side_by_side(job):
        way = SideBySide if job.inner > 1 else ShortLines
        return NativeStep((way(module, job, name).emit(),))
    block = max(job.lanes**2, 1 << (job.length - 1).bit_length())
    many = job.outer * job.inner >= _MANY_LINES
    if job.bytes_of(block) <= (_LINE_BYTES if many else _BLOCK_BYTES):
        return NativeStep((_Blocks(module, job, name, block).emit(),))
    return emit_merging(module, job, name, _best_block(job))


def _best_block(job: Job) -> int:
    """Records of a block of a long line: large ones need fewer merges, small ones less filling."""
    sizes = [
        n for n in range(job.lanes.bit_length() * 2, 40) if job.bytes_of(1 << n) <= _BLOCK_BYTES
    ]

    def price(bits: int) -> int:
        count = -(-job.length // (1 << bits))
        levels = bits * (bits + 1) // 2 + _MERGE_LEVELS * (count - 1).bit_length()
        return (count << bits) * levels

    return 1 << min(sizes, key=price)


def _job(step: OpStep, target: LoopTarget) -> Job:
    type_, attrs = step.operands[0].type, step.attrs
    dim, descending = attrs["dim"], attrs["descending"]
    length = type_.shape[dim]
    codec: Numbers | Places = Numbers(type_.dtype, descending)
    if len(step.operands) > 1:
        keys = tuple(slot.type.dtype for slot in step.operands[: attrs["num_keys"]])
        codec = Places(keys, descending, length)
    levels = max(1, 5 - codec.words if target.registers >= 32 else 4 - codec.words)
    lanes = target.vector_bits // codec.type.bits
    outer, inner = math.prod(type_.shape[:dim]), math.prod(type_.shape[dim + 1 :])
    return Job(step, codec, outer, length, inner, lanes, levels)


def _lies_side_by_side(job: Job) -> bool:
    rows = 1 << (job.length - 1).bit_length()
    lines, fits = job.inner, job.bytes_of(rows * job.lanes) <= _SIDE_BYTES
    if job.inner == 1:
        lines, fits = job.outer, job.length <= _SHORT
    return fits and 2 * lines >= job.lanes


class _Blocks(Blocks):
    """Every line is one block."""

    def __init__(self, module: Module, job: Job, name: str, block: int) -> None:
        super().__init__(module, job, name)
        self.block = block

    def emit(self) -> NativeKernel:
        """Emit the one phase."""
        b, job = self.b, self.job
        network = job.network(self.module, self.block)
        zero, count = i64_const(0), i64_const(job.length)
        scratch, ordered = self.phase.scratch(*[job.bytes_of(self.block)] * 2)
        block = network.words_at(b, scratch)
        with self.phase.units() as unit:
            line = self.line(unit)
            odd = self.read(line, zero, count, network, block)
            network.sort_block(b, block, self.block // job.lanes)
            self.store_ordered(network, block, ordered, self.block)
            self.write_all(line, zero, count, ordered, self.block)
            if odd is not None:
                assert isinstance(job.codec, Numbers)
                with b.if_then(odd, likely=False):
                    Oddities(self.phase, job.codec, line, job.length).mend_all()
        steps = self.block.bit_length()
        return self.phase.done(job.outer * job.inner, job.length * steps * steps // 8)


class SideBySide(Emission):
    """Lanes are lines, whose elements of one place lie next to each other."""

    def emit(self) -> NativeKernel:
        """Emit the one phase."""
        b, job = self.b, self.job
        rows = 1 << (job.length - 1).bit_length()
        network = job.network(self.module, rows * job.lanes)
        (scratch,) = self.phase.scratch(job.bytes_of(rows * job.lanes))
        block = network.words_at(b, scratch)
        lines = self.lines
        groups = -(-lines // job.lanes)
        with self.phase.units() as unit:
            start, left = self.first(unit, groups)
            odd = self.read(start, left, network, block, rows)
            network.sort_columns(b, block, rows)
            self.put(start, left, network, block, rows)
            if odd is not None:
                with b.if_then(odd, likely=False):
                    self.mend(start, left)
        units = groups * (job.outer if job.inner > 1 else 1)
        return self.phase.done(units, job.lanes * job.length * (2 + rows.bit_length()))

    @property
    def lines(self) -> int:
        """How many lines lie side by side."""
        return self.job.inner

    @property
    def apart(self) -> int:
        """Elements from one line to the next."""
        return 1

    def first(self, unit: Val, groups: int) -> tuple[Val, Val]:
        """Where the first line of a unit begins, and how many there are from it on."""
        b, job = self.b, self.job
        size = i64_const(groups)
        first = b.mul(b.urem(unit, size), i64_const(job.lanes))
        length = i64_const(job.length * job.inner)
        start = b.add(b.mul(b.udiv(unit, size), length), first)
        return start, b.sub(i64_const(self.lines), first)

    def _mask(self, left: Val) -> Val | None:
        return self.below(left) if self.lines % self.job.lanes else None

    def read(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> Val | None:
        """Fill a block; returns whether some record does not keep its element."""
        b, job = self.b, self.job
        line, mask = Line(start, 1, job.inner, places=False), self._mask(left)
        flags = self.flags(network)
        with b.loop(i64_const(0), i64_const(job.length), carried=[flags]) as loop:
            record, odd = self.encode(line, loop.index, mask)
            network.store(b, record, block, loop.index)
            loop.next(self.flagged(loop.carried[0], odd))
        with b.loop(i64_const(job.length), i64_const(rows)) as rest:
            network.store(b, job.codec.last(job.lanes), block, rest.index)
        return self.raised(loop.carried[0])

    def put(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> None:
        """Write what a sorted block stands for."""
        b, job = self.b, self.job
        line, mask = Line(start, 1, job.inner, places=False), self._mask(left)
        with b.loop(i64_const(0), i64_const(job.length)) as loop:
            self.write(line, network.load(b, block, loop.index), loop.index, mask)

    def mend(self, start: Val, left: Val) -> None:
        """Put NaN and zeros of every line where they belong."""
        b, job, zero = self.b, self.job, i64_const(0)
        assert isinstance(job.codec, Numbers)
        count = b.smin(left, i64_const(job.lanes))
        with b.loop(zero, count) as loop:
            place = b.add(start, b.mul(loop.index, i64_const(self.apart)))
            line = Line(place, job.inner, job.inner, places=True)
            Oddities(self.phase, job.codec, line, job.length).mend_all()


class ShortLines(SideBySide):
    """Lanes are lines, each of which is contiguous: squares of them are turned on the way."""

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self.job.outer

    @property
    def apart(self) -> int:
        """Elements from one line to the next."""
        return self.job.length

    def first(self, unit: Val, groups: int) -> tuple[Val, Val]:
        """Where the first line of a unit begins, and how many there are from it on."""
        b = self.b
        number = b.mul(unit, i64_const(self.job.lanes))
        left = b.sub(i64_const(self.lines), number)
        return b.mul(number, i64_const(self.apart)), left

    @property
    def end(self) -> int:
        """Where the last vector of a line ends."""
        return -(-self.job.length // self.job.lanes) * self.job.lanes

    def _line(self, start: Val, left: Val, lane: int, place: Val) -> tuple[Line, Val | None]:
        """A line of a group, and which of its places from one on exist."""
        b, job = self.b, self.job
        line = Line(b.add(start, i64_const(lane * self.apart)), 1, 1, places=True)
        size = i64_const(job.length)
        if self.lines % job.lanes:
            size = b.select(b.icmp("sgt", left, i64_const(lane)), size, i64_const(0))
        elif job.length % job.lanes == 0:
            return line, None
        return line, self.below(b.sub(size, place))

    def read(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> Val | None:
        """Fill a block; returns whether some record does not keep its element."""
        b, lanes = self.b, self.job.lanes
        flags = self.flags(network)
        with b.loop(i64_const(0), i64_const(self.end), lanes, [flags]) as loop:
            flag: Val = loop.carried[0]
            held: list[list[Val]] = []
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                record, odd = self.encode(line, loop.index, mask)
                held.append(record)
                flag = self.flagged(flag, odd)
            turned = [transposed(b, list(words)) for words in zip(*held, strict=True)]
            for n in range(min(rows, lanes)):
                place = b.add(loop.index, i64_const(n))
                network.store(b, [words[n] for words in turned], block, place)
            loop.next(flag)
        with b.loop(i64_const(self.end), i64_const(rows)) as rest:
            network.store(b, self.job.codec.last(lanes), block, rest.index)
        return self.raised(loop.carried[0])

    def put(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> None:
        """Write what a sorted block stands for."""
        b, lanes = self.b, self.job.lanes
        with b.loop(i64_const(0), i64_const(self.end), lanes) as loop:
            held = [
                network.load(b, block, b.add(loop.index, i64_const(n % rows))) for n in range(lanes)
            ]
            turned = [transposed(b, list(words)) for words in zip(*held, strict=True)]
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                self.write(line, [words[lane] for words in turned], loop.index, mask)
