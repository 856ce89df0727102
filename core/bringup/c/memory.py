"""Where buffers of a function stand: parameters, scratch of a call, local arrays, scalars."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.c.vectors import unrolled_axes
from bringup.graph.index import Axis, Dyn, Expr
from bringup.integers import round_up
from bringup.loops.form import Alloc, Buffer, Func, Load, Store, statements
from bringup.records import record

#: Scratch buffers up to so many bytes are local arrays; others stand in the scratch of a call.
MOST_LOCAL = 1024
#: Scratch buffers begin at multiples of so many bytes, a line of most caches.
ALIGNMENT = 64
#: A register buffer of more elements is an array, even where all of its indices are constant.
MOST_SCALARS = 64


@record(eq=False)
class Layout:
    """offsets: in bytes, of the buffers that stand in scratch.  size: of scratch."""

    offsets: dict[Buffer, int]
    size: int


def scratch_layout(func: Func, *, shared: bool) -> Layout:
    """Where the large scratch buffers of a function stand, one behind the other.

    shared: whether buffers common to a block have memory of their own; else they are scratch.
    """
    offsets: dict[Buffer, int] = {}
    end = 0
    for stmt in statements(func.body):
        if not isinstance(stmt, Alloc) or stmt.buffer in offsets:
            continue
        if in_scratch(stmt.buffer, shared=shared):
            offsets[stmt.buffer] = end
            end = round_up(end + _bytes(stmt.buffer), ALIGNMENT)
    return Layout(offsets, end)


def _bytes(buffer: Buffer) -> int:
    return buffer.size * buffer.dtype.itemsize


def in_scratch(buffer: Buffer, *, shared: bool) -> bool:
    """Whether a buffer that is allocated stands in the scratch of a call."""
    if buffer.space == "shared":
        return not shared and _bytes(buffer) > MOST_LOCAL
    return buffer.space == "global" or (buffer.space == "scratch" and _bytes(buffer) > MOST_LOCAL)


def aliasing_free(func: Func) -> frozenset[Buffer]:
    """The parameters that share memory with no other: no ``in`` and ``out`` buffer of one size in
    elements of one width.
    """

    def shapes(buffers: Sequence[Buffer]) -> set[tuple[int, int]]:
        return {(buffer.size, buffer.dtype.itemsize) for buffer in buffers}

    common = shapes(func.inputs) & shapes(func.outputs)
    buffers = (param.buffer for param in func.params)
    return frozenset(b for b in buffers if (b.size, b.dtype.itemsize) not in common)


def scalar_registers(func: Func) -> frozenset[Buffer]:
    """The register buffers whose every index is constant once ``unroll`` loops are written out."""
    unrolled = unrolled_axes(func)
    arrays: set[Buffer] = set()
    registers: set[Buffer] = set()
    for stmt in statements(func.body):
        if isinstance(stmt, Alloc) and stmt.buffer.space == "register":
            registers.add(stmt.buffer)
        if isinstance(stmt, Load | Store) and not _is_constant(stmt.index, unrolled):
            arrays.add(stmt.buffer)
    return frozenset(b for b in registers - arrays if b.size <= MOST_SCALARS)


def _is_constant(index: Expr, unrolled: frozenset[Axis]) -> bool:
    return index.axes() <= unrolled and not any(isinstance(a, Dyn) for a in index.atoms())


__all__ = [
    "Layout", "aliasing_free", "in_scratch", "scalar_registers", "scratch_layout",
]  # fmt: skip
