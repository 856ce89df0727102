"""Lines of elements in scratch memory, which are computed vector by vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bringup.dtypes import DType
from bringup.graph.index import Bound, Expr
from bringup.integers import round_up
from bringup.loops.form import Scalar
from bringup.loops.library.builder import FuncBuilder, below
from bringup.loops.library.calls import OpCall
from bringup.loops.library.tiles import Tiles
from bringup.records import record


@record(eq=False)
class Line:
    """Lines of ``length`` elements.

    tiles: whose lanes and rows count.  whole: the length in whole vectors and whole tiles.
    """

    tiles: Tiles
    length: int
    whole: int

    @classmethod
    def of(cls, b: FuncBuilder, call: OpCall, dtype: DType, length: int) -> Line:
        """Lines in the vectors of a machine."""
        tiles = Tiles.of(b, call, dtype, length, length)
        return cls(tiles, length, round_up(length, max(tiles.lanes, tiles.rows)))

    @property
    def b(self) -> FuncBuilder:
        """What statements are added to."""
        return self.tiles.b

    @property
    def lanes(self) -> int:
        """Of a vector."""
        return self.tiles.lanes

    @contextmanager
    def vectors(self, first: Expr) -> Iterator[Expr]:
        """The first element of each vector, from that which holds element ``first`` on."""
        count, before = self.whole // self.lanes, first // self.lanes
        with self.b.loop("along", count, until=before * -1 + count) as along:
            yield (before + along) * self.lanes

    @contextmanager
    def across(self) -> Iterator[Expr]:
        """The lanes of a vector."""
        with self.tiles.across(self.lanes) as lane:
            yield lane

    @contextmanager
    def elements(self, first: Expr) -> Iterator[Expr]:
        """All elements of the vectors from that which holds element ``first`` on."""
        with self.vectors(first) as i, self.across() as lane:
            yield i + lane

    def holds(self, element: Expr, first: Expr) -> Scalar:
        """Whether an element is one of those from ``first`` on."""
        bounds = [Bound(element + first * -1, 0, self.whole)]
        if self.whole > self.length:
            bounds.append(below(element, self.length))
        return self.b.inside(*bounds)

    def fold(self, first: Expr, kind: str, value: Callable[[Expr], tuple[Scalar, ...]]) -> Scalar:
        """The fold of values, or of products of two, over all elements of these vectors.

        Their fold begins with 0.
        """
        b, dtype = self.b, self.tiles.dtype
        parts, zero = b.alloc("parts", dtype, self.lanes, "register"), b.constant(0.0, dtype)
        with self.across() as lane:
            b.store(parts, lane, zero)
        with self.vectors(first) as i, self.across() as lane:
            part, *factor = value(i + lane)
            b.store(parts, lane, part, fold=kind, factor=factor[0] if factor else None)
        total = b.variable("total", zero)
        with self.across() as lane:
            b.set(total, b.load(parts, lane), fold=kind)
        return b.load(total)


__all__ = ["Line"]
