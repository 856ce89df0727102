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
    side = _job(step, target, side=True)
    if _lies_side_by_side(side):
        return NativeStep((_SideBySide(module, side, name).emit(),))
    job = _job(step, target, side=False)
    block = max(job.lanes**2, 1 << (job.length - 1).bit_length())
    if job.bytes_of(block) <= _BLOCK_BYTES:
        return NativeStep((_Blocks(module, job, name, block).emit(),))
    from bringup.llvm._merging import emit_merging

    while job.bytes_of(block) > _BLOCK_BYTES:
        block //= 2
    return emit_merging(module, job, name, block)


def _job(step: OpStep, target: LoopTarget, *, side: bool) -> Job:
    type_, attrs = step.operands[0].type, step.attrs
    dim, descending = attrs["dim"], attrs["descending"]
    length = type_.shape[dim]
    codec: Numbers | Places = Numbers(type_.dtype, descending)
    # Lines side by side have no passes of their own for what numbers do not keep.
    if len(step.operands) > 1 or (side and type_.dtype.is_float):
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

    def below(self, left: Val) -> Val:
        """Lanes below ``left``."""
        b, lanes = self.b, self.job.lanes
        return b.icmp("slt", const_vector(ir.i64, list(range(lanes))), b.splat(left, lanes))


class _SideBySide(Emission):
    """Lanes are lines."""

    def emit(self) -> NativeKernel:
        """Emit the one phase."""
        b, job = self.b, self.job
        rows = 1 << (job.length - 1).bit_length()
        network = job.network(self.module, self.name, rows * job.lanes)
        (block,) = self.phase.scratch(job.bytes_of(rows * job.lanes))
        lines = job.inner if job.inner > 1 else job.outer
        groups = -(-lines // job.lanes)
        with self.phase.units() as unit:
            line, left = self._line(unit, lines, groups)
            mask = self.below(left) if lines % job.lanes else None
            with b.loop(const(ir.i64, 0), const(ir.i64, job.length)) as loop:
                network.store(b, self.encode(line, loop.index, mask)[0], block, loop.index)
            with b.loop(const(ir.i64, job.length), const(ir.i64, rows)) as loop:
                network.store(b, job.codec.last(job.lanes), block, loop.index)
            network.sort_columns(b, block, rows)
            with b.loop(const(ir.i64, 0), const(ir.i64, job.length)) as loop:
                self.write(line, network.load(b, block, loop.index), loop.index, mask)
        units = groups * (job.outer if job.inner > 1 else 1)
        return self.phase.done(units, job.lanes * job.length * (2 + rows.bit_length()))

    def _line(self, unit: Val, lines: int, groups: int) -> tuple[Line, Val]:
        """The lines of a unit, and how many there are from its first on."""
        b, job = self.b, self.job
        outer, group = b.udiv(unit, const(ir.i64, groups)), b.urem(unit, const(ir.i64, groups))
        first = b.mul(group, const(ir.i64, job.lanes))
        left = b.sub(const(ir.i64, lines), first)
        if job.inner == 1:
            start = b.mul(first, const(ir.i64, job.length))
            return Line(start, job.length, 1, places=False), left
        start = b.add(b.mul(outer, const(ir.i64, job.length * job.inner)), first)
        return Line(start, 1, job.inner, places=False), left


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

    def read(self, line: Line, first: Val, count: Val, network: Network, block: Val) -> Val:
        """Fill a block of ``network.apart`` records from ``count`` elements at a place on.

        Returns whether the records do not keep some element.
        """
        b, lanes = self.b, self.job.lanes
        flags = vec(ir.integer(network.type.bits), lanes)
        full = b.lshr(count, const(ir.i64, lanes.bit_length() - 1))

        def row(index: Val, flag: Val, mask: Val | None) -> Val:
            place = b.add(first, b.mul(index, const(ir.i64, lanes)))
            record, odd = self.encode(line, place, mask)
            network.store(b, record, block, index)
            return flag if odd is None else b.or_(flag, b.sext(odd, flags.scalar))

        with b.loop(const(ir.i64, 0), full, carried=[ir.zero(flags)]) as loop:
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
        return b.icmp("ne", b.reduce("or", flag), const(flags.scalar, 0))

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
            if isinstance(job.codec, Numbers) and job.codec.dtype.is_float:
                with b.if_then(odd, likely=False):
                    oddities = Oddities(self.phase, job.codec, line, job.length)
                    nans, zeros = oddities.count(zero, count)
                    oddities.mend(nans, zeros, zero, count)
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
