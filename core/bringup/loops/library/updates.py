"""Where updates of an array go: windows at places that are data, and functions that write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from bringup.dtypes import i32, i64
from bringup.graph.index import Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, data
from bringup.loops.library.calls import OpCall
from bringup.ops._windows import Windows
from bringup.ops.build import unsigned
from bringup.records import record

Ints = tuple[int, ...]

#: Neighbouring elements that one iteration of the parallel loops copies or writes at most.
_RUN = 4096
#: Iterations share a run of at least so many elements, if few run at the same time.
_SHARED_RUN = 128


def stride_of(shape: Ints, dim: int) -> int:
    """Elements between neighbours along a dimension."""
    return math.prod(shape[dim + 1 :])


def array_strides(windows: Windows) -> Ints:
    """Strides of the array by dimension of the updates; 0 along positions that are no batch."""
    strides = [0] * len(windows.result)
    for d, at in zip(windows.window_dims, windows.offset, strict=True):
        strides[at] = stride_of(windows.shape, d)
    for d, at in zip(windows.batch[0], windows.batch_position_dims, strict=True):
        strides[windows.position_dims[at]] = stride_of(windows.shape, d)
    return tuple(strides)


def independent(windows: Windows) -> list[int]:
    """The dimensions of the updates along which no two windows overlap."""
    spans = zip(windows.window_dims, windows.offset, strict=True)
    whole = [at for d, at in spans if windows.sizes[d] == windows.shape[d]]
    return [*whole, *(windows.position_dims[d] for d in windows.batch_position_dims)]


def place_of_index(windows: Windows, component: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Where a component of an index stands: an offset, and strides by dimension of the updates."""
    dims = [d for d in range(len(windows.indices)) if d != windows.index_dim]
    strides = [stride_of(windows.indices, d) for d in dims]
    along = windows.index_dim < len(windows.indices)
    offset = component * stride_of(windows.indices, windows.index_dim) if along else 0
    return offset, tuple(zip(windows.position_dims, strides, strict=True))


@record(eq=False)
class Start:
    """One component of the starts of windows.

    place: an offset, and strides by dimension of the updates.  stride: of the array.
    last: the largest start of a window inside the array.
    """

    buffer: Buffer
    place: tuple[int, tuple[tuple[int, int], ...]]
    stride: int
    last: int

    def load(self, b: FuncBuilder, position: Sequence[Expr]) -> Scalar:
        """The start as it is."""
        offset, strides = self.place
        return b.load(
            self.buffer, sum((position[d] * stride for d, stride in strides), Expr(offset))
        )

    def moved(self, b: FuncBuilder, start: Scalar) -> Scalar:
        """The nearest start of a window inside the array."""
        info = np.iinfo(start.dtype.numpy)
        if info.min < 0:
            start = b.op("max", start, b.constant(0, start.dtype))
        if self.last < info.max:
            start = b.op("min", start, b.constant(self.last, start.dtype))
        return start

    def fits(self, b: FuncBuilder, start: Scalar) -> Scalar | None:
        """Whether a window lies inside the array; None if all do."""
        number = unsigned(start.dtype)
        if self.last >= np.iinfo(number.numpy).max:
            return None
        if start.dtype is not number:
            start = b.op("bitcast", start, dtype=number)
        return b.compare("le", start, b.constant(self.last, number))


@record(eq=False)
class Write:
    """What is written where.

    shape: of the updates.  strides: of the array, by dimension of the updates.
    free: dimensions of the updates along which nothing overlaps.
    moves: windows are moved inside; others are left out if they are not inside.
    """

    call: OpCall
    shape: Ints
    strides: Ints
    free: frozenset[int]
    starts: tuple[Start, ...]
    moves: bool

    @property
    def run(self) -> int:
        """How many trailing dimensions are contiguous in the array and in the updates."""
        count, step = 0, 1
        for d in reversed(range(len(self.shape))):
            is_contiguous = self.strides[d] == step or self.shape[d] == 1
            indexed = any(d == at for s in self.starts for at, _ in s.place[1])
            if d not in self.free or not is_contiguous or indexed:
                break
            count, step = count + 1, step * self.shape[d]
        return count

    @property
    def places(self) -> list[tuple[Role, Buffer]]:
        """The parameters that say where windows begin."""
        return [("in", x) for x in dict.fromkeys(start.buffer for start in self.starts)]

    def func(self, array: Buffer, updates: Buffer, fold: str) -> Func:
        """Write all windows."""
        rows = self.shape[: len(self.shape) - self.run]
        width = math.prod(self.shape[len(rows) :])
        busy = math.prod(rows[d] for d in self.free if d < len(rows))
        parts = min(ceil_div(self.call.target.threads, busy), max(width // _SHARED_RUN, 1))
        each = 1 if self.call.threads else min(_RUN, ceil_div(width, parts))
        b = FuncBuilder(self.call.name, [*self.places, ("in", updates), ("inout", array)])
        position = [Expr()] * len(rows)
        free = [d for d in range(len(rows)) if d in self.free]
        with ExitStack() as stack:
            sizes = {f"u{d}": rows[d] for d in free}
            *indices, c = stack.enter_context(b.parallel(**sizes, c=ceil_div(width, each)))
            for d, index in zip(free, indices, strict=True):
                position[d] = index
            for d in range(len(rows)):
                if d not in self.free:
                    position[d] = stack.enter_context(b.loop(f"u{d}", rows[d]))
            begin, named = self.begin(b, stack, position)
            with b.loop("e", each, until=c * -each + width) as e:
                source, target = c * each + e, begin + c * each + e
                for d, index in enumerate(position):
                    source += index * stride_of(self.shape, d)
                    target += index * self.strides[d]
                value = b.convert(b.load(updates, source), array.dtype)
                b.store(array, target, value, fold=fold, named=named)
        return b.func()

    def begin(
        self, b: FuncBuilder, stack: ExitStack, position: Sequence[Expr]
    ) -> tuple[Expr, list[Scalar]]:
        """Where a window begins in the array, with the scalars that this names.

        Opens a block that runs only for windows inside.
        """
        values = [start.load(b, position) for start in self.starts]
        test: Scalar | None = None
        for n, start in enumerate(self.starts):
            if self.moves:
                values[n] = start.moved(b, values[n])
            elif fits := start.fits(b, values[n]):
                test = fits if test is None else b.op("and", test, fits)
        stack.enter_context(b.where(test=test))
        begin, named = Expr(), list[Scalar]()
        for start, value in zip(self.starts, values, strict=True):
            if start.last:
                begin += data(start.last + 1, len(named)) * start.stride
                named.append(b.convert(value, i32 if start.last < 2**31 else i64))
        return begin, named


def copy(call: OpCall, what: str, source: Buffer, target: Buffer) -> Func:
    """All elements, converted."""
    b = FuncBuilder(f"{call.name}_{what}", [("in", source), ("out", target)])
    with b.parallel(c=ceil_div(source.size, _RUN)) as (c,):
        left = c * -_RUN + source.size
        with b.loop("e", min(_RUN, source.size), until=left) as e:
            place = c * _RUN + e
            b.store(target, place, b.convert(b.load(source, place), target.dtype))
    return b.func()
