"""Lines longer than a block: blocks are sorted, merged pair by pair, and then written.

All lines have the same number of blocks; the last block is padded with records that come after all
others.  Each merge is a phase, and a unit produces one part of its result.  A binary search finds
where the part begins in both runs; then both runs pass through a vector of records that holds the
largest so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.integers import ceil_div
from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import NativeKernel
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.sort.base import FloatFixup, LineSortEmitter, SortJob
from bringup.llvm.steps.sort.codecs import ValueCodec
from bringup.llvm.steps.sort.network import Record
from bringup.llvm.text import Builder, Callee, Module, Param, Val, i64_const
from bringup.llvm.text.masked import lanes_below_wide, masked_load

#: Elements of the result that one unit produces.
_PART = 1 << 14
#: Independent merges in one unit, because one alone mostly waits for its own results.
_STREAMS = 2
#: Bytes of the two counts of a block.
_COUNTS = 16


class _Layout:
    """The memory that the phases share: the records twice, then counts of lost elements by block.

    block: records of a block.  part: records of a merge's result that a unit produces.
    count: blocks of a line.  padded: records of a line.
    lines, total: number of lines and of records.
    """

    def __init__(self, job: SortJob, block: int) -> None:
        self.block = block
        self.part = min(_PART, block)
        self.count = ceil_div(job.length, block)
        self.lines = job.outer * job.inner
        self.padded = self.count * block
        self.total = self.lines * self.padded
        self.half = job.bytes_of(self.total)
        self.counts = 2 * self.half
        self.nbytes = self.counts + _COUNTS * self.lines * self.count


def emit_merging(module: Module, job: SortJob, name: str, block: int) -> NativeStep:
    """Emit the phases of a sort whose lines are several blocks."""
    layout = _Layout(job, block)
    phases = [_BlockPhase(module, job, f"{name}.blocks", layout).emit()]
    body = _MergeBody(module, job, f"{name}.merge", layout).emit()
    run, side = block, 0
    while run < layout.padded:
        merge = _Merge(module, job, f"{name}.merge{len(phases)}", layout)
        phases.append(merge.emit(run, side, body))
        run, side = 2 * run, 1 - side
    phases.append(_WritePhase(module, job, f"{name}.write", layout).emit(side))
    return NativeStep(tuple(phases), layout.nbytes)


class _MergePhase(LineSortEmitter):
    """A phase that works on the shared records."""

    def __init__(self, module: Module, job: SortJob, name: str, layout: _Layout) -> None:
        super().__init__(module, job, name)
        self.layout = layout

    def records(self, side: int) -> Val:
        """One of the two halves of the shared memory."""
        return self.b.gep(self.phase.shared, side * self.layout.half, ir.i8)

    def counts(self, line: Val, block: Val) -> Val:
        """The address of a block's counts: of NaN, and of negative zeros."""
        b, layout = self.b, self.layout
        index = b.add(b.mul(line, i64_const(layout.count)), block)
        counts = b.gep(self.phase.shared, layout.counts, ir.i8)
        return b.gep(counts, b.mul(index, i64_const(_COUNTS)), ir.i8)

    def split(self, unit: Val, count: int) -> tuple[Val, Val]:
        """The line of a unit and its number there."""
        size = i64_const(count)
        return self.b.udiv(unit, size), self.b.urem(unit, size)


class _BlockPhase(_MergePhase):
    def emit(self) -> NativeKernel:
        """Sort every block, and count the elements that its records cannot represent."""
        b, job, layout = self.b, self.job, self.layout
        network = job.network(self.module, layout.block)
        (scratch,) = self.phase.scratch(job.bytes_of(layout.block))
        block = network.words_at(b, scratch)
        with self.phase.units() as unit:
            number, index = self.split(unit, layout.count)
            line, first = self.line(number), b.mul(index, i64_const(layout.block))
            left = b.sub(i64_const(job.length), first)
            count = b.smin(left, i64_const(layout.block))
            lost = self.read(line, first, count, network, block)
            network.sort_block(b, block, layout.block // job.lanes)
            target = b.gep(self.records(0), b.mul(unit, i64_const(layout.block)), network.type)
            self.store_ordered(network, block, target, layout.total)
            if lost is not None:
                assert isinstance(job.codec, ValueCodec)
                fixup = FloatFixup(self.phase, job.codec, line, job.length)
                zero = i64_const(0)
                counts = b.cond(
                    lost,
                    lambda: fixup.count(first, b.add(first, count)),
                    lambda: (zero, zero),
                )
                address = self.counts(number, index)
                b.store(counts[0], address)
                b.store(counts[1], b.gep(address, 8, ir.i8))
        steps = layout.block.bit_length()
        return self.phase.done(layout.lines * layout.count, layout.block * steps * steps // 8)


class _Merge(_MergePhase):
    def emit(self, run: int, side: int, body: Callee) -> NativeKernel:
        """Merge sorted runs of ``run`` records, from one half of the memory to the other."""
        b, layout = self.b, self.layout
        halves = [self.records(side), self.records(1 - side)]
        with self.phase.units() as unit:
            b.call(body, [*halves, unit, i64_const(run)])
        units = layout.lines * (layout.padded // layout.part)
        return self.phase.done(units, layout.part * self.job.lanes.bit_length())


class _MergeBody:
    """Emits the function that produces one part of a merge, for runs of any length."""

    def __init__(self, module: Module, job: SortJob, name: str, layout: _Layout) -> None:
        self.job = job
        self.layout = layout
        self.network = job.network(module, layout.total)
        params: list[Param] = [
            ("source", ir.ptr), ("target", ir.ptr), ("unit", ir.i64), ("run", ir.i64)
        ]  # fmt: skip
        self.function = module.function(
            name, ir.void, params, "nounwind noinline", linkage="internal"
        )
        self.b = Builder(self.function.block("entry"))

    def emit(self) -> Callee:
        """Emit it."""
        b, layout = self.b, self.layout
        source, target, unit, run = self.function.args
        padded, part = i64_const(layout.padded), i64_const(layout.part)
        per_line = i64_const(layout.padded // layout.part)
        base = b.mul(b.udiv(unit, per_line), padded)
        offset = b.mul(b.urem(unit, per_line), part)
        twice = b.add(run, run)
        start = b.and_(offset, b.sub(i64_const(0), twice))
        middle, stop = (
            b.add(base, b.smin(b.add(start, length), padded)) for length in (run, twice)
        )
        left, index, out = b.add(base, start), b.sub(offset, start), b.add(base, offset)
        length = layout.part // _STREAMS
        streams: list[tuple[Val, Val, Val]] = []
        for n in range(_STREAMS):
            ahead = i64_const(n * length)
            wanted = b.add(index, ahead)
            from_left = self._merge_path(source, left, middle, stop, wanted)
            right = b.add(middle, b.sub(wanted, from_left))
            streams.append((b.add(left, from_left), right, b.add(out, ahead)))
        self._merge(source, target, streams, (middle, stop), length)
        b.ret()
        return self.function.callee

    def _one(self, records: Val, index: Val) -> Record:
        """One record, as scalars."""
        b, network = self.b, self.network
        type_, first = network.type, b.gep(records, index, network.type)
        return [
            b.load(type_, b.gep(first, n * network.word_stride, type_))
            for n in range(network.words)
        ]

    def _merge_path(self, records: Val, left: Val, middle: Val, stop: Val, index: Val) -> Val:
        """How many of the first ``index`` records of the result come from the left run."""
        b, zero, one = self.b, i64_const(0), i64_const(1)
        low = b.smax(b.sub(index, b.sub(stop, middle)), zero)
        high = b.smin(index, b.sub(middle, left))
        with b.while_loop([low, high], lambda c: b.icmp("slt", c[0], c[1])) as loop:
            bottom, top = loop.carried
            centre = b.lshr(b.add(bottom, top), one)
            x = self._one(records, b.add(left, centre))
            other = b.sub(b.sub(index, one), centre)
            y = self._one(records, b.add(middle, other))
            goes_right = self.network.before(b, y, x)
            loop.next(
                b.select(goes_right, bottom, b.add(centre, one)), b.select(goes_right, centre, top)
            )
        return loop.carried[0]

    def _vector(self, records: Val, index: Val, stop: Val) -> Record:
        """The records from an index on; from ``stop`` on, records that come after all others."""
        b, network = self.b, self.network
        lanes = network.lanes
        mask = lanes_below_wide(b, b.sub(stop, index), lanes)
        first = b.gep(records, index, network.type)
        return [
            masked_load(
                b,
                network.vector,
                b.gep(first, n * network.word_stride, network.type),
                mask,
                last,
                network.type.bits // 8,
            )
            for n, last in enumerate(self.job.codec.last(lanes))
        ]

    def _merge(
        self,
        source: Val,
        target: Val,
        streams: Sequence[tuple[Val, Val, Val]],
        stops: tuple[Val, Val],
        length: int,
    ) -> None:
        """Merge two runs in several independent streams, each of which writes ``length`` records.

        streams: where each begins in both runs and in the result.
        """
        b, network, lanes = self.b, self.network, self.network.lanes
        step, width = i64_const(lanes), 2 + self.network.words
        start: list[Val] = []
        for left, right, out in streams:
            both = [self._vector(source, x, y) for x, y in zip((left, right), stops, strict=True)]
            low, high = network.merged(b, *both)
            self._put(low, target, out)
            start += [b.add(left, step), b.add(right, step), *high]
        with b.loop(step, i64_const(length), lanes, start) as loop:
            carried: list[Val] = []
            for n, (_, _, out) in enumerate(streams):
                left, right, *largest = loop.carried[n * width : (n + 1) * width]
                x, y = self._head(source, left, stops[0]), self._head(source, right, stops[1])
                from_right = network.before(b, y, x)
                index, stop = (
                    b.select(from_right, right, left),
                    b.select(from_right, stops[1], stops[0]),
                )
                low, high = network.merged(b, list(largest), self._vector(source, index, stop))
                self._put(low, target, b.add(out, loop.index))
                after = b.add(index, step)
                carried += [
                    b.select(from_right, left, after),
                    b.select(from_right, after, right),
                    *high,
                ]
            loop.next(*carried)

    def _head(self, records: Val, index: Val, stop: Val) -> Record:
        """The first remaining record of a run; if there is none, one that comes after all."""
        b, one = self.b, i64_const(1)
        inside = b.smin(index, b.sub(stop, one))
        record = self._one(records, inside)
        exists = b.icmp("slt", index, stop)
        last = self.job.codec.last(1)
        return [b.select(exists, x, y) for x, y in zip(record, last, strict=True)]

    def _put(self, record: Record, target: Val, index: Val) -> None:
        b, network = self.b, self.network
        first = b.gep(target, index, network.type)
        for n, word in enumerate(record):
            b.store(
                word, b.gep(first, n * network.word_stride, network.type), network.type.bits // 8
            )


class _WritePhase(_MergePhase):
    def emit(self, side: int) -> NativeKernel:
        """Write the elements of the sorted records."""
        b, job, layout = self.b, self.job, self.layout
        per_line = ceil_div(job.length, _PART)
        type_ = job.codec.type
        with self.phase.units() as unit:
            number, index = self.split(unit, per_line)
            line, first = self.line(number), b.mul(index, i64_const(_PART))
            left = b.sub(i64_const(job.length), first)
            count = b.smin(left, i64_const(_PART))
            at = b.add(b.mul(number, i64_const(layout.padded)), first)
            records = b.gep(self.records(side), at, type_)
            self.write_all(line, first, count, records, layout.total)
            if self.loses:
                self._fix(number, first, b.add(first, count))
        return self.phase.done(layout.lines * per_line, 4 * min(_PART, job.length))

    def _fix(self, number: Val, first: Val, stop: Val) -> None:
        b, layout, zero = self.b, self.layout, i64_const(0)
        assert isinstance(self.job.codec, ValueCodec)
        with b.loop(zero, i64_const(layout.count), carried=[zero, zero]) as loop:
            counts = self.counts(number, loop.index)
            nans, zeros = b.load(ir.i64, counts), b.load(ir.i64, b.gep(counts, 8, ir.i8))
            loop.next(b.add(loop.carried[0], nans), b.add(loop.carried[1], zeros))
        nans, zeros = loop.carried
        fixup = FloatFixup(self.phase, self.job.codec, self.line(number), self.job.length)
        with b.if_then(b.icmp("sgt", b.add(nans, zeros), zero), likely=False):
            fixup.fix(nans, zeros, first, stop)
