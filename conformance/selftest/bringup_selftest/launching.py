"""Runs kernels as hardware does: what the form says, on memory that nothing guards.

Core's own evaluator raises for every access that the form forbids; a device under test has to be
caught by what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.backend import BufferView
from bringup.errors import DeviceError
from bringup.graph import Instr, Value
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.index import Axis
from bringup.kernel.ranges import axis_values, expr_value, mask_value
from bringup.ops.table import lookup, opdef
from bringup_selftest.memory import Heap

Array = np.ndarray[Any, Any]
#: Iterations evaluated at once, unless a device takes fewer.
AT_ONCE = 1 << 20


def launch(heap: Heap, kernel: Kernel, views: Sequence[BufferView], *, points: int = 0) -> None:
    """Run a kernel; blocks of ``points`` grid points are done one after the other (0: as many as
    are evaluated at once).
    """
    trips = max((s.trips for s in kernel.stages), default=1)
    block = points or max(1, AT_ONCE // max(trips, 1))
    bound = _bound(heap, kernel, views)
    for low in range(0, kernel.points, block):
        numbers = np.arange(low, min(low + block, kernel.points), dtype=np.int64)
        _Block(kernel, dict(bound), numbers).run()


def _bound(heap: Heap, kernel: Kernel, views: Sequence[BufferView]) -> dict[int, tuple[Array, int]]:
    outside = (i for i, decl in enumerate(kernel.buffers) if decl.role != "tile")
    return {i: heap.elements(view) for i, view in zip(outside, views, strict=True)}


class _Block:
    """Some grid points: arrays of (points, iterations), or 1 along what a value does not depend
    on.
    """

    def __init__(self, kernel: Kernel, places: dict[int, tuple[Array, int]], points: Array) -> None:
        self.kernel = kernel
        self.places = places
        self.points = points
        self.grid = dict(axis_values(kernel.grid, points[:, None]))
        for i, decl in enumerate(kernel.buffers):
            if decl.role == "tile":
                self.places[i] = (np.empty(points.size * decl.type.size, decl.type.dtype.numpy), 0)

    def run(self) -> None:
        registers: list[Array] = []
        for stage in self.kernel.stages:
            registers += self._stage(stage, registers)

    def _stage(self, stage: Stage, registers: Sequence[Array]) -> list[Array]:
        trips = np.arange(stage.trips, dtype=np.int64)[None, :]
        axes = {**self.grid, **dict(axis_values(stage.axes, trips))}
        shape = (self.points.size, stage.trips)
        values: dict[Value, Array] = dict(zip(stage.body.inputs, registers, strict=True))
        for instr in stage.body.instrs:
            operands = [values[v] for v in instr.operands]
            values[instr.result] = self._instr(instr, operands, axes, stage.trips > 0)
        made: list[Array] = []
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Fold):
                made.append(_fold(sink, np.broadcast_to(values[value], shape)))
            else:
                self._store(sink, values[value], axes, shape)
        return made

    def _instr(
        self, instr: Instr, operands: Sequence[Array], axes: Mapping[Axis, Array], runs: bool
    ) -> Array:
        name, attrs = instr.op.name, instr.attrs
        if name == "load":
            mask = mask_value(attrs["mask"], axes, operands) & runs
            return self._load(attrs["buffer"], expr_value(attrs["index"], axes, operands), mask)
        if name == "index":
            return expr_value(attrs["index"], axes, operands).astype(instr.result.dtype.numpy)
        if name == "inside":
            return mask_value(attrs["mask"], axes, operands)
        if name == "constant":
            return np.full((1, 1), attrs["value"].scalar)
        return np.asarray(opdef(instr).reference(*np.broadcast_arrays(*operands), **attrs))

    def _at(self, buffer: int, index: Array) -> Array:
        """Elements of the array of a buffer; a tile's rows are those of the points."""
        decl = self.kernel.buffers[buffer]
        if decl.role != "tile":
            return index + self.places[buffer][1]
        rows = np.arange(self.points.size, dtype=np.int64)[:, None]
        return np.asarray(index + rows * decl.type.size)

    def _load(self, buffer: int, index: Array, mask: Array) -> Array:
        array, _ = self.places[buffer]
        zero = self.kernel.buffers[buffer].type.dtype.numpy.type(0)
        at, live = np.broadcast_arrays(self._at(buffer, index), mask)
        if not live.any():
            return np.full(live.shape, zero)
        if live.all():
            return _taken(array, at)
        return np.where(live, _taken(array, np.where(live, at, at[live][0])), zero)

    def _store(
        self, store: Store, value: Array, axes: Mapping[Axis, Array], shape: tuple[int, int]
    ) -> None:
        array, _ = self.places[store.buffer]
        at = np.broadcast_to(self._at(store.buffer, expr_value(store.index, axes)), shape)
        spread = np.broadcast_to(value, shape)
        if store.mask:
            live = np.broadcast_to(mask_value(store.mask, axes), shape)
            at, spread = at[live], spread[live]
        _checked(array, at)
        array[at] = spread


def _taken(array: Array, at: Array) -> Array:
    _checked(array, at)
    return np.asarray(array[at])


def _checked(array: Array, at: Array) -> None:
    """Neighbours may be hit, as in hardware; what lies outside all memory is a fault there too."""
    if at.size and (at.min() < 0 or at.max() >= array.size):
        raise DeviceError("an address outside the device's memory")


def _fold(fold: Fold, spread: Array) -> Array:
    return np.asarray(lookup("reduce").reference(spread, kind=fold.kind, dims=(1,)))[:, None]
