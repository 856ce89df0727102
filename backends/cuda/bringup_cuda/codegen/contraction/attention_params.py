"""Parameters of attention steps."""

from __future__ import annotations

import math

from bringup.dtypes import DType, Precision, f32
from bringup.llvm.scalar import is_half
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
