"""Scans: running folds along one dimension.

Along the last dimension a group of lanes, or a block, scans a row: vectors of neighbouring elements
in each thread, then their totals across lanes and warps.  Along any other dimension a thread scans
a column.  Longer lines are split into chunks, whose totals are folded first, so that sums of floats
are the same in each run; with a scan that looks back at other blocks they would not be.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from bringup.integers import ceil_div, ceil_power_of_two
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.params import ScanParams
from bringup.llvm.text import Val, const, vec
from bringup.program.program import OpStep
from bringup_cuda.codegen.commands import Argument, Command
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import IntBuilder
from bringup_cuda.codegen.steps.block import MAX_BLOCKS, BlockEmitter
from bringup_cuda.targets import WARP

#: Bytes of the widest access.
_ACCESS_BYTES = 16
#: Threads of a block, and vectors that a thread scans at a time.
_THREADS = 256
_MAX_VECTORS = 4
#: Threads that keep a GPU busy, and elements of a column that a thread scans.
_BUSY_THREADS = 1 << 17
_MIN_CHUNK = 32
_MAX_CHUNK = 1024
_UNROLLED = 4
#: Blocks that keep a GPU busy, and tiles from which on a row is worth splitting.
_BUSY_BLOCKS = 528
_MIN_TILES_TO_SPLIT = 4


class Scan(ABC):
    """The launches of a scan of rows or of columns."""

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        sizes: ScanParams,
        source: Argument,
        target: Argument,
    ) -> None:
        self.codegen = codegen
        self.step = step
        self.sizes = sizes
        self.source = source
        self.target = target

    def block(self, label: str, arguments: Sequence[Argument], threads: int) -> BlockEmitter:
        return BlockEmitter(self.codegen, self.step, label, arguments, threads)

    @property
    def vector(self) -> int:
        """Elements of the widest access."""
        return _ACCESS_BYTES // self.sizes.dtype.itemsize

    def commands(self) -> list[Command]:
        """All launches: the totals of chunks first if there are several."""
        chunks = self.chunks()
        if chunks == 1:
            return [self.scans(chunks, None)]
        lines = self.sizes.outer * self.sizes.inner
        totals = self.codegen.scratch(lines * chunks * self.sizes.wide.itemsize)
        return [self.totals(chunks, totals), self.scans(chunks, totals)]

    @abstractmethod
    def chunks(self) -> int:
        """The number of chunks of a line."""

    @abstractmethod
    def totals(self, chunks: int, totals: Argument) -> Command:
        """Fold every chunk."""

    @abstractmethod
    def scans(self, chunks: int, totals: Argument | None) -> Command:
        """Scan every chunk, starting from the totals of the chunks before it."""


class ColumnScan(Scan):
    """A thread scans a chunk of a column, or of some columns that lie side by side.

    width: columns of a thread.  column_groups: groups of so many columns.
    """

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        sizes: ScanParams,
        source: Argument,
        target: Argument,
    ) -> None:
        super().__init__(codegen, step, sizes, source, target)
        many = sizes.outer * sizes.inner >= 2 * _BUSY_THREADS
        self.width = math.gcd(sizes.inner, self.vector) if many else 1
        self.column_groups = sizes.inner // self.width

    def chunks(self) -> int:
        sizes = self.sizes
        by_length = ceil_div(sizes.length, _MAX_CHUNK)
        by_threads = ceil_div(_BUSY_THREADS, sizes.outer * self.column_groups)
        wanted = max(by_length, min(by_threads, sizes.length // _MIN_CHUNK), 1)
        return ceil_div(sizes.length, ceil_div(sizes.length, wanted))

    def totals(self, chunks: int, totals: Argument) -> Command:
        block = self.block(f"totals_{self.sizes.kind}", [self.source, totals], _THREADS)
        b, sizes = block.b, self.sizes
        with block.items(sizes.outer * chunks * self.column_groups) as item:
            start, low, high, _ = self._chunk_of(block, item, chunks)
            carry = self._scan_column(block, start, low, high, sizes.neutral(self.width), False)
            index = b.mul(item, self.width)
            self._store_total(block, carry, b.gep(block.args[1], index, memory_type(sizes.wide)))
        return block.launch(block.blocks_for(sizes.outer * chunks * self.column_groups))

    def scans(self, chunks: int, totals: Argument | None) -> Command:
        arguments = [self.source, self.target, *([] if totals is None else [totals])]
        block = self.block(f"scan_{self.sizes.kind}", arguments, _THREADS)
        sizes = self.sizes
        with block.items(sizes.outer * chunks * self.column_groups) as item:
            start, low, high, number = self._chunk_of(block, item, chunks)
            carry = sizes.first(self.width)
            if chunks > 1:
                carry = self._fold_previous_chunks(block, item, number, carry)
            self._scan_column(block, start, low, high, carry, True)
        return block.launch(block.blocks_for(sizes.outer * chunks * self.column_groups))

    def _chunk_of(self, block: BlockEmitter, item: Val, chunks: int) -> tuple[Val, Val, Val, Val]:
        """The index of an item's column, the first row of its chunk and the row after its last, and
        the number of the chunk.
        """
        b, sizes = block.b, self.sizes
        column = b.mul(b.urem(item, self.column_groups), self.width)
        chunk_index = b.udiv(item, self.column_groups)
        chunk = b.urem(chunk_index, chunks) if chunks > 1 else const(ir.i64, 0)
        outer = b.udiv(chunk_index, chunks)
        start = b.add(b.mul(outer, sizes.length * sizes.inner), column)
        length = ceil_div(sizes.length, chunks)
        low = b.mul(chunk, length)
        high = b.add(low, length)
        high = b.intrinsic("llvm.smin", ir.i64, (high, const(ir.i64, sizes.length)))
        return start, low, high, chunk

    def _store_total(self, block: BlockEmitter, value: Val, address: Val) -> None:
        element = value.type.scalar
        block.b.store(value, address, element.bits // 8 * self.width)

    def _fold_previous_chunks(self, block: BlockEmitter, item: Val, number: Val, carry: Val) -> Val:
        """The fold of the same column in the chunks before."""
        b, wide = block.b, memory_type(self.sizes.wide)
        first_item = b.sub(item, b.mul(number, self.column_groups))
        with b.loop(const(ir.i64, 0), number, 1, [carry]) as loop:
            index = b.add(first_item, b.mul(loop.index, self.column_groups))
            address = b.gep(block.args[2], b.mul(index, self.width), wide)
            total = b.load(vec(wide, self.width), address, wide.bits // 8 * self.width)
            loop.next(self.sizes.fold(b, loop.carried[0], total))
        return loop.carried[0]

    def _scan_column(
        self, block: BlockEmitter, start: Val, low: Val, high: Val, carry: Val, store: bool
    ) -> Val:
        """Scan a chunk of columns, several loads at a time; store: whether to write the results."""
        b = block.b
        remainder = b.urem(b.sub(high, low), _UNROLLED)
        stop = b.sub(high, remainder)
        for begin, end, count in ((low, stop, _UNROLLED), (stop, high, 1)):
            with b.loop(begin, end, count, [carry]) as loop:
                carry = self._scan_elements(block, start, loop.index, count, loop.carried[0], store)
                loop.next(carry)
            carry = loop.carried[0]
        return carry

    def _scan_elements(
        self, block: BlockEmitter, start: Val, row: Val, count: int, carry: Val, store: bool
    ) -> Val:
        b, sizes = block.b, self.sizes
        element, step = memory_type(sizes.dtype), -sizes.inner if sizes.reverse else sizes.inner
        if sizes.reverse:
            row = b.sub(const(ir.i64, sizes.length - 1), row)
        base = b.add(start, b.mul(row, sizes.inner))
        align = sizes.dtype.itemsize * self.width
        positions = [b.add(base, n * step) for n in range(count)]
        loaded = [
            b.load(vec(element, self.width), b.gep(block.args[0], position, element), align)
            for position in positions
        ]
        for position, x in zip(positions, loaded, strict=True):
            after = self.sizes.fold(b, carry, widen(b, x))
            if store:
                output = narrow(b, carry if sizes.exclusive else after, sizes.dtype)
                b.store(output, b.gep(block.args[1], position, element), align)
            carry = after
        return carry


class RowScan(Scan):
    """Scans rows whose elements lie side by side.

    width: elements of a vector.  vectors: vectors of a thread.
    lanes: the lanes that scan a row, 0 if a block does.  tile: elements that a block scans at once.
    """

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        sizes: ScanParams,
        source: Argument,
        target: Argument,
    ) -> None:
        super().__init__(codegen, step, sizes, source, target)
        whole = sizes.outer > 1 or sizes.reverse
        self.width = math.gcd(sizes.length, self.vector) if whole else self.vector
        self.vectors = min(_MAX_VECTORS, max(1, 16 // self.width))
        needed = ceil_div(sizes.length, self.width)
        self.lanes, self.threads = 0, _THREADS
        if needed <= WARP * self.vectors:
            self.lanes = min(WARP, ceil_power_of_two(needed))
            self.vectors = ceil_div(needed, self.lanes)
            self.threads = min(_THREADS, max(WARP, sizes.outer * self.lanes // WARP * WARP))
            self.threads = 1 << (self.threads.bit_length() - 1)
        elif needed <= _THREADS // 2 * self.vectors:
            self.threads = _THREADS // 2
        self.tile = self.threads * self.vectors * self.width

    def chunks(self) -> int:
        sizes, tiles = self.sizes, ceil_div(self.sizes.length, self.tile)
        if self.lanes or tiles < _MIN_TILES_TO_SPLIT or 2 * sizes.outer > _BUSY_BLOCKS:
            return 1
        each = ceil_div(tiles, ceil_div(_BUSY_BLOCKS, sizes.outer))
        return ceil_div(tiles, each)

    def _chunk_length(self, chunks: int) -> int:
        """Elements of a chunk."""
        tiles = ceil_div(self.sizes.length, self.tile)
        return ceil_div(tiles, chunks) * self.tile

    # -- places ------------------------------------------------------------------------------------

    def _address(self, block: BlockEmitter, pointer: Val, row: Val, position: Val) -> Val:
        """The address of a vector; position: that of its first element in the order of the scan."""
        b, sizes = block.b, self.sizes
        if sizes.reverse:
            position = b.sub(const(ir.i64, sizes.length - self.width), position)
        index = b.add(b.mul(row, sizes.length), position)
        return b.gep(pointer, index, memory_type(sizes.dtype))

    def _vector_positions(self, block: BlockEmitter, base: Val) -> list[Val]:
        """The positions of the thread's vectors in a tile at ``base``."""
        b, group = block.b, self.lanes or WARP
        lane = b.and_(block.lane, group - 1)
        offset = b.mul(lane, self.width)
        if not self.lanes:
            span = WARP * self.vectors * self.width
            offset = b.add(offset, b.mul(block.warp, span))
        first = b.add(base, b.zext(offset, ir.i64))
        return [b.add(first, n * group * self.width) for n in range(self.vectors)]

    def _vectors_are_whole(self) -> bool:
        """Whether vectors lie wholly inside or outside a row."""
        return self.sizes.length % self.width == 0

    # -- memory ------------------------------------------------------------------------------------

    def _load(
        self, block: BlockEmitter, row: Val, base: Val, positions: Sequence[Val], limit: Val | None
    ) -> list[list[Val]]:
        """The elements of all vectors of a tile at ``base`` in the order of the scan, neutral from
        ``limit`` on.  No load waits for a test, so that all are in flight together.
        """
        b, whole = block.b, self._vectors_are_whole()
        if limit is None or whole:
            return [self._load_vector(block, row, position, limit) for position in positions]
        bound = limit

        def vectors() -> list[Val]:
            return [
                x for position in positions for x in self._load_vector(block, row, position, None)
            ]

        def elements() -> list[Val]:
            return [
                x
                for position in positions
                for x in self._load_elements(block, row, position, bound)
            ]

        inside = b.icmp("sle", b.add(base, self.tile), limit)
        values = b.cond(inside, vectors, elements)
        width = self.width
        return [list(values[n : n + width]) for n in range(0, len(values), width)]

    def _load_vector(
        self, block: BlockEmitter, row: Val, position: Val, limit: Val | None
    ) -> list[Val]:
        """The elements of a vector; beyond the limit the row's last vector is loaded instead."""
        b, sizes = block.b, self.sizes
        clamped = position
        if limit is not None:
            last = const(ir.i64, sizes.length - self.width)
            clamped = b.intrinsic("llvm.smin", ir.i64, (position, last))
        address = self._address(block, block.args[0], row, clamped)
        wide = vec(memory_type(sizes.dtype), self.width)
        vector = b.load(wide, address, self.width * sizes.dtype.itemsize)
        elements = [b.extractelement(vector, n) for n in range(self.width)]
        values = [widen(b, x) for x in (elements[::-1] if sizes.reverse else elements)]
        if limit is None:
            return values
        fits = b.icmp("sle", b.add(position, self.width), limit)
        return [b.select(fits, x, sizes.neutral()) for x in values]

    def _load_elements(self, block: BlockEmitter, row: Val, position: Val, limit: Val) -> list[Val]:
        """As `_load_vector`, element by element."""
        b, sizes = block.b, self.sizes
        element, last = memory_type(sizes.dtype), const(ir.i64, sizes.length - 1)
        start = b.mul(row, sizes.length)
        values: list[Val] = []
        for n in range(self.width):
            element_position = b.add(position, n)
            index = b.add(start, b.intrinsic("llvm.smin", ir.i64, (element_position, last)))
            x = b.load(element, b.gep(block.args[0], index, element), sizes.dtype.itemsize)
            inside = b.icmp("slt", element_position, limit)
            values.append(b.select(inside, widen(b, x), sizes.neutral()))
        return values

    def _store(
        self, block: BlockEmitter, row: Val, position: Val, limit: Val | None, values: Sequence[Val]
    ) -> None:
        """Write the elements of a vector that lie before ``limit``."""
        b, sizes = block.b, self.sizes
        element = memory_type(sizes.dtype)
        address = self._address(block, block.args[1], row, position)
        elements = [narrow(b, x, sizes.dtype) for x in values]

        def store_vector() -> None:
            vector = ir.poison(vec(element, self.width))
            for n, x in enumerate(elements[::-1] if sizes.reverse else elements):
                vector = b.insertelement(vector, x, n) if self.width > 1 else x
            b.store(vector, address, self.width * sizes.dtype.itemsize)

        def store_elements() -> None:
            for n, x in enumerate(elements):
                with b.if_then(b.icmp("slt", b.add(position, n), bound)):
                    b.store(x, b.gep(address, n, element), sizes.dtype.itemsize)

        if limit is None:
            store_vector()
            return
        bound = limit
        fits = b.icmp("sle", b.add(position, self.width), limit)
        if self._vectors_are_whole():
            with b.if_then(fits):
                store_vector()
        else:
            b.cond(fits, store_vector, store_elements)

    # -- the scan of a tile ------------------------------------------------------------------------

    def _scan_tile(
        self, block: BlockEmitter, values: Sequence[Sequence[Val]], carry: Val, array: Val | None
    ) -> tuple[list[list[Val]], Val]:
        """The result of each element, and the carry of the next tile."""
        b, group = block.b, self.lanes or WARP

        def fold(x: Val, y: Val) -> Val:
            return self.sizes.fold(b, x, y)

        first = b.icmp("eq", b.and_(block.lane, group - 1), 0)
        last = b.or_(block.lane, const(ir.i32, group - 1))
        vector_prefixes: list[list[Val]] = []
        starts: list[Val] = []
        before = self.sizes.neutral()
        for vector in values:
            prefixes = [vector[0]]
            for x in vector[1:]:
                prefixes.append(fold(prefixes[-1], x))
            vector_prefixes.append(prefixes)
            through_lane = block.scan_lanes(prefixes[-1], fold, group)
            lower = b.select(first, self.sizes.neutral(), block.shuffle_up(through_lane, 1))
            starts.append(fold(before, lower))
            before = fold(before, block.shuffle_index(through_lane, last))
        base, following = carry, carry
        if array is not None:
            earlier, total = block.scan_warps(before, array, fold, self.sizes.neutral())
            base, following = fold(carry, earlier), fold(carry, total)
        outputs: list[list[Val]] = []
        for start, prefixes in zip(starts, vector_prefixes, strict=True):
            begin = fold(base, start)
            after = [fold(begin, x) for x in prefixes]
            outputs.append([begin, *after[:-1]] if self.sizes.exclusive else after)
        return outputs, following

    # -- launches ----------------------------------------------------------------------------------

    def scans(self, chunks: int, totals: Argument | None) -> Command:
        arguments = [self.source, self.target, *([] if totals is None else [totals])]
        block = self.block(f"scan_{self.sizes.kind}", arguments, self.threads)
        if self.lanes:
            return self._scan_short_rows(block)
        b, sizes = block.b, self.sizes
        arrays = [block.shared(memory_type(sizes.wide), block.warps) for _ in range(2)]
        with block.units(sizes.outer * chunks) as unit:
            row, number = b.udiv(unit, chunks), const(ir.i64, 0)
            carry = sizes.first()
            if chunks > 1:
                number = b.urem(unit, chunks)
                carry = self._fold_previous_chunks(block, arrays[1], row, number, chunks)
            low = b.mul(number, self._chunk_length(chunks))
            high = self._chunk_end(block, low, chunks)
            with b.loop(low, high, self.tile, [carry]) as loop:
                limit = None if sizes.length % self.tile == 0 else const(ir.i64, sizes.length)
                positions = self._vector_positions(block, loop.index)
                values = self._load(block, row, loop.index, positions, limit)
                outputs, carry = self._scan_tile(block, values, loop.carried[0], arrays[0])
                for position, vector in zip(positions, outputs, strict=True):
                    self._store(block, row, position, limit, vector)
                block.barrier()
                loop.next(carry)
        return block.launch(min(sizes.outer * chunks, MAX_BLOCKS))

    def _scan_short_rows(self, block: BlockEmitter) -> Command:
        """A group of lanes for each row."""
        b, sizes = block.b, self.sizes
        rows_per_block = self.threads // self.lanes
        with block.units(ceil_div(sizes.outer, rows_per_block)) as unit:
            group_index = b.zext(b.udiv(block.thread, self.lanes), ir.i64)
            row = b.add(b.mul(unit, rows_per_block), group_index)
            inside = b.icmp("slt", row, sizes.outer)
            whole = self.lanes * self.vectors * self.width == sizes.length
            full = whole and sizes.outer % rows_per_block == 0
            stop = b.select(inside, const(ir.i64, sizes.length), const(ir.i64, 0))
            limit = None if full else stop
            positions = self._vector_positions(block, const(ir.i64, 0))
            last = const(ir.i64, sizes.outer - 1)
            clamped_row = b.intrinsic("llvm.smin", ir.i64, (row, last))
            values = self._load(block, clamped_row, const(ir.i64, 0), positions, limit)
            outputs, _ = self._scan_tile(block, values, sizes.first(), None)
            for position, vector in zip(positions, outputs, strict=True):
                self._store(block, row, position, limit, vector)
        return block.launch(min(ceil_div(sizes.outer, rows_per_block), MAX_BLOCKS))

    def _chunk_end(self, block: BlockEmitter, low: Val, chunks: int) -> Val:
        """The end of a chunk that begins at ``low``."""
        b, length = block.b, const(ir.i64, self.sizes.length)
        if chunks == 1:
            return length
        high = b.add(low, self._chunk_length(chunks))
        return b.intrinsic("llvm.smin", ir.i64, (high, length))

    def _fold_previous_chunks(
        self, block: BlockEmitter, array: Val, row: Val, number: Val, chunks: int
    ) -> Val:
        """The fold of the chunks before a chunk."""
        b, wide = block.b, memory_type(self.sizes.wide)
        base = b.gep(block.args[2], b.mul(row, chunks), wide)
        thread = b.zext(block.thread, ir.i64)
        with b.loop(thread, number, self.threads, [self.sizes.neutral()]) as loop:
            total_ = block.load(base, loop.index, wide)
            loop.next(self.sizes.fold(b, loop.carried[0], total_))
        total = self._fold_block(block, array, loop.carried[0])
        return self.sizes.fold(b, self.sizes.first(), total)

    def _fold_block(self, block: BlockEmitter, array: Val, value: Val) -> Val:
        """The fold of the values of all threads."""

        def fold(x: Val, y: Val) -> Val:
            return self.sizes.fold(block.b, x, y)

        return block.scan_warps(block.reduce_warp(value, fold), array, fold, self.sizes.neutral())[
            1
        ]

    def totals(self, chunks: int, totals: Argument) -> Command:
        block = self.block(f"totals_{self.sizes.kind}", [self.source, totals], self.threads)
        b, sizes = block.b, self.sizes
        wide = memory_type(sizes.wide)
        array = block.shared(wide, block.warps)
        with block.units(sizes.outer * chunks) as unit:
            row = b.udiv(unit, chunks)
            low = b.mul(b.urem(unit, chunks), self._chunk_length(chunks))
            zeros = [sizes.neutral()] * self.vectors
            with b.loop(low, self._chunk_end(block, low, chunks), self.tile, zeros) as loop:
                limit = None if sizes.length % self.tile == 0 else const(ir.i64, sizes.length)
                positions = self._vector_positions(block, loop.index)
                values = self._load(block, row, loop.index, positions, limit)
                pairs = zip(loop.carried, values, strict=True)
                fold = sizes.fold
                loop.next(*(fold(b, acc, self._fold_values(b, vector)) for acc, vector in pairs))
            total = self._fold_block(block, array, self._fold_values(b, loop.carried))
            with b.if_then(b.icmp("eq", block.thread, 0)):
                b.store(total, b.gep(block.args[1], unit, wide), wide.bits // 8)
            block.barrier()
        return block.launch(min(sizes.outer * chunks, MAX_BLOCKS))

    def _fold_values(self, b: IntBuilder, values: Sequence[Val]) -> Val:
        """The fold of some values, pairwise."""
        live = list(values)
        while len(live) > 1:
            pairs = [self.sizes.fold(b, x, y) for x, y in zip(live[::2], live[1::2], strict=False)]
            live = [*pairs, *live[len(pairs) * 2 :]]
        return live[0]


def emit_cumulative(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launches of a step of the row ``cumulative``."""
    sizes = ScanParams.of(step)
    source, target = step.operands[0], step.results[0]
    return emit_scan(codegen, step, sizes, source, target)


def emit_scan(
    codegen: CodegenContext, step: OpStep, sizes: ScanParams, source: Argument, target: Argument
) -> list[Command]:
    """Launches that scan ``source`` into ``target``, which is other memory."""
    if sizes.inner > 1:
        return ColumnScan(codegen, step, sizes, source, target).commands()
    return RowScan(codegen, step, sizes, source, target).commands()


__all__ = ["emit_cumulative", "emit_scan"]
