"""Steps that the schedules of several families of kernels begin with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.graph.index import Axis
from bringup.llvm.loops.heuristics import Chain
from bringup.loops.schedule import Step


def split_whole(loop: str, outer: str, inner: str, size: int) -> Step:
    """Blocks of exactly ``size`` iterations; what is left over is a loop of its own."""
    return Step("split", (loop, outer, inner, size), (("tail", "peel"),))


def sum_blocks(
    axes: Sequence[Axis], levels: list[list[str]], chain: Chain, width: int = 1
) -> list[Step]:
    """Blocks of loops in which more additions would be made than rounding errors allow.

    levels: for every axis its loops, which become those of blocks of blocks, outermost first.
    width: iterations of the last axis that one iteration of its loop stands for.
    """
    steps: list[Step] = []
    for n, axis in enumerate(axes):
        additions = math.prod(a.size for a in axes[n:]) // width
        if additions <= chain.longest:
            break
        unit = width if n == len(axes) - 1 else 1
        (loop,), base = levels[n], levels[n][0]
        levels[n] = []
        sizes = chain.sizes(axis.size // unit, additions * unit // axis.size)
        for level, size in reversed(list(enumerate(sizes))):
            outer, block = f"{base}.o{level}", f"{base}.x{level}"
            steps.append(Step("split", (loop, outer, block, size)))
            levels[n].append(outer)
            loop = block
        levels[n].append(loop)
    return steps


__all__ = ["split_whole", "sum_blocks"]
