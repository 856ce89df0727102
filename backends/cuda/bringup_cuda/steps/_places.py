"""Where updates go in an array: the geometry of scatter and dynamic_update_slice for threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type
from bringup.llvm.sizes import array_strides, coordinates, load_index, stride_of, trailing_run
from bringup.llvm.text import Builder, Val, const
from bringup.ops.scattering import Windows, scatter_windows
from bringup.program.program import OpStep
from bringup.records import record

Ints = tuple[int, ...]


@record
class Places:
    """Updates as rows of ``width`` elements that lie side by side in the array as well.

    size: of the array, in elements.  rows: sizes of the dimensions that number rows.
    strides: of the array, by dimension of ``rows``.
    moves: a stride of the array and the last place, by component of an index.
    index: dtype of indices.  windows: of a scatter; None if indices are one scalar each.
    """

    size: int
    width: int
    rows: Ints
    strides: Ints
    moves: tuple[tuple[int, int], ...]
    index: DType | None
    windows: Windows | None

    @classmethod
    def of_scatter(cls, step: OpStep) -> Places:
        """Of a step of the row ``scatter``."""
        x, indices, updates = (slot.type for slot in step.operands)
        windows = scatter_windows(x, indices, updates, step.attrs)
        strides = array_strides(windows)
        run = trailing_run(updates.shape, strides, windows.offset)
        moves = tuple(
            (stride_of(x.shape, d), last)
            for d, last in zip(windows.index_map, windows.lasts, strict=True)
        )
        return cls._made(x.size, updates.shape, strides, run, moves, indices.dtype, windows)

    @classmethod
    def of_update(cls, step: OpStep) -> Places:
        """Of a step of the row ``dynamic_update_slice``."""
        x, update = (slot.type for slot in step.operands[:2])
        strides = [stride_of(x.shape, d) for d in range(x.rank)]
        run = trailing_run(update.shape, strides, range(x.rank))
        lasts = [n - size for n, size in zip(x.shape, update.shape, strict=True)]
        moves = tuple(zip(strides, lasts, strict=True))
        return cls._made(x.size, update.shape, strides, run, moves, None, None)

    @classmethod
    def _made(
        cls,
        size: int,
        shape: Ints,
        strides: Sequence[int],
        run: int,
        moves: tuple[tuple[int, int], ...],
        index: DType | None,
        windows: Windows | None,
    ) -> Places:
        cut = len(shape) - run
        width, rows = math.prod(shape[cut:]), shape[:cut]
        return cls(size, width, rows, tuple(strides[:cut]), moves, index, windows)

    @property
    def apart(self) -> bool:
        """Whether there is but one window, so that no two updates meet."""
        return self.windows is None or math.prod(self.windows.positions) == 1

    @property
    def unit(self) -> int:
        """Elements of the array that rows cover whole or not at all: a row, or one element."""
        steps = [*self.strides, *(stride for stride, last in self.moves if last)]
        whole = all(step % self.width == 0 for step in steps)
        return self.width if whole and self.size % self.width == 0 else 1

    def begin(self, b: Builder, row: Val, indices: Val) -> tuple[Val, Val | None]:
        """Where a row begins in the array, and whether its window lies inside; None if it must.

        row: its number, i64.  indices: a pointer to them.
        """
        at = coordinates(b, row, self.rows)
        offset = self._within(b, at)
        assert self.windows is not None, "a scatter has windows"
        assert self.index is not None, "a scatter has indices"
        place = [at[d] for d in self.windows.between]
        inside: Val | None = None
        for c, (stride, last) in enumerate(self.moves):
            flat = self._flat(b, self.windows, place, c)
            start = load_index(b, b.gep(indices, flat, memory_type(self.index)), self.index)
            fits = b.icmp("ule", start, const(ir.i64, last))
            inside = fits if inside is None else b.and_(inside, fits)
            offset = b.add(offset, b.mul(start, const(ir.i64, stride)))
        return offset, inside

    def _within(self, b: Builder, at: Sequence[Val]) -> Val:
        """Where a row lies in the array by its coordinates alone."""
        offset = const(ir.i64, 0)
        for coordinate, stride in zip(at, self.strides, strict=True):
            offset = b.add(offset, b.mul(coordinate, const(ir.i64, stride)))
        return offset

    @staticmethod
    def _flat(b: Builder, windows: Windows, place: Sequence[Val], component: int) -> Val:
        """The element of the indices that holds a component of a position's index."""
        whole = list(place)
        if windows.index_dim < len(windows.indices):
            whole.insert(windows.index_dim, const(ir.i64, component))
        flat = const(ir.i64, 0)
        for coordinate, n in zip(whole, windows.indices, strict=True):
            flat = b.add(b.mul(flat, const(ir.i64, n)), coordinate)
        return flat

    def clamped(
        self, b: Builder, row: Val, pointers: Sequence[Val], dtypes: Sequence[DType]
    ) -> Val:
        """Where a row begins whose window is moved inside; pointers: to an index each."""
        offset = self._within(b, coordinates(b, row, self.rows))
        for pointer, dtype, (stride, last) in zip(pointers, dtypes, self.moves, strict=True):
            start = load_index(b, pointer, dtype)
            if dtype.kind == "int":
                start = b.intrinsic("llvm.smax", ir.i64, (start, const(ir.i64, 0)))
            start = b.intrinsic("llvm.umin", ir.i64, (start, const(ir.i64, last)))
            offset = b.add(offset, b.mul(start, const(ir.i64, stride)))
        return offset


__all__ = ["Places"]
