"""What multiplies tiles in shared memory: by FMA in registers, or by tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.text import Type, Val
from bringup_cuda.contraction.layout import CHUNK


class Engine(Protocol):
    """Keeps a block's sums, spread over its threads."""

    def start(self) -> list[Val]:
        """The sums of nothing, of this thread."""

    def step(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """Add the products of two tiles in shared memory."""

    def meet(self) -> None:
        """Do what is due before the barrier behind which a tile may be multiplied."""

    def finish(self, sums: Sequence[Val]) -> list[Val]:
        """The sums, when all products are in them."""

    def put(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """Write all sums to shared memory, row by row, ``stride`` sums apart."""


def sum_type(dtype: DType) -> Type:
    """The LLVM type that sums of a dtype are kept in: integers wrap in the low bits of theirs."""
    if dtype.is_float:
        return ir.f64 if dtype.bits == 64 else ir.f32
    return ir.i32 if dtype.bits <= 32 else ir.i64


def sum_stride(columns: int, kind: Type) -> int:
    """Sums from row to row where they lie in shared memory: pairs of four rows in other banks."""
    return columns + 2 * CHUNK // (kind.bits // 8)
