"""Kernels as text: deterministic, complete, and the content of cache keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graph.printer import print_graph

if TYPE_CHECKING:
    from bringup.kernel.form import Kernel


def print_kernel(kernel: Kernel) -> str:
    """The kernel's text: buffers, grid, then each stage with its axes, body and sinks.

    The first line alone holds the name, so that the rest identifies the content.
    """
    lines = [f"kernel {kernel.name}"]
    lines += [f"  b{n}: {decl}" for n, decl in enumerate(kernel.buffers)]
    lines.append(f"  grid {' '.join(map(str, kernel.grid)) or '()'}")
    for number, stage in enumerate(kernel.stages):
        lines.append(f"  stage {number} over {' '.join(map(str, stage.axes)) or '()'}")
        lines += [f"    {line}" for line in print_graph(stage.body).splitlines()]
        lines += [f"    {sink}" for sink in stage.sinks]
    return "\n".join(lines)
