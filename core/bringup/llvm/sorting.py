"""Sorting as native code: blocks by a network in the cache, long lines by merging their blocks.

Lines that lie side by side are sorted each in a lane of its own.  Any other line is one block, or
so many that each fits the cache: then they are merged pair by pair, and because every stretch of a
merge's result finds its own beginning in the two halves, threads share even a single line.
"""

from __future__ import annotations

import math

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm._network import Network
from bringup.llvm._records import Line, Numbers, Places
from bringup.llvm._sorted_odd import Oddities
from bringup.llvm.launches import NativeStep, Phase
from bringup.llvm.loops import NativeKernel
from bringup.llvm.schedule import LoopTarget
from bringup.llvm.text import Builder, Module, Val, const, const_vector, vec
from bringup.program.program import OpStep
from bringup.records import record

#: Bytes of the largest block.
_BLOCK_BYTES = 1 << 17
#: Bytes of lines sorted side by side, and how long a line may be if they are contiguous each.
_SIDE_BYTES = 1 << 19
_SHORT = 64


@record
class Job:
    """A sort of ``outer`` × ``inner`` lines of ``length`` elements that are ``inner`` apart."""

    step: OpStep
    codec: Numbers | Places
    outer: int
    length: int
    inner: int
    lanes: int
    levels: int

    @property
    def dtypes(self) -> list[DType]:
        """Of the operands."""
        return [slot.type.dtype for slot in self.step.operands]

    @property
    def keys(self) -> int:
        """How many operands are keys."""
        count: int = self.step.attrs["num_keys"]
        return count

    def bytes_of(self, records: int) -> int:
        """Memory of so many records."""
        return records * self.codec.words * self.codec.type.bits // 8

    def network(self, module: Module, name: str, block: int) -> Network:
        """The network for blocks of so many records."""
        codec = self.codec
        return Network(module, name, codec.type, codec.words, self.lanes, block, self.levels)


def emit_sort(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``sort``."""
    job = _job(step, target)
    if _lies_side_by_side(job):
        way = _SideBySide if job.inner > 1 else _ShortLines
        return NativeStep((way(module, job, name).emit(),))
    block = max(job.lanes**2, 1 << (job.length - 1).bit_length())
    if job.bytes_of(block) <= _BLOCK_BYTES:
        return NativeStep((_Blocks(module, job, name, block).emit(),))
    from bringup.llvm._merging import emit_merging

    while job.bytes_of(block) > _BLOCK_BYTES:
        block //= 2
    return emit_merging(module, job, name, block)


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
    if job.inner > 1:
        return job.bytes_of(rows * job.lanes) <= _SIDE_BYTES
    return job.length <= _SHORT and 2 * job.outer >= job.lanes


class Emission:
    """What the ways to sort share: reading elements as records, and writing what is in order."""

    def __init__(self, module: Module, job: Job, name: str) -> None:
        self.module = module
        self.job = job
        self.name = name
        self.phase = Phase(module, job.step, name)
        self.b: Builder = self.phase.b

    def encode(self, line: Line, place: Val, mask: Val | None) -> tuple[list[Val], Val | None]:
        """Records of the elements at a place, and which of them the records do not keep."""
        b, job = self.b, self.job
        lanes = job.lanes
        values = [
            line.load(b, self.phase.operands[n], dtype, place, lanes, mask)
            for n, dtype in enumerate(job.dtypes[: job.keys])
        ]
        spread = b.splat(place, lanes)
        if line.places:
            spread = b.add(spread, const_vector(ir.i64, list(range(lanes))))
        record = job.codec.encoded(b, values, spread)
        if mask is not None:
            last = job.codec.last(lanes)
            record = [b.select(mask, x, y) for x, y in zip(record, last, strict=True)]
        odd = job.codec.odd(b, values) if isinstance(job.codec, Numbers) else None
        return record, odd

    def write(self, line: Line, record: list[Val], place: Val, mask: Val | None) -> None:
        """Write what the records at a place stand for."""
        b, job = self.b, self.job
        if isinstance(job.codec, Numbers):
            value = job.codec.decoded(b, record)
            line.store(b, value, self.phase.results[0], job.dtypes[0], place, mask)
            return
        came = job.codec.place(b, record)
        if mask is not None:
            came = b.select(mask, came, ir.zero(came.type))
        for n, dtype in enumerate(job.dtypes):
            value = line.load(b, self.phase.operands[n], dtype, came, job.lanes, mask)
            line.store(b, value, self.phase.results[n], dtype, place, mask)

    def flags(self, network: Network) -> Val:
        """No lane whose element the records do not keep; only numbers do not keep all."""
        return ir.zero(vec(ir.integer(network.type.bits), self.job.lanes))

    def flagged(self, flag: Val, odd: Val | None) -> Val:
        """Flags with more lanes."""
        return flag if odd is None else self.b.or_(flag, self.b.sext(odd, flag.type.scalar))

    def raised(self, flag: Val) -> Val | None:
        """Whether any lane is flagged; None if none can be."""
        if not self.loses:
            return None
        return self.b.icmp("ne", self.b.reduce("or", flag), const(flag.type.scalar, 0))

    @property
    def loses(self) -> bool:
        """Whether records may not keep their elements."""
        return isinstance(self.job.codec, Numbers) and self.job.codec.dtype.is_float

    def below(self, left: Val) -> Val:
        """Lanes below ``left``."""
        b, lanes = self.b, self.job.lanes
        return b.icmp("slt", const_vector(ir.i64, list(range(lanes))), b.splat(left, lanes))


class _SideBySide(Emission):
    """Lanes are lines, whose elements of one place lie next to each other."""

    def emit(self) -> NativeKernel:
        """Emit the one phase."""
        b, job = self.b, self.job
        rows = 1 << (job.length - 1).bit_length()
        network = job.network(self.module, self.name, rows * job.lanes)
        (block,) = self.phase.scratch(job.bytes_of(rows * job.lanes))
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

    def read(self, start: Val, left: Val, network: Network, block: Val, rows: int) -> Val | None:
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

    def put(self, start: Val, left: Val, network: Network, block: Val, rows: int) -> None:
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


class _ShortLines(_SideBySide):
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

    def read(self, start: Val, left: Val, network: Network, block: Val, rows: int) -> Val | None:
        """Fill a block; returns whether some record does not keep its element."""
        b, lanes = self.b, self.job.lanes
        flags = self.flags(network)
        with b.loop(const(ir.i64, 0), const(ir.i64, rows), lanes, [flags]) as loop:
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
        return self.raised(loop.carried[0])

    def put(self, start: Val, left: Val, network: Network, block: Val, rows: int) -> None:
        """Write what a sorted block stands for."""
        b, lanes = self.b, self.job.lanes
        with b.loop(const(ir.i64, 0), const(ir.i64, rows), lanes) as loop:
            held = [
                network.load(b, block, b.add(loop.index, const(ir.i64, n % rows)))
                for n in range(lanes)
            ]
            turned = [transposed(b, list(words)) for words in zip(*held, strict=True)]
            for lane in range(lanes):
                line, mask = self._line(start, left, lane, loop.index)
                self.write(line, [words[lane] for words in turned], loop.index, mask)


class Blocks(Emission):
    """Lanes are stretches of one line."""

    def line(self, number: Val) -> Line:
        """The line of a number."""
        b, inner = self.b, self.job.inner
        if inner == 1:
            return Line(b.mul(number, const(ir.i64, self.job.length)), 1, 1, places=True)
        outer, place = b.udiv(number, const(ir.i64, inner)), b.urem(number, const(ir.i64, inner))
        start = b.add(b.mul(outer, const(ir.i64, self.job.length * inner)), place)
        return Line(start, inner, inner, places=True)

    def read(self, line: Line, first: Val, count: Val, network: Network, block: Val) -> Val | None:
        """Fill a block of ``network.apart`` records from ``count`` elements at a place on.

        Returns whether the records do not keep some element.
        """
        b, lanes = self.b, self.job.lanes
        full = b.lshr(count, const(ir.i64, lanes.bit_length() - 1))

        def row(index: Val, flag: Val, mask: Val | None) -> Val:
            place = b.add(first, b.mul(index, const(ir.i64, lanes)))
            record, odd = self.encode(line, place, mask)
            network.store(b, record, block, index)
            return self.flagged(flag, odd)

        with b.loop(const(ir.i64, 0), full, carried=[self.flags(network)]) as loop:
            loop.next(row(loop.index, loop.carried[0], None))
        done = b.mul(full, const(ir.i64, lanes))
        left = b.sub(count, done)
        some = b.icmp("sgt", left, const(ir.i64, 0))
        (flag,) = b.cond(
            some, lambda: row(full, loop.carried[0], self.below(left)), lambda: loop.carried[0]
        )
        begin = b.add(full, b.zext(some, ir.i64))
        with b.loop(begin, const(ir.i64, network.apart // lanes)) as rest:
            network.store(b, self.job.codec.last(lanes), block, rest.index)
        return self.raised(flag)

    def turn(self, network: Network, block: Val, to: Val, apart: int) -> None:
        """Write a sorted block in order of its elements; ``apart`` as in `Network`, of ``to``."""
        b, lanes = self.b, self.job.lanes
        rows = network.apart // lanes
        with b.loop(const(ir.i64, 0), const(ir.i64, rows), lanes) as loop:
            held = [
                network.load(b, block, b.add(loop.index, const(ir.i64, n))) for n in range(lanes)
            ]
            for word in range(network.words):
                turned = transposed(b, [record[word] for record in held])
                for lane, vector in enumerate(turned):
                    place = b.add(loop.index, const(ir.i64, lane * rows + word * apart))
                    b.store(vector, b.gep(to, place, network.type), network.type.bits // 8)

    def write_all(self, line: Line, first: Val, count: Val, records: Val, apart: int) -> None:
        """Write ``count`` elements from a place on; ``records`` points to those in order."""
        b, job = self.b, self.job
        lanes, type_ = job.lanes, job.codec.type

        def vector(at: Val, mask: Val | None) -> None:
            record = [
                b.load(
                    vec(type_, lanes),
                    b.gep(records, b.add(at, const(ir.i64, n * apart)), type_),
                    type_.bits // 8,
                )
                for n in range(job.codec.words)
            ]
            self.write(line, record, b.add(first, at), mask)

        rest = b.and_(count, const(ir.i64, lanes - 1))
        stop = b.sub(count, rest)
        with b.loop(const(ir.i64, 0), stop, lanes) as loop:
            vector(loop.index, None)
        with b.if_then(b.icmp("sgt", rest, const(ir.i64, 0))):
            vector(stop, self.below(rest))


class _Blocks(Blocks):
    """Every line is one block."""

    def __init__(self, module: Module, job: Job, name: str, block: int) -> None:
        super().__init__(module, job, name)
        self.block = block

    def emit(self) -> NativeKernel:
        """Emit the one phase."""
        b, job = self.b, self.job
        network = job.network(self.module, self.name, self.block)
        zero, count = const(ir.i64, 0), const(ir.i64, job.length)
        block, ordered = self.phase.scratch(*[job.bytes_of(self.block)] * 2)
        with self.phase.units() as unit:
            line = self.line(unit)
            odd = self.read(line, zero, count, network, block)
            network.sort_block(b, block, self.block // job.lanes)
            self.turn(network, block, ordered, self.block)
            self.write_all(line, zero, count, ordered, self.block)
            if odd is not None:
                assert isinstance(job.codec, Numbers)
                with b.if_then(odd, likely=False):
                    Oddities(self.phase, job.codec, line, job.length).mend_all()
        steps = self.block.bit_length()
        return self.phase.done(job.outer * job.inner, job.length * steps * steps // 8)


def transposed(b: Builder, rows: list[Val]) -> list[Val]:
    """The columns of a square of vectors."""
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        low = [i if not i & distance else lanes + (i ^ distance) for i in range(lanes)]
        high = [i | distance if not i & distance else lanes + i for i in range(lanes)]
        for n in range(lanes):
            if not n & distance:
                x, y = rows[n], rows[n | distance]
                rows[n] = b.shufflevector(x, y, low)
                rows[n | distance] = b.shufflevector(x, y, high)
        distance *= 2
    return rows
