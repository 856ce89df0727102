"""The kernel level's reference interpreter: numpy, vectorised over grid points and inner loops, and
strict.

It runs what the form says and nothing more lenient.  These raise GraphError instead of giving some
result: an element read or written outside its buffer where the mask allows the access; an ``out``
element left unwritten, or written twice; a tile read before it was written; a read that another
point's write to the same memory could change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bringup.errors import GraphError
from bringup.graph import Instr
from bringup.graph.index import Axis
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.ranges import axis_values, expr_value, mask_value
from bringup.ops.table import lookup, opdef
from bringup.records import record

Array = np.ndarray[Any, Any]

#: Iterations evaluated at once; grid points are taken in blocks of so many.
_AT_ONCE = 1 << 20
#: In place of the number of a grid point or an iteration.
_NOBODY = -1
_SEVERAL = -2


@record
class Place:
    """Where the interpreter stands: stage, (points, iterations), and which iterations exist."""

    stage: int
    shape: tuple[int, int]
    alive: Array


@dataclass(slots=True)
class _Shared:
    """An ``in`` buffer whose memory an ``out`` buffer has too: who read what.

    point: who read an element, `_NOBODY` or `_SEVERAL`.
    now: at which iteration of the stage under way.
    """

    out: int
    point: Array
    now: Array
    stage: tuple[int, int] = (_NOBODY, _NOBODY)


class Memory:
    """Buffers of one launch, as flat arrays; tiles are made anew for each block of grid points.

    Every access is checked against the promises of the form.
    """

    def __init__(self, kernel: Kernel, buffers: Sequence[Array]) -> None:
        """buffers: an array per buffer that is no tile.  Raises GraphError if they do not match."""
        self.kernel = kernel
        self.arrays: dict[int, Array] = {}
        self.writer: dict[int, Array] = {}
        self.shared: dict[int, _Shared] = {}
        self.points = np.zeros(0, np.int64)
        outside = [i for i, d in enumerate(kernel.buffers) if d.role != "tile"]
        if len(outside) != len(buffers):
            raise self._error(f"takes {len(outside)} buffers, got {len(buffers)}")
        for i, array in zip(outside, buffers, strict=True):
            self._bind(i, array)
        for i in kernel.outputs:
            self.writer[i] = np.full(self.arrays[i].size, _NOBODY, np.int64)
        self._find_shared()

    def _error(self, what: str) -> GraphError:
        return GraphError(f"kernel {self.kernel.name}: {what}")

    def _bind(self, i: int, array: Array) -> None:
        decl = self.kernel.buffers[i]
        if array.dtype != decl.type.dtype.numpy or array.size != decl.type.size:
            raise self._error(f"b{i} is {decl}, got {array.dtype} of shape {array.shape}")
        if not array.flags.c_contiguous:
            raise self._error(f"b{i} is not contiguous")
        self.arrays[i] = array.reshape(-1)

    def _find_shared(self) -> None:
        for out in self.kernel.outputs:
            target = self.arrays[out]
            for i, source in self.arrays.items():
                if i == out or not np.may_share_memory(source, target):
                    continue
                same = (
                    source.ctypes.data == target.ctypes.data and source.itemsize == target.itemsize
                )
                if (
                    i in self.kernel.outputs
                    or i in self.shared
                    or not same
                    or source.size != target.size
                ):
                    raise self._error(f"b{i} and b{out} overlap in memory")
                nobody = np.full(source.size, _NOBODY, np.int64)
                self.shared[i] = _Shared(out, nobody, nobody.copy())

    def enter(self, points: Array) -> None:
        """Begin a block of grid points: tiles hold nothing yet."""
        self.points = points
        for i, decl in enumerate(self.kernel.buffers):
            if decl.role == "tile":
                self.arrays[i] = np.zeros(points.size * decl.type.size, decl.type.dtype.numpy)
                self.writer[i] = np.full(points.size * decl.type.size, _NOBODY, np.int64)

    def leave(self) -> None:
        """End the launch.  Raises GraphError if an ``out`` buffer is not written entirely."""
        for i in self.kernel.outputs:
            missing = np.flatnonzero(self.writer[i] == _NOBODY)
            if missing.size:
                many = f"{missing.size} of {self.writer[i].size} elements"
                raise self._error(f"{many} of b{i} are never written, element {missing[0]} first")

    def load(self, buffer: int, index: Array, mask: Array, where: Place) -> Array:
        """Elements at ``index`` where ``mask`` holds, else 0."""
        decl = self.kernel.buffers[buffer]
        if decl.role == "out":
            raise self._error(f"stage {where.stage} loads b{buffer}, which is {decl}")
        # Work that no loop changes is not done for a loop of no iterations.
        live = mask & where.alive & (where.shape[1] > 0)
        index, live = np.broadcast_arrays(index, live)
        self._in_range(buffer, index, live, where, "read")
        flat = np.where(live, index, 0)
        if decl.role == "tile":
            row = np.arange(self.points.size, dtype=np.int64)[:, None]
            flat, live = np.broadcast_arrays(flat + row * decl.type.size, live)
            unwritten = live & (self.writer[buffer].take(flat, mode="clip") == _NOBODY)
            if unwritten.any():
                raise self._error(
                    f"stage {where.stage} reads tile b{buffer} where it was not written"
                )
        if buffer in self.shared:
            self._note_read(buffer, index, live, where)
        zero = decl.type.dtype.numpy.type(0)
        if not decl.type.size:
            return np.full(live.shape, zero)
        return np.where(live, self.arrays[buffer][flat], zero)

    def store(self, buffer: int, index: Array, mask: Array, value: Array, where: Place) -> None:
        """Write ``value`` at ``index`` at every iteration where ``mask`` holds."""
        decl = self.kernel.buffers[buffer]
        if decl.role == "in":
            raise self._error(f"stage {where.stage} stores to b{buffer}, which is {decl}")
        if value.dtype != decl.type.dtype.numpy:
            raise self._error(
                f"stage {where.stage} stores {value.dtype} to b{buffer}, which is {decl}"
            )
        live = np.broadcast_to(mask & where.alive, where.shape)
        index = np.broadcast_to(index, where.shape)
        self._in_range(buffer, index, live, where, "written")
        row = np.broadcast_to(np.arange(self.points.size, dtype=np.int64)[:, None], where.shape)[
            live
        ]
        at = index[live]
        if decl.role == "tile":
            at = at + row * decl.type.size
        else:
            self._check_readers(buffer, at, row, live, where)
        self._claim(buffer, at, self.points[row], where)
        self.arrays[buffer][at] = np.broadcast_to(value, where.shape)[live]

    def _in_range(self, buffer: int, index: Array, live: Array, where: Place, done: str) -> None:
        size = self.kernel.buffers[buffer].type.size
        wrong = live & ((index < 0) | (index >= size))
        if wrong.any():
            at = int(index[wrong][0])
            raise self._error(
                f"element {at} of b{buffer} is {done} in stage {where.stage}, it has {size}"
            )

    def _claim(self, buffer: int, at: Array, points: Array, where: Place) -> None:
        """Nobody may have written these elements before, nor may two iterations write one now."""
        writer = self.writer[buffer]
        before = writer[at] != _NOBODY
        if before.any():
            first = int(np.flatnonzero(before)[0])
            who = f"by point {writer[at[first]]} and again by point {points[first]}"
            raise self._error(f"element {at[first]} of b{buffer} is written {who}")
        if np.unique(at).size != at.size:
            raise self._error(f"stage {where.stage} writes an element of b{buffer} several times")
        writer[at] = points

    # -- one memory, two buffers -------------------------------------------------------------------

    def _note_read(self, buffer: int, index: Array, live: Array, where: Place) -> None:
        shared = self.shared[buffer]
        stage = (int(self.points[0]), where.stage)
        if shared.stage != stage:
            shared.stage = stage
            shared.now.fill(_NOBODY)
        live = np.broadcast_to(live, where.shape)
        at = np.broadcast_to(index, where.shape)[live]
        if (self.writer[shared.out][at] != _NOBODY).any():
            raise self._error(
                f"stage {where.stage} reads b{buffer} where b{shared.out} has replaced it"
            )
        row, trip = np.nonzero(live)
        _note(shared.point, at, self.points[row])
        _note(shared.now, at, row * where.shape[1] + trip)

    def _check_readers(self, buffer: int, at: Array, row: Array, live: Array, where: Place) -> None:
        """A point may replace only what no other point reads, and an iteration what no other of its
        stage reads.
        """
        for source, shared in self.shared.items():
            if shared.out != buffer:
                continue
            readers, now = shared.point[at], shared.now[at]
            clash = (readers != _NOBODY) & (readers != self.points[row])
            if shared.stage == (int(self.points[0]), where.stage):
                own = row * where.shape[1] + np.nonzero(live)[1]
                clash |= (now != _NOBODY) & (now != own)
            if clash.any():
                first = int(at[np.flatnonzero(clash)[0]])
                raise self._error(
                    f"b{buffer} overwrites element {first} of b{source}, which others read"
                )


def _note(table: Array, at: Array, who: Array) -> None:
    """Remember who read an element; `_SEVERAL` once that is more than one."""
    before = table[at]
    several = (before != _NOBODY) & (before != who)
    table[at] = who
    table[at[(table[at] != who) | several]] = _SEVERAL


class LaunchMemory(Protocol):
    """What `run_kernel` loads from and stores to."""

    def enter(self, points: Array) -> None:
        """Begin a block of grid points: tiles hold nothing yet."""
        ...

    def load(self, buffer: int, index: Array, mask: Array, where: Place) -> Array:
        """Elements at ``index`` where ``mask`` holds, else 0."""
        ...

    def store(self, buffer: int, index: Array, mask: Array, value: Array, where: Place) -> None:
        """Write ``value`` at ``index`` at every iteration where ``mask`` holds."""
        ...


def evaluate_kernel(kernel: Kernel, buffers: Sequence[Array]) -> None:
    """Run one launch; the ``out`` buffers are written in place.

    buffers: one C-contiguous array per buffer that is no tile, in order, of the declared dtype and
    size.  An ``out`` array may be the very memory of an ``in`` array.
    Raises GraphError for an access that the form forbids; see the module's text.
    """
    memory = Memory(kernel, buffers)
    run_kernel(kernel, memory)
    memory.leave()


def run_kernel(kernel: Kernel, memory: LaunchMemory, *, points_at_once: int = 0) -> None:
    """Run one launch on any memory.

    points_at_once: grid points of a block; blocks are run one after the other.  0 for as many as
    fit a few megabytes.
    """
    trips = max((s.trips for s in kernel.stages), default=1)
    block = points_at_once or max(1, _AT_ONCE // max(trips, 1))
    for low in range(0, kernel.points, block):
        points = np.arange(low, min(low + block, kernel.points), dtype=np.int64)
        memory.enter(points)
        _Block(kernel, memory, points).run()


class _Block:
    """Some grid points: arrays of shape (points, iterations), or 1 along what a value does not
    depend on.
    """

    def __init__(self, kernel: Kernel, memory: LaunchMemory, points: Array) -> None:
        self.kernel = kernel
        self.memory = memory
        self.points = points
        self.grid = dict(axis_values(kernel.grid, points[:, None]))

    def run(self) -> None:
        registers: list[Array] = []
        for number, stage in enumerate(self.kernel.stages):
            registers += self._stage(number, stage, registers)

    def _stage(self, number: int, stage: Stage, registers: Sequence[Array]) -> list[Array]:
        trips = np.arange(stage.trips, dtype=np.int64)[None, :]
        axes = {**self.grid, **dict(axis_values(stage.axes, trips))}
        alive = np.atleast_2d(mask_value(stage.bounds, axes))
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
        if instr.literal is not None:
            return np.full((1, 1), instr.literal.scalar)
        result = np.asarray(opdef(instr).reference(*np.broadcast_arrays(*operands), **attrs))
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


__all__ = ["LaunchMemory", "Place", "evaluate_kernel", "run_kernel"]
