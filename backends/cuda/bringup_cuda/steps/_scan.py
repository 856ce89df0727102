"""What a running fold is, and what the ways to do it share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bringup.llvm.sizes import ScanSizes
from bringup.program.program import OpStep
from bringup_cuda.commands import Argument, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps.block import Block

#: Bytes of the widest access.
_ACCESS = 16


class Scanner(ABC):
    """What both ways share."""

    def __init__(
        self, emission: Emission, step: OpStep, scan: ScanSizes, source: Argument, target: Argument
    ) -> None:
        self.emission = emission
        self.step = step
        self.scan = scan
        self.source = source
        self.target = target

    def block(self, label: str, arguments: Sequence[Argument], threads: int) -> Block:
        return Block(self.emission, self.step, label, arguments, threads)

    @property
    def vector(self) -> int:
        """Elements of the widest access."""
        return _ACCESS // self.scan.dtype.itemsize

    def commands(self) -> list[Command]:
        """Every launch: the totals of chunks first where there are several."""
        chunks = self.chunks()
        if chunks == 1:
            return [self.scans(chunks, None)]
        lines = self.scan.outer * self.scan.inner
        totals = self.emission.scratch(lines * chunks * self.scan.wide.itemsize)
        return [self.totals(chunks, totals), self.scans(chunks, totals)]

    @abstractmethod
    def chunks(self) -> int:
        """Into how many chunks a line is cut."""

    @abstractmethod
    def totals(self, chunks: int, totals: Argument) -> Command:
        """Fold every chunk."""

    @abstractmethod
    def scans(self, chunks: int, totals: Argument | None) -> Command:
        """Scan every chunk, after the totals of those before it."""


__all__ = ["Scanner"]
