"""Scores of attention from the products of queries and keys."""

from __future__ import annotations

import math

from bringup.dtypes import DType
from bringup.graph.index import Bound, Expr, flatten, unflatten
from bringup.loops.form import Scalar
from bringup.loops.library.builder import FuncBuilder, below
from bringup.loops.library.calls import OpCall
from bringup.records import record


@record(eq=False)
class Scores:
    """What the op makes of products, for member ``m`` of the batch.

    dtype: of scores.
    """

    call: OpCall
    dtype: DType
    b: FuncBuilder
    m: Expr

    @property
    def queries(self) -> int:
        """Queries of a member."""
        return self.call.types[0].shape[-2]

    @property
    def keys(self) -> int:
        """Keys of a member."""
        return self.call.types[1].shape[-2]

    @property
    def is_causal(self) -> bool:
        """Whether later keys are hidden."""
        causal: bool = self.call.attrs["causal"]
        return causal

    @property
    def has_bias(self) -> bool:
        """Whether something is added to scores."""
        return len(self.call.operands) > 3

    def seen(self, query: Expr) -> Expr:
        """How many keys a query sees."""
        return query + (self.keys - self.queries + 1)

    def score(self, product: Scalar, bias: Scalar | None, *seen: Bound) -> Scalar:
        """The score of a query and a key: -inf if a bound does not hold."""
        b = self.b
        score = b.op("mul", product, b.constant(self.call.attrs["scale"], self.dtype))
        if bias is not None:
            score = b.op("add", score, bias)
        if not seen:
            return score
        return b.op("select", b.inside(*seen), score, b.constant(-math.inf, self.dtype))

    def sees(self, query: Expr, key: Expr) -> Bound:
        """The condition that a query sees a key, where later ones are hidden."""
        return Bound(self.seen(query) + key * -1, 1, self.keys + 1)

    def bias(self, query: Expr, key: Expr) -> Scalar:
        """The bias of one score; dimensions of size 1 are broadcast."""
        call, b = self.call, self.b
        shape = call.types[3].shape
        place = (*unflatten(self.m, call.types[0].shape[:-2]), query, key)
        index = flatten((x if n > 1 else Expr() for x, n in zip(place, shape, strict=True)), shape)
        mask = [below(query, self.queries)] if shape[-2] > 1 else []
        mask += [below(key, self.keys)] if shape[-1] > 1 else []
        return b.convert(b.load(call.operands[3], index, *mask), self.dtype)

    def larger(self, score: Scalar, last: Scalar) -> Scalar:
        """The maximum of two scores, the second where the first is NaN.

        It need not be NaN, because the exponential of the score is.
        """
        return self.b.op("select", self.b.compare("gt", score, last), score, last)

    def base(self, top: Scalar) -> Scalar:
        """What is subtracted from scores: their maximum, or 0 where that is -inf."""
        b = self.b
        lowest, zero = b.constant(-math.inf, self.dtype), b.constant(0, self.dtype)
        return b.op("select", b.compare("eq", top, lowest), zero, top)  # -inf - -inf would be NaN


__all__ = ["Scores"]
