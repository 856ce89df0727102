"""Running folds along one dimension.

Along the last dimension a group of lanes, or a block, scans a row: vectors of neighbouring elements
in each thread, then their totals across lanes and warps.  Along any other dimension a thread goes
down a column.  What is too long for that is cut into chunks, whose totals are folded first: sums of
floats are the same in each run, which a scan that looks back at other blocks would not give.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.llvm.sizes import ScanSizes
from bringup.program.program import OpStep
from bringup_cuda.commands import Argument, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._scan_columns import Columns
from bringup_cuda.steps._scan_rows import Rows


def render(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The launches of a step of the row ``cumulative``."""
    scan = ScanSizes.of(step)
    source, target = step.operands[0], step.results[0]
    return emit_scan(emission, step, scan, source, target)


def emit_scan(
    emission: Emission, step: OpStep, scan: ScanSizes, source: Argument, target: Argument
) -> list[Command]:
    """Launches that scan ``source`` into ``target``, which is other memory."""
    if scan.inner > 1:
        return Columns(emission, step, scan, source, target).commands()
    return Rows(emission, step, scan, source, target).commands()


__all__ = ["emit_scan", "render"]
