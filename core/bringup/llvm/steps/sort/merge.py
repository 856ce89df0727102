"""Lines longer than a block: sorted blocks, merged pair by pair, then written.

All lines have equally many blocks; records behind all others fill the last one.  Each merge is a
phase, whose units make stretches of its result: two binary searches' worth of comparisons find
where a stretch begins in both halves, and then the halves flow through one vector of records that
holds the largest so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import NativeKernel
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.sort.base import Blocks, Job, Oddities
from bringup.llvm.steps.sort.codecs import Numbers
from bringup.llvm.steps.sort.network import Record
from bringup.llvm.text import Builder, Callee, Module, Param, Val, const_vector, i64_const
from bringup.llvm.text.masked import masked_load

#: Elements of a result that one unit makes.
_STRETCH = 1 << 14
#: Merges of one unit that go on side by side.
_FLOWS = 2
_NOTE = 16


class _Layout:
    """The memory that the phases share: the records twice, then notes on what they do not keep.

    block: records of one.  stretch: records of a merge's result that a unit makes.  count: blocks
    of a line.  padded: records of a line.  lines, total: of the step.
    """

    def __init__(self, job: Job, block: int) -> None:
        self.block = block
        self.stretch = min(_STRETCH, block)
        self.count = -(-job.length // block)
        self.lines = job.outer * job.inner
        self.padded = self.count * block
        self.total = self.lines * self.padded
        self.half = job.bytes_of(self.total)
        self.notes = 2 * self.half
        self.nbytes = self.notes + _NOTE * self.lines * self.count


def emit_merging(module: Module, job: Job, name: str, block: int) -> NativeStep:
    """Emit the phases of a sort whose lines are several blocks."""
    layout = _Layout(job, block)
    phases = [_SortedBlocks(module, job, f"{name}.blocks", layout).emit()]
    body = _MergeBody(module, job, f"{name}.merge", layout).emit()
    run, side = block, 0
    while run < layout.padded:
        merge = _Merge(module, job, f"{name}.merge{len(phases)}", layout)
        phases.append(merge.emit(run, side, body))
        run, side = 2 * run, 1 - side
    phases.append(_Written(module, job, f"{name}.write", layout).emit(side))
    return NativeStep(tuple(phases), layout.nbytes)


class _Part(Blocks):
    """A phase over the shared records."""

    def __init__(self, module: Module, job: Job, name: str, layout: _Layout) -> None:
        super().__init__(module, job, name)
        self.layout = layout

    def records(self, side: int) -> Val:
        """One of the two halves of the shared memory."""
        return self.b.gep(self.phase.shared, side * self.layout.half, ir.i8)

    def note(self, line: Val, block: Val) -> Val:
        """The counts of one block: of NaN, and of negative zeros."""
        b, layout = self.b, self.layout
        place = b.add(b.mul(line, i64_const(layout.count)), block)
        notes = b.gep(self.phase.shared, layout.notes, ir.i8)
        return b.gep(notes, b.mul(place, i64_const(_NOTE)), ir.i8)

    def split(self, unit: Val, count: int) -> tuple[Val, Val]:
        """The line of a unit and its number there."""
        size = i64_const(count)
        return self.b.udiv(unit, size), self.b.urem(unit, size)


class _SortedBlocks(_Part):
    def emit(self) -> NativeKernel:
        """Sort every block, and note what its records do not keep."""
        b, job, layout = self.b, self.job, self.layout
        network = job.network(self.module, layout.block)
        (scratch,) = self.phase.scratch(job.bytes_of(layout.block))
        block = network.words_at(b, scratch)
        with self.phase.units() as unit:
            number, place = self.split(unit, layout.count)
            line, first = self.line(number), b.mul(place, i64_const(layout.block))
            left = b.sub(i64_const(job.length), first)
            count = b.smin(left, i64_const(layout.block))
            odd = self.read(line, first, count, network, block)
            network.sort_block(b, block, layout.block // job.lanes)
            target = b.gep(self.records(0), b.mul(unit, i64_const(layout.block)), network.type)
            self.store_ordered(network, block, target, layout.total)
            if odd is not None:
                assert isinstance(job.codec, Numbers)
                oddities = Oddities(self.phase, job.codec, line, job.length)
                zero = i64_const(0)
                counts = b.cond(
                    odd,
                    lambda: oddities.count(first, b.add(first, count)),
                    lambda: (zero, zero),
                )
                note = self.note(number, place)
                b.store(counts[0], note)
                b.store(counts[1], b.gep(note, 8, ir.i8))
        steps = layout.block.bit_length()
        return self.phase.done(layout.lines * layout.count, layout.block * steps * steps // 8)


class _Merge(_Part):
    def emit(self, run: int, side: int, body: Callee) -> NativeKernel:
        """Merge sorted runs of so many records, from one half of the memory to the other."""
        b, layout = self.b, self.layout
        halves = [self.records(side), self.records(1 - side)]
        with self.phase.units() as unit:
            b.call(body, [*halves, unit, i64_const(run)])
        units = layout.lines * (layout.padded // layout.stretch)
        return self.phase.done(units, layout.stretch * self.job.lanes.bit_length())


class _MergeBody:
    """The function that makes one stretch of a merge: the same for runs of any length."""

    def __init__(self, module: Module, job: Job, name: str, layout: _Layout) -> None:
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
        padded, stretch = i64_const(layout.padded), i64_const(layout.stretch)
        per_line = i64_const(layout.padded // layout.stretch)
        base = b.mul(b.udiv(unit, per_line), padded)
        at = b.mul(b.urem(unit, per_line), stretch)
        twice = b.add(run, run)
        start = b.and_(at, b.sub(i64_const(0), twice))
        middle, stop = (
            b.add(base, b.smin(b.add(start, length), padded)) for length in (run, twice)
        )
        left, place, out = b.add(base, start), b.sub(at, start), b.add(base, at)
        length = layout.stretch // _FLOWS
        flows: list[tuple[Val, Val, Val]] = []
        for n in range(_FLOWS):
            ahead = i64_const(n * length)
            wanted = b.add(place, ahead)
            taken = self._cut(source, left, middle, stop, wanted)
            right = b.add(middle, b.sub(wanted, taken))
            flows.append((b.add(left, taken), right, b.add(out, ahead)))
        self._merge(source, target, flows, (middle, stop), length)
        b.ret()
        return self.function.callee

    def _one(self, records: Val, place: Val) -> Record:
        """One record, as scalars."""
        b, network = self.b, self.network
        type_, first = network.type, b.gep(records, place, network.type)
        return [b.load(type_, b.gep(first, n * network.apart, type_)) for n in range(network.words)]

    def _cut(self, records: Val, left: Val, middle: Val, stop: Val, place: Val) -> Val:
        """How many of the first ``place`` records of the result come from the left run."""
        b, zero, one = self.b, i64_const(0), i64_const(1)
        low = b.smax(b.sub(place, b.sub(stop, middle)), zero)
        high = b.smin(place, b.sub(middle, left))
        with b.while_loop([low, high], lambda c: b.icmp("slt", c[0], c[1])) as loop:
            bottom, top = loop.carried
            centre = b.lshr(b.add(bottom, top), one)
            x = self._one(records, b.add(left, centre))
            other = b.sub(b.sub(place, one), centre)
            y = self._one(records, b.add(middle, other))
            later = self.network.before(b, y, x)
            loop.next(b.select(later, bottom, b.add(centre, one)), b.select(later, centre, top))
        return loop.carried[0]

    def _vector(self, records: Val, place: Val, stop: Val) -> Record:
        """The records from a place on, and last ones from ``stop`` on."""
        b, network = self.b, self.network
        lanes = network.lanes
        ahead = b.splat(b.sub(stop, place), lanes)
        mask = b.icmp("slt", const_vector(ir.i64, list(range(lanes))), ahead)
        first = b.gep(records, place, network.type)
        return [
            masked_load(
                b,
                network.vector,
                b.gep(first, n * network.apart, network.type),
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
        flows: Sequence[tuple[Val, Val, Val]],
        stops: tuple[Val, Val],
        length: int,
    ) -> None:
        """Write ``length`` records each of merges of two runs, side by side: one waits for itself
        most of the time.

        flows: where each begins in the runs and in the result.
        """
        b, network, lanes = self.b, self.network, self.network.lanes
        step, width = i64_const(lanes), 2 + self.network.words
        start: list[Val] = []
        for left, right, out in flows:
            both = [self._vector(source, x, y) for x, y in zip((left, right), stops, strict=True)]
            low, high = network.merged(b, *both)
            self._put(low, target, out)
            start += [b.add(left, step), b.add(right, step), *high]
        with b.loop(step, i64_const(length), lanes, start) as loop:
            carried: list[Val] = []
            for n, (_, _, out) in enumerate(flows):
                left, right, *held = loop.carried[n * width : (n + 1) * width]
                x, y = self._head(source, left, stops[0]), self._head(source, right, stops[1])
                later = network.before(b, y, x)
                place, stop = b.select(later, right, left), b.select(later, stops[1], stops[0])
                low, high = network.merged(b, list(held), self._vector(source, place, stop))
                self._put(low, target, b.add(out, loop.index))
                after = b.add(place, step)
                carried += [b.select(later, left, after), b.select(later, after, right), *high]
            loop.next(*carried)

    def _head(self, records: Val, place: Val, stop: Val) -> Record:
        """The first record left of a run; the last record there is if none is."""
        b, one = self.b, i64_const(1)
        inside = b.smin(place, b.sub(stop, one))
        found = self._one(records, inside)
        some = b.icmp("slt", place, stop)
        last = self.job.codec.last(1)
        return [b.select(some, x, y) for x, y in zip(found, last, strict=True)]

    def _put(self, record: Record, target: Val, place: Val) -> None:
        b, network = self.b, self.network
        first = b.gep(target, place, network.type)
        for n, word in enumerate(record):
            b.store(word, b.gep(first, n * network.apart, network.type), network.type.bits // 8)


class _Written(_Part):
    def emit(self, side: int) -> NativeKernel:
        """Write the elements that the sorted records stand for."""
        b, job, layout = self.b, self.job, self.layout
        per_line = -(-job.length // _STRETCH)
        type_ = job.codec.type
        with self.phase.units() as unit:
            number, place = self.split(unit, per_line)
            line, first = self.line(number), b.mul(place, i64_const(_STRETCH))
            left = b.sub(i64_const(job.length), first)
            count = b.smin(left, i64_const(_STRETCH))
            at = b.add(b.mul(number, i64_const(layout.padded)), first)
            records = b.gep(self.records(side), at, type_)
            self.write_all(line, first, count, records, layout.total)
            if self.loses:
                self._mend(number, first, b.add(first, count))
        return self.phase.done(layout.lines * per_line, 4 * min(_STRETCH, job.length))

    def _mend(self, number: Val, first: Val, stop: Val) -> None:
        b, layout, zero = self.b, self.layout, i64_const(0)
        assert isinstance(self.job.codec, Numbers)
        with b.loop(zero, i64_const(layout.count), carried=[zero, zero]) as loop:
            note = self.note(number, loop.index)
            nans, zeros = b.load(ir.i64, note), b.load(ir.i64, b.gep(note, 8, ir.i8))
            loop.next(b.add(loop.carried[0], nans), b.add(loop.carried[1], zeros))
        nans, zeros = loop.carried
        oddities = Oddities(self.phase, self.job.codec, self.line(number), self.job.length)
        with b.if_then(b.icmp("sgt", b.add(nans, zeros), zero), likely=False):
            oddities.mend(nans, zeros, first, stop)
