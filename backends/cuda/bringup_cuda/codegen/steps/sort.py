"""What is sorted, where it lies, and integers in the order of the keys."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bringup.dtypes import DType, i32
from bringup.errors import UnsupportedError
from bringup.llvm import text as ir
from bringup.llvm.steps.params import ScanParams
from bringup.llvm.text import Builder, Type, Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.codegen.commands import Argument, Command, Copy, Launch, Scratch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.steps.block import MAX_BLOCKS, BlockEmitter
from bringup_cuda.codegen.steps.scan import emit_scan
from bringup_cuda.targets import WARP

#: Bits that one pass orders by.
DIGIT_BITS = 8


@record
class Key:
    """A key: what orders, and in which direction.  It is moved as its bits in memory.

    width: how many low bits of an unsigned number decide, if those above are 0; 0 for all.
    """

    dtype: DType
    descending: bool
    width: int = 0

    @property
    def bits(self) -> int:
        """How many bits decide."""
        if self.width:
            return self.width
        return 1 if self.dtype.kind == "bool" else self.dtype.bits

    @property
    def digit_bits(self) -> int:
        """Bits of a digit."""
        return min(DIGIT_BITS, self.bits)

    @property
    def radix(self) -> int:
        """How many digits there are."""
        return 1 << self.digit_bits

    @property
    def raw(self) -> Type:
        """The type of an element's bits."""
        return raw_type(self.dtype)

    @property
    def word(self) -> Type:
        """The type of a code."""
        return ir.integer(max(32, self.raw.bits))

    def code(self, b: Builder, raw: Val) -> Val:
        """An unsigned number in the order of the elements: equal for -0 and +0, and for all NaN,
        which come last if ascending.
        """
        if self.dtype.kind == "bool":
            code = b.zext(b.icmp("ne", raw, const(raw.type, 0)), self.word)
        else:
            code = b.zext(self._ordered(b, raw), self.word)
        return b.xor(code, const(self.word, (1 << self.bits) - 1)) if self.descending else code

    def _ordered(self, b: Builder, raw: Val) -> Val:
        top = const(raw.type, 1 << (self.bits - 1))
        if self.dtype.kind == "int":
            return b.xor(raw, top)
        if not self.dtype.is_float:
            return raw
        size = b.and_(raw, const(raw.type, (1 << (self.bits - 1)) - 1))
        infinity = int.from_bytes(self.dtype.numpy.type(math.inf).tobytes(), "little")
        none = const(raw.type, 0)
        turned = b.select(b.icmp("slt", raw, none), b.not_(raw), b.or_(raw, top))
        turned = b.select(b.icmp("eq", size, none), top, turned)
        nan = b.icmp("ugt", size, const(raw.type, infinity))
        return b.select(nan, const(raw.type, -1), turned)

    def digit(self, b: Builder, raw: Val, shift: Val) -> Val:
        """A digit of an element's code, as i32; shift: of its lowest bit."""
        code = self.code(b, raw)
        if shift.type.bits < code.type.bits:
            shift = b.zext(shift, code.type)
        part = b.trunc(b.lshr(code, shift), ir.i32)
        return b.and_(part, const(ir.i32, self.radix - 1))


def raw_type(dtype: DType) -> Type:
    """The type of an element's bits in memory."""
    return ir.integer(dtype.itemsize * 8)


@record
class Lines:
    """The lines of a sort: ``outer`` x ``inner``, of ``length`` elements that are ``inner`` apart.

    operands, results: where they are.  dtypes: of the operands.  keys: the first operands.
    places: where the place goes that each element came from, as i32.
    """

    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    dtypes: tuple[DType, ...]
    keys: tuple[Key, ...]
    outer: int
    length: int
    inner: int
    places: Argument | None = None

    @classmethod
    def of(cls, step: OpStep) -> Lines:
        """What a step of the row ``emit_sort`` sorts."""
        shape, dim = step.operands[0].type.shape, step.attrs["dim"]
        keys = step.operands[: step.attrs["num_keys"]]
        return cls(
            step.operands,
            step.results,
            tuple(slot.type.dtype for slot in step.operands),
            tuple(Key(slot.type.dtype, step.attrs["descending"]) for slot in keys),
            math.prod(shape[:dim]),
            shape[dim],
            math.prod(shape[dim + 1 :]),
        )

    @property
    def count(self) -> int:
        """How many lines there are."""
        return self.outer * self.inner

    @property
    def alone(self) -> bool:
        """Whether nothing but the key is moved: then no place need be kept."""
        return len(self.operands) == 1 and self.places is None

    @property
    def written(self) -> tuple[Argument, ...]:
        """The results, then the places if they are asked for."""
        return self.results if self.places is None else (*self.results, self.places)

    def start(self, b: Builder, line: Val) -> Val:
        """Where a line begins, in elements."""
        if self.inner == 1:
            return b.mul(line, const(ir.i64, self.length))
        inner = const(ir.i64, self.inner)
        whole = b.mul(b.udiv(line, inner), const(ir.i64, self.length * self.inner))
        return b.add(whole, b.urem(line, inner))

    def address(self, b: Builder, pointer: Val, start: Val, place: Val, element: Type) -> Val:
        """Where the element at a place of a line lies; place: i32 or i64."""
        wide = b.zext(place, ir.i64) if place.type.bits < 64 else place
        return b.gep(pointer, b.add(start, b.mul(wide, const(ir.i64, self.inner))), element)

    def load(self, b: Builder, pointer: Val, dtype: DType, start: Val, place: Val) -> Val:
        """The bits of an element."""
        raw = raw_type(dtype)
        return b.load(raw, self.address(b, pointer, start, place, raw), dtype.itemsize)

    def store(self, b: Builder, value: Val, pointer: Val, start: Val, place: Val) -> None:
        """Write the bits of an element."""
        address = self.address(b, pointer, start, place, value.type)
        b.store(value, address, value.type.bits // 8)


#: Threads of a block, and elements of a thread at most.
_THREADS = 256
_ITEMS = 16
#: The longest line that one block sorts, and the longest of all: places are counted in 32 bits.
BLOCK_LENGTH = _THREADS * _ITEMS
LONGEST = 1 << 31
#: Bytes of keys that a thread holds.
_HELD = 64
#: Bytes between the marks of two digits.
_MARK = 16


class Ranking:
    """Places by digits of ``bits`` bits.  starts: of shared memory, where each digit begins."""

    def __init__(self, block: BlockEmitter, bits: int) -> None:
        self.block = block
        self.bits = bits
        self.radix = 1 << bits
        self._counts = block.shared(ir.i32, self.radix * block.warps)
        self._sums = block.shared(ir.i32, block.warps)
        self.starts = block.shared(ir.i32, self.radix)

    def places(self, digits: Sequence[Val]) -> list[Val]:
        """Where the block's elements go, by digit and then as they come: warp by warp, in a warp
        item by item, of an item lane by lane.

        digits: of this thread's items.  All threads must come; call it again after a barrier.
        """
        block, b = self.block, self.block.b
        mine = b.gep(self._counts, b.mul(block.warp, const(ir.i32, self.radix)), ir.i32)
        lane = b.zext(block.lane, ir.i64)
        with b.loop(lane, const(ir.i64, self.radix), WARP) as loop:
            block.store(const(ir.i32, 0), mine, loop.index)
        block.sync_warp()
        ranks = [self._count(digit, mine) for digit in digits]
        block.barrier()
        self._sum()
        block.barrier()
        places: list[Val] = []
        for digit, rank in zip(digits, ranks, strict=True):
            begin = b.add(block.load(self.starts, digit, ir.i32), block.load(mine, digit, ir.i32))
            places.append(b.add(begin, rank))
        return places

    def _count(self, digit: Val, counts: Val) -> Val:
        """How many of the warp's elements with this digit come before this one."""
        block, b = self.block, self.block.b
        alike = const(ir.i32, -1)
        for n in range(self.bits):
            bit = b.icmp("ne", b.and_(digit, const(ir.i32, 1 << n)), const(ir.i32, 0))
            turned = b.select(bit, const(ir.i32, 0), const(ir.i32, -1))
            alike = b.and_(alike, b.xor(block.ballot(bit), turned))
        below = b.intrinsic("llvm.ctpop", ir.i32, (b.and_(alike, block.lanes_below()),))
        size = b.intrinsic("llvm.ctpop", ir.i32, (alike,))
        first = b.intrinsic("llvm.cttz", ir.i32, (alike, const(ir.i1, 1)), (ir.i32,))

        def counted() -> Val:
            known = block.load(counts, digit, ir.i32)
            block.store(b.add(known, size), counts, digit)
            return known

        leads = b.icmp("eq", below, const(ir.i32, 0))
        (known,) = b.cond(leads, counted, lambda: const(ir.i32, 0))
        rank = b.add(block.shuffle_index(known, first), below)
        block.sync_warp()
        return rank

    def _sum(self) -> None:
        """Turn counts into the sums of what comes before: by digit, and in it by warp."""
        block, b = self.block, self.block.b
        each = max(1, self.radix // block.threads)
        own = b.mul(block.thread, const(ir.i32, each))
        has = b.icmp("ult", own, const(ir.i32, self.radix))

        def counted() -> list[Val]:
            return [self._sum_digit(b.add(own, const(ir.i32, n))) for n in range(each)]

        if each * block.threads == self.radix:
            totals = counted()
        else:
            totals = list(b.cond(has, counted, lambda: [const(ir.i32, 0)] * each))
        before = [const(ir.i32, 0)]
        for total in totals:
            before.append(b.add(before[-1], total))
        upto = block.scan_lanes(before[-1], b.add)
        warp = block.shuffle_index(upto, const(ir.i32, WARP - 1))
        earlier, _ = block.scan_warps(warp, self._sums, b.add, const(ir.i32, 0))
        begin = b.add(earlier, b.sub(upto, before[-1]))
        with b.if_then(has):
            for n in range(each):
                place = b.add(own, const(ir.i32, n))
                block.store(b.add(begin, before[n]), self.starts, place)

    def _sum_digit(self, digit: Val) -> Val:
        """Sums of one digit's counts warp by warp; the total."""
        block, b = self.block, self.block.b
        total = const(ir.i32, 0)
        for warp in range(block.warps):
            place = b.add(digit, const(ir.i32, warp * self.radix))
            known = block.load(self._counts, place, ir.i32)
            block.store(total, self._counts, place)
            total = b.add(total, known)
        return total


def sort_lanes(codegen: CodegenContext, step: OpStep, lines: Lines) -> list[Command]:
    """Lines of at most `WARP` elements."""
    group = 1 << (lines.length - 1).bit_length()
    each = min(_THREADS, max(WARP, lines.count * group)) // group
    threads = -(-each * group // WARP) * WARP
    each = threads // group
    block = BlockEmitter(codegen, step, "sort_lanes", (*lines.operands, *lines.written), threads)
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


def _count_before(
    block: BlockEmitter, lines: Lines, raws: Sequence[Val], place: Val, group: int
) -> Val:
    """How many elements of the line come before this one."""
    b = block.b
    codes = [key.code(b, raw) for key, raw in zip(lines.keys, raws, strict=True)]
    base = b.and_(block.lane, const(ir.i32, WARP - group))
    with b.loop(const(ir.i32, 0), const(ir.i32, lines.length), carried=[const(ir.i32, 0)]) as loop:
        source = b.or_(base, loop.index)
        before = b.icmp("ult", loop.index, place)
        for code in reversed(codes):
            other = block.shuffle_index(code, source)
            tie = b.and_(b.icmp("eq", other, code), before)
            before = b.or_(b.icmp("ult", other, code), tie)
        loop.next(b.add(loop.carried[0], b.zext(before, ir.i32)))
    return loop.carried[0]


class SortBlock:
    """A block for each line."""

    def __init__(self, codegen: CodegenContext, step: OpStep, lines: Lines) -> None:
        self.lines = lines
        wanted = 1 << max(5, (-(-lines.length // 8) - 1).bit_length())
        threads = min(_THREADS, wanted)
        self.items = -(-lines.length // threads)
        arguments = (*lines.operands, *lines.written)
        self.block = BlockEmitter(codegen, step, "sort_block", arguments, threads)
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
            block.store(value, self.shared, target)
        block.barrier()
        return [block.load(self.shared, place, values[0].type) for place in places]


@record
class _Pass:
    """One pass.

    key: its number.  digit: that of the key, the lowest being 0.
    raws: where the key's elements lie in order so far; None: where the operand has them, at the
    places.  places: where those lie; None: they are in order.
    to_raws, to_places: where both go; None for the results.
    """

    key: int
    digit: int
    raws: Argument | None
    places: Argument | None
    to_raws: Argument | None
    to_places: Argument | None


class SortLong:
    """Passes over all lines at once."""

    def __init__(self, codegen: CodegenContext, step: OpStep, lines: Lines) -> None:
        self.codegen = codegen
        self.step = step
        self.lines = lines
        self.widest = max(key.dtype.itemsize for key in lines.keys)
        self.items = min(_ITEMS, _HELD // self.widest)
        self.tile = _THREADS * self.items
        self.tiles = -(-lines.length // self.tile)
        self.last = lines.length - (self.tiles - 1) * self.tile
        self._launches: dict[Hashable, Launch] = {}

    def commands(self) -> list[Command]:
        """Every launch."""
        lines, made = self.lines, list[Command]()
        radix = max(key.radix for key in lines.keys)
        nbytes = lines.count * radix * self.tiles * 4
        counts, sums = self.codegen.scratch(nbytes), self.codegen.scratch(nbytes)
        summing: dict[int, list[Command]] = {}
        for way in self._passes():
            radix = self.key(way).radix
            if radix not in summing:
                size = radix * self.tiles
                scan = ScanParams("add", i32, i32, lines.count, size, 1, False, True)
                summing[radix] = emit_scan(self.codegen, self.step, scan, counts, sums)
            made += [self._count(way, counts), *summing[radix], self._move(way, sums)]
        return made

    def _passes(self) -> list[_Pass]:
        """All passes, of the last key first."""
        lines = self.lines
        todo = [
            (number, digit)
            for number, key in reversed(list(enumerate(lines.keys)))
            for digit in range(-(-key.bits // key.digit_bits))
        ]
        elements = lines.count * lines.length
        held = min(2, len(todo) - 1)
        raws = [self.codegen.scratch(elements * self.widest) for _ in range(held)]
        places = [] if lines.alone else [self.codegen.scratch(elements * 4) for _ in range(held)]
        passes: list[_Pass] = []
        for n, (number, digit) in enumerate(todo):
            more = n + 1 < len(todo)
            passes.append(
                _Pass(
                    number,
                    digit,
                    raws[(n - 1) % 2] if digit else None,
                    places[(n - 1) % 2] if places and n else None,
                    raws[n % 2] if more else None,
                    places[n % 2] if places and more else None,
                )
            )
        return passes

    # -- reading -----------------------------------------------------------------------------------

    def _arguments(
        self, way: _Pass, counts: Scratch, others: Sequence[Argument]
    ) -> tuple[Argument, ...]:
        """What a pass reads, the counts or their sums, the mark of its digit, and more."""
        key = way.raws if way.raws is not None else self.lines.operands[way.key]
        mark = Scratch(counts.offset + _MARK * way.digit, _MARK)
        return (key, *([] if way.places is None else [way.places]), counts, mark, *others)

    def _known(self, form: Hashable, arguments: tuple[Argument, ...]) -> Launch | None:
        """The launch of a kernel that was made for another pass."""
        found = self._launches.get(form)
        return None if found is None else replace(found, arguments=arguments)

    def _reader(
        self, label: str, way: _Pass, arguments: Sequence[Argument]
    ) -> tuple[BlockEmitter, _Reader]:
        """A kernel that reads what a pass reads."""
        block = BlockEmitter(self.codegen, self.step, label, arguments, _THREADS)
        return block, _Reader(self, way, block, 1 if way.places is None else 2)

    def key(self, way: _Pass) -> Key:
        """The key of a pass."""
        return self.lines.keys[way.key]

    def _ended(self, block: BlockEmitter, form: Hashable) -> Launch:
        """End a kernel with a block for every tile."""
        made = block.launch(min(self.lines.count * self.tiles, MAX_BLOCKS))
        self._launches[form] = made
        return made

    # -- counting ----------------------------------------------------------------------------------

    def _count(self, way: _Pass, counts: Scratch) -> Command:
        """How often each digit occurs in each tile."""
        arguments = self._arguments(way, counts, ())
        form = ("count", self.key(way), way.raws is None, way.places is None)
        known = self._known(form, arguments)
        if known is not None:
            return known
        block, reader = self._reader("sort_count", way, arguments)
        b, key, shift = block.b, self.key(way), reader.shift()
        table = block.shared(ir.i32, key.radix)
        with reader.tiles() as (line, tile):
            with b.loop(block.thread, const(ir.i32, key.radix), _THREADS) as loop:
                block.store(const(ir.i32, 0), table, loop.index)
            block.barrier()
            for place, (raw, _) in zip(reader.own(), reader.read(line, tile), strict=True):
                digit = key.digit(b, raw, shift)
                with b.if_then(reader.inside(tile, place)):
                    at = block.address(table, digit, ir.i32)
                    b.atomicrmw("add", at, const(ir.i32, 1), "monotonic", "block")
            block.barrier()
            with b.loop(block.thread, const(ir.i32, key.radix), _THREADS) as loop:
                found = block.load(table, loop.index, ir.i32)
                b.store(found, self._entry(block, reader, key, line, tile, loop.index), 4)
            block.barrier()
        return self._ended(block, form)

    def _entry(
        self, block: BlockEmitter, reader: _Reader, key: Key, line: Val, tile: Val, digit: Val
    ) -> Val:
        """Where the count of a digit in a tile lies, or the sum of those before."""
        b = block.b
        row = b.add(b.mul(line, const(ir.i64, key.radix)), b.zext(digit, ir.i64))
        at = b.add(b.mul(row, const(ir.i64, self.tiles)), tile)
        return b.gep(block.args[reader.arguments], at, ir.i32)

    # -- moving ------------------------------------------------------------------------------------

    def _move(self, way: _Pass, sums: Scratch) -> Command:
        """Bring every element to its place."""
        lines = self.lines
        last = way.to_raws is None
        targets = [way.to_raws, way.to_places]
        others = (
            (*lines.operands, *lines.written) if last else [t for t in targets if t is not None]
        )
        arguments = self._arguments(way, sums, others)
        form = ("move", self.key(way), way.raws is None, way.places is None, last)
        known = self._known(form, arguments)
        if known is not None:
            return known
        block, reader = self._reader("sort_move", way, arguments)
        self._emit_move(way, block, reader)
        return self._ended(block, form)

    def _emit_move(self, way: _Pass, block: BlockEmitter, reader: _Reader) -> None:
        lines, shift = self.lines, reader.shift()
        b, key = block.b, self.key(way)
        ranking = Ranking(block, key.digit_bits)
        shared = block.shared(ir.i8, self.tile * max(4, key.dtype.itemsize))
        bases = block.shared(ir.i32, key.radix)
        with reader.tiles() as (line, tile):
            found = reader.read(line, tile)
            digits: list[Val] = []
            for place, (raw, _) in zip(reader.own(), found, strict=True):
                digit = key.digit(b, raw, shift)
                inside = reader.inside(tile, place)
                digits.append(b.select(inside, digit, const(ir.i32, key.radix - 1)))
            ranks = ranking.places(digits)
            with b.loop(block.thread, const(ir.i32, key.radix), _THREADS) as loop:
                entry = self._entry(block, reader, key, line, tile, loop.index)
                begin = block.load(ranking.starts, loop.index, ir.i32)
                block.store(b.sub(b.load(ir.i32, entry, 4), begin), bases, loop.index)
            raws = self._ordered(block, shared, [raw for raw, _ in found], ranks)
            came = [] if lines.alone else self._places(block, shared, found, ranks)
            for n, raw in enumerate(raws):
                place = self._striped(block, n)
                with b.if_then(reader.inside(tile, place)):
                    digit = key.digit(b, raw, shift)
                    target = b.add(block.load(bases, digit, ir.i32), place)
                    self._write(block, reader, way, line, target, raw, came[n] if came else place)
            block.barrier()

    def _places(
        self,
        block: BlockEmitter,
        shared: Val,
        found: Sequence[tuple[Val, Val]],
        ranks: Sequence[Val],
    ) -> list[Val]:
        block.barrier()
        return self._ordered(block, shared, [place for _, place in found], ranks)

    def _ordered(
        self, block: BlockEmitter, shared: Val, values: Sequence[Val], ranks: Sequence[Val]
    ) -> list[Val]:
        """The tile's values in order, neighbours in neighbouring threads."""
        for value, rank in zip(values, ranks, strict=True):
            block.store(value, shared, rank)
        block.barrier()
        return [
            block.load(shared, self._striped(block, n), values[0].type) for n in range(self.items)
        ]

    def _striped(self, block: BlockEmitter, n: int) -> Val:
        return block.b.add(block.thread, const(ir.i32, n * _THREADS))

    def _write(
        self,
        block: BlockEmitter,
        reader: _Reader,
        way: _Pass,
        line: Val,
        target: Val,
        raw: Val,
        came: Val,
    ) -> None:
        """Write an element to its place in a line; in the last pass all that belongs to it."""
        b, lines = block.b, self.lines
        others = block.args[reader.arguments + 2 :]
        if way.to_raws is not None:
            at = b.add(b.mul(line, const(ir.i64, lines.length)), b.zext(target, ir.i64))
            for value, pointer in zip((raw, came), others, strict=False):
                b.store(value, b.gep(pointer, at, value.type), value.type.bits // 8)
            return
        start, count = lines.start(b, line), len(lines.operands)
        lines.store(b, raw, others[count], start, target)
        for n in range(1, count):
            value = lines.load(b, others[n], lines.dtypes[n], start, came)
            lines.store(b, value, others[count + n], start, target)
        if lines.places is not None:
            lines.store(b, came, others[-1], start, target)


class _Reader:
    """What a kernel of a pass reads.  arguments: how many of the kernel's that takes."""

    def __init__(
        self, emit_sort: SortLong, way: _Pass, block: BlockEmitter, arguments: int
    ) -> None:
        self.emit_sort = emit_sort
        self.way = way
        self.block = block
        self.arguments = arguments

    @contextmanager
    def tiles(self) -> Iterator[tuple[Val, Val]]:
        """A loop over the block's tiles: line and tile."""
        b, tiles = self.block.b, const(ir.i64, self.emit_sort.tiles)
        with self.block.units(self.emit_sort.lines.count * self.emit_sort.tiles) as unit:
            yield b.udiv(unit, tiles), b.urem(unit, tiles)

    def own(self) -> list[Val]:
        """Places in the tile of this thread's items."""
        block, b, items = self.block, self.block.b, self.emit_sort.items
        first = b.add(b.mul(block.warp, const(ir.i32, WARP * items)), block.lane)
        return [b.add(first, const(ir.i32, n * WARP)) for n in range(items)]

    def shift(self) -> Val:
        """The lowest bit of the digit."""
        b, (counts, mark) = self.block.b, self.block.args[self.arguments : self.arguments + 2]
        distance = b.sub(b.ptrtoint(mark, ir.i64), b.ptrtoint(counts, ir.i64))
        number = b.trunc(b.udiv(distance, const(ir.i64, _MARK)), ir.i32)
        return b.mul(number, const(ir.i32, self.emit_sort.key(self.way).digit_bits))

    def inside(self, tile: Val, place: Val) -> Val:
        """Whether a place of a tile is one of the line."""
        b, emit_sort = self.block.b, self.emit_sort
        last = b.icmp("eq", tile, const(ir.i64, emit_sort.tiles - 1))
        limit = b.select(last, const(ir.i32, emit_sort.last), const(ir.i32, emit_sort.tile))
        return b.icmp("ult", place, limit)

    def read(self, line: Val, tile: Val) -> list[tuple[Val, Val]]:
        """The key's element and the place it came from, of every item; behind the line's last one
        that again.  No load waits for a test, so that all are on their way together.
        """
        b, key = self.block.b, self.emit_sort.key(self.way)
        base = b.mul(b.trunc(tile, ir.i32), const(ir.i32, self.emit_sort.tile))
        last = const(ir.i32, self.emit_sort.lines.length - 1)
        places = [b.add(base, own) for own in self.own()]
        near = [b.intrinsic("llvm.umin", ir.i32, (place, last)) for place in places]
        return [self._one(line, place, key) for place in near]

    def _one(self, line: Val, place: Val, key: Key) -> tuple[Val, Val]:
        b, lines, args = self.block.b, self.emit_sort.lines, self.block.args
        at = b.add(b.mul(line, const(ir.i64, lines.length)), b.zext(place, ir.i64))
        came = place
        if self.way.places is not None:
            came = b.load(ir.i32, b.gep(args[1], at, ir.i32), 4)
        if self.way.raws is not None:
            raw = b.load(key.raw, b.gep(args[0], at, key.raw), key.dtype.itemsize)
        else:
            raw = lines.load(b, args[0], key.dtype, lines.start(b, line), came)
        return raw, came


def emit_sort_step(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launches of a step of the row ``emit_sort``."""
    return emit_sort(codegen, step, Lines.of(step))


def emit_sort(codegen: CodegenContext, step: OpStep, lines: Lines) -> list[Command]:
    """Launches that sort lines for a step.  Raises UnsupportedError for a line too long."""
    if lines.length >= LONGEST:  # pragma: no cover - only arrays of more than 2 GiB
        raise UnsupportedError(
            f"sort of {lines.length} elements: a GPU sorts lines of less than {LONGEST}",
            location=step.location,
            fix="sort parts of the line and merge them, or sort on the host",
        )
    if lines.length == 1 and lines.places is None:
        pairs = zip(lines.operands, lines.results, lines.dtypes, strict=True)
        return [Copy(x, y, lines.count * dtype.itemsize) for x, y, dtype in pairs]
    if lines.length <= WARP:
        return sort_lanes(codegen, step, lines)
    if lines.length <= BLOCK_LENGTH:
        return SortBlock(codegen, step, lines).commands()
    return SortLong(codegen, step, lines).commands()


__all__ = ["LONGEST", "Key", "Lines", "emit_sort", "emit_sort_step", "raw_type"]
