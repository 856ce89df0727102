"""Sums of products by the tensor cores of sm_90a, which read both factors from shared memory.

A warpgroup, four warps, keeps 64 rows of sums and asks for products of 64 × N × 16, which go on by
themselves.  It says where a factor lies by a descriptor: the address of its first element, and how
the pieces of 128 bytes that `Layout.panels` cuts lines into follow each other.  What a step asks
for is one group; the warpgroup waits for it before the barrier of the next step but one, so that
tensor cores always have a tile to go on with.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Val, const, struct_type
from bringup_cuda.contraction.layout import CHUNK, PANEL, TURN, Layout
from bringup_cuda.contraction.points import number
from bringup_cuda.contraction.tensor import BYTES, COLUMNS, put_sums
from bringup_cuda.contraction.tiles import Tile

#: Threads of a warpgroup, and rows of its products.
THREADS, ROWS = 128, 64
#: Descriptors: chunks are turned in pieces of 128 bytes, and what says so.
_TURNED = 1 << 62


class Operand:
    """One factor as a warpgroup's products name it.

    first: the warpgroup's first row or column.
    """

    def __init__(self, b: Builder, layout: Layout, first: Val) -> None:
        assert layout.panels, "descriptors know no other lines"
        assert not layout.inner_minor or layout.depth * layout.dtype.itemsize == PANEL
        self.b = b
        self.turned = not layout.inner_minor
        # Eight lines follow each other at once; from panel to panel only rows or columns do.
        beside = layout.panel if self.turned else CHUNK
        self.fixed = _TURNED | TURN // CHUNK << 32 | beside // CHUNK << 16
        line = BYTES // layout.dtype.itemsize * PANEL
        self.step = (line if self.turned else BYTES) // CHUNK
        own = PANEL // layout.dtype.itemsize
        start = b.mul(first, number(PANEL))
        if self.turned:
            start = b.mul(b.udiv(first, number(own)), number(layout.panel))
        self.start = b.zext(start, ir.i64)

    def describe(self, tile: Val) -> Val:
        """The descriptor of the first product's part of a tile in shared memory."""
        b = self.b
        at = b.add(b.ptrtoint(tile, ir.i64), self.start)
        chunk = b.and_(b.udiv(at, const(ir.i64, CHUNK)), const(ir.i64, (1 << 14) - 1))
        return b.or_(chunk, const(ir.i64, self.fixed))

    def at(self, first: Val, step: int) -> Val:
        """The descriptor of the ``step``-th 32 bytes of inner elements."""
        return self.b.add(first, const(ir.i64, step * self.step))


class WarpgroupEngine:
    """Products of halves, summed in f32."""

    def __init__(
        self, b: Builder, tile: Tile, layouts: tuple[Layout, Layout], dtype: DType, mine: Val
    ) -> None:
        self.b = b
        self.dtype = dtype
        down, across = tile.warps[0] * 32 // THREADS, tile.warps[1]
        self.width = tile.columns // across
        assert tile.rows == down * ROWS, "a warpgroup has 64 rows"
        group = self._same(b.udiv(mine, number(THREADS)))
        row = b.mul(b.udiv(group, number(across)), number(ROWS))
        column = b.mul(b.urem(group, number(across)), number(self.width))
        self.left = Operand(b, layouts[0], row)
        self.right = Operand(b, layouts[1], column)
        warp = b.urem(b.udiv(mine, number(32)), number(THREADS // 32))
        self.first = b.add(row, b.mul(warp, number(ROWS // 4))), column
        self.steps = layouts[0].depth * dtype.itemsize // BYTES

    def _same(self, value: Val) -> Val:
        """A number that all lanes of a warp have, as one that the assembler knows to be so."""
        args = number(-1), value, number(0), number(31)
        return self.b.intrinsic("llvm.nvvm.shfl.sync.idx.i32", ir.i32, args, ())

    def start(self) -> list[Val]:
        """The sums of nothing, of this thread."""
        return [const(ir.f32, -0.0)] * (self.width // 2)

    def step(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """Ask for the products of two tiles in shared memory; they are in the sums when waited for,
        and until then the sums must be left alone.
        """
        b = self.b
        # Registers that LLVM wrote behind the fence would need another one.
        live = self._tied("wgmma.fence.sync.aligned;", sums, ())
        x, y = self.left.describe(left), self.right.describe(right)
        for step in range(self.steps):
            live = self._product(live, self.left.at(x, step), self.right.at(y, step))
        b.intrinsic("llvm.nvvm.wgmma.commit_group.sync.aligned", ir.void, (), ())
        return live

    def _product(self, sums: Sequence[Val], left: Val, right: Val) -> list[Val]:
        """Ask for one product.  LLVM has no intrinsic of it."""
        count, kind = len(sums), self.dtype.name
        registers = ", ".join(f"${n}" for n in range(count))
        turned = f"{int(self.left.turned)}, {int(self.right.turned)}"
        text = (
            "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
            f"wgmma.mma_async.sync.aligned.m{ROWS}n{self.width}k16.f32.{kind}.{kind} "
            f"{{{registers}}}, ${2 * count}, ${2 * count + 1}, p, 1, 1, {turned}; }}"
        )
        return self._tied(text, sums, (left, right))

    def _tied(self, text: str, sums: Sequence[Val], others: Sequence[Val]) -> list[Val]:
        """PTX that changes registers where they are, and reads 64-bit ones besides."""
        b, count = self.b, len(sums)
        kind = struct_type(*[ir.f32] * count)
        ties = [str(n) for n in range(count)]
        constraints = ",".join([*["=f"] * count, *ties, *["l"] * len(others), "~{memory}"])
        operands = ", ".join(map(str, (*sums, *others)))
        call = f'call {kind.text} asm sideeffect "{text}", "{constraints}"({operands}) convergent'
        made = b.emit(kind, call)
        return [b.extractvalue(made, n) for n in range(count)]

    def meet(self) -> None:
        """Let tensor cores see what this thread has written, and finish all but the last tile."""
        b = self.b
        b.intrinsic("llvm.nvvm.fence.proxy.async.shared_cta", ir.void, (), ())
        b.intrinsic("llvm.nvvm.wgmma.wait_group.sync.aligned", ir.void, (const(ir.i64, 1),), ())

    def finish(self, sums: Sequence[Val]) -> list[Val]:
        """The sums, when all products are in them."""
        return self._tied("wgmma.wait_group.sync.aligned 0;", sums, ())

    def put(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """Write all sums to shared memory, row by row, ``stride`` sums apart."""
        put_sums(self.b, sums, self.first, self.width // COLUMNS, shared, stride)
