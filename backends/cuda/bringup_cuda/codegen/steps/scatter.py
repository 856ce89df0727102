"""Updates of an array at places that data decide.

Updates that never meet are written by a thread each.  Of those that may, the last one set is found
by an atomic maximum over their numbers; folds that are the same in any order are atomic.  Sums and
products of floats are not: there updates are sorted by place, and each place folds its own in
order.  Places with many updates are folded in chunks: what the stretch at the head of each chunk
folds to is found first, by all threads, so that none goes far.  The order of every fold is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import DType, f32, u32, u64
from bringup.errors import UnsupportedError
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, identity, is_half, memory_type, narrow, widen
from bringup.llvm.steps.params import (
    array_strides,
    coordinates,
    load_index,
    stride_of,
    trailing_run,
)
from bringup.llvm.text import Builder, Val, const
from bringup.ops.scattering import Windows, scatter_windows
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.codegen.commands import Argument, Clear, Command, Copy
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.steps.block import BlockEmitter
from bringup_cuda.codegen.steps.sort import LONGEST, Key, Lines, emit_sort, raw_type

Ints = tuple[int, ...]

_THREADS = 256
_SCOPE = "device"
#: An array of so many bytes at most is worth one in each block, if there are so many updates for
#: each of its elements, and in all; updates that a thread takes, and blocks.
_TABLE = 16 << 10
_OFTEN = 4
_MANY = 4096
_EACH = 16
_BUSY_BLOCKS = 528
#: Updates that one thread folds in a row.
_CHUNK = 256


@record
class Places:
    """Updates as rows of ``width`` elements that lie side by side in the array as well.

    size: of the array, in elements.  rows: sizes of the dimensions that number rows.
    strides: of the array, by dimension of ``rows``.
    moves: a stride of the array and the last place, by component of an index.
    index: dtype of indices.  windows: of a scatter; None if indices are one scalar each.
    """

    size: int
    width: int
    rows: Ints
    strides: Ints
    moves: tuple[tuple[int, int], ...]
    index: DType | None
    windows: Windows | None

    @classmethod
    def of_scatter(cls, step: OpStep) -> Places:
        """Of a step of the row ``scatter``."""
        x, indices, updates = (slot.type for slot in step.operands)
        windows = scatter_windows(x, indices, updates, step.attrs)
        strides = array_strides(windows)
        run = trailing_run(updates.shape, strides, windows.offset)
        moves = tuple(
            (stride_of(x.shape, d), last)
            for d, last in zip(windows.index_map, windows.lasts, strict=True)
        )
        return cls._made(x.size, updates.shape, strides, run, moves, indices.dtype, windows)

    @classmethod
    def of_update(cls, step: OpStep) -> Places:
        """Of a step of the row ``dynamic_update_slice``."""
        x, update = (slot.type for slot in step.operands[:2])
        strides = [stride_of(x.shape, d) for d in range(x.rank)]
        run = trailing_run(update.shape, strides, range(x.rank))
        lasts = [n - size for n, size in zip(x.shape, update.shape, strict=True)]
        moves = tuple(zip(strides, lasts, strict=True))
        return cls._made(x.size, update.shape, strides, run, moves, None, None)

    @classmethod
    def _made(
        cls,
        size: int,
        shape: Ints,
        strides: Sequence[int],
        run: int,
        moves: tuple[tuple[int, int], ...],
        index: DType | None,
        windows: Windows | None,
    ) -> Places:
        cut = len(shape) - run
        width, rows = math.prod(shape[cut:]), shape[:cut]
        return cls(size, width, rows, tuple(strides[:cut]), moves, index, windows)

    @property
    def apart(self) -> bool:
        """Whether there is but one window, so that no two updates meet."""
        return self.windows is None or math.prod(self.windows.positions) == 1

    @property
    def unit(self) -> int:
        """Elements of the array that rows cover whole or not at all: a row, or one element."""
        steps = [*self.strides, *(stride for stride, last in self.moves if last)]
        whole = all(step % self.width == 0 for step in steps)
        return self.width if whole and self.size % self.width == 0 else 1

    def begin(self, b: Builder, row: Val, indices: Val) -> tuple[Val, Val | None]:
        """Where a row begins in the array, and whether its window lies inside; None if it must.

        row: its number, i64.  indices: a pointer to them.
        """
        at = coordinates(b, row, self.rows)
        offset = self._within(b, at)
        assert self.windows is not None, "a scatter has windows"
        assert self.index is not None, "a scatter has indices"
        place = [at[d] for d in self.windows.between]
        inside: Val | None = None
        for c, (stride, last) in enumerate(self.moves):
            flat = self._flat(b, self.windows, place, c)
            start = load_index(b, b.gep(indices, flat, memory_type(self.index)), self.index)
            fits = b.icmp("ule", start, const(ir.i64, last))
            inside = fits if inside is None else b.and_(inside, fits)
            offset = b.add(offset, b.mul(start, const(ir.i64, stride)))
        return offset, inside

    def _within(self, b: Builder, at: Sequence[Val]) -> Val:
        """Where a row lies in the array by its coordinates alone."""
        offset = const(ir.i64, 0)
        for coordinate, stride in zip(at, self.strides, strict=True):
            offset = b.add(offset, b.mul(coordinate, const(ir.i64, stride)))
        return offset

    @staticmethod
    def _flat(b: Builder, windows: Windows, place: Sequence[Val], component: int) -> Val:
        """The element of the indices that holds a component of a position's index."""
        whole = list(place)
        if windows.index_dim < len(windows.indices):
            whole.insert(windows.index_dim, const(ir.i64, component))
        flat = const(ir.i64, 0)
        for coordinate, n in zip(whole, windows.indices, strict=True):
            flat = b.add(b.mul(flat, const(ir.i64, n)), coordinate)
        return flat

    def clamped(
        self, b: Builder, row: Val, pointers: Sequence[Val], dtypes: Sequence[DType]
    ) -> Val:
        """Where a row begins whose window is moved inside; pointers: to an index each."""
        offset = self._within(b, coordinates(b, row, self.rows))
        for pointer, dtype, (stride, last) in zip(pointers, dtypes, self.moves, strict=True):
            start = load_index(b, pointer, dtype)
            if dtype.kind == "int":
                start = b.intrinsic("llvm.smax", ir.i64, (start, const(ir.i64, 0)))
            start = b.intrinsic("llvm.umin", ir.i64, (start, const(ir.i64, last)))
            offset = b.add(offset, b.mul(start, const(ir.i64, stride)))
        return offset


def folded(b: Builder, kind: str, dtype: DType, old: Val, new: Val) -> Val:
    """An element combined with an update, both as in memory."""
    wide = f32 if is_half(dtype) else dtype
    return narrow(b, combine(b, kind, wide, widen(b, old), widen(b, new)), dtype)


@contextmanager
def target_of(block: BlockEmitter, places: Places, item: Val) -> Iterator[Val]:
    """Run for an element of the updates whose window lies inside: where it goes in the array.

    The indices are the block's argument 1.
    """
    b = block.b
    row, column = _split(b, places, item)
    offset, inside = places.begin(b, row, block.args[1])
    offset = b.add(offset, column)
    if inside is None:
        yield offset
        return
    with b.if_then(inside):
        yield offset


def _split(b: Builder, places: Places, item: Val) -> tuple[Val, Val]:
    """Row and column of an element of the updates."""
    width = const(ir.i64, places.width)
    return b.udiv(item, width), b.urem(item, width) if places.width > 1 else const(ir.i64, 0)


def arguments_of(step: OpStep, *scratch: Argument) -> tuple[Argument, ...]:
    """The array, the indices, the updates, then scratch."""
    return (step.results[0], *step.operands[1:3], *scratch)


def _each(
    codegen: CodegenContext, step: OpStep, places: Places, one: Callable[[Builder, Val, Val], None]
) -> Command:
    """Something for each update: given its target's address and its value."""
    updates = step.operands[2].type
    element, nbytes = memory_type(updates.dtype), updates.dtype.itemsize
    label = f"scatter_{step.attrs['kind']}"
    block = BlockEmitter(codegen, step, label, arguments_of(step), _THREADS)
    b = block.b
    with block.items(updates.size) as item, target_of(block, places, item) as offset:
        value = b.load(element, b.gep(block.args[2], item, element), nbytes)
        one(b, b.gep(block.args[0], offset, element), value)
    return block.launch(block.blocks_for(updates.size))


def write(codegen: CodegenContext, step: OpStep, places: Places) -> Command:
    """Updates that never meet."""
    kind, dtype = step.attrs["kind"], step.operands[0].type.dtype

    def one(b: Builder, target: Val, update: Val) -> None:
        if kind != "set":
            update = folded(b, kind, dtype, b.load(update.type, target, dtype.itemsize), update)
        b.store(update, target, dtype.itemsize)

    return _each(codegen, step, places, one)


def write_clamped(codegen: CodegenContext, step: OpStep, places: Places) -> Command:
    """An update as one window, moved inside the array."""
    _, update, *starts = step.operands
    arguments = (step.results[0], update, *starts)
    block = BlockEmitter(codegen, step, "update_slice", arguments, _THREADS)
    b, element = block.b, memory_type(update.type.dtype)
    with block.items(update.type.size) as item:
        row, column = _split(b, places, item)
        dtypes = [slot.type.dtype for slot in starts]
        offset = places.clamped(b, row, block.args[2:], dtypes)
        value = b.load(element, b.gep(block.args[1], item, element), element.bits // 8)
        target = b.gep(block.args[0], b.add(offset, column), element)
        b.store(value, target, element.bits // 8)
    return block.launch(block.blocks_for(update.type.size))


def set_last(codegen: CodegenContext, step: OpStep, places: Places) -> list[Command]:
    """The last of the updates that meet: their numbers are compared first."""
    updates, unit = step.operands[2].type, places.unit
    # Numbers count from 1; 0 is none.
    number = ir.i32 if updates.size < (1 << 32) - 1 else ir.i64
    nbytes = places.size // unit * number.bits // 8
    winners = codegen.scratch(nbytes)
    arguments = arguments_of(step, winners)

    def entry(block: BlockEmitter, offset: Val) -> Val:
        place = block.b.udiv(offset, const(ir.i64, unit))
        return block.b.gep(block.args[3], place, number)

    def numbered(b: Builder, item: Val) -> Val:
        count = b.add(b.udiv(item, const(ir.i64, unit)), const(ir.i64, 1))
        return b.trunc(count, number)

    first = BlockEmitter(codegen, step, "scatter_last", arguments, _THREADS)
    with first.items(updates.size // unit) as count:
        item = first.b.mul(count, const(ir.i64, unit))
        with target_of(first, places, item) as offset:
            mine = numbered(first.b, item)
            first.b.atomicrmw("umax", entry(first, offset), mine, "monotonic", _SCOPE)
    compared = first.launch(first.blocks_for(updates.size // unit))
    block = BlockEmitter(codegen, step, "scatter_set", arguments, _THREADS)
    b, element = block.b, memory_type(updates.dtype)
    with block.items(updates.size) as item, target_of(block, places, item) as offset:
        last = b.load(number, entry(block, offset), number.bits // 8)
        with b.if_then(b.icmp("eq", last, numbered(b, item))):
            value = b.load(element, b.gep(block.args[2], item, element), updates.dtype.itemsize)
            b.store(value, b.gep(block.args[0], offset, element), updates.dtype.itemsize)
    return [Clear(winners, nbytes), compared, block.launch(block.blocks_for(updates.size))]


def fold_atomically(codegen: CodegenContext, step: OpStep, places: Places) -> Command:
    """Folds that give the same in any order."""
    kind, dtype = step.attrs["kind"], step.operands[0].type.dtype
    if not _has_atomic(kind, dtype):
        return _each(codegen, step, places, lambda b, *at: _exchange(b, kind, dtype, *at))
    array, updates = places.size * dtype.itemsize, step.operands[2].type.size
    if array <= _TABLE and updates >= _OFTEN * places.size and updates >= _MANY:
        return _fold_in_blocks(codegen, step, places)

    def one(b: Builder, target: Val, update: Val) -> None:
        b.atomicrmw(_atomic(kind, dtype), target, update, "monotonic", _SCOPE)

    return _each(codegen, step, places, one)


def _has_atomic(kind: str, dtype: DType) -> bool:
    return not dtype.is_float and kind != "mul" and dtype.bits >= 32


def _atomic(kind: str, dtype: DType) -> str:
    return f"u{kind}" if dtype.kind == "uint" and kind != "add" else kind


def _fold_in_blocks(codegen: CodegenContext, step: OpStep, places: Places) -> Command:
    """Folds into few places: every block has its own array in shared memory, and folds what it
    holds into the real one at the end, so that updates of one place do not wait for each other.
    """
    kind, updates = step.attrs["kind"], step.operands[2].type
    element, nbytes = memory_type(updates.dtype), updates.dtype.itemsize
    block = BlockEmitter(codegen, step, f"scatter_{kind}", arguments_of(step), _THREADS)
    b, atomic = block.b, _atomic(kind, updates.dtype)
    table, none = block.shared(element, places.size), identity(kind, updates.dtype)
    size, first = const(ir.i64, places.size), b.zext(block.thread, ir.i64)
    with b.loop(first, size, _THREADS) as loop:
        block.store(none, table, loop.index)
    block.barrier()
    blocks = min(_BUSY_BLOCKS, -(-updates.size // (_EACH * _THREADS)))
    with block.items(updates.size, blocks) as item, target_of(block, places, item) as offset:
        value = b.load(element, b.gep(block.args[2], item, element), nbytes)
        b.atomicrmw(atomic, block.address(table, offset, element), value, "monotonic", "block")
    block.barrier()
    with b.loop(first, size, _THREADS) as loop:
        found = block.load(table, loop.index, element)
        with b.if_then(b.icmp("ne", found, none)):
            target = b.gep(block.args[0], loop.index, element)
            b.atomicrmw(atomic, target, found, "monotonic", _SCOPE)
    return block.launch(blocks)


def _exchange(b: Builder, kind: str, dtype: DType, target: Val, update: Val) -> None:
    """Combine until nobody else came between."""
    raw = ir.integer(dtype.itemsize * 8)
    first = b.atomic_load(raw, target, "monotonic")
    with b.while_loop([first, const(ir.i1, 0)], lambda c: b.not_(c[1])) as loop:
        old = b.cast("bitcast", loop.carried[0], update.type)
        made = folded(b, kind, dtype, old, update)
        if dtype.is_float:
            made = _one_nan(b, dtype, made)
        new = b.cast("bitcast", made, raw)
        known = loop.carried[0]
        loop.next(*b.cmpxchg(target, known, new, "monotonic", "monotonic", syncscope=_SCOPE))


def _one_nan(b: Builder, dtype: DType, value: Val) -> Val:
    """Any NaN as the same one: which of several stays would depend on order."""
    wide = widen(b, value)
    nan = narrow(b, const(wide.type, math.nan), dtype)
    return b.select(b.fcmp("uno", wide, wide), nan, value)


class Segments:
    """A scatter of kind ``add`` or ``mul`` of floats.

    unit: elements of the array that stand for one place.  rows: updates, of ``unit`` elements each.
    """

    def __init__(self, codegen: CodegenContext, step: OpStep, places: Places) -> None:
        self.codegen = codegen
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
        keys, ordered = self.codegen.scratch(nbytes), self.codegen.scratch(nbytes)
        came = self.codegen.scratch(self.rows * 4)
        key = Key(self.number, False, self.nowhere.bit_length())
        lines = Lines((keys,), (ordered,), (self.number,), (key,), 1, self.rows, 1, came)
        made = [self._number(keys), *emit_sort(self.codegen, self.step, lines)]
        heads: Argument | None = None
        if self.chunks > 1:
            heads = self.codegen.scratch((self.chunks - 1) * self.unit * self.wide.itemsize)
            made.append(self._heads(ordered, came, heads))
        return [*made, self._fold(ordered, came, heads)]

    def _number(self, keys: Argument) -> Command:
        """The place of each update."""
        arguments = arguments_of(self.step, keys)
        block = BlockEmitter(self.codegen, self.step, "scatter_places", arguments, _THREADS)
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

    def _key(self, block: BlockEmitter, row: Val) -> Val:
        raw = raw_type(self.number)
        return block.b.load(raw, block.b.gep(block.args[3], row, raw), raw.bits // 8)

    def _stretch(self, block: BlockEmitter, first: Val, column: Val, key: Val) -> tuple[Val, Val]:
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
        block = BlockEmitter(self.codegen, self.step, f"heads_{self.kind}", arguments, _THREADS)
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
        block = BlockEmitter(self.codegen, self.step, f"segments_{self.kind}", arguments, _THREADS)
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

    def _further(self, block: BlockEmitter, total: Val, after: Val, column: Val, key: Val) -> Val:
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

    def _into(self, block: BlockEmitter, total: Val, key: Val, column: Val) -> None:
        b, element = block.b, memory_type(self.dtype)
        at = b.add(b.mul(b.zext(key, ir.i64), const(ir.i64, self.unit)), column)
        address = b.gep(block.args[0], at, element)
        old = widen(b, b.load(element, address, self.dtype.itemsize))
        b.store(narrow(b, self._join(b, old, total), self.dtype), address, self.dtype.itemsize)


def emit_scatter(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``scatter``."""
    source, target = step.operands[0], step.results[0]
    made: list[Command] = []
    if source != target:
        made.append(Copy(source, target, source.type.nbytes))
    if not step.operands[2].type.size:
        return made
    places, kind = Places.of_scatter(step), step.attrs["kind"]
    if step.attrs["unique"] or places.apart:
        return [*made, write(codegen, step, places)]
    if kind == "set":
        return [*made, *set_last(codegen, step, places)]
    if kind in ("add", "mul") and source.type.dtype.is_float:
        return [*made, *Segments(codegen, step, places).commands()]
    return [*made, fold_atomically(codegen, step, places)]


def emit_update_slice(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``dynamic_update_slice``."""
    source, target = step.operands[0], step.results[0]
    made: list[Command] = []
    if source != target:
        made.append(Copy(source, target, source.type.nbytes))
    if not step.operands[1].type.size:  # pragma: no cover - folded before
        return made
    return [*made, write_clamped(codegen, step, Places.of_update(step))]


__all__ = ["emit_scatter", "emit_update_slice"]
