"""Cutting one long fold into chunks, so that a kernel with few grid points still has many
independent parts.

The chunking depends on sizes alone, never on the number of workers, so results do not either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bringup.graph import Builder
from bringup.graph.index import Axis, Expr, flatten
from bringup.integers import ceil_div
from bringup.kernel import ops as kops
from bringup.kernel.axes import map_stage
from bringup.kernel.form import BufferDecl, Fold, Kernel, Stage, Store
from bringup.records import record
from bringup.types import TensorType

_CHUNK_ID = 1 << 20
#: Folds this long are cut whatever the grid, which bounds their serial chain.
_ALWAYS = 1 << 20


@record
class SplitFold:
    """Two kernels that do the work of one.

    partial: folds one chunk at each point of a grid (chunk, …), with all that is stored on the way,
    and stores the registers; its last buffers are the partial results.
    axis_limits: by the inner axis that runs over a chunk, how many elements are left from the start
    of the chunk at this grid point.  The loop takes ``min(axis.size, limit)`` steps: in every chunk
    but the last the limit is larger than the axis.
    final: folds the partial results, then goes on as the original; the partial results are its last
    buffers too.
    """

    partial: Kernel
    axis_limits: Mapping[Axis, Expr]
    final: Kernel
    scratch: tuple[TensorType, ...]


def split_fold(kernel: Kernel, *, chunk_elements: int, max_points: int) -> SplitFold | None:
    """Split ``kernel`` if it has at most ``max_points`` grid points and a long fold; None if that
    does not apply.

    chunk_elements: elements one chunk should fold, over all points that share a vector.
    """
    first = kernel.stages[0]
    folds = bool(first.axes and first.folds)
    if not folds or any(s.axes for s in kernel.stages[1:]) or not kernel.points:
        return None
    if kernel.points > max_points and first.trips < _ALWAYS:
        return None
    if any(b.role == "tile" for b in kernel.buffers) or not first.trips:
        return None
    axis = max(first.axes, key=lambda a: (a.size, -a.id))
    other_elements = first.trips // axis.size * min(kernel.points, 64)
    size = max(1, chunk_elements // other_elements)
    if axis.size < 2 * size:
        return None
    chunks = ceil_div(axis.size, size)
    scratch = tuple(TensorType((chunks * kernel.points,), f.dtype) for f in first.folds)
    partial, axis_limits = _partial(kernel, first, axis, size, chunks, scratch)
    return SplitFold(partial, axis_limits, _final(kernel, first, chunks, scratch), scratch)


def _points(kernel: Kernel) -> Expr:
    return flatten(map(Expr.of, kernel.grid), (a.size for a in kernel.grid))


def _partial(
    kernel: Kernel,
    first: Stage,
    axis: Axis,
    size: int,
    chunks: int,
    scratch: tuple[TensorType, ...],
) -> tuple[Kernel, Mapping[Axis, Expr]]:
    chunk, within = Axis(_CHUNK_ID, chunks), Axis(_CHUNK_ID + 1, size)
    start = Expr.of(chunk) * size
    table = {axis: start + Expr.of(within)}
    axes = tuple(within if a == axis else a for a in first.axes)
    folding = map_stage(first, lambda e: e.substitute(table), axes)
    builder = Builder()
    registers = [builder.input(TensorType((), f.dtype)) for f in first.folds]
    where = Expr.of(chunk) * kernel.points + _points(kernel)
    count = len(kernel.buffers)
    stores = tuple(Store(count + n, where) for n in range(len(scratch)))
    storing = Stage((), builder.build(registers, "partial"), stores)
    buffers = kernel.buffers + tuple(BufferDecl(t, "out") for t in scratch)
    chunked = Kernel(
        f"{kernel.name}_partial", (chunk, *kernel.grid), buffers, (folding, storing), kernel.source
    )
    return chunked, {within: Expr(axis.size) + start * -1}


def _final(kernel: Kernel, first: Stage, chunks: int, scratch: tuple[TensorType, ...]) -> Kernel:
    chunk = Axis(_CHUNK_ID, chunks)
    where = Expr.of(chunk) * kernel.points + _points(kernel)
    count = len(kernel.buffers)
    builder = Builder()
    with builder:
        loads = [
            kops.load(buffer=count + n, dtype=t.dtype, index=where) for n, t in enumerate(scratch)
        ]
    folds = tuple(Fold(f.kind, f.dtype) for f in first.folds)
    folding = Stage((chunk,), builder.build(loads, "combine"), folds)
    buffers = kernel.buffers + tuple(BufferDecl(t, "in") for t in scratch)
    return replace(
        kernel, name=f"{kernel.name}_final", buffers=buffers, stages=(folding, *kernel.stages[1:])
    )
