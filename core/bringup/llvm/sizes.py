"""The sizes of steps that are no loop nest, as emitters for every kind of machine need them."""

from __future__ import annotations

import math

from bringup.dtypes import DType, Precision, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, identity, is_half
from bringup.llvm.text import Builder, Val
from bringup.program.program import OpStep
from bringup.records import record


@record
class AttentionSizes:
    """Of a step of the row ``attention``.

    wide: the dtype of scores and sums.  bias: its shape, None if there is none.  precision: of the
    products.
    """

    dtype: DType
    wide: DType
    lead: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    values: int
    scale: float
    causal: bool
    bias: tuple[int, ...] | None
    precision: Precision

    @classmethod
    def of(cls, step: OpStep) -> AttentionSizes:
        """Read them off a step."""
        query, key, value, *bias = (slot.type for slot in step.operands)
        return cls(
            dtype=query.dtype,
            wide=f32 if is_half(query.dtype) else query.dtype,
            lead=query.shape[:-2],
            queries=query.shape[-2],
            keys=key.shape[-2],
            depth=query.shape[-1],
            values=value.shape[-1],
            scale=step.attrs["scale"],
            causal=step.attrs["causal"],
            bias=bias[0].shape if bias else None,
            precision=step.attrs["precision"],
        )

    @property
    def batch(self) -> int:
        """Members."""
        return math.prod(self.lead)


@record
class ScanSizes:
    """Of a step of the row ``cumulative``: ``outer`` lines of ``length`` elements, ``inner`` apart.

    dtype: of the elements.  wide: of the accumulators.
    """

    kind: str
    dtype: DType
    wide: DType
    outer: int
    length: int
    inner: int
    reverse: bool
    exclusive: bool

    @classmethod
    def of(cls, step: OpStep) -> ScanSizes:
        """Read them off a step."""
        type_, attrs = step.operands[0].type, step.attrs
        dim, dtype = attrs["dim"], type_.dtype
        return cls(
            attrs["kind"],
            dtype,
            f32 if is_half(dtype) else dtype,
            math.prod(type_.shape[:dim]),
            type_.shape[dim],
            math.prod(type_.shape[dim + 1 :]),
            attrs["reverse"],
            attrs["exclusive"],
        )

    def fold(self, b: Builder, x: Val, y: Val) -> Val:
        """Of two accumulators."""
        return combine(b, self.kind, self.wide, x, y)

    def neutral(self, lanes: int = 1) -> Val:
        """The accumulator that changes nothing."""
        return identity(self.kind, self.wide, lanes)

    def first(self, lanes: int = 1) -> Val:
        """The accumulator before the first element; it shows where the scan is exclusive."""
        start = self.neutral(lanes)
        shown = self.exclusive and self.kind == "add" and self.dtype.is_float
        return ir.zero(start.type) if shown else start


__all__ = ["AttentionSizes", "ScanSizes"]
