"""The innermost loops of packed products: a tile of sums kept in registers.

A panel of the left factor holds, for each inner index, the elements of so many rows one after the
other, a panel of the right factor those of so many columns.  The tile is as many sums as there are
registers for, less a few; each turn of the loop loads a vector or two of the right panel, spreads
each element of the left one, and adds the products.

Integers of up to 16 bits whose sums have 32 go in pairs: an element of a panel is two neighbours
along the inner axis in one word, and a step multiplies both and adds the products.  That is exact,
and one instruction on x86-64 (``pmaddwd``, with AVX512-VNNI ``vpdpwssd``), where a product of words
alone is two.
"""

from __future__ import annotations

from bringup.dtypes import DType, i16
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, convert, identity, memory_type, register_type
from bringup.llvm.text import Builder, Callee, Module, Param, Val, const, vec
from bringup.records import record


@record
class TileShape:
    """Sums in registers: ``rows`` by ``vectors`` of ``lanes`` columns.

    pair: whether an element of a panel is a pair of neighbours along the inner axis.
    """

    rows: int
    vectors: int
    lanes: int
    pair: bool = False

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


def micro_kernel(module: Module, dtype: DType, shape: TileShape, stored: DType) -> Callee:
    """``void (ptr a, ptr b, ptr c, i64 count, i1 first)``: a tile of products over ``count`` inner
    indices, or pairs of them, written to ``c`` row by row if it is the first, else added to what is
    there.

    stored: dtype of the right panels' elements, converted when they are read.
    """
    name = f"bringup.product.{dtype}.{stored}.{shape.rows}x{shape.vectors}x{shape.lanes}"
    name += ".pairs" if shape.pair else ""
    found = module.functions.get(name)
    if found is None:
        params: list[Param] = [("a", ir.ptr, "noalias"), ("b", ir.ptr, "noalias")]
        params += [("c", ir.ptr, "noalias"), ("count", ir.i64), ("first", ir.i1)]
        found = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
        _Micro(Builder(found.block("entry")), dtype, shape, stored).fill(*found.args)
    return found.callee


class _Micro:
    def __init__(self, b: Builder, dtype: DType, shape: TileShape, stored: DType) -> None:
        self.b = b
        self.stored = stored
        self.dtype = dtype
        self.shape = shape
        self.element = register_type(dtype)
        self.places = [(r, v) for r in range(shape.rows) for v in range(shape.vectors)]

    def fill(self, a: Val, other: Val, c: Val, count: Val, first: Val) -> None:
        b, shape = self.b, self.shape
        start = identity("add", self.dtype, shape.lanes)
        with b.loop(const(ir.i64, 0), count, carried=[start] * len(self.places)) as loop:
            left = b.gep(a, b.mul(loop.index, const(ir.i64, shape.rows)), self.element)
            vectors = [self._right(other, loop.index, v) for v in range(shape.vectors)]
            sums: list[Val] = []
            for r in range(shape.rows):
                number = b.load(self.element, b.gep(left, r, self.element), self.element.bits // 8)
                spread = b.splat(number, shape.lanes)
                for v, vector in enumerate(vectors):
                    sums.append(self._step(spread, vector, loop.carried[r * len(vectors) + v]))
            loop.next(*sums)
        b.cond(
            first,
            lambda: self._write(c, loop.carried),
            lambda: self._write(c, [self._onto(c, n, s) for n, s in enumerate(loop.carried)]),
        )
        b.ret()

    def _right(self, panel: Val, index: Val, place: int) -> Val:
        """A vector of the right panel, of pairs joined here if it has none."""
        b, dtype, shape = self.b, self.stored, self.shape
        rows = 2 if shape.pair and dtype is not self.dtype else 1
        at = b.mul(index, const(ir.i64, rows * shape.columns))
        row = b.gep(panel, at, memory_type(dtype))
        if rows == 1:
            return convert(b, self._vector(row, place, dtype), dtype, self.dtype)
        even, odd = (self._vector(row, place + n * shape.vectors, dtype) for n in range(2))
        order = [n + half for n in range(shape.lanes) for half in (0, shape.lanes)]
        pairs = convert(b, b.shufflevector(even, odd, order), dtype, i16)
        return b.bitcast(pairs, vec(self.element, shape.lanes))

    def _vector(self, base: Val, place: int, dtype: DType) -> Val:
        element, lanes = memory_type(dtype), self.shape.lanes
        address = self.b.gep(base, place * lanes, element)
        return self.b.load(vec(element, lanes), address, element.bits // 8)

    def _step(self, x: Val, y: Val, total: Val) -> Val:
        if self.dtype.is_float:
            return self.b.fma(x, y, total)
        if self.shape.pair:
            return self.b.add(self._pairs(x, y), total)
        return self.b.add(self.b.mul(x, y), total)

    def _pairs(self, x: Val, y: Val) -> Val:
        """The products of both halves of each word, added; LLVM knows this form."""
        b, count = self.b, 2 * self.shape.lanes
        x, y = (b.sext(b.bitcast(v, vec(ir.i16, count)), vec(ir.i32, count)) for v in (x, y))
        products = b.mul(x, y)
        even, odd = (b.shufflevector(products, None, range(n, count, 2)) for n in (0, 1))
        return b.add(even, odd)

    def _onto(self, c: Val, place: int, part: Val) -> Val:
        return combine(self.b, "add", self.dtype, self._vector(c, place, self.dtype), part)

    def _write(self, c: Val, sums: list[Val] | tuple[Val, ...]) -> None:
        for place, total in enumerate(sums):
            address = self.b.gep(c, place * self.shape.lanes, self.element)
            self.b.store(total, address, self.element.bits // 8)


__all__ = ["TileShape", "micro_kernel"]
