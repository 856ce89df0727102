"""Sorting by digits: stable, by several keys, with whatever comes along."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import UnsupportedError
from bringup.program.program import OpStep
from bringup_cuda.commands import Command, Copy
from bringup_cuda.lower import Emission
from bringup_cuda.steps._keys import Lines
from bringup_cuda.steps._sort_long import SortLong
from bringup_cuda.steps._sort_small import BLOCK_LENGTH, SortBlock, sort_lanes
from bringup_cuda.targets import WARP

#: Places are counted in 32 bits.
LONGEST = 1 << 31


def render(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The launches of a step of the row ``sort``."""
    return sort(emission, step, Lines.of(step))


def sort(emission: Emission, step: OpStep, lines: Lines) -> list[Command]:
    """Launches that sort lines for a step.  Raises UnsupportedError for a line too long."""
    if lines.length >= LONGEST:  # pragma: no cover - only arrays of more than 2 GiB
        raise UnsupportedError(
            f"sort of {lines.length} elements: a GPU sorts lines of less than {LONGEST}",
            location=step.location,
            fix="sort parts of the line and merge them, or sort on the host",
        )
    if lines.length == 1 and lines.places is None:
        pairs = zip(lines.operands, lines.results, lines.dtypes, strict=True)
        return [Copy(x, y, lines.count * dtype.itemsize) for x, y, dtype in pairs]
    if lines.length <= WARP:
        return sort_lanes(emission, step, lines)
    if lines.length <= BLOCK_LENGTH:
        return SortBlock(emission, step, lines).commands()
    return SortLong(emission, step, lines).commands()


__all__ = ["LONGEST", "render", "sort"]
