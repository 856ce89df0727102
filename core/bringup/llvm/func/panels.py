"""Loops that fill panels of private memory, which are functions of their own beside a product.

The sums of a product take all vector registers.  LLVM loads a constant once for a whole function,
such as the numbers of lanes that a mask is made of, and keeps it in a register: sums would then be
spilled in the innermost loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bringup.graph.index import Axis
from bringup.llvm.func.prefetch import fills_registers
from bringup.loops.form import ACCESSES, NESTING, Alloc, For, Let, Load, Stmt, Store, statements
from bringup.loops.schedule.rewrite import exprs_of, used_scalars
from bringup.records import record


@record(eq=False)
class Panels:
    """What a loop that fills panels needs of the function round it.

    buffers: the names of those that it reads and writes.  axes: of the loops round it.
    """

    buffers: tuple[str, ...]
    axes: tuple[Axis, ...]


def panels_of(body: Sequence[Stmt]) -> Mapping[For, Panels]:
    """The loops that fill panels in a function that has sums in registers, outermost ones."""
    found = dict(_found(body))
    inside = {stmt for loop in found for stmt in statements((loop,))}
    sums = (s for s in statements(tuple(body)) if isinstance(s, For) and s.kind == "serial")
    return found if any(fills_registers(s) for s in sums if s not in inside) else {}


def _found(body: Sequence[Stmt]) -> Iterator[tuple[For, Panels]]:
    for stmt in body:
        panels = _panels(stmt) if isinstance(stmt, For) and stmt.kind == "serial" else None
        if panels is not None and isinstance(stmt, For):
            yield stmt, panels
        elif isinstance(stmt, NESTING):
            yield from _found(stmt.body)


def _panels(loop: For) -> Panels | None:
    """What the loop needs; None if it does anything but to fill private memory by vectors."""
    inside = list(statements((loop,)))
    stores = [stmt for stmt in inside if isinstance(stmt, Store)]
    if not stores or any(s.buffer.space != "scratch" or s.fold for s in stores):
        return None
    loops = [stmt for stmt in inside if isinstance(stmt, For)]
    if not any(inner.kind == "vector" for inner in loops):
        return None
    defined = {stmt.result for stmt in inside if isinstance(stmt, (Let, Load))}
    used = {scalar for stmt in inside for scalar in used_scalars(stmt)}
    if not used <= defined or any(isinstance(stmt, Alloc) for stmt in inside):
        return None
    axes = {axis for stmt in inside for expr in exprs_of(stmt) for axis in expr.axes()}
    axes -= {inner.axis for inner in loops}
    buffers = {stmt.buffer.name for stmt in inside if isinstance(stmt, ACCESSES)}
    return Panels(tuple(sorted(buffers)), tuple(sorted(axes, key=lambda axis: axis.name)))


__all__ = ["Panels", "panels_of"]
