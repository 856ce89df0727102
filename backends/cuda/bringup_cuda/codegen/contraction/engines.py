"""Engines that multiply tiles in shared memory, for attention: FMA and tensor cores.

An engine keeps the sums of a block, distributed over its threads.

* FMA: each thread keeps a few rows times a few columns in registers.
* Tensor cores: warps keep blocks of 16 × 8 sums, and load fragments of both factors by matrix
  loads.  One product takes 32 bytes of inner elements, whatever their dtype, and its operands lie
  as ``ldmatrix`` delivers eight rows of 16 bytes; so f16, bf16, i8, u8 and tf32 differ only in the
  name of the instruction.  f32 is rounded to tf32 after the load.  Lines that run along rows or
  columns are transposed by the load, which can do that for elements of two bytes; those of f32 are
  read word by word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bringup.dtypes import DType, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, widen
from bringup.llvm.text import Type, Val, const, vec
from bringup_cuda.codegen.contraction.staging import TileLayout
from bringup_cuda.codegen.contraction.tiles import CHUNK, Tile, sum_type
from bringup_cuda.codegen.nvvm import (
    MMA,
    IntBuilder,
    build_vector,
    i32_const,
    load_matrices,
    multiply_tiles,
    round_to_tf32,
    special_register,
)
from bringup_cuda.targets import WARP

Layouts = tuple[TileLayout, TileLayout]


class Engine(Protocol):
    """Multiplies tiles; sums are values of the thread."""

    def zero_sums(self) -> list[Val]:
        """This thread's sums before the first product."""

    def accumulate(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """Add the products of two tiles in shared memory."""

    def store_sums(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """Write all sums to shared memory, row by row, ``stride`` sums apart."""


def _zeros(kind: Type, count: int) -> list[Val]:
    # Minus zero is the neutral element of addition: it keeps the sign of what is added to it.
    return [const(kind, -0.0 if kind.is_float else 0)] * count


# -- FMA -------------------------------------------------------------------------------------------

#: Threads of a warp down and across: four rows, so that one read serves eight threads.
_WARP_SHAPE = (4, 8)
#: Inner elements whose products are unrolled.
_UNROLLED = 8


class FmaOperand:
    """The elements of one factor that a thread multiplies.

    index: the thread's number among the ``threads`` along this side.
    """

    def __init__(self, b: IntBuilder, layout: TileLayout, index: Val, threads: int) -> None:
        self.b = b
        self.layout = layout
        self.threads = threads
        self.count = layout.extent // threads
        self.lanes = min(CHUNK // layout.dtype.itemsize, self.count)
        self.first = index if layout.inner_minor else b.mul(index, self.lanes)

    def distance(self, n: int) -> int:
        """How far row or column ``n`` of the thread lies behind its first.

        A thread has quads of neighbours.  Where lines run along the inner axis, neighbours belong
        to other threads instead, which keeps reads in different banks.
        """
        if self.layout.inner_minor:
            return n * self.threads
        quad, lane = divmod(n, self.lanes)
        return quad * self.threads * self.lanes + lane

    def position(self, n: int) -> Val:
        """Row or column ``n`` of the thread."""
        return self.b.add(self.first, self.distance(n))

    def load(self, tile: Val, inner: Val, depth: int) -> list[list[Val]]:
        """The thread's elements, widened, for each of ``depth`` inner positions from ``inner``."""
        b, layout = self.b, self.layout
        offset = b.zext(layout.offset(b, self.first, inner), ir.i64)
        start = b.gep(tile, offset, ir.i8)
        if layout.inner_minor:
            lines = [
                self._line(start, self.distance(n) * layout.stride, depth)
                for n in range(self.count)
            ]
            return [[line[d] for line in lines] for d in range(depth)]
        rows: list[list[Val]] = []
        for d in range(depth):
            row: list[Val] = []
            for n in range(0, self.count, self.lanes):
                column = self.distance(n) * layout.dtype.itemsize
                row += self._line(start, d * layout.stride + column, self.lanes)
            rows.append(row)
        return rows

    def _line(self, start: Val, offset: int, lanes: int) -> list[Val]:
        b, dtype = self.b, self.layout.dtype
        address = b.gep(start, offset, ir.i8)
        vector = b.load(vec(memory_type(dtype), lanes), address, dtype.itemsize * lanes)
        return [self._widened(b.extractelement(vector, n)) for n in range(lanes)]

    def _widened(self, value: Val) -> Val:
        dtype, wide = self.layout.dtype, sum_type(self.layout.dtype)
        if dtype.is_float:
            return widen(self.b, value)
        return value if value.type is wide else self.b.zext(value, wide)


class FmaEngine:
    """f32 and f64, rounded once for each product and sum, and integers of any width."""

    def __init__(
        self, b: IntBuilder, tile: Tile, layouts: Layouts, dtype: DType, thread: Val
    ) -> None:
        self.b = b
        self.type = sum_type(dtype)
        lane, warp = b.urem(thread, WARP), b.udiv(thread, WARP)
        (down, across), (lanes_down, lanes_across) = tile.warps, _WARP_SHAPE
        row = b.mul(b.udiv(warp, across), lanes_down)
        row = b.add(row, b.udiv(lane, lanes_across))
        column = b.mul(b.urem(warp, across), lanes_across)
        column = b.add(column, b.urem(lane, lanes_across))
        self.rows = FmaOperand(b, layouts[0], row, down * lanes_down)
        self.columns = FmaOperand(b, layouts[1], column, across * lanes_across)
        self.depth = layouts[0].depth

    def zero_sums(self) -> list[Val]:
        """As in `Engine`."""
        return _zeros(self.type, self.rows.count * self.columns.count)

    def accumulate(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """As in `Engine`."""
        if self.depth <= _UNROLLED:
            return self._accumulate(left, right, i32_const(0), self.depth, sums)
        with self.b.loop(i32_const(0), i32_const(self.depth), _UNROLLED, sums) as loop:
            loop.next(*self._accumulate(left, right, loop.index, _UNROLLED, loop.carried))
        return list(loop.carried)

    def _accumulate(
        self, left: Val, right: Val, first: Val, count: int, sums: Sequence[Val]
    ) -> list[Val]:
        layouts = [operand.layout for operand in (self.rows, self.columns)]
        itemsizes = [layout.dtype.itemsize for layout in layouts if layout.inner_minor]
        depth = CHUNK // max(itemsizes) if itemsizes else 1
        if len(itemsizes) == 2:
            depth = max(depth // 2, 1)  # Elements of both factors would take more registers.
        sums = list(sums)
        for inner in range(0, count, depth):
            position = self.b.add(first, inner)
            rows = self.rows.load(left, position, depth)
            columns = self.columns.load(right, position, depth)
            for xs, ys in zip(rows, columns, strict=True):
                for i, x in enumerate(xs):
                    for j, y in enumerate(ys):
                        n = i * len(ys) + j
                        sums[n] = self._multiply_add(x, y, sums[n])
        return sums

    def _multiply_add(self, x: Val, y: Val, total: Val) -> Val:
        if self.type.is_float:
            return self.b.fma(x, y, total)
        return self.b.add(self.b.mul(x, y), total)

    def store_sums(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """As in `Engine`."""
        b, itemsize = self.b, self.type.bits // 8
        lanes = 1 if self.columns.layout.inner_minor else self.columns.lanes
        lanes = min(lanes, CHUNK // itemsize)
        start = b.add(b.mul(self.rows.first, stride), self.columns.first)
        base = b.gep(shared, b.zext(start, ir.i64), self.type)
        for i in range(self.rows.count):
            for j in range(0, self.columns.count, lanes):
                offset = self.rows.distance(i) * stride + self.columns.distance(j)
                first = i * self.columns.count + j
                vector = build_vector(b, sums[first : first + lanes])
                b.store(vector, b.gep(base, offset, self.type), itemsize * lanes)

    def scale_rows(self, sums: Sequence[Val], factors: Val) -> list[Val]:
        """Multiply the sums of each row by its factor, an array in shared memory."""
        b, across = self.b, self.columns.count
        scaled: list[Val] = []
        for i in range(self.rows.count):
            row = b.zext(self.rows.position(i), ir.i64)
            factor = b.load(self.type, b.gep(factors, row, self.type), self.type.bits // 8)
            scaled += [b.fmul(s, factor) for s in sums[i * across : (i + 1) * across]]
        return scaled


# -- tensor cores ----------------------------------------------------------------------------------

#: Rows, columns and bytes of inner elements of one product.
MMA_ROWS, MMA_COLUMNS, MMA_BYTES = 16, 8, 32


def _lane(b: IntBuilder) -> Val:
    return b.urem(special_register(b, "tid.x"), WARP)


class Fragments(Protocol):
    """The fragments of one factor, ``count`` times 16 rows or columns."""

    count: int

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """Fragment ``block`` of 16, at the ``step``-th 32 bytes of inner elements."""


class MatrixFragments:
    """Fragments by matrix loads.

    start: the warp's first row or column.  left: whether this is the left factor.  Of its four
    matrices the second has the next rows; of those of the right factor, the next inner elements.
    """

    def __init__(
        self, b: IntBuilder, layout: TileLayout, start: Val, count: int, *, left: bool
    ) -> None:
        self.b = b
        self.layout = layout
        self.start = start
        self.count = count
        lane = _lane(b)
        line = b.and_(lane, 15)
        # Which of the four matrices lies beside and which below depends on the factor, and on
        # whether lines run along the inner axis.
        if left is layout.inner_minor:
            side = b.lshr(lane, 4)
        else:
            upper = b.and_(b.lshr(lane, 1), 8)
            line = b.add(b.and_(lane, 7), upper)
            side = b.and_(b.lshr(lane, 3), 1)
        self.swizzle = b.xor(b.mul(side, CHUNK), layout.swizzle(b, line))
        line = b.add(start, line) if layout.inner_minor else line
        self.line_offset = b.zext(b.mul(line, layout.stride), ir.i64)

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """As in `Fragments`."""
        b, layout = self.b, self.layout
        if layout.inner_minor:
            lines, column = block * MMA_ROWS, i32_const(step * MMA_BYTES)
        else:
            lines = step * MMA_BYTES // layout.dtype.itemsize
            column = b.add(self.start, block * MMA_ROWS)
            column = b.mul(column, layout.dtype.itemsize)
        # The swizzle repeats every sixteen lines, so whole blocks are a constant distance.
        address = b.gep(tile, self.line_offset, ir.i8)
        address = b.gep(address, b.zext(b.xor(column, self.swizzle), ir.i64), ir.i8)
        address = b.gep(address, lines * layout.stride, ir.i8)
        return load_matrices(b, address, not layout.inner_minor)


class WordFragments:
    """Fragments of elements of four bytes whose lines run along rows or columns.

    Each lane reads its own word of each matrix.

    paired: whether inner elements alternate between two matrices, as sums do that become the other
    factor; else the first four belong to one matrix.
    """

    def __init__(
        self,
        b: IntBuilder,
        layout: TileLayout,
        start: Val,
        count: int,
        *,
        left: bool,
        paired: bool = False,
    ) -> None:
        self.b = b
        self.layout = layout
        self.count = count
        lane = _lane(b)
        outer, inner = b.add(start, b.udiv(lane, 4)), b.urem(lane, 4)
        inner = b.mul(inner, 2) if paired else inner
        self.offset = b.zext(layout.offset(b, outer, inner), ir.i64)
        beside, below = (1 if paired else 4) * layout.stride, 8 * layout.dtype.itemsize
        second, third = (below, beside) if left else (beside, below)
        self.matrices = [0, second, third, second + third]

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """As in `Fragments`."""
        b, size = self.b, self.layout.dtype.itemsize
        first = block * MMA_ROWS * size + step * MMA_BYTES // size * self.layout.stride
        base = b.gep(tile, self.offset, ir.i8)
        return [b.load(ir.i32, b.gep(base, first + place, ir.i8), size) for place in self.matrices]


class RoundedFragments:
    """Fragments of f32, rounded to the nearest tf32, which is what tensor cores take."""

    def __init__(self, fragments: Fragments, b: IntBuilder) -> None:
        self.b = b
        self.fragments = fragments
        self.count = fragments.count

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """As in `Fragments`."""
        b = self.b
        words = self.fragments.load(tile, block, step)
        return [round_to_tf32(b, b.bitcast(word, ir.f32)) for word in words]


def _fragments(
    b: IntBuilder, layout: TileLayout, start: Val, count: int, *, left: bool, paired: bool = False
) -> Fragments:
    """The fragments of a factor of this layout; parameters are as in the classes."""
    if layout.dtype is not f32:
        return MatrixFragments(b, layout, start, count, left=left)
    if layout.inner_minor:
        assert not paired, "a matrix load takes neighbours"
        return RoundedFragments(MatrixFragments(b, layout, start, count, left=left), b)
    return RoundedFragments(WordFragments(b, layout, start, count, left=left, paired=paired), b)


class TensorEngine:
    """Products of f16, bf16 and tf32 with sums of f32, and of bytes with sums of i32.

    paired: for the right factor, see `WordFragments`.
    """

    def __init__(
        self,
        b: IntBuilder,
        tile: Tile,
        layouts: Layouts,
        dtype: DType,
        thread: Val,
        *,
        paired: bool = False,
    ) -> None:
        self.b = b
        self.dtype = dtype
        self.lane = b.urem(thread, WARP)
        warp = b.udiv(thread, WARP)
        down, across = tile.warps
        height, width = tile.rows // down, tile.columns // across
        self.row = b.mul(b.udiv(warp, across), height)
        self.column = b.mul(b.urem(warp, across), width)
        self.down, self.across = height // MMA_ROWS, width // MMA_COLUMNS
        self.left = _fragments(b, layouts[0], self.row, self.down, left=True)
        self.right = _fragments(
            b, layouts[1], self.column, self.across // 2, left=False, paired=paired
        )
        self.steps = layouts[0].depth * dtype.itemsize // MMA_BYTES

    def zero_sums(self) -> list[Val]:
        """As in `Engine`."""
        return _zeros(MMA[self.dtype.name][2], 4 * self.down * self.across)

    def accumulate(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """As in `Engine`."""
        sums = list(sums)
        for step in range(self.steps):
            rows = [self.left.load(left, n, step) for n in range(self.left.count)]
            columns = self._columns(right, step)
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    n = 4 * (i * self.across + j)
                    sums[n : n + 4] = multiply_tiles(
                        self.b, self.dtype.name, row, column, sums[n : n + 4]
                    )
        return sums

    def accumulate_registers(
        self, rows: Sequence[Sequence[Sequence[Val]]], right: Val, sums: Sequence[Val]
    ) -> list[Val]:
        """Add the products of fragments in registers with a tile in shared memory.

        rows: for each step of the inner axis the fragments of the warp's 16 rows: the terms whose
        sum is the left factor.
        """
        assert self.down == 1, "a warp has 16 rows"
        sums = list(sums)
        for step, terms in enumerate(rows):
            for j, column in enumerate(self._columns(right, step)):
                for row in terms:
                    n = 4 * j
                    sums[n : n + 4] = multiply_tiles(
                        self.b, self.dtype.name, row, column, sums[n : n + 4]
                    )
        return sums

    def _columns(self, right: Val, step: int) -> list[list[Val]]:
        """Fragments of eight columns each."""
        pairs = [self.right.load(right, n, step) for n in range(self.right.count)]
        return [pair[half : half + 2] for pair in pairs for half in (0, 2)]

    def store_sums(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """As in `Engine`."""
        b, lane = self.b, _lane(self.b)
        row = b.add(self.row, b.udiv(lane, 4))
        column = b.add(self.column, b.mul(b.urem(lane, 4), 2))
        element = sums[0].type
        start = b.zext(b.add(b.mul(row, stride), column), ir.i64)
        base = b.gep(shared, start, element)
        for n in range(0, len(sums), 2):
            block, half = divmod(n // 2, 2)
            i, j = divmod(block, self.across)
            pair = build_vector(b, sums[n : n + 2])
            offset = (i * MMA_ROWS + half * 8) * stride + j * MMA_COLUMNS
            b.store(pair, b.gep(base, offset, element), 8)
