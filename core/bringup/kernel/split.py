"""Cutting one long fold into chunks, so that a launch with few grid points becomes one with many.

The first of two kernels folds each chunk at a grid point of its own and stores partial results; the
second one folds these and goes on as the whole would.  The chunks depend on sizes alone, never on
the number of workers, so results do not either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bringup.graph import Builder, Value
from bringup.graph.index import Axis, Expr, flatten
from bringup.integers import ceil_div
from bringup.kernel import ops as kops
from bringup.kernel.axes import map_stage, renumber_buffers
from bringup.kernel.form import AxisLimit, BufferDecl, Fold, Kernel, Role, Stage, Store
from bringup.kernel.fuse import Launch
from bringup.types import TensorType

#: How many iterations of its `longest_axis` a chunk of a kernel should have; 0 keeps it whole.
#: Asked only of kernels whose one loop folds.
ChunkLength = Callable[[Kernel], int]

#: Folds this long are cut whatever the grid, which bounds their serial chain.
_ALWAYS = 1 << 20


def longest_axis(kernel: Kernel) -> Axis:
    """The axis of the first stage that chunks are taken of."""
    return max(kernel.stages[0].axes, key=lambda a: (a.size, -a.id))


def even_chunks(kernel: Kernel, *, elements: int, max_points: int) -> int:
    """The length of chunks of about as many elements; 0 where many grid points give enough work.

    elements: that one chunk should fold, over all grid points that share a vector.
    max_points: folds at more grid points are cut only if they are very long.
    """
    trips = kernel.stages[0].trips
    if kernel.points > max_points and trips < _ALWAYS:
        return 0
    return max(1, elements // (trips // longest_axis(kernel).size * min(kernel.points, 64)))


def split_launch(launch: Launch, chunk_length: ChunkLength, buffers: int) -> tuple[Launch, ...]:
    """The launch as two that do the work of one, or as it is.

    It stays whole if ``chunk_length`` says so, if its kernel is more than one fold and what follows
    it, if it has fewer than two chunks, or if one of the two took more than so many buffers.
    """
    kernel = launch.kernel
    if kernel is None or not _is_one_fold(kernel):
        return (launch,)
    length = chunk_length(kernel)
    axis = longest_axis(kernel)
    if length < 1 or axis.size < 2 * length:
        return (launch,)
    chunks = ceil_div(axis.size, length)
    folds = kernel.stages[0].folds
    partials = [Value(TensorType((chunks * kernel.points,), fold.dtype)) for fold in folds]
    partial = _partial(kernel, axis, length, chunks)
    final = _final(kernel, chunks)
    parts = (
        _launch(launch, partial, partials, "out"),
        _launch(launch, final, partials, "in"),
    )
    return (launch,) if any(len(part.values) > buffers for part in parts) else parts


def describe_split(parts: Sequence[Launch]) -> str:
    """What became of a launch that was cut, for people."""
    names = [launch.kernel.name for launch in parts if launch.kernel is not None]
    (partial, *_) = (launch.kernel for launch in parts if launch.kernel is not None)
    (limit,) = partial.stages[0].limits
    return f"{' and '.join(names)}: a fold in {partial.grid[0].size} chunks of {limit.axis.size}"


def _is_one_fold(kernel: Kernel) -> bool:
    first, *others = kernel.stages
    return bool(
        first.axes
        and first.folds
        and first.trips
        and kernel.points
        and not any(stage.axes for stage in others)
        and not any(decl.role == "tile" for decl in kernel.buffers)
    )


def _partial(kernel: Kernel, axis: Axis, length: int, chunks: int) -> Kernel:
    """Fold one chunk at each point of a grid (chunk, …), with all that is stored on the way."""
    first = kernel.stages[0]
    chunk = Axis(0, chunks)
    following = {a: Axis(a.id + 1, a.size) for a in (*kernel.grid, *first.axes)}
    within = Axis(following[axis].id, length)
    start = Expr.of(chunk) * length
    table = {a: Expr.of(b) for a, b in following.items()} | {axis: start + Expr.of(within)}
    axes = tuple(within if a == axis else following[a] for a in first.axes)
    folding = map_stage(first, lambda e: e.substitute(table), axes)
    limits = (AxisLimit(within, Expr(axis.size) + start * -1),)
    grid = (chunk, *(following[a] for a in kernel.grid))
    builder = Builder()
    registers = [builder.input(TensorType((), fold.dtype)) for fold in first.folds]
    element = _element(grid)
    count = len(kernel.buffers)
    stores = tuple(Store(count + n, element) for n in range(len(registers)))
    storing = Stage((), builder.build(registers, "partial"), stores)
    stages = (replace(folding, limits=limits), storing)
    return replace(kernel, name=f"{kernel.name}_partial", grid=grid, stages=stages)


def _final(kernel: Kernel, chunks: int) -> Kernel:
    """Fold the partial results, then go on as the whole."""
    chunk = Axis(len(kernel.grid), chunks)
    element = _element((chunk, *kernel.grid))
    count, folds = len(kernel.buffers), kernel.stages[0].folds
    with Builder() as builder:
        loads = [
            kops.load(buffer=count + n, dtype=fold.dtype, index=element)
            for n, fold in enumerate(folds)
        ]
    body = builder.build(loads, "combine")
    folding = Stage((chunk,), body, tuple(Fold(fold.kind, fold.dtype) for fold in folds))
    stages = (folding, *kernel.stages[1:])
    return replace(kernel, name=f"{kernel.name}_final", stages=stages)


def _element(axes: Sequence[Axis]) -> Expr:
    """Where a partial result lies: chunk after chunk."""
    return flatten(map(Expr.of, axes), (axis.size for axis in axes))


def _launch(launch: Launch, kernel: Kernel, partials: Sequence[Value], role: Role) -> Launch:
    """The launch of a part of a kernel on those of the buffers that it uses.

    partials: the values of its last buffers.
    """
    values = (*launch.values, *partials)
    decls = (*kernel.buffers, *(BufferDecl(value.type, role) for value in partials))
    loaded = {i.attrs["buffer"] for stage in kernel.stages for i in stage.loads()}
    stored = {store.buffer for stage in kernel.stages for store in stage.stores}
    used = sorted(loaded | stored)
    stages = tuple(renumber_buffers(stage, used.index) for stage in kernel.stages)
    buffers = tuple(decls[n] for n in used)
    return replace(
        launch,
        kernel=replace(kernel, buffers=buffers, stages=stages),
        reads=tuple(values[n] for n in used if decls[n].role == "in"),
        writes=tuple(values[n] for n in used if decls[n].role == "out"),
        values=tuple(values[n] for n in used),
    )


__all__ = ["ChunkLength", "even_chunks", "longest_axis", "split_launch"]
