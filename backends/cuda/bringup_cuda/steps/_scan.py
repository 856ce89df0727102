"""What a running fold is, and what the ways to do it share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.dtypes import DType, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, identity, is_half
from bringup.llvm.text import Builder, Val
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.commands import Argument, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps.block import Block

#: Bytes of the widest access.
_ACCESS = 16


@record
class Scan:
    """What is folded: ``outer`` rows of ``length`` elements that are ``inner`` apart.

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
    def of(cls, step: OpStep) -> Scan:
        """What a step of the row ``cumulative`` folds."""
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

    def neutral(self, lanes: int = 1) -> Val:
        """What changes nothing."""
        return identity(self.kind, self.wide, lanes)

    def first(self, lanes: int = 1) -> Val:
        """The fold before the first element; it shows where the scan is exclusive."""
        start = self.neutral(lanes)
        shown = self.exclusive and self.kind == "add" and self.dtype.is_float
        return ir.zero(start.type) if shown else start

    @property
    def vector(self) -> int:
        """Elements of the widest access."""
        return _ACCESS // self.dtype.itemsize


class Scanner:
    """What both ways share."""

    def __init__(
        self, emission: Emission, step: OpStep, scan: Scan, source: Argument, target: Argument
    ) -> None:
        self.emission = emission
        self.step = step
        self.scan = scan
        self.source = source
        self.target = target

    def block(self, label: str, arguments: Sequence[Argument], threads: int) -> Block:
        return Block(self.emission, self.step, label, arguments, threads)

    def fold(self, b: Builder, x: Val, y: Val) -> Val:
        return combine(b, self.scan.kind, self.scan.wide, x, y)

    def commands(self) -> list[Command]:
        """Every launch: the totals of chunks first where there are several."""
        chunks = self.chunks()
        if chunks == 1:
            return [self.scans(chunks, None)]
        lines = self.scan.outer * self.scan.inner
        totals = self.emission.scratch(lines * chunks * self.scan.wide.itemsize)
        return [self.totals(chunks, totals), self.scans(chunks, totals)]

    def chunks(self) -> int:
        """Into how many chunks a line is cut."""
        raise NotImplementedError

    def totals(self, chunks: int, totals: Argument) -> Command:
        """Fold every chunk."""
        raise NotImplementedError

    def scans(self, chunks: int, totals: Argument | None) -> Command:
        """Scan every chunk, after the totals of those before it."""
        raise NotImplementedError


__all__ = ["Scan", "Scanner"]
