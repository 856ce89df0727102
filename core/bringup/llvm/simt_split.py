"""Long folds over few grid points, cut in two launches so that all of a machine has work."""

from __future__ import annotations

from bringup.kernel.form import Kernel
from bringup.kernel.split import SplitFold, split_fold
from bringup.llvm.simt_plan import plan
from bringup.llvm.simt_target import SimtTarget

#: Elements a chunk should have at least, and rows of one where columns are folded.
_CHUNK = 1 << 13
_LINES = 64
#: Elements that take no longer than a second launch would.
_SMALL = 1 << 16


def split_for(kernel: Kernel, target: SimtTarget) -> SplitFold | None:
    """Two kernels for one, where one would leave much of the machine without work.

    Depends on sizes alone, so that results do not differ from device to device of a kind.
    """
    first = kernel.stages[0]
    if not first.axes or not first.folds or kernel.points * first.trips < _SMALL:
        return None
    grouping = plan(kernel, {}, target)
    units = -(-kernel.points // (grouping.lanes * grouping.columns * grouping.rows))
    # Four blocks for each of those that run at once, so that none waits long for the last.
    wanted = -(-4 * (target.full // target.block) // units)
    axis = max(first.axes, key=lambda a: (a.size, -a.id))
    rest = first.trips // axis.size
    least = max(1, _LINES // rest) if grouping.lane is not None else max(1, _CHUNK // rest)
    chunks = min(wanted, axis.size // least)
    if wanted <= 4 or chunks < 2:
        return None
    size = -(-axis.size // chunks)
    # Whole rounds of a block, as far as there are several.
    grain = grouping.threads * 16 if grouping.lane is None and rest == 1 else 16
    size = -(-size // grain) * grain if size >= 2 * grain else -(-size // 4) * 4
    elements = size * rest * min(kernel.points, 64)
    return split_fold(kernel, chunk_elements=elements, max_points=kernel.points)


__all__ = ["split_for"]
