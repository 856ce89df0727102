"""Scatter and dynamic updates of an array.

Updates that never collide are written by a thread each.  Where they may collide, the last one set
is found by an atomic maximum over their numbers, and folds that give the same in any order are
atomic.  Sums and products of floats do not: there updates are sorted by the element that they
change, and each element folds its own updates in order.  Elements with many updates are folded in
chunks: the updates at the head of each chunk are folded first, by all threads, so that no thread
folds many.  The order of every fold is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.dtypes import DType, f32, u32, u64
from bringup.errors import UnsupportedError
from bringup.integers import ceil_div
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, is_half, memory_type, narrow, neutral, widen
from bringup.llvm.steps.params import coordinates, load_index, trailing_run
from bringup.llvm.text import Val, const
from bringup.loops.library.scattering import array_strides, stride_of
from bringup.ops.monoids import MONOIDS
from bringup.ops.scattering import Windows, scatter_windows
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.codegen.commands import Argument, Command, Copy
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import IntBuilder
from bringup_cuda.codegen.steps.block import BlockEmitter
from bringup_cuda.codegen.steps.library import emit_library
from bringup_cuda.codegen.steps.sort import LONGEST, SortKey, SortLines, emit_sort, raw_type

Ints = tuple[int, ...]

_THREADS = 256
_SCOPE = "device"
#: A copy of the array in each block pays off up to this size, from this many updates on, for each
#: element and in all.
_MAX_TABLE_BYTES = 16 << 10
_MIN_UPDATES_PER_ELEMENT = 4
_MIN_UPDATES = 4096
#: Updates of a thread, and the most blocks, if blocks have copies of the array.
_UPDATES_PER_THREAD = 16
_BUSY_BLOCKS = 528
#: Updates that one thread folds in a row.
_CHUNK = 256


@record
class UpdateRows:
    """Updates as rows of ``width`` elements that lie side by side in the array too.

    size: elements of the array.  rows: sizes of the dimensions that number the rows.
    strides: strides of the array, by dimension of ``rows``.
    index_strides: for each component of an index a stride of the array, and the last position.
    index: dtype of indices.  windows: of a scatter; None if each index is a scalar of its own.
    """

    size: int
    width: int
    rows: Ints
    strides: Ints
    index_strides: tuple[tuple[int, int], ...]
    index: DType | None
    windows: Windows | None

    @classmethod
    def of_scatter(cls, step: OpStep) -> UpdateRows:
        """Of a step of the row ``scatter``."""
        x, indices, updates = (slot.type for slot in step.operands)
        windows = scatter_windows(x, indices, updates, step.attrs)
        strides = array_strides(windows)
        run = trailing_run(updates.shape, strides, windows.offset)
        index_strides = tuple(
            (stride_of(x.shape, d), last)
            for d, last in zip(windows.index_map, windows.last_starts, strict=True)
        )
        return cls._create(
            x.size, updates.shape, strides, run, index_strides, indices.dtype, windows
        )

    @classmethod
    def _create(
        cls,
        size: int,
        shape: Ints,
        strides: Sequence[int],
        run: int,
        index_strides: tuple[tuple[int, int], ...],
        index: DType | None,
        windows: Windows | None,
    ) -> UpdateRows:
        cut = len(shape) - run
        width, rows = math.prod(shape[cut:]), shape[:cut]
        return cls(size, width, rows, tuple(strides[:cut]), index_strides, index, windows)

    @property
    def never_collide(self) -> bool:
        """Whether there is only one window, so that no two updates collide."""
        return self.windows is None or math.prod(self.windows.positions) == 1

    @property
    def unit(self) -> int:
        """The elements of the array that rows cover wholly or not at all: a row, or one element."""
        steps = [*self.strides, *(stride for stride, last in self.index_strides if last)]
        whole = all(step % self.width == 0 for step in steps)
        return self.width if whole and self.size % self.width == 0 else 1

    def row_start(self, b: IntBuilder, row: Val, indices: Val) -> tuple[Val, Val | None]:
        """The index of a row in the array, and whether its window lies inside; None if it must.

        row: its number, i64.  indices: a pointer to the indices.
        """
        coordinates_ = coordinates(b, row, self.rows)
        offset = self._offset_in_array(b, coordinates_)
        assert self.windows is not None, "a scatter has windows"
        assert self.index is not None, "a scatter has indices"
        position = [coordinates_[d] for d in self.windows.position_dims]
        inside: Val | None = None
        for c, (stride, last) in enumerate(self.index_strides):
            index = self._index_position(b, self.windows, position, c)
            start = load_index(b, b.gep(indices, index, memory_type(self.index)), self.index)
            is_inside = b.icmp("ule", start, last)
            inside = is_inside if inside is None else b.and_(inside, is_inside)
            offset = b.add(offset, b.mul(start, stride))
        return offset, inside

    def _offset_in_array(self, b: IntBuilder, coordinates_: Sequence[Val]) -> Val:
        """The index of a row in the array if its window starts at 0."""
        offset = const(ir.i64, 0)
        for coordinate, stride in zip(coordinates_, self.strides, strict=True):
            offset = b.add(offset, b.mul(coordinate, stride))
        return offset

    @staticmethod
    def _index_position(
        b: IntBuilder, windows: Windows, position: Sequence[Val], component: int
    ) -> Val:
        """The position in the indices of a component of a window's index."""
        coordinates_ = list(position)
        if windows.index_dim < len(windows.indices):
            coordinates_.insert(windows.index_dim, const(ir.i64, component))
        index = const(ir.i64, 0)
        for coordinate, n in zip(coordinates_, windows.indices, strict=True):
            index = b.add(b.mul(index, n), coordinate)
        return index


def _arguments(step: OpStep, *scratch: Argument) -> tuple[Argument, ...]:
    """The array, the indices, the updates, then scratch memory."""
    return (step.results[0], *step.operands[1:3], *scratch)


class SegmentedFold:
    """A scatter of kind ``add`` or ``mul`` of floats.

    unit: elements of the array that share a sort key.  rows: updates, of ``unit`` elements each.
    """

    def __init__(self, codegen: CodegenContext, step: OpStep, layout: UpdateRows) -> None:
        self.codegen = codegen
        self.step = step
        self.layout = layout
        self.kind: str = step.attrs["kind"]
        self.dtype = step.operands[0].type.dtype
        self.wide = f32 if is_half(self.dtype) else self.dtype
        self.unit = layout.unit
        self.rows = step.operands[2].type.size // self.unit
        if self.rows >= LONGEST:  # pragma: no cover - only arrays of more than 2 GiB
            raise UnsupportedError(
                f"scatter of {self.rows} updates that may meet: a GPU orders less than {LONGEST}",
                location=step.location,
                fix="scatter them in several calls",
            )
        #: The key of updates that are dropped, larger than all others.
        self.dropped_key = layout.size // self.unit
        self.number = u32 if self.dropped_key < 1 << 32 else u64
        self.chunks = ceil_div(self.rows, _CHUNK)

    def commands(self) -> list[Command]:
        """Every launch."""
        nbytes = self.rows * self.number.itemsize
        keys, sorted_keys = self.codegen.scratch(nbytes), self.codegen.scratch(nbytes)
        sources = self.codegen.scratch(self.rows * 4)
        key = SortKey(self.number, False, self.dropped_key.bit_length())
        lines = SortLines((keys,), (sorted_keys,), (self.number,), (key,), 1, self.rows, 1, sources)
        commands = [self._sort_keys(keys), *emit_sort(self.codegen, self.step, lines)]
        heads: Argument | None = None
        if self.chunks > 1:
            heads = self.codegen.scratch((self.chunks - 1) * self.unit * self.wide.itemsize)
            commands.append(self._fold_heads(sorted_keys, sources, heads))
        return [*commands, self._fold_segments(sorted_keys, sources, heads)]

    def _sort_keys(self, keys: Argument) -> Command:
        """Write the sort key of each update: the unit of the array that it changes."""
        arguments = _arguments(self.step, keys)
        block = BlockEmitter(self.codegen, self.step, "scatter_places", arguments, _THREADS)
        b, raw = block.b, raw_type(self.number)
        with block.items(self.rows) as row:
            item = b.mul(row, self.unit)
            width = const(ir.i64, self.layout.width)
            offset, inside = self.layout.row_start(b, b.udiv(item, width), block.args[1])
            if self.unit != self.layout.width:
                offset = b.add(offset, b.urem(item, width))
            key = b.trunc(b.udiv(offset, self.unit), raw)
            if inside is not None:
                key = b.select(inside, key, const(raw, self.dropped_key))
            b.store(key, b.gep(block.args[3], row, raw), raw.bits // 8)
        return block.launch(block.blocks_for(self.rows))

    # -- folding -----------------------------------------------------------------------------------

    def _combine(self, b: IntBuilder, x: Val, y: Val) -> Val:
        return combine(b, self.kind, self.wide, x, y)

    def _load_key(self, block: BlockEmitter, row: Val) -> Val:
        raw = raw_type(self.number)
        return block.b.load(raw, block.b.gep(block.args[3], row, raw), raw.bits // 8)

    def _fold_run(self, block: BlockEmitter, first: Val, column: Val, key: Val) -> tuple[Val, Val]:
        """The fold of updates with a key, from ``first`` to the end of the chunk at most, and the
        row after them.
        """
        b, element = block.b, memory_type(self.dtype)
        chunk = const(ir.i64, _CHUNK)
        stop = b.mul(b.add(b.udiv(first, chunk), 1), chunk)
        stop = b.intrinsic("llvm.smin", ir.i64, (stop, const(ir.i64, self.rows)))
        start = neutral(self.kind, self.wide)

        def continues(row: Val) -> Val:
            below = b.icmp("slt", row, stop)
            return b.cond(
                below,
                lambda: b.icmp("eq", self._load_key(block, row), key),
                lambda: const(ir.i1, 0),
            )[0]

        with b.while_loop([first, start, const(ir.i1, 1)], lambda c: c[2]) as loop:
            row, total, _ = loop.carried
            sources = b.zext(b.load(ir.i32, b.gep(block.args[4], row, ir.i32), 4), ir.i64)
            index = b.add(b.mul(sources, self.unit), column)
            update = b.load(element, b.gep(block.args[2], index, element), self.dtype.itemsize)
            after = b.add(row, 1)
            loop.next(after, self._combine(b, total, widen(b, update)), continues(after))
        return loop.carried[1], loop.carried[0]

    def _split(self, b: IntBuilder, item: Val) -> tuple[Val, Val]:
        unit = const(ir.i64, self.unit)
        return b.udiv(item, unit), b.urem(item, unit) if self.unit > 1 else const(ir.i64, 0)

    def _fold_heads(self, sorted_keys: Argument, sources: Argument, heads: Argument) -> Command:
        """Fold the updates with the first key of each chunk but the first chunk."""
        arguments = _arguments(self.step, sorted_keys, sources, heads)
        block = BlockEmitter(self.codegen, self.step, f"heads_{self.kind}", arguments, _THREADS)
        b, wide = block.b, memory_type(self.wide)
        count = (self.chunks - 1) * self.unit
        with block.items(count) as item:
            chunk, column = self._split(b, item)
            first = b.mul(b.add(chunk, 1), _CHUNK)
            total, _ = self._fold_run(block, first, column, self._load_key(block, first))
            b.store(total, b.gep(block.args[5], item, wide), wide.bits // 8)
        return block.launch(block.blocks_for(count))

    def _fold_segments(
        self, sorted_keys: Argument, sources: Argument, heads: Argument | None
    ) -> Command:
        """Let the first update of each key fold all of them into the array."""
        scratch = (sorted_keys, sources) if heads is None else (sorted_keys, sources, heads)
        arguments = _arguments(self.step, *scratch)
        block = BlockEmitter(self.codegen, self.step, f"segments_{self.kind}", arguments, _THREADS)
        b, zero = block.b, const(ir.i64, 0)
        count = self.rows * self.unit
        with block.items(count) as item:
            row, column = self._split(b, item)
            key = self._load_key(block, row)

            def differs_from_previous(row: Val = row, key: Val = key) -> Val:
                return b.icmp("ne", self._load_key(block, b.sub(row, 1)), key)

            (is_first,) = b.cond(
                b.icmp("sgt", row, zero), differs_from_previous, lambda: const(ir.i1, 1)
            )
            is_kept = b.icmp("ne", key, const(key.type, self.dropped_key))
            with b.if_then(b.and_(is_first, is_kept)):
                total, after = self._fold_run(block, row, column, key)
                if heads is not None:
                    total = self._fold_following_chunks(block, total, after, column, key)
                self._store_fold(block, total, key, column)
        return block.launch(block.blocks_for(count))

    def _fold_following_chunks(
        self, block: BlockEmitter, total: Val, after: Val, column: Val, key: Val
    ) -> Val:
        """Fold the updates of a key in the following chunks."""
        b, wide = block.b, memory_type(self.wide)
        chunk = const(ir.i64, _CHUNK)

        def continues(row: Val) -> Val:
            # Updates that end within a chunk are the last of their key.
            at_chunk_end = b.icmp("eq", b.urem(row, chunk), 0)
            inside = b.and_(at_chunk_end, b.icmp("slt", row, self.rows))
            return b.cond(
                inside,
                lambda: b.icmp("eq", self._load_key(block, row), key),
                lambda: const(ir.i1, 0),
            )[0]

        with b.while_loop([after, total, continues(after)], lambda c: c[2]) as loop:
            row, total_, _ = loop.carried
            chunk_index = b.sub(b.udiv(row, chunk), 1)
            index = b.add(b.mul(chunk_index, self.unit), column)
            head = b.load(wide, b.gep(block.args[5], index, wide), wide.bits // 8)
            following = b.add(row, chunk)
            loop.next(following, self._combine(b, total_, head), continues(following))
        return loop.carried[1]

    def _store_fold(self, block: BlockEmitter, total: Val, key: Val, column: Val) -> None:
        b, element = block.b, memory_type(self.dtype)
        index = b.add(b.mul(b.zext(key, ir.i64), self.unit), column)
        address = b.gep(block.args[0], index, element)
        old = widen(b, b.load(element, address, self.dtype.itemsize))
        b.store(narrow(b, self._combine(b, old, total), self.dtype), address, self.dtype.itemsize)


def emit_scatter(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``scatter``."""
    source, target = step.operands[0], step.results[0]
    layout, kind = UpdateRows.of_scatter(step), step.attrs["kind"]
    meet = not step.attrs["unique"] and not layout.never_collide and step.operands[2].type.size
    if not meet or kind == "set" or MONOIDS[kind].is_exact(source.type.dtype):
        return emit_library(codegen, step)
    copy = [] if source == target else [Copy(source, target, source.type.nbytes)]
    return [*copy, *SegmentedFold(codegen, step, layout).commands()]


__all__ = ["emit_scatter"]
