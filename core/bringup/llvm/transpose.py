"""Squares of vectors, turned by a function that a module has once.

LLVM takes its time over shuffles of long vectors, so sixteen lanes are turned in two loops.
"""

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

#: Sixteen lanes are four blocks of four: squares of four elements are turned, then of four blocks.
_LANES = 16
_EACH = 4
_BLOCKS = range(0, _LANES, _EACH)


def transposed(b: Builder, rows: list[Val]) -> list[Val]:
    """The columns of a square of vectors."""
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


def turn(module: Module, element: Type, lanes: int, count: int) -> Callee:
    """``void (ptr square, ptr to, i64 apart)``: the columns of ``lanes`` vectors, of each the first
    ``count`` elements, ``apart`` elements from one to the next.  The square is spoilt.

    With fewer than sixteen lanes columns are written whole and in rising order, so that the next
    one overwrites what is beyond ``count``: a masked store is some twenty times as dear as another
    where masks are no registers of their own.  The last one changes up to ``lanes - count``
    elements behind it.
    """
    name = f"bringup.turn.{element.code}.{lanes}.{count}"
    found = module.functions.get(name)
    if found is None:
        params: list[Param] = [("square", ir.ptr, "noalias"), ("to", ir.ptr, "noalias")]
        params.append(("apart", ir.i64))
        found = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
        _Turn(Builder(found.block("entry")), element, lanes, count).fill(*found.args)
    return found.callee


class _Turn:
    def __init__(self, b: Builder, element: Type, lanes: int, count: int) -> None:
        self.b = b
        self.element = element
        self.lanes = lanes
        self.keep = None
        if count < lanes == _LANES:  # the blocks' columns are written out of order
            self.keep = const_vector(ir.i1, [n < count for n in range(lanes)])

    def fill(self, square: Val, to: Val, apart: Val) -> None:
        b = self.b
        if self.lanes == _LANES:
            self._by_blocks(square, to, apart)
        else:
            rows = [self._load(square, i64_const(n)) for n in range(self.lanes)]
            for n, row in enumerate(transposed(b, rows)):
                self._store(row, to, b.mul(apart, i64_const(n)))
        b.ret()

    def _by_blocks(self, square: Val, to: Val, apart: Val) -> None:
        b, align = self.b, self.element.bits // 8
        with b.loop(i64_const(0), i64_const(_LANES), _EACH) as loop:
            places = [b.add(loop.index, i64_const(n)) for n in range(_EACH)]
            turned = self._elements([self._load(square, n) for n in places])
            for place, row in zip(places, turned, strict=True):
                b.store(row, self._row(square, place), align)
        with b.loop(i64_const(0), i64_const(_EACH)) as loop:
            places = [b.add(loop.index, i64_const(n)) for n in range(0, _LANES, _EACH)]
            turned = self._blocks([self._load(square, n) for n in places])
            for place, row in zip(places, turned, strict=True):
                self._store(row, to, b.mul(apart, place))

    def _elements(self, rows: Sequence[Val]) -> list[Val]:
        """Four vectors with the squares of elements turned that their blocks of four are."""
        low = [b + n + side for b in _BLOCKS for n in (0, 1) for side in (0, _LANES)]
        high = [n + 2 for n in low]
        pairs = [self._shuffled(rows, n, n + 1, order) for n in (0, 2) for order in (low, high)]
        first = [b + n + side for b in _BLOCKS for side in (0, _LANES) for n in (0, 1)]
        second = [n + 2 for n in first]
        return [self._shuffled(pairs, n, n + 2, order) for n in (0, 1) for order in (first, second)]

    def _blocks(self, rows: Sequence[Val]) -> list[Val]:
        """Four vectors with the square turned that their blocks of four elements are."""
        even = [side + b + n for side in (0, _LANES) for b in _BLOCKS[::2] for n in range(_EACH)]
        odd = [n + _EACH for n in even]
        pairs = [self._shuffled(rows, n, n + 1, order) for n in (0, 2) for order in (even, odd)]
        return [self._shuffled(pairs, n, n + 2, order) for order in (even, odd) for n in (0, 1)]

    def _shuffled(self, rows: Sequence[Val], x: int, y: int, order: Sequence[int]) -> Val:
        return self.b.shufflevector(rows[x], rows[y], order)

    def _row(self, square: Val, row: Val) -> Val:
        return self.b.gep(square, self.b.mul(row, i64_const(self.lanes)), self.element)

    def _load(self, square: Val, row: Val) -> Val:
        align = self.element.bits // 8
        return self.b.load(vec(self.element, self.lanes), self._row(square, row), align)

    def _store(self, row: Val, to: Val, offset: Val) -> None:
        address, align = self.b.gep(to, offset, self.element), self.element.bits // 8
        if self.keep is None:
            self.b.store(row, address, align)
        else:
            masked_store(self.b, row, address, self.keep, align)
