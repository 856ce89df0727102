"""Concatenations of more operands than a kernel may have, cut before fusion sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.graph import Graph, Instr, Value, rebuild
from bringup.kernel.limits import Limits
from bringup.ops.table import lookup


def narrow_concatenations(
    graph: Graph, limits: Limits, *, fuses: Callable[[Instr], bool] = lambda _instr: True
) -> Graph:
    """A concatenate of more operands than one kernel takes -> one of concatenates.

    Of all ops that kernels hold, it alone has any number of operands.
    fuses: as in `fuse`; an instruction left whole keeps its operands.
    """
    most = max(limits.buffers - 1, 2)

    def is_wide(instr: Instr) -> bool:
        return instr.op.name == "concatenate" and len(set(instr.operands)) > most and fuses(instr)

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if not is_wide(instr):
            return None
        join, dim = lookup("concatenate"), instr.attrs["dim"]
        while len(operands) > most:
            groups = [operands[i : i + most] for i in range(0, len(operands), most)]
            operands = tuple(g[0] if len(g) == 1 else join(*g, dim=dim) for g in groups)
        return (join(*operands, dim=dim),)

    return rebuild(graph, rewrite) if any(map(is_wide, graph.instrs)) else graph


__all__ = ["narrow_concatenations"]
