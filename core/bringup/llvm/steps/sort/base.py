"""What all kinds of sorts share: encoding elements as records, sorting blocks, decoding in order.

`FloatFixup` restores what sorts of floats change: NaN, which is sorted as infinity, and the signs
of zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, widen
from bringup.llvm.steps.base import PhaseBuilder
from bringup.llvm.steps.sort.codecs import IndexedCodec, StridedLine, ValueCodec
from bringup.llvm.steps.sort.network import Network, Words
from bringup.llvm.text import Builder, Module, Val, const, const_vector, i64_const, vec
from bringup.llvm.text.masked import lanes_below_wide
from bringup.llvm.transpose import transposed
from bringup.program.program import OpStep
from bringup.records import record


@record
class SortJob:
    """A sort of ``outer * inner`` lines of ``length`` elements, ``inner`` elements apart."""

    step: OpStep
    codec: ValueCodec | IndexedCodec
    outer: int
    length: int
    inner: int
    lanes: int
    levels: int

    @property
    def dtypes(self) -> list[DType]:
        """The dtypes of the operands."""
        return [slot.type.dtype for slot in self.step.operands]

    @property
    def keys(self) -> int:
        """The number of operands that are keys."""
        count: int = self.step.attrs["num_keys"]
        return count

    def bytes_of(self, records: int) -> int:
        """Bytes of ``records`` records."""
        return records * self.codec.words * self.codec.type.bits // 8

    def network(self, module: Module, block: int) -> Network:
        """The network for blocks of ``block`` records."""
        codec = self.codec
        return Network(module, codec.type, codec.words, self.lanes, block, self.levels)


class SortEmitter:
    """Encodes elements as records and decodes records in order."""

    def __init__(self, module: Module, job: SortJob, name: str) -> None:
        self.module = module
        self.job = job
        self.name = name
        self.phase = PhaseBuilder(module, job.step, name)
        self.b: Builder = self.phase.b

    def encode(
        self, line: StridedLine, index: Val, mask: Val | None
    ) -> tuple[list[Val], Val | None]:
        """Records of the elements at an index, and the lanes that they cannot represent."""
        b, job = self.b, self.job
        lanes = job.lanes
        values = [
            line.load(b, self.phase.operands[n], dtype, index, lanes, mask)
            for n, dtype in enumerate(job.dtypes[: job.keys])
        ]
        spread = b.splat(index, lanes)
        if line.lanes_are_indices:
            spread = b.add(spread, const_vector(ir.i64, list(range(lanes))))
        record = job.codec.encoded(b, values, spread)
        if mask is not None:
            last = job.codec.last(lanes)
            record = [b.select(mask, x, y) for x, y in zip(record, last, strict=True)]
        lost = job.codec.lost(b, values) if isinstance(job.codec, ValueCodec) else None
        return record, lost

    def write(self, line: StridedLine, record: list[Val], index: Val, mask: Val | None) -> None:
        """Write the elements of the records at an index."""
        b, job = self.b, self.job
        if isinstance(job.codec, ValueCodec):
            value = job.codec.decoded(b, record)
            line.store(b, value, self.phase.results[0], job.dtypes[0], index, mask)
            return
        source = job.codec.index(b, record)
        if mask is not None:
            source = b.select(mask, source, ir.zero(source.type))
        for n, dtype in enumerate(job.dtypes):
            value = line.load(b, self.phase.operands[n], dtype, source, job.lanes, mask)
            line.store(b, value, self.phase.results[n], dtype, index, mask)

    def flags(self, network: Network) -> Val:
        """The mask, as integers, of lost elements before the first one: no lane."""
        return ir.zero(vec(ir.integer(network.type.bits), self.job.lanes))

    def flagged(self, flag: Val, lost: Val | None) -> Val:
        """Flags with further lanes."""
        return flag if lost is None else self.b.or_(flag, self.b.sext(lost, flag.type.scalar))

    def raised(self, flag: Val) -> Val | None:
        """Whether any lane is flagged; None if no lane can be."""
        if not self.loses:
            return None
        return self.b.icmp("ne", self.b.reduce("or", flag), const(flag.type.scalar, 0))

    @property
    def loses(self) -> bool:
        """Whether there are elements that records cannot represent."""
        return isinstance(self.job.codec, ValueCodec) and self.job.codec.dtype.is_float

    def below(self, left: Val) -> Val:
        """The lanes below ``left``."""
        return lanes_below_wide(self.b, left, self.job.lanes)


class LineSortEmitter(SortEmitter):
    """Sorts lines in blocks whose lanes belong to one line."""

    def line(self, number: Val) -> StridedLine:
        """Line ``number``."""
        b, inner = self.b, self.job.inner
        if inner == 1:
            return StridedLine(
                b.mul(number, i64_const(self.job.length)), 1, 1, lanes_are_indices=True
            )
        outer, index = b.udiv(number, i64_const(inner)), b.urem(number, i64_const(inner))
        start = b.add(b.mul(outer, i64_const(self.job.length * inner)), index)
        return StridedLine(start, inner, inner, lanes_are_indices=True)

    def read(
        self, line: StridedLine, first: Val, count: Val, network: Network, block: Words
    ) -> Val | None:
        """Fill a block of ``network.word_stride`` records: ``count`` elements from ``first`` on.

        Returns whether there is an element that the records cannot represent.
        """
        b, lanes = self.b, self.job.lanes
        full = b.lshr(count, i64_const(lanes.bit_length() - 1))

        def row(number: Val, flag: Val, mask: Val | None) -> Val:
            index = b.add(first, b.mul(number, i64_const(lanes)))
            record, lost = self.encode(line, index, mask)
            network.store(b, record, block, number)
            return self.flagged(flag, lost)

        with b.loop(i64_const(0), full, carried=[self.flags(network)]) as loop:
            loop.next(row(loop.index, loop.carried[0], None))
        done = b.mul(full, i64_const(lanes))
        left = b.sub(count, done)
        some = b.icmp("sgt", left, i64_const(0))
        (flag,) = b.cond(
            some, lambda: row(full, loop.carried[0], self.below(left)), lambda: loop.carried[0]
        )
        begin = b.add(full, b.zext(some, ir.i64))
        with b.loop(begin, i64_const(network.word_stride // lanes)) as rest:
            network.store(b, self.job.codec.last(lanes), block, rest.index)
        return self.raised(flag)

    def store_ordered(self, network: Network, block: Words, to: Val, word_stride: int) -> None:
        """Write a sorted block in order.  word_stride: of ``to``, as in `Network`."""
        b, lanes = self.b, self.job.lanes
        rows = network.word_stride // lanes
        with b.loop(i64_const(0), i64_const(rows), lanes) as loop:
            records = [
                network.load(b, block, b.add(loop.index, i64_const(n))) for n in range(lanes)
            ]
            for word in range(network.words):
                columns = transposed(b, [record[word] for record in records])
                for lane, vector in enumerate(columns):
                    index = b.add(loop.index, i64_const(lane * rows + word * word_stride))
                    b.store(vector, b.gep(to, index, network.type), network.type.bits // 8)

    def write_all(
        self, line: StridedLine, first: Val, count: Val, records: Val, word_stride: int
    ) -> None:
        """Write ``count`` elements from index ``first`` on.  records: of them, in order."""
        b, job = self.b, self.job
        lanes, type_ = job.lanes, job.codec.type

        def vector(at: Val, mask: Val | None) -> None:
            record = [
                b.load(
                    vec(type_, lanes),
                    b.gep(records, b.add(at, i64_const(n * word_stride)), type_),
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


class FloatFixup:
    """Restores NaN and the signs of zeros in one line of ``length`` floats."""

    def __init__(
        self, phase: PhaseBuilder, codec: ValueCodec, line: StridedLine, length: int
    ) -> None:
        self.phase = phase
        self.b = phase.b
        self.codec = codec
        self.line = line
        self.length = length
        self.element = memory_type(codec.dtype)

    def _at(self, pointer: Val, index: Val) -> Val:
        offset = self.b.add(self.line.start, self.b.mul(index, i64_const(self.line.along)))
        return self.b.gep(pointer, offset, self.element)

    def _load(self, pointer: Val, index: Val) -> tuple[Val, Val]:
        """An element as it is in memory, and as a number."""
        raw = self.b.load(self.element, self._at(pointer, index), self.codec.dtype.itemsize)
        return raw, widen(self.b, raw)

    def _tally(self, first: Val, stop: Val, test: Callable[[Val, Val], list[Val]]) -> list[Val]:
        """How many of the elements from ``first`` to ``stop`` satisfy each test."""
        b = self.b
        zeros = [i64_const(0)] * len(test(*self._load(self.phase.operands[0], first)))
        with b.loop(first, stop, carried=zeros) as loop:
            hits = test(*self._load(self.phase.operands[0], loop.index))
            pairs = zip(loop.carried, hits, strict=True)
            loop.next(*(b.add(count, b.zext(hit, ir.i64)) for count, hit in pairs))
        return list(loop.carried)

    def count(self, first: Val, stop: Val) -> tuple[Val, Val]:
        """How many NaN and how many negative zeros there are from ``first`` to ``stop``."""
        b = self.b

        def test(raw: Val, x: Val) -> list[Val]:
            bits = b.bitcast(raw, ir.integer(self.codec.dtype.bits))
            sign = const(bits.type, 1 << (self.codec.dtype.bits - 1))
            return [b.fcmp("uno", x, x), b.icmp("eq", bits, sign)]

        nans, zeros = self._tally(first, stop, test)
        return nans, zeros

    def fix_line(self) -> None:
        """Count, and fix the whole line."""
        first, stop = i64_const(0), i64_const(self.length)
        self.fix(*self.count(first, stop), first, stop)

    def fix(self, nans: Val, zeros: Val, first: Val, stop: Val) -> None:
        """Write the NaN and the zeros of the line to a part of the result.

        nans, zeros: how many NaN and how many negative zeros the whole line has.
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
            self._fix_zeros(nans, first, stop)

    def _nan(self, nan: Val) -> Val:
        if self.codec.dtype.bits == 64:
            return nan
        bits = int.from_bytes(self.codec.dtype.numpy.type(float("nan")).tobytes(), "little")
        return self.b.bitcast(const(ir.integer(self.codec.dtype.bits), bits), self.element)

    def _store(self, value: Val, index: Val) -> None:
        at = self._at(self.phase.results[0], index)
        self.b.store(value, at, self.codec.dtype.itemsize)

    def _fix_zeros(self, nans: Val, first: Val, stop: Val) -> None:
        """Zeros are equal, so they are in the order of the operand, each with its own sign."""
        b, begin = self.b, i64_const(0)
        down = self.codec.descending

        def before(_raw: Val, x: Val) -> list[Val]:
            return [b.fcmp("ogt" if down else "olt", x, const(x.type, 0.0))]

        (index,) = self._tally(begin, i64_const(self.length), before)
        index = b.add(index, nans) if down else index
        with b.loop(begin, i64_const(self.length), carried=[index]) as loop:
            raw, x = self._load(self.phase.operands[0], loop.index)
            zero = b.fcmp("oeq", x, const(x.type, 0.0))
            target = loop.carried[0]
            inside = b.and_(b.icmp("sge", target, first), b.icmp("slt", target, stop))
            with b.if_then(b.and_(zero, inside)):
                self._store(raw, target)
            loop.next(b.add(target, b.zext(zero, ir.i64)))
