"""Sums and products of floats by place: updates are sorted by it, then every place folds its own.

Places with many updates are folded in chunks: what the stretch at the head of each chunk folds to
is found first, by all threads, so that none goes far.  The order of every fold is fixed.
"""

from __future__ import annotations

from bringup.dtypes import f32, u32, u64
from bringup.errors import UnsupportedError
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, identity, is_half, memory_type, narrow, widen
from bringup.llvm.text import Builder, Val, const
from bringup.program.program import OpStep
from bringup_cuda.commands import Argument, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._keys import Key, Lines, raw_type
from bringup_cuda.steps._places import Places
from bringup_cuda.steps._updates import arguments_of
from bringup_cuda.steps.block import Block
from bringup_cuda.steps.sorting import LONGEST, sort

_THREADS = 256
#: Updates that one thread folds in a row.
_CHUNK = 256


class Segments:
    """A scatter of kind ``add`` or ``mul`` of floats.

    unit: elements of the array that stand for one place.  rows: updates, of ``unit`` elements each.
    """

    def __init__(self, emission: Emission, step: OpStep, places: Places) -> None:
        self.emission = emission
        self.step = step
        self.places = places
        self.kind: str = step.attrs["kind"]
        self.dtype = step.operands[0].type.dtype
        self.wide = f32 if is_half(self.dtype) else self.dtype
        self.unit = places.unit
        self.rows = step.operands[2].type.size // self.unit
        if self.rows >= LONGEST:  # pragma: no cover - only arrays of more than 2 GiB
            raise UnsupportedError(
                f"scatter of {self.rows} updates that may meet: a GPU orders less than {LONGEST}",
                location=step.location,
                fix="scatter them in several calls",
            )
        #: A number behind all places, for updates that are dropped.
        self.nowhere = places.size // self.unit
        self.number = u32 if self.nowhere < 1 << 32 else u64
        self.chunks = -(-self.rows // _CHUNK)

    def commands(self) -> list[Command]:
        """Every launch."""
        nbytes = self.rows * self.number.itemsize
        keys, ordered = self.emission.scratch(nbytes), self.emission.scratch(nbytes)
        came = self.emission.scratch(self.rows * 4)
        key = Key(self.number, False, self.nowhere.bit_length())
        lines = Lines((keys,), (ordered,), (self.number,), (key,), 1, self.rows, 1, came)
        made = [self._number(keys), *sort(self.emission, self.step, lines)]
        heads: Argument | None = None
        if self.chunks > 1:
            heads = self.emission.scratch((self.chunks - 1) * self.unit * self.wide.itemsize)
            made.append(self._heads(ordered, came, heads))
        return [*made, self._fold(ordered, came, heads)]

    def _number(self, keys: Argument) -> Command:
        """The place of each update."""
        arguments = arguments_of(self.step, keys)
        block = Block(self.emission, self.step, "scatter_places", arguments, _THREADS)
        b, raw = block.b, raw_type(self.number)
        with block.items(self.rows) as row:
            item = b.mul(row, const(ir.i64, self.unit))
            width = const(ir.i64, self.places.width)
            offset, inside = self.places.begin(b, b.udiv(item, width), block.args[1])
            if self.unit != self.places.width:
                offset = b.add(offset, b.urem(item, width))
            place = b.trunc(b.udiv(offset, const(ir.i64, self.unit)), raw)
            if inside is not None:
                place = b.select(inside, place, const(raw, self.nowhere))
            b.store(place, b.gep(block.args[3], row, raw), raw.bits // 8)
        return block.launch(block.blocks_for(self.rows))

    # -- folding -----------------------------------------------------------------------------------

    def _join(self, b: Builder, x: Val, y: Val) -> Val:
        return combine(b, self.kind, self.wide, x, y)

    def _key(self, block: Block, row: Val) -> Val:
        raw = raw_type(self.number)
        return block.b.load(raw, block.b.gep(block.args[3], row, raw), raw.bits // 8)

    def _stretch(self, block: Block, first: Val, column: Val, key: Val) -> tuple[Val, Val]:
        """What updates of a place fold to from ``first`` to the end of the chunk at most, and the
        row behind them.
        """
        b, element = block.b, memory_type(self.dtype)
        chunk = const(ir.i64, _CHUNK)
        stop = b.mul(b.add(b.udiv(first, chunk), const(ir.i64, 1)), chunk)
        stop = b.intrinsic("llvm.smin", ir.i64, (stop, const(ir.i64, self.rows)))
        start = identity(self.kind, self.wide)

        def more(row: Val) -> Val:
            below = b.icmp("slt", row, stop)
            return b.cond(
                below, lambda: b.icmp("eq", self._key(block, row), key), lambda: const(ir.i1, 0)
            )[0]

        with b.while_loop([first, start, const(ir.i1, 1)], lambda c: c[2]) as loop:
            row, total, _ = loop.carried
            came = b.zext(b.load(ir.i32, b.gep(block.args[4], row, ir.i32), 4), ir.i64)
            at = b.add(b.mul(came, const(ir.i64, self.unit)), column)
            update = b.load(element, b.gep(block.args[2], at, element), self.dtype.itemsize)
            after = b.add(row, const(ir.i64, 1))
            loop.next(after, self._join(b, total, widen(b, update)), more(after))
        return loop.carried[1], loop.carried[0]

    def _split(self, b: Builder, item: Val) -> tuple[Val, Val]:
        unit = const(ir.i64, self.unit)
        return b.udiv(item, unit), b.urem(item, unit) if self.unit > 1 else const(ir.i64, 0)

    def _heads(self, ordered: Argument, came: Argument, heads: Argument) -> Command:
        """What the stretch at the beginning of each chunk but the first folds to."""
        arguments = arguments_of(self.step, ordered, came, heads)
        block = Block(self.emission, self.step, f"heads_{self.kind}", arguments, _THREADS)
        b, wide = block.b, memory_type(self.wide)
        count = (self.chunks - 1) * self.unit
        with block.items(count) as item:
            chunk, column = self._split(b, item)
            first = b.mul(b.add(chunk, const(ir.i64, 1)), const(ir.i64, _CHUNK))
            total, _ = self._stretch(block, first, column, self._key(block, first))
            b.store(total, b.gep(block.args[5], item, wide), wide.bits // 8)
        return block.launch(block.blocks_for(count))

    def _fold(self, ordered: Argument, came: Argument, heads: Argument | None) -> Command:
        """Every first update of a place folds all of them into the array."""
        scratch = (ordered, came) if heads is None else (ordered, came, heads)
        arguments = arguments_of(self.step, *scratch)
        block = Block(self.emission, self.step, f"segments_{self.kind}", arguments, _THREADS)
        b, zero = block.b, const(ir.i64, 0)
        count = self.rows * self.unit
        with block.items(count) as item:
            row, column = self._split(b, item)
            key = self._key(block, row)

            def changes(row: Val = row, key: Val = key) -> Val:
                return b.icmp("ne", self._key(block, b.sub(row, const(ir.i64, 1))), key)

            (first,) = b.cond(b.icmp("sgt", row, zero), changes, lambda: const(ir.i1, 1))
            some = b.icmp("ne", key, const(key.type, self.nowhere))
            with b.if_then(b.and_(first, some)):
                total, after = self._stretch(block, row, column, key)
                if heads is not None:
                    total = self._further(block, total, after, column, key)
                self._into(block, total, key, column)
        return block.launch(block.blocks_for(count))

    def _further(self, block: Block, total: Val, after: Val, column: Val, key: Val) -> Val:
        """Fold what chunks after the first hold of a place."""
        b, wide = block.b, memory_type(self.wide)
        chunk = const(ir.i64, _CHUNK)

        def goes_on(row: Val) -> Val:
            # A stretch that ends within a chunk is the last.
            ends = b.icmp("eq", b.urem(row, chunk), const(ir.i64, 0))
            inside = b.and_(ends, b.icmp("slt", row, const(ir.i64, self.rows)))
            return b.cond(
                inside, lambda: b.icmp("eq", self._key(block, row), key), lambda: const(ir.i1, 0)
            )[0]

        with b.while_loop([after, total, goes_on(after)], lambda c: c[2]) as loop:
            row, known, _ = loop.carried
            number = b.sub(b.udiv(row, chunk), const(ir.i64, 1))
            at = b.add(b.mul(number, const(ir.i64, self.unit)), column)
            head = b.load(wide, b.gep(block.args[5], at, wide), wide.bits // 8)
            following = b.add(row, chunk)
            loop.next(following, self._join(b, known, head), goes_on(following))
        return loop.carried[1]

    def _into(self, block: Block, total: Val, key: Val, column: Val) -> None:
        b, element = block.b, memory_type(self.dtype)
        at = b.add(b.mul(b.zext(key, ir.i64), const(ir.i64, self.unit)), column)
        address = b.gep(block.args[0], at, element)
        old = widen(b, b.load(element, address, self.dtype.itemsize))
        b.store(narrow(b, self._join(b, old, total), self.dtype), address, self.dtype.itemsize)


__all__ = ["Segments"]
