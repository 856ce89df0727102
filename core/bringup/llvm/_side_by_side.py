"""Many lines sorted side by side, each in a lane of its own."""

from __future__ import annotations

from bringup.llvm import text as ir
from bringup.llvm._network import Network, Words
from bringup.llvm._records import Line, Numbers
from bringup.llvm._sort_base import Emission, transposed
from bringup.llvm._sorted_odd import Oddities
from bringup.llvm.loops import NativeKernel
from bringup.llvm.text import Val, const


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
        size = const(ir.i64, groups)
        first = b.mul(b.urem(unit, size), const(ir.i64, job.lanes))
        length = const(ir.i64, job.length * job.inner)
        start = b.add(b.mul(b.udiv(unit, size), length), first)
        return start, b.sub(const(ir.i64, self.lines), first)

    def _mask(self, left: Val) -> Val | None:
        return self.below(left) if self.lines % self.job.lanes else None

    def read(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> Val | None:
        """Fill a block; returns whether some record does not keep its element."""
        b, job = self.b, self.job
        line, mask = Line(start, 1, job.inner, places=False), self._mask(left)
        flags = self.flags(network)
        with b.loop(const(ir.i64, 0), const(ir.i64, job.length), carried=[flags]) as loop:
            record, odd = self.encode(line, loop.index, mask)
            network.store(b, record, block, loop.index)
            loop.next(self.flagged(loop.carried[0], odd))
        with b.loop(const(ir.i64, job.length), const(ir.i64, rows)) as rest:
            network.store(b, job.codec.last(job.lanes), block, rest.index)
        return self.raised(loop.carried[0])

    def put(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> None:
        """Write what a sorted block stands for."""
        b, job = self.b, self.job
        line, mask = Line(start, 1, job.inner, places=False), self._mask(left)
        with b.loop(const(ir.i64, 0), const(ir.i64, job.length)) as loop:
            self.write(line, network.load(b, block, loop.index), loop.index, mask)

    def mend(self, start: Val, left: Val) -> None:
        """Put NaN and zeros of every line where they belong."""
        b, job, zero = self.b, self.job, const(ir.i64, 0)
        assert isinstance(job.codec, Numbers)
        count = b.intrinsic("llvm.smin", ir.i64, (left, const(ir.i64, job.lanes)))
        with b.loop(zero, count) as loop:
            place = b.add(start, b.mul(loop.index, const(ir.i64, self.apart)))
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
        number = b.mul(unit, const(ir.i64, self.job.lanes))
        left = b.sub(const(ir.i64, self.lines), number)
        return b.mul(number, const(ir.i64, self.apart)), left

    @property
    def end(self) -> int:
        """Where the last vector of a line ends."""
        return -(-self.job.length // self.job.lanes) * self.job.lanes

    def _line(self, start: Val, left: Val, lane: int, place: Val) -> tuple[Line, Val | None]:
        """A line of a group, and which of its places from one on exist."""
        b, job = self.b, self.job
        line = Line(b.add(start, const(ir.i64, lane * self.apart)), 1, 1, places=True)
        size = const(ir.i64, job.length)
        if self.lines % job.lanes:
            size = b.select(b.icmp("sgt", left, const(ir.i64, lane)), size, const(ir.i64, 0))
        elif job.length % job.lanes == 0:
            return line, None
        return line, self.below(b.sub(size, place))

    def read(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> Val | None:
        """Fill a block; returns whether some record does not keep its element."""
        b, lanes = self.b, self.job.lanes
        flags = self.flags(network)
        with b.loop(const(ir.i64, 0), const(ir.i64, self.end), lanes, [flags]) as loop:
            flag: Val = loop.carried[0]
            held: list[list[Val]] = []
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                record, odd = self.encode(line, loop.index, mask)
                held.append(record)
                flag = self.flagged(flag, odd)
            turned = [transposed(b, list(words)) for words in zip(*held, strict=True)]
            for n in range(min(rows, lanes)):
                place = b.add(loop.index, const(ir.i64, n))
                network.store(b, [words[n] for words in turned], block, place)
            loop.next(flag)
        with b.loop(const(ir.i64, self.end), const(ir.i64, rows)) as rest:
            network.store(b, self.job.codec.last(lanes), block, rest.index)
        return self.raised(loop.carried[0])

    def put(self, start: Val, left: Val, network: Network, block: Words, rows: int) -> None:
        """Write what a sorted block stands for."""
        b, lanes = self.b, self.job.lanes
        with b.loop(const(ir.i64, 0), const(ir.i64, self.end), lanes) as loop:
            held = [
                network.load(b, block, b.add(loop.index, const(ir.i64, n % rows)))
                for n in range(lanes)
            ]
            turned = [transposed(b, list(words)) for words in zip(*held, strict=True)]
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                self.write(line, [words[lane] for words in turned], loop.index, mask)
