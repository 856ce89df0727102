"""What a transformation changed, as a unified diff of two texts."""

from __future__ import annotations

import difflib

from bringup.graph.ir import Graph
from bringup.graph.printer import print_graph


def diff_graphs(before: Graph, after: Graph, *, context: int = 3) -> str:
    """Unified diff of the printed graphs; empty if they print alike.

    Each graph numbers its own values, so an instruction that goes shifts the names below it.
    """
    lines = difflib.unified_diff(
        print_graph(before).splitlines(),
        print_graph(after).splitlines(),
        "before",
        "after",
        n=context,
        lineterm="",
    )
    return "\n".join(lines)
