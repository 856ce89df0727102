"""Where long sums are cut, so that their rounding error hardly grows with their length."""

from __future__ import annotations

from bringup.records import record


@record
class Chain:
    """More than ``longest`` additions in a row become blocks of ``block``, and more blocks than
    that blocks of blocks.
    """

    longest: int
    block: int

    def sizes(self, count: int, deeper: int) -> list[int]:
        """Sizes of blocks of ``count`` steps of ``deeper`` additions each, smallest first."""
        sizes = [max(1, self.block // max(deeper, 1))]
        while count > sizes[-1] * self.longest:
            sizes.append(sizes[-1] * self.block)
        return sizes


#: What a sum costs is its reads, however often it is cut.
SUMS = Chain(128, 64)
#: A register tile has an accumulator in every register, and each cut moves all of them.
TILED = Chain(2048, 1024)

__all__ = ["SUMS", "TILED", "Chain"]
