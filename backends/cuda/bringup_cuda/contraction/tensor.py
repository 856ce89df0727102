"""Sums of products by tensor cores: warps keep blocks of 16 × 8 sums and feed them from shared
memory by matrix loads.

One product takes 32 bytes of inner elements whatever their dtype, and lane for lane its operands
lie as `ldmatrix` delivers eight rows of 16 bytes; so f16, bf16, i8, u8 and tf32 differ in nothing
but the name of the instruction; f32 is rounded to tf32 on its way there.  Lines that run along rows
or columns are turned by the transposing form, which exists for elements of two bytes; those of f32
are read word by word.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType, f32
from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Val, const, struct_type, vec
from bringup_cuda.contraction.layout import CHUNK, Layout
from bringup_cuda.contraction.points import number
from bringup_cuda.contraction.tiles import Tile

#: Rows, columns and bytes of inner elements of one product.
ROWS, COLUMNS, BYTES = 16, 8, 32

_PRODUCTS = {
    "f16": ("m16n8k16.row.col.f32.f32", vec(ir.f16, 2), ir.f32),
    "bf16": ("m16n8k16.row.col.bf16", ir.i32, ir.f32),
    "f32": ("m16n8k8.row.col.tf32", ir.i32, ir.f32),
    "i8": ("m16n8k32.row.col.s8", ir.i32, ir.i32),
    "u8": ("m16n8k32.row.col.u8", ir.i32, ir.i32),
}


def product(
    b: Builder, dtype: DType, left: Sequence[Val], right: Sequence[Val], sums: Sequence[Val]
) -> list[Val]:
    """Emit one product: 4 registers of rows and 2 of columns added to 4 sums of this lane."""
    name, kind, total = _PRODUCTS[dtype.name]
    operands = [v if kind is ir.i32 else b.bitcast(v, kind) for v in (*left, *right)]
    made = b.intrinsic(f"llvm.nvvm.mma.{name}", struct_type(*[total] * 4), (*operands, *sums), ())
    return [b.extractvalue(made, n) for n in range(4)]


def load_matrices(b: Builder, address: Val, turned: bool) -> list[Val]:
    """Emit the load of four matrices of eight rows of 16 bytes, a row's address in each lane."""
    form = "m8n8.x4.trans.b16" if turned else "m8n8.x4.b16"
    made = b.intrinsic(
        f"llvm.nvvm.ldmatrix.sync.aligned.{form}",
        struct_type(*[ir.i32] * 4),
        (address,),
        (address.type,),
    )
    return [b.extractvalue(made, n) for n in range(4)]


class Fragments:
    """The fragments of one factor, 16 rows or columns at a time.

    start: the warp's first row or column.  of_rows: whether it is the left factor, whose four
    matrices stand rows first; the right one's stand inner elements first.
    """

    def __init__(self, b: Builder, layout: Layout, start: Val, count: int, of_rows: bool) -> None:
        self.b = b
        self.layout = layout
        self.start = start
        self.count = count
        lane = b.urem(b.intrinsic("llvm.nvvm.read.ptx.sreg.tid.x", ir.i32, (), ()), number(32))
        low = b.and_(lane, number(15))
        # Which of the four matrices is beside and which below depends on the order of the factor
        # and on whether lines run the other way.
        if of_rows is layout.inner_minor:
            self.line, self.side = low, b.lshr(lane, number(4))
        else:
            upper = b.and_(b.lshr(lane, number(1)), number(8))
            self.line = b.add(b.and_(lane, number(7)), upper)
            self.side = b.and_(b.lshr(lane, number(3)), number(1))
        self.turn = b.xor(b.mul(self.side, number(CHUNK)), layout.turn(b, self.line))
        line = b.add(start, self.line) if layout.inner_minor else self.line
        self.first = b.zext(b.mul(line, number(layout.stride)), ir.i64)

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """Block ``block`` of 16, at the ``step``-th 32 bytes of inner elements."""
        b, layout = self.b, self.layout
        if layout.inner_minor:
            lines, column = block * ROWS, number(step * BYTES)
        else:
            lines = step * BYTES // layout.dtype.itemsize
            column = b.add(self.start, number(block * ROWS))
            column = b.mul(column, number(layout.dtype.itemsize))
        # Sixteen lines on, chunks have changed places alike: the rest is a constant.
        at = b.gep(tile, self.first, ir.i8)
        at = b.gep(at, b.zext(b.xor(column, self.turn), ir.i64), ir.i8)
        return load_matrices(b, b.gep(at, lines * layout.stride, ir.i8), not layout.inner_minor)


class WordFragments:
    """The same of elements of four bytes, whose lines run along rows or columns: of each matrix a
    lane reads the word that is its own.

    paired: inner elements are two matrices' in turn, as sums lie that become the other factor; else
    the first four are one's.
    """

    def __init__(
        self,
        b: Builder,
        layout: Layout,
        start: Val,
        count: int,
        of_rows: bool,
        paired: bool = False,
    ) -> None:
        self.b = b
        self.layout = layout
        self.count = count
        lane = b.urem(b.intrinsic("llvm.nvvm.read.ptx.sreg.tid.x", ir.i32, (), ()), number(32))
        own, inner = b.add(start, b.udiv(lane, number(4))), b.urem(lane, number(4))
        inner = b.mul(inner, number(2)) if paired else inner
        self.first = b.zext(layout.offset(b, own, inner), ir.i64)
        # From the first of the four matrices to the others.
        beside, below = (1 if paired else 4) * layout.stride, 8 * layout.dtype.itemsize
        second, third = (below, beside) if of_rows else (beside, below)
        self.matrices = [0, second, third, second + third]

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """Block ``block`` of 16, at the ``step``-th 32 bytes of inner elements."""
        b, size = self.b, self.layout.dtype.itemsize
        first = block * ROWS * size + step * BYTES // size * self.layout.stride
        base = b.gep(tile, self.first, ir.i8)
        return [b.load(ir.i32, b.gep(base, first + place, ir.i8), size) for place in self.matrices]


class RoundedFragments:
    """Fragments of f32 as tensor cores take them: rounded to tf32, to nearest."""

    def __init__(self, fragments: Fragments | WordFragments) -> None:
        self.b = fragments.b
        self.fragments = fragments
        self.count = fragments.count

    def load(self, tile: Val, block: int, step: int) -> list[Val]:
        """Block ``block`` of 16, at the ``step``-th 32 bytes of inner elements."""
        b = self.b
        return [rounded(b, b.bitcast(v, ir.f32)) for v in self.fragments.load(tile, block, step)]


def rounded(b: Builder, value: Val) -> Val:
    """A number of f32 as tf32, in a register."""
    return b.intrinsic("llvm.nvvm.f2tf32.rna", ir.i32, (value,), ())


def fragments_of(
    b: Builder, layout: Layout, start: Val, count: int, of_rows: bool, paired: bool = False
) -> Fragments | RoundedFragments:
    """Those of a factor that lies in shared memory so; the rest is as in the classes."""
    if layout.dtype is not f32:
        return Fragments(b, layout, start, count, of_rows)
    if layout.inner_minor:
        assert not paired, "a matrix load takes neighbours"
        return RoundedFragments(Fragments(b, layout, start, count, of_rows))
    return RoundedFragments(WordFragments(b, layout, start, count, of_rows, paired))


class TensorEngine:
    """Products of halves and of tf32 summed in f32, of bytes in i32.

    paired: of the right factor, see `WordFragments`.
    """

    def __init__(
        self,
        b: Builder,
        tile: Tile,
        layouts: tuple[Layout, Layout],
        dtype: DType,
        mine: Val,
        paired: bool = False,
    ) -> None:
        self.b = b
        self.dtype = dtype
        self.lane = b.urem(mine, number(32))
        warp = b.udiv(mine, number(32))
        down, across = tile.warps
        height, width = tile.rows // down, tile.columns // across
        self.row = b.mul(b.udiv(warp, number(across)), number(height))
        self.column = b.mul(b.urem(warp, number(across)), number(width))
        self.down, self.across = height // ROWS, width // COLUMNS
        self.left = fragments_of(b, layouts[0], self.row, self.down, of_rows=True)
        half = self.across // 2
        self.right = fragments_of(b, layouts[1], self.column, half, of_rows=False, paired=paired)
        self.steps = layouts[0].depth * dtype.itemsize // BYTES
        self.type = _PRODUCTS[dtype.name][2]

    def start(self) -> list[Val]:
        """The sums of nothing, of this thread."""
        return [const(self.type, -0.0 if self.type.is_float else 0)] * (4 * self.down * self.across)

    def step(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """Add the products of two tiles in shared memory."""
        live = list(sums)
        for step in range(self.steps):
            rows = [self.left.load(left, n, step) for n in range(self.left.count)]
            columns = self._columns(right, step)
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    place = 4 * (i * self.across + j)
                    made = product(self.b, self.dtype, row, column, live[place : place + 4])
                    live[place : place + 4] = made
        return live

    def multiply(
        self, rows: Sequence[Sequence[Sequence[Val]]], right: Val, sums: Sequence[Val]
    ) -> list[Val]:
        """Add the products of fragments in registers with a tile in shared memory.

        rows: for each step of the inner axis fragments of the warp's only 16 rows, which have the
        same columns; more than one where a number is the sum of several.
        """
        assert self.down == 1, "a warp has 16 rows"
        live = list(sums)
        for step, terms in enumerate(rows):
            for j, column in enumerate(self._columns(right, step)):
                for row in terms:
                    made = product(self.b, self.dtype, row, column, live[4 * j : 4 * j + 4])
                    live[4 * j : 4 * j + 4] = made
        return live

    def _columns(self, right: Val, step: int) -> list[list[Val]]:
        """Fragments of eight columns each."""
        pairs = [self.right.load(right, n, step) for n in range(self.right.count)]
        return [pair[half : half + 2] for pair in pairs for half in (0, 2)]

    def meet(self) -> None:
        """Nothing is under way."""

    def finish(self, sums: Sequence[Val]) -> list[Val]:
        """The sums."""
        return list(sums)

    def put(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """Write all sums to shared memory, row by row, ``stride`` sums apart."""
        put_sums(self.b, sums, (self.row, self.column), self.across, shared, stride)


def put_sums(
    b: Builder, sums: Sequence[Val], first: tuple[Val, Val], across: int, shared: Val, stride: int
) -> None:
    """Write a warp's sums to shared memory, row by row, ``stride`` sums apart.

    first: its row and column.  across: blocks of 16 × 8 side by side.
    """
    lane = b.urem(b.intrinsic("llvm.nvvm.read.ptx.sreg.tid.x", ir.i32, (), ()), number(32))
    row = b.add(first[0], b.udiv(lane, number(4)))
    column = b.add(first[1], b.mul(b.urem(lane, number(4)), number(2)))
    kind = sums[0].type
    start = b.zext(b.add(b.mul(row, number(stride)), column), ir.i64)
    base, pair = b.gep(shared, start, kind), vec(kind, 2)
    for place in range(0, len(sums), 2):
        block, half = divmod(place // 2, 2)
        i, j = divmod(block, across)
        both = ir.poison(pair)
        for n in range(2):
            both = b.insertelement(both, sums[place + n], n)
        at = (i * ROWS + half * 8) * stride + j * COLUMNS
        b.store(both, b.gep(base, at, kind), 8)
