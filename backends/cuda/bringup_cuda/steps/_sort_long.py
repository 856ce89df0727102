"""Sorting long lines: a pass over memory for each digit, the lowest first.

A pass counts the digits of every tile, sums the counts up by digit and then by tile, and moves the
elements; a tile is ordered in shared memory first, so that neighbours are written together.

Passes of one form share their kernels.  Which digit is meant they tell from an argument that is
never followed: it points as many times 16 bytes behind the counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from bringup.dtypes import i32
from bringup.llvm import text as ir
from bringup.llvm.sizes import ScanSizes
from bringup.llvm.text import Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.commands import Argument, Command, Launch, Scratch
from bringup_cuda.lower import Emission
from bringup_cuda.steps._keys import Key, Lines
from bringup_cuda.steps._ranking import Ranking
from bringup_cuda.steps.block import MAX_BLOCKS, Block
from bringup_cuda.steps.cumulative import emit_scan
from bringup_cuda.targets import WARP

_THREADS = 256
#: Bytes of keys that a thread holds, and elements at most.
_HELD = 64
_ITEMS = 16
#: Bytes between the marks of two digits.
_MARK = 16


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

    def __init__(self, emission: Emission, step: OpStep, lines: Lines) -> None:
        self.emission = emission
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
        counts, sums = self.emission.scratch(nbytes), self.emission.scratch(nbytes)
        summing: dict[int, list[Command]] = {}
        for way in self._passes():
            radix = self.key(way).radix
            if radix not in summing:
                size = radix * self.tiles
                scan = ScanSizes("add", i32, i32, lines.count, size, 1, False, True)
                summing[radix] = emit_scan(self.emission, self.step, scan, counts, sums)
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
        raws = [self.emission.scratch(elements * self.widest) for _ in range(held)]
        places = [] if lines.alone else [self.emission.scratch(elements * 4) for _ in range(held)]
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
    ) -> tuple[Block, _Reader]:
        """A kernel that reads what a pass reads."""
        block = Block(self.emission, self.step, label, arguments, _THREADS)
        return block, _Reader(self, way, block, 1 if way.places is None else 2)

    def key(self, way: _Pass) -> Key:
        """The key of a pass."""
        return self.lines.keys[way.key]

    def _ended(self, block: Block, form: Hashable) -> Launch:
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
                block.put(const(ir.i32, 0), table, loop.index)
            block.barrier()
            for place, (raw, _) in zip(reader.own(), reader.read(line, tile), strict=True):
                digit = key.digit(b, raw, shift)
                with b.if_then(reader.inside(tile, place)):
                    at = block.at(table, digit, ir.i32)
                    b.atomicrmw("add", at, const(ir.i32, 1), "monotonic", "block")
            block.barrier()
            with b.loop(block.thread, const(ir.i32, key.radix), _THREADS) as loop:
                found = block.get(table, loop.index, ir.i32)
                b.store(found, self._entry(block, reader, key, line, tile, loop.index), 4)
            block.barrier()
        return self._ended(block, form)

    def _entry(
        self, block: Block, reader: _Reader, key: Key, line: Val, tile: Val, digit: Val
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

    def _emit_move(self, way: _Pass, block: Block, reader: _Reader) -> None:
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
                begin = block.get(ranking.starts, loop.index, ir.i32)
                block.put(b.sub(b.load(ir.i32, entry, 4), begin), bases, loop.index)
            raws = self._ordered(block, shared, [raw for raw, _ in found], ranks)
            came = [] if lines.alone else self._places(block, shared, found, ranks)
            for n, raw in enumerate(raws):
                place = self._striped(block, n)
                with b.if_then(reader.inside(tile, place)):
                    digit = key.digit(b, raw, shift)
                    target = b.add(block.get(bases, digit, ir.i32), place)
                    self._write(block, reader, way, line, target, raw, came[n] if came else place)
            block.barrier()

    def _places(
        self, block: Block, shared: Val, found: Sequence[tuple[Val, Val]], ranks: Sequence[Val]
    ) -> list[Val]:
        block.barrier()
        return self._ordered(block, shared, [place for _, place in found], ranks)

    def _ordered(
        self, block: Block, shared: Val, values: Sequence[Val], ranks: Sequence[Val]
    ) -> list[Val]:
        """The tile's values in order, neighbours in neighbouring threads."""
        for value, rank in zip(values, ranks, strict=True):
            block.put(value, shared, rank)
        block.barrier()
        return [
            block.get(shared, self._striped(block, n), values[0].type) for n in range(self.items)
        ]

    def _striped(self, block: Block, n: int) -> Val:
        return block.b.add(block.thread, const(ir.i32, n * _THREADS))

    def _write(
        self,
        block: Block,
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

    def __init__(self, sort: SortLong, way: _Pass, block: Block, arguments: int) -> None:
        self.sort = sort
        self.way = way
        self.block = block
        self.arguments = arguments

    @contextmanager
    def tiles(self) -> Iterator[tuple[Val, Val]]:
        """A loop over the block's tiles: line and tile."""
        b, tiles = self.block.b, const(ir.i64, self.sort.tiles)
        with self.block.units(self.sort.lines.count * self.sort.tiles) as unit:
            yield b.udiv(unit, tiles), b.urem(unit, tiles)

    def own(self) -> list[Val]:
        """Places in the tile of this thread's items."""
        block, b, items = self.block, self.block.b, self.sort.items
        first = b.add(b.mul(block.warp, const(ir.i32, WARP * items)), block.lane)
        return [b.add(first, const(ir.i32, n * WARP)) for n in range(items)]

    def shift(self) -> Val:
        """The lowest bit of the digit."""
        b, (counts, mark) = self.block.b, self.block.args[self.arguments : self.arguments + 2]
        distance = b.sub(b.ptrtoint(mark, ir.i64), b.ptrtoint(counts, ir.i64))
        number = b.trunc(b.udiv(distance, const(ir.i64, _MARK)), ir.i32)
        return b.mul(number, const(ir.i32, self.sort.key(self.way).digit_bits))

    def inside(self, tile: Val, place: Val) -> Val:
        """Whether a place of a tile is one of the line."""
        b, sort = self.block.b, self.sort
        last = b.icmp("eq", tile, const(ir.i64, sort.tiles - 1))
        limit = b.select(last, const(ir.i32, sort.last), const(ir.i32, sort.tile))
        return b.icmp("ult", place, limit)

    def read(self, line: Val, tile: Val) -> list[tuple[Val, Val]]:
        """The key's element and the place it came from, of every item; behind the line's last one
        that again.  No load waits for a test, so that all are on their way together.
        """
        b, key = self.block.b, self.sort.key(self.way)
        base = b.mul(b.trunc(tile, ir.i32), const(ir.i32, self.sort.tile))
        last = const(ir.i32, self.sort.lines.length - 1)
        places = [b.add(base, own) for own in self.own()]
        near = [b.intrinsic("llvm.umin", ir.i32, (place, last)) for place in places]
        return [self._one(line, place, key) for place in near]

    def _one(self, line: Val, place: Val, key: Key) -> tuple[Val, Val]:
        b, lines, args = self.block.b, self.sort.lines, self.block.args
        at = b.add(b.mul(line, const(ir.i64, lines.length)), b.zext(place, ir.i64))
        came = place
        if self.way.places is not None:
            came = b.load(ir.i32, b.gep(args[1], at, ir.i32), 4)
        if self.way.raws is not None:
            raw = b.load(key.raw, b.gep(args[0], at, key.raw), key.dtype.itemsize)
        else:
            raw = lines.load(b, args[0], key.dtype, lines.start(b, line), came)
        return raw, came


__all__ = ["SortLong"]
