"""The kernel level's reference interpreter: numpy, vectorised over grid points and inner loops, and
strict.

It runs what the form says and nothing more lenient.  These raise GraphError instead of giving some
result: an element read or written outside its buffer where the mask allows the access; an ``out``
element left unwritten, or written twice; a tile read before it was written; a read that another
point's write to the same memory could change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.errors import GraphError
from bringup.graph import Instr
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.index import Axis, Expr
from bringup.kernel.memory import Memory, Place
from bringup.kernel.ranges import axis_values, expr_value, mask_value
from bringup.ops.table import OpDef, lookup

Array = np.ndarray[Any, Any]

#: Iterations evaluated at once; grid points are taken in blocks of so many.
_AT_ONCE = 1 << 20


def evaluate_kernel(
    kernel: Kernel, buffers: Sequence[Array], *, clips: Mapping[Axis, Expr] | None = None
) -> None:
    """Run one launch; the ``out`` buffers are written in place.

    buffers: one C-contiguous array per buffer that is no tile, in order, of the declared dtype and
    size.  An ``out`` array may be the very memory of an ``in`` array.
    clips: inner axes that stop early at an expression of grid axes.
    Raises GraphError for an access that the form forbids; see the module's text.
    """
    memory = Memory(kernel, buffers)
    trips = max((s.trips for s in kernel.stages), default=1)
    block = max(1, _AT_ONCE // max(trips, 1))
    for low in range(0, kernel.points, block):
        points = np.arange(low, min(low + block, kernel.points), dtype=np.int64)
        memory.enter(points)
        _Block(kernel, memory, points, clips or {}).run()
    memory.leave()


class _Block:
    """Some grid points: arrays of shape (points, iterations), or 1 along what a value does not
    depend on.
    """

    def __init__(
        self, kernel: Kernel, memory: Memory, points: Array, clips: Mapping[Axis, Expr]
    ) -> None:
        self.kernel = kernel
        self.memory = memory
        self.points = points
        self.clips = clips
        self.grid = dict(axis_values(kernel.grid, points[:, None]))

    def run(self) -> None:
        registers: list[Array] = []
        for number, stage in enumerate(self.kernel.stages):
            registers += self._stage(number, stage, registers)

    def _stage(self, number: int, stage: Stage, registers: Sequence[Array]) -> list[Array]:
        trips = np.arange(stage.trips, dtype=np.int64)[None, :]
        axes = {**self.grid, **dict(axis_values(stage.axes, trips))}
        alive = self._alive(stage, axes)
        where = Place(number, (self.points.size, stage.trips), alive)
        values = dict(zip(stage.body.inputs, registers, strict=True))
        for instr in stage.body.instrs:
            operands = [values[v] for v in instr.operands]
            values[instr.result] = self._instr(instr, operands, axes, where)
        made: list[Array] = []
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Fold):
                made.append(_fold(sink, values[value], where))
            else:
                self._store(sink, values[value], axes, where)
        return made

    def _alive(self, stage: Stage, axes: Mapping[Axis, Array]) -> Array:
        """Which iterations exist, given the clips."""
        alive = np.ones((1, 1), np.bool_)
        for axis in stage.axes:
            if axis in self.clips:
                alive = alive & (axes[axis] < expr_value(self.clips[axis], axes))
        return alive

    def _instr(
        self, instr: Instr, operands: Sequence[Array], axes: Mapping[Axis, Array], where: Place
    ) -> Array:
        name, attrs = instr.op.name, instr.attrs
        if name == "load":
            index = expr_value(attrs["index"], axes, operands)
            mask = mask_value(attrs["mask"], axes, operands)
            return self.memory.load(attrs["buffer"], index, mask, where)
        if name == "index":
            return expr_value(attrs["index"], axes, operands).astype(instr.result.dtype.numpy)
        if name == "inside":
            return mask_value(attrs["mask"], axes, operands)
        if name == "constant":
            return np.full((1, 1), attrs["value"].scalar)
        assert isinstance(instr.op, OpDef)
        result = np.asarray(instr.op.reference(*np.broadcast_arrays(*operands), **attrs))
        if result.dtype != instr.result.dtype.numpy:
            raise GraphError(
                f"kernel {self.kernel.name}: {name} gives {result.dtype}, not {instr.result.dtype}"
            )
        return result

    def _store(self, store: Store, value: Array, axes: Mapping[Axis, Array], where: Place) -> None:
        index, mask = expr_value(store.index, axes), mask_value(store.mask, axes)
        self.memory.store(store.buffer, index, mask, value, where)


def _fold(fold: Fold, value: Array, where: Place) -> Array:
    """The register of each point: the reduction's own reference over the iterations that exist."""
    reduce = lookup("reduce").reference
    spread = np.broadcast_to(value, where.shape)
    if where.alive.all():
        return np.asarray(reduce(spread, kind=fold.kind, dims=(1,)))[:, None]
    alive = np.broadcast_to(where.alive, where.shape)
    rows = [
        reduce(row[keep], kind=fold.kind, dims=(0,))
        for row, keep in zip(spread, alive, strict=True)
    ]
    return np.array(rows, fold.dtype.numpy)[:, None]


__all__ = ["evaluate_kernel"]
