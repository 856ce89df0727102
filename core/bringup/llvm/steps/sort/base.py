"""What all ways to sort share: reading elements as records, sorting blocks, writing in order, and
mending what sorts of numbers change: NaN, which is sorted as infinity, and the signs of zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, widen
from bringup.llvm.steps.base import Phase
from bringup.llvm.steps.sort.codecs import Line, Numbers, Places
from bringup.llvm.steps.sort.network import Network, Words
from bringup.llvm.text import Builder, Module, Val, const, const_vector, i64_const, vec
from bringup.llvm.transpose import transposed
from bringup.program.program import OpStep
from bringup.records import record


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

    def network(self, module: Module, block: int) -> Network:
        """The network for blocks of so many records."""
        codec = self.codec
        return Network(module, codec.type, codec.words, self.lanes, block, self.levels)


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


class Blocks(Emission):
    """Lanes are stretches of one line."""

    def line(self, number: Val) -> Line:
        """The line of a number."""
        b, inner = self.b, self.job.inner
        if inner == 1:
            return Line(b.mul(number, i64_const(self.job.length)), 1, 1, places=True)
        outer, place = b.udiv(number, i64_const(inner)), b.urem(number, i64_const(inner))
        start = b.add(b.mul(outer, i64_const(self.job.length * inner)), place)
        return Line(start, inner, inner, places=True)

    def read(
        self, line: Line, first: Val, count: Val, network: Network, block: Words
    ) -> Val | None:
        """Fill a block of ``network.apart`` records from ``count`` elements at a place on.

        Returns whether the records do not keep some element.
        """
        b, lanes = self.b, self.job.lanes
        full = b.lshr(count, i64_const(lanes.bit_length() - 1))

        def row(index: Val, flag: Val, mask: Val | None) -> Val:
            place = b.add(first, b.mul(index, i64_const(lanes)))
            record, odd = self.encode(line, place, mask)
            network.store(b, record, block, index)
            return self.flagged(flag, odd)

        with b.loop(i64_const(0), full, carried=[self.flags(network)]) as loop:
            loop.next(row(loop.index, loop.carried[0], None))
        done = b.mul(full, i64_const(lanes))
        left = b.sub(count, done)
        some = b.icmp("sgt", left, i64_const(0))
        (flag,) = b.cond(
            some, lambda: row(full, loop.carried[0], self.below(left)), lambda: loop.carried[0]
        )
        begin = b.add(full, b.zext(some, ir.i64))
        with b.loop(begin, i64_const(network.apart // lanes)) as rest:
            network.store(b, self.job.codec.last(lanes), block, rest.index)
        return self.raised(flag)

    def store_ordered(self, network: Network, block: Words, to: Val, apart: int) -> None:
        """Write a sorted block in order of its elements; ``apart`` as in `Network`, of ``to``."""
        b, lanes = self.b, self.job.lanes
        rows = network.apart // lanes
        with b.loop(i64_const(0), i64_const(rows), lanes) as loop:
            held = [network.load(b, block, b.add(loop.index, i64_const(n))) for n in range(lanes)]
            for word in range(network.words):
                turned = transposed(b, [record[word] for record in held])
                for lane, vector in enumerate(turned):
                    place = b.add(loop.index, i64_const(lane * rows + word * apart))
                    b.store(vector, b.gep(to, place, network.type), network.type.bits // 8)

    def write_all(self, line: Line, first: Val, count: Val, records: Val, apart: int) -> None:
        """Write ``count`` elements from a place on; ``records`` points to those in order."""
        b, job = self.b, self.job
        lanes, type_ = job.lanes, job.codec.type

        def vector(at: Val, mask: Val | None) -> None:
            record = [
                b.load(
                    vec(type_, lanes),
                    b.gep(records, b.add(at, i64_const(n * apart)), type_),
                    type_.bits // 8,
                )
                for n in range(job.codec.words)
            ]
            self.write(line, record, b.add(first, at), mask)

        rest = b.and_(count, i64_const(lanes - 1))
        stop = b.sub(count, rest)
        with b.loop(i64_const(0), stop, lanes) as loop:
            vector(loop.index, None)
        with b.if_then(b.icmp("sgt", rest, i64_const(0))):
            vector(stop, self.below(rest))


class Oddities:
    """One line of floats of ``length`` places, sorted as numbers."""

    def __init__(self, phase: Phase, codec: Numbers, line: Line, length: int) -> None:
        self.phase = phase
        self.b = phase.b
        self.codec = codec
        self.line = line
        self.length = length
        self.element = memory_type(codec.dtype)

    def _at(self, pointer: Val, place: Val) -> Val:
        offset = self.b.add(self.line.start, self.b.mul(place, i64_const(self.line.along)))
        return self.b.gep(pointer, offset, self.element)

    def _load(self, pointer: Val, place: Val) -> tuple[Val, Val]:
        """An element as it is in memory, and as a number."""
        raw = self.b.load(self.element, self._at(pointer, place), self.codec.dtype.itemsize)
        return raw, widen(self.b, raw)

    def _tally(self, first: Val, stop: Val, test: Callable[[Val, Val], list[Val]]) -> list[Val]:
        """How many of the elements from a place on hold for each test."""
        b = self.b
        zeros = [i64_const(0)] * len(test(*self._load(self.phase.operands[0], first)))
        with b.loop(first, stop, carried=zeros) as loop:
            hits = test(*self._load(self.phase.operands[0], loop.index))
            pairs = zip(loop.carried, hits, strict=True)
            loop.next(*(b.add(count, b.zext(hit, ir.i64)) for count, hit in pairs))
        return list(loop.carried)

    def count(self, first: Val, stop: Val) -> tuple[Val, Val]:
        """How many NaN and how many negative zeros lie from a place on."""
        b = self.b

        def test(raw: Val, x: Val) -> list[Val]:
            bits = b.bitcast(raw, ir.integer(self.codec.dtype.bits))
            sign = const(bits.type, 1 << (self.codec.dtype.bits - 1))
            return [b.fcmp("uno", x, x), b.icmp("eq", bits, sign)]

        nans, zeros = self._tally(first, stop, test)
        return nans, zeros

    def mend_all(self) -> None:
        """Count, and mend the whole line."""
        first, stop = i64_const(0), i64_const(self.length)
        self.mend(*self.count(first, stop), first, stop)

    def mend(self, nans: Val, zeros: Val, first: Val, stop: Val) -> None:
        """Put the line's NaN and its zeros where they belong in a stretch of the result.

        nans, zeros: how many NaN and how many negative zeros the line has.
        """
        b, length = self.b, i64_const(self.length)
        low, high = (i64_const(0), nans)
        if not self.codec.descending:
            low, high = b.sub(length, nans), length
        low = b.smax(low, first)
        high = b.smin(high, stop)
        nan = ir.const_bits(ir.f64, 0x7FF8 << 48)
        with b.loop(low, high) as loop:
            self._store(self._nan(nan), loop.index)
        with b.if_then(b.icmp("sgt", zeros, i64_const(0))):
            self._mend_zeros(nans, first, stop)

    def _nan(self, nan: Val) -> Val:
        if self.codec.dtype.bits == 64:
            return nan
        bits = int.from_bytes(self.codec.dtype.numpy.type(float("nan")).tobytes(), "little")
        return self.b.bitcast(const(ir.integer(self.codec.dtype.bits), bits), self.element)

    def _store(self, value: Val, place: Val) -> None:
        at = self._at(self.phase.results[0], place)
        self.b.store(value, at, self.codec.dtype.itemsize)

    def _mend_zeros(self, nans: Val, first: Val, stop: Val) -> None:
        """Zeros are equal: they stand in the order of the operand, each with its own sign."""
        b, begin = self.b, i64_const(0)
        down = self.codec.descending

        def before(_raw: Val, x: Val) -> list[Val]:
            return [b.fcmp("ogt" if down else "olt", x, const(x.type, 0.0))]

        (place,) = self._tally(begin, i64_const(self.length), before)
        place = b.add(place, nans) if down else place
        with b.loop(begin, i64_const(self.length), carried=[place]) as loop:
            raw, x = self._load(self.phase.operands[0], loop.index)
            zero = b.fcmp("oeq", x, const(x.type, 0.0))
            here = loop.carried[0]
            inside = b.and_(b.icmp("sge", here, first), b.icmp("slt", here, stop))
            with b.if_then(b.and_(zero, inside)):
                self._store(raw, here)
            loop.next(b.add(here, b.zext(zero, ir.i64)))
