"""Parameters of op steps, and the position of windows in arrays, for emitters of every target."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.dtypes import DType, Precision, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, empty, is_half, memory_type, neutral
from bringup.llvm.text import Builder, Val, i64_const
from bringup.program.program import OpStep
from bringup.records import record

Ints = tuple[int, ...]


@record
class AttentionParams:
    """Parameters of a step of the row ``attention``.

    wide: the dtype of scores and sums.  bias: the shape of the bias, None if there is none.
    precision: of the products.
    """

    dtype: DType
    wide: DType
    lead: Ints
    queries: int
    keys: int
    depth: int
    values: int
    scale: float
    causal: bool
    bias: Ints | None
    precision: Precision

    @classmethod
    def of(cls, step: OpStep) -> AttentionParams:
        """The parameters of a step."""
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
        """The number of members of the batch."""
        return math.prod(self.lead)


@record
class ScanParams:
    """Parameters of a step of the row ``cumulative``.

    It scans ``outer * inner`` lines of ``length`` elements, which are ``inner`` elements apart.
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
    def of(cls, step: OpStep) -> ScanParams:
        """The parameters of a step."""
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
        """Combine two accumulators."""
        return combine(b, self.kind, self.wide, x, y)

    def neutral(self, lanes: int = 1) -> Val:
        """The accumulator that is neutral in `fold`."""
        return neutral(self.kind, self.wide, lanes)

    def first(self, lanes: int = 1) -> Val:
        """The accumulator before the first element, which is a result if the scan is exclusive."""
        return (empty if self.exclusive else neutral)(self.kind, self.wide, lanes)


def trailing_run(shape: Ints, strides: Sequence[int], windows: Sequence[int]) -> int:
    """How many trailing window dimensions have the same layout in the array and the updates."""
    run, step = 0, 1
    for d in reversed(range(len(shape))):
        if d not in windows or (strides[d] != step and shape[d] != 1):
            break
        run, step = run + 1, step * shape[d]
    return run


def load_index(b: Builder, address: Val, dtype: DType) -> Val:
    """An index as i64; an index of u64 keeps its bits."""
    value = b.load(memory_type(dtype), address, dtype.itemsize)
    if dtype.bits == 64:
        return value
    return b.sext(value, ir.i64) if dtype.kind == "int" else b.zext(value, ir.i64)


def coordinates(b: Builder, flat: Val, shape: Ints) -> list[Val]:
    """The coordinates of a row-major position."""
    inner: list[Val] = []
    for n in reversed(shape[1:]):
        inner.append(b.urem(flat, i64_const(n)))
        flat = b.udiv(flat, i64_const(n))
    return [flat, *reversed(inner)] if shape else []
