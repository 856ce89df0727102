"""Panels: some columns of a matrix as rows of scratch memory, so that vectors run down a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bringup.dtypes import DType
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div, round_up
from bringup.loops.form import Scalar
from bringup.loops.library.builder import FuncBuilder, below
from bringup.loops.library.calls import OpCall
from bringup.loops.library.lines import Line
from bringup.loops.library.tiles import SQUARE, At, Matrix, blocks
from bringup.records import record

#: Columns of a panel.
_COLUMNS = 32
#: Stores an element where bounds hold, by its row and its column.
Put = Callable[[Expr, Expr, Scalar, Bound], None]


def most_columns(count: int) -> int:
    """Columns of the largest panel of ``count`` columns."""
    return max(1, min(count, _COLUMNS))


@record(eq=False)
class Panel:
    """Memory for a panel.

    down: a column as a line.  columns: the panel; element (j, i) is row i of column j.
    most: columns.
    """

    down: Line
    columns: Matrix
    most: int

    @classmethod
    def of(cls, b: FuncBuilder, call: OpCall, dtype: DType, length: int, count: int) -> Panel:
        """Memory for panels of ``count`` columns in all."""
        down, most = Line.of(b, call, dtype, length), most_columns(count)
        return cls(down, down.tiles.matrix("panel", round_up(most, SQUARE), down.whole), most)

    @property
    def rows(self) -> int:
        """Of the matrix, in whole vectors and whole tiles."""
        return self.down.whole

    def each(self, count: int, *, backward: bool = False) -> Iterator[tuple[Expr, int]]:
        """The first column and the number of columns of each panel of so many columns."""
        return blocks(self.down.b, "panel", count, self.most, backward=backward)

    def load(self, at: At, first: Expr, count: int) -> None:
        """Columns ``first`` … of a matrix, from that row on."""
        b, lanes = self.down.b, min(self.down.lanes, SQUARE)
        rows = ceil_div(self.rows, lanes)
        with (
            b.loop("j.square", ceil_div(count, lanes)) as j,
            b.loop("i.square", rows, until=(first // lanes) * -1 + rows) as i,
            self.down.tiles.points(lanes, lanes) as (c, lane),
        ):
            row, column = first // lanes * lanes + i * lanes + lane, j * lanes + c
            self.columns.set(column, row, at(row, first + column))

    def unload(self, put: Put, first: Expr, count: int) -> None:
        """The same back to a matrix."""
        b, lanes = self.down.b, min(self.down.lanes, SQUARE)
        rows = ceil_div(self.rows, lanes)
        with (
            b.loop("i.square", rows, until=(first // lanes) * -1 + rows) as i,
            b.loop("j.square", ceil_div(count, lanes)) as j,
            self.down.tiles.points(lanes, lanes) as (r, lane),
        ):
            row, column = first // lanes * lanes + i * lanes + r, j * lanes + lane
            put(row, first + column, self.columns.get(column, row), below(column, count))


__all__ = ["Panel", "Put", "most_columns"]
