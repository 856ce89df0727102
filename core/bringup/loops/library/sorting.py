"""Stable sorts: networks sort blocks in the cache, and merges join blocks of long lines.

Lines that are neighbours in memory are sorted each in its own lane.  Any other line is one block,
or several blocks that fit the cache and are merged pair by pair.  Where lanes cannot change places,
vectors have one lane.  On blocks of threads sorts are by digits: see `radix_sorts`.
"""

from __future__ import annotations

from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.radix_sorts import SortLines, radix_sort
from bringup.loops.library.run_merges import merged_blocks
from bringup.loops.library.vector_sorts import Lines, columns, short_lines, single_blocks

#: The most bytes of a block, and of a line that is one block if there are many lines.
_BLOCK_BYTES = 1 << 17
_LINE_BYTES = 1 << 19
#: So many lines keep the threads busy.
_MANY_LINES = 16
#: A merge of all records takes about as long as so many levels of a network.
_MERGE_LEVELS = 26
#: The most bytes of lines that are sorted in lanes, and the longest such line if each of them is
#: contiguous.
_COLUMN_BYTES = 1 << 19
_SHORT = 64


def sort(call: OpCall) -> StepLoops:
    """Sort ``outer * inner`` lines of ``length`` elements."""
    if call.threads:
        return radix_sort(SortLines.of(call))
    lines = Lines.of(call)
    if _sorts_columns(lines):
        return StepLoops(call, (columns(lines) if lines.inner > 1 else short_lines(lines),))
    block = max(lines.lanes**2, ceil_power_of_two(lines.length))
    most = _LINE_BYTES if lines.count >= _MANY_LINES else _BLOCK_BYTES
    if lines.bytes_of(block) <= most:
        return StepLoops(call, (single_blocks(lines, block),))
    return merged_blocks(lines, _best_block(lines))


def _best_block(lines: Lines) -> int:
    """The block of a long line: large blocks need fewer merges, small ones less padding."""
    sizes = [
        n for n in range(2 * lines.lanes.bit_length(), 40) if lines.bytes_of(1 << n) <= _BLOCK_BYTES
    ]

    def cost(bits: int) -> int:
        count = ceil_div(lines.length, 1 << bits)
        levels = bits * (bits + 1) // 2 + _MERGE_LEVELS * (count - 1).bit_length()
        return (count << bits) * levels

    return 1 << min(sizes, key=cost)


def _sorts_columns(lines: Lines) -> bool:
    rows = ceil_power_of_two(lines.length)
    count, fits = lines.inner, lines.bytes_of(rows * lines.lanes) <= _COLUMN_BYTES
    if lines.inner == 1:
        count, fits = lines.outer, lines.length <= _SHORT
    return fits and 2 * count >= lines.lanes


__all__ = ["sort"]
