"""Products of tiles by a warp's matrix unit, of factors in shared memory and sums in registers.

Factors whose lines run along the inner axis are loaded as matrices of eight lines; those whose
lines run along rows or columns as well, transposed, where elements have two bytes, else word by
word.  What was loaded is kept for the other products of the same threads.  A left factor may be in
registers, as sums of other products are: then a lane has neighbours, of which those of four bytes
belong to two matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product as points

from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.simt.target import MatrixUnit
from bringup.llvm.simt.tiles import CHUNK, TileMemory
from bringup.llvm.text import Val, vec
from bringup.loops.form import For, Load
from bringup.loops.schedule.tensors import TileProduct
from bringup.records import record

#: Rows, columns, and bytes of inner elements of a product; lanes of a warp.
ROWS, COLUMNS, BYTES, LANES = 16, 8, 32, 32


class Products:
    """The products that threads have in one nest.

    thread: the number of the thread.  ranks: registers of fragments, as in `in_registers`.
    """

    def __init__(
        self,
        memory: TileMemory,
        unit: MatrixUnit | None,
        thread: Val,
        ranks: Mapping[str, Mapping[int, int]],
    ) -> None:
        self.memory, self.unit, self.ranks = memory, unit, ranks
        self.b, self.indices = memory.b, memory.indices
        self.thread = thread
        self.known: dict[For, tuple[TileProduct, _Factor, _Factor]] = {}
        self.forget()

    def forget(self) -> None:
        """What was loaded is not there any more, or may have changed."""
        self.loaded: dict[tuple[str, str, int, int], list[Val]] = {}
        self.lines: dict[tuple[bool, int, int], tuple[Val, Val]] = {}

    def emit(self, loop: For) -> None:
        """Emit what a loop with a shape says."""
        if loop not in self.known:
            self.known[loop] = self.checked(loop)
        product, left, right = self.known[loop]
        self.add(product, left.load.result.dtype.name, self.factor(left), self.factor(right))

    def checked(self, loop: For) -> tuple[TileProduct, _Factor, _Factor]:
        """The product of a loop and its factors.  Raises UnsupportedError."""
        product = TileProduct.of(loop)
        if self.unit is None or product is None:
            raise UnsupportedError(f"no unit of this GPU does what loop {loop.name} says")
        kind, sums = product.left.result.dtype, product.sums
        is_known = sums.buffer.dtype.name in self.unit.dtypes.get(kind.name, ())
        is_known &= kind == product.right.result.dtype
        is_known &= loop.by == f"{ROWS}x{COLUMNS}x{BYTES // kind.itemsize}"
        is_known &= kind.name != "f32" or sums.precision == "tf32"
        if not is_known or [(v.kind, v.axis.size) for v in (*product.rows, *product.columns)] != [
            ("thread", 8), ("unroll", 2), ("thread", 4), ("unroll", 2)
        ]:  # fmt: skip
            raise UnsupportedError(f"no unit multiplies as loop {loop.name} says: {loop.by}")
        left = _Factor.of(product.left, product.rows, product.inner, is_left=True)
        is_paired = left.is_held and kind.itemsize == 4
        columns = product.right, product.columns, product.inner
        right = _Factor.of(*columns, is_left=False, is_paired=is_paired)
        return product, left, right

    def add(self, product: TileProduct, kind: str, left: list[Val], right: list[Val]) -> None:
        """Add the products to the sums of this lane."""
        assert self.unit is not None
        sums, registers = product.sums, self.memory.registers
        down, across = product.rows[1].axis, product.columns[1].axis
        places: list[int] = []
        for row in range(2):
            for column in range(2):
                self.indices.axes[down] = self.indices.const(row)
                self.indices.axes[across] = self.indices.const(column)
                first = self.indices.scalar(sums.index).integer
                assert first is not None, "sums are registers"
                places.append(first)
        before = [registers.read(sums.buffer, place, 1) for place in places]
        for place, total in zip(
            places, self.unit.multiply(self.b, kind, left, right, before), strict=True
        ):
            registers.write(sums.buffer, place, total)

    def factor(self, factor: _Factor) -> list[Val]:
        """The registers of a factor: four of rows, or two of columns."""
        name, start = factor.load.buffer.name, factor.start
        constant, others = start.const, list[str]()
        for atom, c in start.terms:
            known = self.indices.axes[atom].integer if isinstance(atom, Axis) else None
            if known is None:
                others.append(f"{c}*{atom}")
            else:
                constant += c * known
        key = name, "+".join(others), factor.along
        if not factor.is_left:
            before = self.loaded.get((*key, constant - 8 * factor.across))
            if before is not None:
                return before[2:]
        if (*key, constant) not in self.loaded:
            words = self.held(factor, constant) if factor.is_held else self.read(factor)
            self.loaded[*key, constant] = words
        words = self.loaded[*key, constant]
        return words if factor.is_left else words[:2]

    def held(self, factor: _Factor, first: int) -> list[Val]:
        """Sixteen rows that lanes have, in four registers.

        first: the element of the first row of thread 0.
        """
        assert self.unit is not None
        b, load, registers = self.b, factor.load, self.memory.registers
        buffer, ranks = registers.buffers[load.buffer.name], self.ranks[load.buffer.name]
        loops = factor.own[-1], factor.inner[0], factor.inner[-1]
        down, beside, behind = (load.index.coefficient(loop.axis) or 0 for loop in loops)
        is_word = load.result.dtype.itemsize == 4
        words: list[Val] = []
        for matrix, row in points(range(2), range(2)):
            place = first + row * down + matrix * (behind if is_word else beside)
            places = (place,) if is_word else (place, place + behind)
            elements = [registers.read(buffer, ranks[each], 1) for each in places]
            if is_word:
                words.append(self.unit.rounded(b, elements[0]))
                continue
            pair = ir.poison(vec(elements[0].type, 2))
            for n, element in enumerate(elements):
                pair = b.insertelement(pair, element, n)
            words.append(b.cast("bitcast", pair, ir.i32))
        return words

    def read(self, factor: _Factor) -> list[Val]:
        """Sixteen rows or columns, in four registers."""
        assert self.unit is not None
        load, start, across, along = factor.load, factor.start, factor.across, factor.along
        is_left, dtype = factor.is_left, load.result.dtype
        if dtype.itemsize == 4 and along != 1:
            words = self.words(factor)
        elif factor.is_paired:
            raise UnsupportedError(f"elements of {load.buffer.name} are not those of one lane")
        elif along == 1 or dtype.itemsize == 2:
            address = self.line_address(load, start, along == 1, across * along, is_left=is_left)
            words = self.unit.load(self.b, address, along != 1)
        else:
            raise UnsupportedError(f"elements of {load.buffer.name} do not lie in whole words")
        if dtype.name != "f32":
            return words
        return [self.unit.rounded(self.b, self.b.bitcast(word, ir.f32)) for word in words]

    def line_address(
        self, load: Load, start: Expr, is_inner: bool, stride: int, *, is_left: bool
    ) -> Val:
        """The address of the line that this lane reads.  stride: elements from line to line."""
        b, memory, const = self.b, self.memory, self.indices.const
        size, swizzle = load.result.dtype.itemsize, load.buffer.swizzle
        pattern = is_left is is_inner, stride * size, swizzle
        if pattern not in self.lines:
            lane = b.binary("urem", self.thread, const(LANES))
            if is_left is is_inner:
                line, side = b.and_(lane, const(15)), b.lshr(lane, const(4))
            else:
                upper = b.and_(b.lshr(lane, const(1)), const(8))
                line = b.add(b.and_(lane, const(7)), upper)
                side = b.and_(b.lshr(lane, const(3)), const(1))
            place = b.mul(side, const(CHUNK))
            exchanged = memory.swizzle(line, swizzle * size) if swizzle else None
            place = place if exchanged is None else b.xor(place, exchanged)
            self.lines[pattern] = b.zext(b.mul(line, const(stride * size)), ir.i64), place
        line, place = self.lines[pattern]
        first, within = start, Expr()
        if swizzle:
            first, within = start // swizzle * swizzle, start % swizzle
        # Chunks change places within eight, so that what is beyond is an offset: fewer addresses.
        within = memory.known(within)
        beyond = within.const * size // (8 * CHUNK) * (8 * CHUNK) if within.is_const else 0
        address = memory.plain_address(load.buffer.name, first * size + beyond, (), ir.i8)
        column = self.indices.scalar(within * size + -beyond)
        column = b.xor(column, place) if column.integer != 0 else place
        return b.gep(b.gep(address, line, ir.i8), b.zext(column, ir.i64), ir.i8)

    def words(self, factor: _Factor) -> list[Val]:
        """A word of each of the four matrices, where lines run along rows or columns."""
        b, const, load = self.b, self.indices.const, factor.load
        across, along = factor.across, factor.along
        step, apart = (2, 1) if factor.is_paired else (1, 4)
        size = load.result.dtype.itemsize
        lane = b.binary("urem", self.thread, const(LANES))
        own = b.mul(b.binary("udiv", lane, const(4)), const(across * size))
        inner = b.mul(b.binary("urem", lane, const(4)), const(step * along * size))
        address = self.memory.plain_address(load.buffer.name, factor.start * size, (), ir.i8)
        address = b.gep(address, b.zext(b.add(own, inner), ir.i64), ir.i8)
        beside, below = apart * along * size, 8 * across * size
        second, third = (below, beside) if factor.is_left else (beside, below)
        places = (0, second, third, second + third)
        return [b.load(ir.i32, b.gep(address, place, ir.i8), size) for place in places]


@record(eq=False)
class _Factor:
    """A factor in shared memory, or one that the lanes of a warp have.

    own, inner: the loops over its rows or columns, and over inner elements.
    start: the index of the first element of the tile.  across, along: steps from row to row or
    column to column, and from inner element to inner element; one of them is 1.
    is_paired: each lane takes neighbours of the inner elements, because it has those of the other
    factor.
    """

    load: Load
    own: Sequence[For]
    inner: Sequence[For]
    start: Expr
    across: int
    along: int
    is_left: bool
    is_paired: bool = False

    @property
    def is_held(self) -> bool:
        """Whether it is in registers."""
        return self.load.buffer.space == "fragment"

    @staticmethod
    def of(
        load: Load,
        own: Sequence[For],
        inner: Sequence[For],
        *,
        is_left: bool,
        is_paired: bool = False,
    ) -> _Factor:
        """The factor that a load reads in these loops.  Raises UnsupportedError."""
        start = load.index.substitute({loop.axis: Expr() for loop in (*own, *inner)})
        if load.buffer.space == "fragment":
            sizes = [loop.axis.size for loop in inner]
            if not is_left or sizes != ([4, 2] if load.result.dtype.itemsize == 4 else [2, 4, 2]):
                raise UnsupportedError(f"lanes do not have what they need of {load.buffer.name}")
            return _Factor(load, own, inner, start, 0, 0, is_left)
        steps = [load.index.coefficient(loop.axis) or 0 for loop in own]
        along = load.index.coefficient(inner[-1].axis) or 0
        # Columns are two for a lane's sums, but one for its factors.
        across, other, times = (*steps, 8) if is_left else (*steps[::-1], 2)
        is_even = all(
            (load.index.coefficient(loop.axis) or 0) == along * step
            for loop, step in zip(inner, _strides([loop.axis.size for loop in inner]), strict=True)
        )
        if other != times * across or 1 not in (across, along) or not is_even:
            raise UnsupportedError(f"{load.buffer.name} does not lie in lines")
        return _Factor(load, own, inner, start, across, along, is_left, is_paired)


def _strides(sizes: Sequence[int]) -> list[int]:
    """Steps of loops within one another that count through all elements."""
    return [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]


__all__ = ["Products"]
