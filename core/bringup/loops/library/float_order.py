"""What sorts of floats as numbers change: NaN, which is sorted as infinity, and signs of zeros."""

from __future__ import annotations

import math
from collections.abc import Callable

from bringup.dtypes import i64
from bringup.graph.index import ZERO, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, data
from bringup.loops.library.records import ValueCode
from bringup.records import record


@record(eq=False)
class FloatOrder:
    """Restores NaN and the signs of zeros in one line of ``length`` floats.

    line: where it begins.  along: elements from one to the next.
    """

    b: FuncBuilder
    code: ValueCode
    source: Buffer
    target: Buffer
    line: Expr
    along: int
    length: int

    def _number(self, value: int) -> Scalar:
        return self.b.constant(value, i64)

    def _load(self, index: Expr) -> Scalar:
        return self.b.load(self.source, self.line + index * self.along)

    def _tally(
        self, first: Expr, size: int, until: Expr | None, tests: list[Callable[[Scalar], Scalar]]
    ) -> list[Scalar]:
        """How many elements from number ``first`` on satisfy each test."""
        b = self.b
        counts = [b.variable("count", b.constant(0, i64)) for _ in tests]
        with b.loop("at", size, until=until) as n:
            x = self._load(first + n)
            for count, test in zip(counts, tests, strict=True):
                b.set(count, b.convert(test(x), i64), fold="add")
        return [b.load(count) for count in counts]

    def count(self, first: Expr, size: int, until: Expr | None = None) -> tuple[Scalar, Scalar]:
        """How many NaN and how many negative zeros there are among ``size`` elements, or up to an
        earlier end.
        """
        b, code = self.b, self.code
        tests = [lambda x: code.is_nan(b, x), lambda x: code.is_negative_zero(b, x)]
        nans, zeros = self._tally(first, size, until, tests)
        return nans, zeros

    def restore(self, nans: Scalar, zeros: Scalar, first: Expr, size: int) -> None:
        """Write the NaN and the zeros of the line to a part of the result, of ``size`` elements if
        the line does not end before.

        nans, zeros: how many NaN and how many negative zeros the whole line has.
        """
        b, length = self.b, self._number(self.length)
        begin = b.index(first, i64)
        stop = b.op("min", b.op("add", begin, self._number(size)), length)
        low, high = self._number(0), nans
        if not self.code.descending:
            low, high = b.op("sub", length, nans), length
        low, high = b.op("max", low, begin), b.op("min", high, stop)
        nan = b.constant(math.nan, self.code.dtype)
        place = b.variable("place", low)
        more = b.variable("more", b.compare("lt", low, high))
        with b.loop("nan", size), b.goes_on(more):
            at = b.load(place)
            self._store(nan, at)
            after = b.op("add", at, self._number(1))
            b.set(place, after)
            b.set(more, b.compare("lt", after, high))
        with b.where(test=b.compare("gt", zeros, self._number(0))):
            self._restore_zeros(nans, begin, stop)

    def _store(self, value: Scalar, at: Scalar) -> None:
        index = self.line + data(self.length) * self.along
        self.b.store(self.target, index, value, named=[at])

    def _restore_zeros(self, nans: Scalar, begin: Scalar, stop: Scalar) -> None:
        """Zeros are equal, so they are in the order of the operand, each with its own sign."""
        b, down = self.b, self.code.descending

        def zero() -> Scalar:
            return b.constant(0.0, self.code.dtype)

        def before(x: Scalar) -> Scalar:
            return b.compare("gt" if down else "lt", x, zero())

        (smaller,) = self._tally(ZERO, self.length, None, [before])
        place = b.variable("place", b.op("add", smaller, nans) if down else smaller)
        with b.loop("at", self.length) as n:
            x, at = self._load(n), b.load(place)
            is_zero = b.compare("eq", x, zero())
            inside = b.op("and", b.compare("ge", at, begin), b.compare("lt", at, stop))
            with b.where(test=b.op("and", is_zero, inside)):
                self._store(x, at)
            b.set(place, b.convert(is_zero, i64), fold="add")


__all__ = ["FloatOrder"]
