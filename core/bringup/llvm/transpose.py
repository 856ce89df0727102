"""Transposition of squares of vectors, in registers and by functions that a module has once."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm import text as ir
from bringup.llvm.text import (
    Builder,
    Callee,
    Module,
    Param,
    Type,
    Val,
    const_vector,
    i64_const,
    vec,
)
from bringup.llvm.text.masked import masked_store

#: LLVM compiles shuffles of long vectors slowly, so a square of sixteen lanes is transposed in two
#: loops: first squares of four elements within blocks of four lanes, then the blocks.
_LANES = 16
_EACH = 4
_BLOCKS = range(0, _LANES, _EACH)


def transposed(b: Builder, rows: list[Val]) -> list[Val]:
    """The columns of a square of vectors, by shuffles."""
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        low = [i if not i & distance else lanes + (i ^ distance) for i in range(lanes)]
        high = [i | distance if not i & distance else lanes + i for i in range(lanes)]
        for n in range(lanes):
            if not n & distance:
                x, y = rows[n], rows[n | distance]
                rows[n] = b.shufflevector(x, y, low)
                rows[n | distance] = b.shufflevector(x, y, high)
        distance *= 2
    return rows


def transpose_square(
    module: Module, element: Type, lanes: int, count: int, ends: str = "beyond"
) -> Callee:
    """``void (ptr square, ptr to, i64 stride, i64 columns)``: stores columns of ``lanes`` vectors.

    Of each column the first ``count`` elements are wanted; columns are ``stride`` elements apart.
    The square is overwritten.
    ends: what happens after the wanted elements of a column.  ``beyond``: with fewer than sixteen
    lanes, columns are stored whole and in rising order, so that the next one overwrites what lies
    beyond ``count``: where masks are no registers of their own, a masked store costs some twenty
    times as much as another store.  So the last column changes up to ``lanes - count`` elements
    after it.  ``next``: the same, but nothing changes after the last of columns that lie side by
    side.  ``exact``: nothing changes.  ``some``: nothing, and only ``columns`` of them are stored.
    """
    name = f"bringup.turn.{element.code}.{lanes}.{count}.{ends}"
    function = module.functions.get(name)
    if function is None:
        params: list[Param] = [("square", ir.ptr, "noalias"), ("to", ir.ptr, "noalias")]
        params += [("apart", ir.i64), ("columns", ir.i64)]
        function = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
        b = Builder(function.block("entry"))
        _SquareEmitter(b, element, lanes, count, ends).fill(*function.args)
    return function.callee


class _SquareEmitter:
    def __init__(self, b: Builder, element: Type, lanes: int, count: int, ends: str) -> None:
        self.b = b
        self.element = element
        self.lanes = lanes
        self.count = count
        self.ends = ends if count < lanes or ends == "some" else "beyond"
        self.mask = None
        if count < lanes == _LANES:  # the columns of blocks are stored out of order
            self.mask = const_vector(ir.i1, [n < count for n in range(lanes)])

    def fill(self, square: Val, to: Val, stride: Val, columns: Val) -> None:
        b = self.b
        self.columns = columns
        if self.lanes == _LANES:
            self._by_blocks(square, to, stride)
        else:
            rows = [self._load(square, i64_const(n)) for n in range(self.lanes)]
            for n, row in enumerate(transposed(b, rows)):
                self._store(row, to, stride, i64_const(n))
        b.ret()

    def _by_blocks(self, square: Val, to: Val, stride: Val) -> None:
        b, align = self.b, self.element.bits // 8
        with b.loop(i64_const(0), i64_const(_LANES), _EACH) as loop:
            numbers = [b.add(loop.index, i64_const(n)) for n in range(_EACH)]
            rows = self._transpose_elements([self._load(square, n) for n in numbers])
            for number, row in zip(numbers, rows, strict=True):
                b.store(row, self._address(square, number), align)
        with b.loop(i64_const(0), i64_const(_EACH)) as loop:
            numbers = [b.add(loop.index, i64_const(n)) for n in range(0, _LANES, _EACH)]
            rows = self._transpose_blocks([self._load(square, n) for n in numbers])
            for number, row in zip(numbers, rows, strict=True):
                self._store(row, to, stride, number)

    def _transpose_elements(self, rows: Sequence[Val]) -> list[Val]:
        """Transpose the squares of elements in each block of four vectors."""
        low = [b + n + side for b in _BLOCKS for n in (0, 1) for side in (0, _LANES)]
        high = [n + 2 for n in low]
        pairs = [self._shuffled(rows, n, n + 1, order) for n in (0, 2) for order in (low, high)]
        first = [b + n + side for b in _BLOCKS for side in (0, _LANES) for n in (0, 1)]
        second = [n + 2 for n in first]
        return [self._shuffled(pairs, n, n + 2, order) for n in (0, 1) for order in (first, second)]

    def _transpose_blocks(self, rows: Sequence[Val]) -> list[Val]:
        """Transpose the square of blocks of four elements in four vectors."""
        even = [side + b + n for side in (0, _LANES) for b in _BLOCKS[::2] for n in range(_EACH)]
        odd = [n + _EACH for n in even]
        pairs = [self._shuffled(rows, n, n + 1, order) for n in (0, 2) for order in (even, odd)]
        return [self._shuffled(pairs, n, n + 2, order) for order in (even, odd) for n in (0, 1)]

    def _shuffled(self, rows: Sequence[Val], x: int, y: int, order: Sequence[int]) -> Val:
        return self.b.shufflevector(rows[x], rows[y], order)

    def _address(self, square: Val, row: Val) -> Val:
        return self.b.gep(square, self.b.mul(row, i64_const(self.lanes)), self.element)

    def _load(self, square: Val, row: Val) -> Val:
        align = self.element.bits // 8
        return self.b.load(vec(self.element, self.lanes), self._address(square, row), align)

    def _store(self, row: Val, to: Val, stride: Val, number: Val) -> None:
        b = self.b
        address = b.gep(to, b.mul(stride, number), self.element)
        if self.ends == "some":
            with b.if_then(b.icmp("slt", number, self.columns)):
                self._put(row, address, exact=True)
        else:
            self._put(row, address, exact=self.ends == "exact" or self._leaves(number))

    def _leaves(self, number: Val) -> bool:
        """Whether a column that is stored whole ends after the last of columns side by side."""
        if self.ends != "next" or number.integer is None:
            return False
        return number.integer * self.count + self.lanes > self.lanes * self.count

    def _put(self, row: Val, address: Val, *, exact: bool) -> None:
        """Store a column.  exact: no more than the wanted elements."""
        b, align = self.b, self.element.bits // 8
        if self.mask is not None:
            masked_store(b, row, address, self.mask, align)
        elif not exact or self.count == self.lanes:
            b.store(row, address, align)
        else:
            self._put_parts(row, address, align)

    def _put_parts(self, row: Val, address: Val, align: int) -> None:
        """Store a column in parts whose sizes are powers of two."""
        b, done, size = self.b, 0, self.lanes // 2
        while size:
            if self.count & size:
                part = b.extractelement(row, done)
                if size > 1:
                    part = b.shufflevector(row, None, range(done, done + size))
                b.store(part, b.gep(address, done, self.element), align)
                done += size
            size //= 2
