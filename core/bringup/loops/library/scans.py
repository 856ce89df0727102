"""Running folds.  Each line is one loop; a few long lines are cut into chunks, whose folds come
first.
"""

from __future__ import annotations

import math

from bringup.dtypes import DType
from bringup.graph.index import Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Func, Role
from bringup.loops.library.builder import FuncBuilder, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.ops.monoids import MONOIDS
from bringup.records import record

#: A chunk has at least so many elements: starting one takes as long as a few of them.
_LEAST_CHUNK = 1024


def cumulative(call: OpCall) -> StepLoops:
    """Scan ``outer * inner`` lines of ``length`` elements."""
    (shape, _), dim = (type_.shape for type_ in call.types), call.attrs["dim"]
    outer, length, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    chunks = min(ceil_div(call.units, max(outer * inner, 1)), length // _LEAST_CHUNK)
    size = max(ceil_div(length, max(chunks, 1)), 1)
    chunks = max(ceil_div(length, size), 1)
    scan = _Scan(call, wide(call.operands[0].dtype), outer, length, inner, size, chunks)
    if chunks == 1:
        return StepLoops(call, (scan.results(None),))
    totals = Buffer("totals", scan.dtype, outer * inner * chunks)
    return StepLoops(call, (scan.totals(totals), scan.results(totals)), (totals,))


@record(eq=False)
class _Scan:
    """dtype: of the folds.  size, chunks: of a line's chunks."""

    call: OpCall
    dtype: DType
    outer: int
    length: int
    inner: int
    size: int
    chunks: int

    def index(self, o: Expr, i: Expr, k: Expr) -> Expr:
        """Of element ``k`` of a line in the order of the scan."""
        k = k * -1 + (self.length - 1) if self.call.attrs["reverse"] else k
        return (o * self.length + k) * self.inner + i

    def start(self, b: FuncBuilder, *, is_result: bool) -> Buffer:
        """The variable that holds the fold of no element, which is neutral if it is no result."""
        monoid = MONOIDS[self.call.attrs["kind"]]
        value = (monoid.empty if is_result else monoid.neutral)(self.dtype.numpy)
        return b.variable("total", b.constant(value, self.dtype))

    def fold(self, b: FuncBuilder, total: Buffer, place: Expr) -> None:
        """Fold an element of the operand into the total."""
        value = b.convert(b.load(self.call.operands[0], place), self.dtype)
        b.set(total, value, fold=self.call.attrs["kind"])

    def totals(self, totals: Buffer) -> Func:
        """The fold of each chunk."""
        b = FuncBuilder(
            f"{self.call.name}_totals", [("in", self.call.operands[0]), ("out", totals)]
        )
        with b.parallel(o=self.outer, c=self.chunks, i=self.inner) as (o, c, i):
            total = self.start(b, is_result=False)
            with b.loop("k", self.size, until=c * -self.size + self.length) as k:
                self.fold(b, total, self.index(o, i, c * self.size + k))
            b.store(totals, (o * self.inner + i) * self.chunks + c, b.load(total))
        return b.func()

    def results(self, totals: Buffer | None) -> Func:
        """The scan of each chunk, after the folds of those before it."""
        (x,), (y,) = self.call.operands, self.call.results
        params: list[tuple[Role, Buffer]] = [("in", x), ("out", y)]
        params += [("in", totals)] if totals else []
        exclusive = self.call.attrs["exclusive"]
        b = FuncBuilder(self.call.name, params)
        with b.parallel(o=self.outer, c=self.chunks, i=self.inner) as (o, c, i):
            total = self.start(b, is_result=exclusive)
            if totals is not None:
                with b.loop("before", self.chunks - 1, until=c) as before:
                    value = b.load(totals, (o * self.inner + i) * self.chunks + before)
                    b.set(total, value, fold=self.call.attrs["kind"])
            with b.loop("k", self.size, until=c * -self.size + self.length) as k:
                place = self.index(o, i, c * self.size + k)
                if not exclusive:
                    self.fold(b, total, place)
                b.store(y, place, b.convert(b.load(total), y.dtype))
                if exclusive:
                    self.fold(b, total, place)
        return b.func()
