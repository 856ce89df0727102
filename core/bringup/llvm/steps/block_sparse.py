"""Products with block-sparse matrices as native code; only stored blocks cost anything.

Blocks are first sorted by column.  The rows of x are packed into panels, which hold the elements of
a tile of rows for each inner index, so that a block row is a contiguous part of a panel.  The
products of a tile of rows with a few vectors of a block column stay in registers while the tile
visits the blocks of the column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import DType, f32
from bringup.integers import ceil_div, round_up
from bringup.llvm import text as ir
from bringup.llvm.loops.heuristics import LONGEST_CHAIN
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel
from bringup.llvm.scalar import is_half, memory_type, narrow, widen
from bringup.llvm.steps.base import NativeStep, PhaseBuilder
from bringup.llvm.text import Builder, Module, Type, Val, const, i64_const, vec
from bringup.llvm.transpose import transpose_square
from bringup.program.program import OpStep
from bringup.records import record
from bringup.target import Target

#: Serial additions if a column may have more products than a serial sum may have.
_RUN = 2048

_Range = tuple[Val, Val]


@record
class _Form:
    """How one step runs.

    rows, inner, features: sizes of the product.  count, height, width: of the blocks.
    lanes: of a vector; they divide the width of a block.
    tile, vectors: rows, and vectors of a block, of a register tile.
    chunk: tiles of a unit, whose panels stay in a core's cache.
    long: whether a column may have more products than a serial sum may have.
    """

    dtype: DType
    wide: DType
    rows: int
    inner: int
    features: int
    count: int
    height: int
    width: int
    lanes: int
    tile: int
    vectors: int
    chunk: int
    long: bool

    @classmethod
    def of(cls, step: OpStep, target: Target) -> _Form:
        x, blocks = (slot.type for slot in step.operands[:2])
        wide = f32 if is_half(x.dtype) else x.dtype
        count, height, width = blocks.shape
        rows, inner = math.prod(x.shape[:-1]), x.shape[-1]
        lanes = math.gcd(width, target.vector_bits // wide.bits)
        sums = target.registers * 3 // 4
        most = 4 if target.registers >= 32 else 2
        tile = max(1, min(rows, sums // min(width // lanes, most)))
        vectors = min(width // lanes, sums // tile)
        near = target.cache_bytes // 2 // max(1, tile * inner * wide.itemsize)
        chunk = max(1, min(ceil_div(rows, tile), near))
        longest = min(count, step.attrs["per_column"]) * height
        return cls(
            x.dtype, wide, rows, inner, step.attrs["features"], count, height, width,
            lanes, tile, vectors, chunk, longest > LONGEST_CHAIN,
        )  # fmt: skip

    @property
    def across(self) -> int:
        """The number of block columns."""
        return self.features // self.width

    @property
    def down(self) -> int:
        """The number of block rows."""
        return self.inner // self.height

    @property
    def tiles(self) -> int:
        """Tiles that cover the rows; the last two may overlap."""
        return ceil_div(self.rows, self.tile)

    @property
    def sum_type(self) -> Type:
        """The LLVM type of products and sums."""
        return memory_type(self.wide)

    @property
    def offsets(self) -> tuple[int, int]:
        """Where the order of blocks and the panels begin in the memory that phases share."""
        ends = 4 * (self.across + 1)
        order = round_up(ends, LINE_BYTES)
        return order, order + -(-8 * self.count // LINE_BYTES) * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ends of columns, the order of blocks, and the panels."""
        return self.offsets[1] + self.tiles * self.panel * self.wide.itemsize

    @property
    def panel(self) -> int:
        """Elements from one panel to the next, including padding for a vector."""
        return self.tile * self.inner + LINE_BYTES // self.wide.itemsize

    def row(self, b: Builder, tile: Val) -> Val:
        """The first row of a tile."""
        return b.lesser(b.mul(tile, i64_const(self.tile)), i64_const(self.rows - self.tile))


def emit_block_sparse_dot(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``block_sparse_dot``."""
    form = _Form.of(step, target)
    order = _emit_order(module, step, f"{name}.order", form)
    panels = _emit_panels(module, step, f"{name}.panels", form, target)
    return NativeStep((order, panels, _emit_products(module, step, name, form)), form.shared_bytes)


def _emit_order(module: Module, step: OpStep, name: str, form: _Form) -> NativeKernel:
    """Sort blocks by column: count them, then list them as pairs of block number and row.

    Entry 0 of the ends stays 0.  Entry j + 1 is first the count of column j, then the start of its
    list, and after the list has been written, the end of it.
    """
    phase = PhaseBuilder(module, step, name)
    b, ends = phase.b, phase.shared
    order = b.gep(phase.shared, form.offsets[0], ir.i8)

    def end(column: Val) -> Val:
        return b.gep(ends, b.add(column, i64_const(1)), ir.i32)

    with phase.units():
        with b.loop(i64_const(-1), i64_const(form.across)) as columns:
            b.store(ir.zero(ir.i32), end(columns.index), 4)
        with _live(phase, form) as (_, _, column):
            address = end(column)
            b.store(b.add(b.load(ir.i32, address, 4), const(ir.i32, 1)), address, 4)
        with b.loop(i64_const(0), i64_const(form.across), carried=[ir.zero(ir.i32)]) as columns:
            address = end(columns.index)
            count = b.load(ir.i32, address, 4)
            b.store(columns.carried[0], address, 4)
            columns.next(b.add(columns.carried[0], count))
        with _live(phase, form) as (block, row, column):
            address = end(column)
            free = b.load(ir.i32, address, 4)
            b.store(b.add(free, const(ir.i32, 1)), address, 4)
            pair = b.gep(order, b.mul(b.sext(free, ir.i64), i64_const(2)), ir.i32)
            b.store(b.trunc(block, ir.i32), pair, 4)
            b.store(b.trunc(row, ir.i32), b.gep(pair, 1, ir.i32), 4)
    return phase.done(1, 8 * form.count + 4 * form.across)


@contextmanager
def _live(phase: PhaseBuilder, form: _Form) -> Iterator[tuple[Val, Val, Val]]:
    """Emit a loop over the valid blocks: the number of a block, its row and its column."""
    b = phase.b
    with b.loop(i64_const(0), i64_const(form.count)) as blocks:
        row, column = (_i64(b, base, blocks.index) for base in phase.operands[2:])
        inside = b.icmp("ult", row, i64_const(form.down))
        inside = b.and_(inside, b.icmp("ult", column, i64_const(form.across)))
        with b.if_then(inside):
            yield blocks.index, row, column


def _i64(b: Builder, base: Val, address: Val) -> Val:
    """An i32 in memory, as i64."""
    return b.sext(b.load(ir.i32, b.gep(base, address, ir.i32), 4), ir.i64)


def _emit_panels(
    module: Module, step: OpStep, name: str, form: _Form, target: Target
) -> NativeKernel:
    """Pack the rows of x: by tile, by inner index, by row of the tile."""
    phase = PhaseBuilder(module, step, name)
    b, element, size = phase.b, memory_type(form.dtype), form.wide.itemsize
    lanes = target.vector_bits // form.wide.bits
    square = b.alloca(ir.array(form.sum_type, lanes**2), align=LINE_BYTES)
    whole = form.inner // lanes * lanes if form.tile > 1 else 0
    with phase.units() as tile:
        first = b.mul(form.row(b, tile), i64_const(form.inner))
        heads = [
            b.gep(phase.operands[0], b.add(first, i64_const(r * form.inner)), element)
            for r in range(form.tile)
        ]
        panel = _panel(phase, form, tile)

        def read(head: Val, inner: Val, count: int) -> Val:
            address = b.gep(head, inner, element)
            return widen(b, b.load(vec(element, count), address, form.dtype.itemsize))

        with b.loop(i64_const(0), i64_const(whole), lanes) as inner:
            to = b.gep(panel, b.mul(inner.index, i64_const(form.tile)), form.sum_type)
            # Backwards, because a square may write after its rows: to those of the next square, or
            # to the padding between panels.
            for start in reversed(range(0, form.tile, lanes)):
                group = heads[start : start + lanes]
                for r, head in enumerate(group):
                    row = b.gep(square, r * lanes, form.sum_type)
                    b.store(read(head, inner.index, lanes), row, size)
                function = transpose_square(module, form.sum_type, lanes, len(group))
                args = [square, b.gep(to, start, form.sum_type)]
                b.call(function, [*args, i64_const(form.tile), i64_const(lanes)])
        with b.loop(i64_const(whole), i64_const(form.inner)) as inner:
            to = b.gep(panel, b.mul(inner.index, i64_const(form.tile)), form.sum_type)
            for r, head in enumerate(heads):
                b.store(read(head, inner.index, 1), b.gep(to, r, form.sum_type), size)
    return phase.done(form.tiles, 2 * form.inner * form.tile)


def _panel(phase: PhaseBuilder, form: _Form, tile: Val) -> Val:
    panels = phase.b.gep(phase.shared, form.offsets[1], ir.i8)
    return phase.b.gep(panels, phase.b.mul(tile, i64_const(form.panel)), form.sum_type)


def _emit_products(module: Module, step: OpStep, name: str, form: _Form) -> NativeKernel:
    """Multiply; a unit is a block column for a chunk of tiles."""
    phase = PhaseBuilder(module, step, name)
    b = phase.b
    whole = form.vectors * form.lanes
    with phase.units() as unit:
        column = b.urem(unit, i64_const(form.across))
        first = b.mul(b.udiv(unit, i64_const(form.across)), i64_const(form.chunk))
        end = b.lesser(b.add(first, i64_const(form.chunk)), i64_const(form.tiles))
        after = b.add(column, i64_const(1))
        blocks = _i64(b, phase.shared, column), _i64(b, phase.shared, after)
        with b.loop(first, end) as tiles:
            at = _Tile(phase, form, tiles.index, column, blocks)
            even = form.width // whole * whole
            with b.loop(i64_const(0), i64_const(even), whole) as parts:
                at.emit(parts.index, form.vectors)
            if even < form.width:
                at.emit(i64_const(even), (form.width - even) // form.lanes)
    chunks = ceil_div(form.tiles, form.chunk)
    products = form.chunk * form.tile * form.count * form.height * form.width // form.across
    return phase.done(chunks * form.across, products + form.chunk * form.tile * form.width)


class _Tile:
    """Multiplies a tile of rows with the blocks of a column.  entries: of these in the order."""

    def __init__(
        self, phase: PhaseBuilder, form: _Form, tile: Val, column: Val, entries: _Range
    ) -> None:
        self.b = phase.b
        self.form = form
        self.blocks, self.result = phase.operands[1], phase.results[0]
        self.order = self.b.gep(phase.shared, form.offsets[0], ir.i8)
        self.panel = _panel(phase, form, tile)
        self.entries = entries
        self.row = form.row(self.b, tile)
        self.column = self.b.mul(column, i64_const(form.width))

    def emit(self, part: Val, vectors: int) -> None:
        """Emit ``vectors`` vectors of the block column, from column ``part`` on."""
        b, form = self.b, self.form
        zeros = [ir.zero(vec(form.sum_type, form.lanes))] * (form.tile * vectors)
        if form.long:
            sums = self._in_runs(part, zeros)
        else:
            sums = self._sums(part, self.entries, (i64_const(0), i64_const(form.height)), zeros)
        element = memory_type(form.dtype)
        for n, total in enumerate(sums):
            r, v = divmod(n, vectors)
            row = b.mul(b.add(self.row, i64_const(r)), i64_const(form.features))
            column = b.add(self.column, b.add(part, i64_const(v * form.lanes)))
            address = b.gep(self.result, b.add(row, column), element)
            b.store(narrow(b, total, form.dtype), address, form.dtype.itemsize)

    def _in_runs(self, part: Val, zeros: Sequence[Val]) -> Sequence[Val]:
        """Sums of partial sums, all of them short."""
        b, form = self.b, self.form
        each = max(1, _RUN // form.height)
        with b.loop(*self.entries, each, zeros) as runs:
            stop = b.lesser(b.add(runs.index, i64_const(each)), self.entries[1])
            with b.loop(i64_const(0), i64_const(form.height), _RUN, runs.carried) as pieces:
                low = pieces.index
                high = b.lesser(b.add(low, i64_const(_RUN)), i64_const(form.height))
                sums = self._sums(part, (runs.index, stop), (low, high), zeros)
                pieces.next(*(b.fadd(x, y) for x, y in zip(pieces.carried, sums, strict=True)))
            runs.next(*pieces.carried)
        return runs.carried

    def _sums(
        self, part: Val, entries: _Range, inner: _Range, zeros: Sequence[Val]
    ) -> Sequence[Val]:
        """Sum products over some entries, and over a range of inner indices of each block."""
        b, form = self.b, self.form
        element, count = memory_type(form.dtype), len(zeros) // form.tile

        def vector(base: Val, v: int) -> Val:
            address = b.gep(base, v * form.lanes, element)
            return widen(b, b.load(vec(element, form.lanes), address, form.dtype.itemsize))

        with b.loop(*entries, 1, zeros) as blocks:
            pair = b.mul(blocks.index, i64_const(2))
            block, row = (_i64(b, self.order, b.add(pair, i64_const(n))) for n in range(2))
            right = b.add(b.mul(block, i64_const(form.height * form.width)), part)
            base = b.gep(self.blocks, right, element)
            left = b.gep(self.panel, b.mul(row, i64_const(form.height * form.tile)), form.sum_type)
            with b.loop(*inner, 1, blocks.carried) as terms:
                at = b.gep(base, b.mul(terms.index, i64_const(form.width)), element)
                vectors = [vector(at, v) for v in range(count)]
                factors = b.gep(left, b.mul(terms.index, i64_const(form.tile)), form.sum_type)
                sums: list[Val] = []
                for r in range(form.tile):
                    address = b.gep(factors, r, form.sum_type)
                    factor = b.load(form.sum_type, address, form.wide.itemsize)
                    spread = b.splat(factor, form.lanes)
                    for v, each in enumerate(vectors):
                        sums.append(b.fma(spread, each, terms.carried[r * count + v]))
                terms.next(*sums)
            blocks.next(*terms.carried)
        return blocks.carried
