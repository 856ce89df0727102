"""Writing windows of an array at places that are data.

The array is copied, then windows are written over it.  Windows that may overlap are written one
after the other, in row-major order of the updates; what cannot overlap is written in parallel:
windows of different batches, and elements of windows along dimensions that these span whole.

A machine with blocks of threads writes all elements side by side.  Where they may meet, it folds
atomically if every order of the fold gives the same bits.  Of elements that are set, it finds the
last by an atomic maximum of their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from bringup.dtypes import i32, i64
from bringup.graph.index import Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.ops._windows import Windows
from bringup.ops.build import unsigned
from bringup.ops.monoids import MONOIDS, ROUNDING
from bringup.ops.scattering import scatter_windows
from bringup.records import record

Ints = tuple[int, ...]

#: Neighbouring elements that one iteration of the parallel loops copies or writes at most.
_RUN = 4096
#: Iterations share a run of at least so many elements, if few run at the same time.
_SHARED_RUN = 128
#: Blocks fold into tables of their own up to so many bytes, from so many updates on, in all and for
#: each element.
_TABLE_BYTES, _TABLE_UPDATES, _TABLE_UPDATES_EACH = 16 << 10, 4096, 4
#: Updates of a thread, and the most blocks, where blocks have tables.
_TABLE_ITEMS, _TABLE_BLOCKS = 16, 528


def scatter(call: OpCall) -> StepLoops:
    """Write or fold updates at windows whose starts are rows of an array of indices."""
    x, indices, updates, _ = call.types
    kind, unique = call.attrs["kind"], call.attrs["unique"]
    fold = "" if kind == "set" else kind
    windows = scatter_windows(x, indices, updates, call.attrs)
    strides = array_strides(windows)
    unique = unique or math.prod(windows.positions) == 1
    any_order = not fold or MONOIDS[fold].is_exact(x.dtype)
    side_by_side = bool(call.threads and any_order and not unique and updates.size)
    free = range(updates.rank) if unique or side_by_side else _independent(windows)
    lasts = tuple(zip(windows.index_map, windows.last_starts, strict=True))
    starts = tuple(
        _Start(call.operands[1], _place_of_index(windows, c), stride_of(x.shape, d), last)
        for c, (d, last) in enumerate(lasts)
    )
    write = _Write(call, updates.shape, strides, frozenset(free), starts, moves=False)
    if side_by_side:
        return _SideBySide(write, fold).loops()
    return _phases(call, write, call.operands[2], fold, rounds=kind in ROUNDING and not unique)


def dynamic_update_slice(call: OpCall) -> StepLoops:
    """Write one window, which is moved inside the array."""
    x, update = (type_.shape for type_ in call.types[:2])
    strides = tuple(stride_of(x, d) for d in range(len(x)))
    starts = tuple(
        _Start(buffer, (0, ()), stride, n - size)
        for buffer, stride, n, size in zip(call.operands[2:], strides, x, update, strict=True)
    )
    write = _Write(call, update, strides, frozenset(range(len(x))), starts, moves=True)
    return _phases(call, write, call.operands[1], "", rounds=False)


def _phases(call: OpCall, write: _Write, updates: Buffer, fold: str, *, rounds: bool) -> StepLoops:
    """rounds: several updates of an element may be rounded, which half floats are only once."""
    x, y = call.operands[0], call.results[0]
    if not updates.size:
        return StepLoops(call, (_copy(call, "copy", x, y),), copies=True)
    if not rounds or wide(y.dtype) is y.dtype:
        funcs = (_copy(call, "copy", x, y), write.func(y, updates, fold))
        return StepLoops(call, funcs, copies=True)
    sums = Buffer("sums", wide(y.dtype), y.size)
    first, last = _copy(call, "widen", x, sums), _copy(call, "round", sums, y)
    return StepLoops(call, (first, write.func(sums, updates, fold), last), (sums,))


def _copy(call: OpCall, what: str, source: Buffer, target: Buffer) -> Func:
    """All elements, converted."""
    b = FuncBuilder(f"{call.name}_{what}", [("in", source), ("out", target)])
    with b.parallel(c=ceil_div(source.size, _RUN)) as (c,):
        left = c * -_RUN + source.size
        with b.loop("e", min(_RUN, source.size), until=left) as e:
            place = c * _RUN + e
            b.store(target, place, b.convert(b.load(source, place), target.dtype))
    return b.func()


# -- geometry --------------------------------------------------------------------------------------


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


def _independent(windows: Windows) -> list[int]:
    """The dimensions of the updates along which no two windows overlap."""
    spans = zip(windows.window_dims, windows.offset, strict=True)
    whole = [at for d, at in spans if windows.sizes[d] == windows.shape[d]]
    return [*whole, *(windows.position_dims[d] for d in windows.batch_position_dims)]


def _place_of_index(windows: Windows, component: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Where a component of an index stands: an offset, and strides by dimension of the updates."""
    dims = [d for d in range(len(windows.indices)) if d != windows.index_dim]
    strides = [stride_of(windows.indices, d) for d in dims]
    along = windows.index_dim < len(windows.indices)
    offset = component * stride_of(windows.indices, windows.index_dim) if along else 0
    return offset, tuple(zip(windows.position_dims, strides, strict=True))


@record(eq=False)
class _Start:
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
class _Write:
    """What is written where.

    shape: of the updates.  strides: of the array, by dimension of the updates.
    free: dimensions of the updates along which nothing overlaps.
    moves: windows are moved inside; others are left out if they are not inside.
    """

    call: OpCall
    shape: Ints
    strides: Ints
    free: frozenset[int]
    starts: tuple[_Start, ...]
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


@record(eq=False)
class _SideBySide:
    """Updates of which several may change one element, each by an iteration of its own.

    write: what is written where; all of its dimensions are free.
    fold: a monoid of which every order gives the same bits; none to set the last update.
    """

    write: _Write
    fold: str

    def loops(self) -> StepLoops:
        """All functions."""
        call = self.write.call
        x, y = call.operands[0], call.results[0]
        copy = _copy(call, "copy", x, y)
        if self.fold:
            func = self.folds_in_blocks() if self.are_many else self.folds()
            return StepLoops(call, (copy, func), copies=True)
        # Numbers count from 1; 0 means no update.
        dtype = i32 if self.updates.size + 1 < 2**31 else i64
        winners = Buffer("winners", dtype, y.size // self.unit)
        funcs = (copy, _fill(call, winners), self.numbers(winners), self.last(winners))
        return StepLoops(call, funcs, (winners,), copies=True)

    @property
    def updates(self) -> Buffer:
        """The updates."""
        return self.write.call.operands[2]

    @property
    def array(self) -> Buffer:
        """What they change."""
        return self.write.call.results[0]

    @property
    def width(self) -> int:
        """Neighbouring updates that are neighbours in the array."""
        write = self.write
        return math.prod(write.shape[len(write.shape) - write.run :])

    @property
    def unit(self) -> int:
        """How many elements of the array are changed together: a whole row of updates, or one."""
        steps = [*self.write.strides[: len(self.write.shape) - self.write.run]]
        steps += [start.stride for start in self.write.starts if start.last]
        width = self.width
        return width if not any(n % width for n in (*steps, self.array.size)) else 1

    @contextmanager
    def element(self, b: FuncBuilder, item: Expr) -> Iterator[tuple[Expr, list[Scalar]]]:
        """Where update number ``item`` goes in the array, with the scalars that this names, if its
        window lies inside.
        """
        write = self.write
        rows = write.shape[: len(write.shape) - write.run]
        position = [item // (stride_of(rows, d) * self.width) for d in range(len(rows))]
        position[1:] = [index % n for index, n in zip(position[1:], rows[1:], strict=True)]
        with ExitStack() as stack:
            target, named = write.begin(b, stack, position)
            for index, stride in zip(position, write.strides, strict=False):
                target += index * stride
            yield target + item % self.width, named

    def numbers(self, winners: Buffer) -> Func:
        """The number of the last update of each unit of the array."""
        name = f"{self.write.call.name}_last"
        b = FuncBuilder(name, [*self.write.places, ("inout", winners)])
        with (
            b.parallel(n=self.updates.size // self.unit) as (n,),
            self.element(b, n * self.unit) as (target, named),
        ):
            number, place = b.index(n + 1, winners.dtype), target // self.unit
            b.store(winners, place, number, fold="max", named=named, atomic=True)
        return b.func()

    def last(self, winners: Buffer) -> Func:
        """Set the last updates."""
        params = [*self.write.places, ("in", winners), ("in", self.updates), ("inout", self.array)]
        b = FuncBuilder(self.write.call.name, params)
        with b.parallel(n=self.updates.size) as (n,), self.element(b, n) as (target, named):
            number = b.load(winners, target // self.unit, named=named)
            is_last = b.compare("eq", number, b.index(n // self.unit + 1, winners.dtype))
            with b.where(test=is_last):
                b.store(self.array, target, b.load(self.updates, n), named=named)
        return b.func()

    def folds(self) -> Func:
        """Fold every update into the array."""
        params = [*self.write.places, ("in", self.updates), ("inout", self.array)]
        b = FuncBuilder(self.write.call.name, params)
        with b.parallel(n=self.updates.size) as (n,), self.element(b, n) as (target, named):
            value = b.load(self.updates, n)
            b.store(self.array, target, value, fold=self.fold, named=named, atomic=True)
        return b.func()

    @property
    def are_many(self) -> bool:
        """Whether so many updates fold into so few elements that they wait for one another."""
        count, nbytes = self.updates.size, self.array.type.nbytes
        dtype = self.array.dtype
        is_one = not dtype.is_float and self.fold != "mul" and dtype.bits >= 32
        few = count < max(_TABLE_UPDATES, _TABLE_UPDATES_EACH * self.array.size)
        return is_one and nbytes <= _TABLE_BYTES and not few

    def folds_in_blocks(self) -> Func:
        """Fold the updates of each block into a table of its own, and that into the array."""
        threads, count, size = self.write.call.threads, self.updates.size, self.array.size
        blocks = min(_TABLE_BLOCKS, ceil_div(count, _TABLE_ITEMS * threads))
        params = [*self.write.places, ("in", self.updates), ("inout", self.array)]
        b = FuncBuilder(self.write.call.name, params)
        neutral = MONOIDS[self.fold].neutral(self.array.dtype.numpy)
        with b.loop("b", blocks, "block") as block:
            table = b.alloc("table", self.array.dtype, size, "shared")
            with b.loop("t", threads, "thread") as t:
                nothing = b.constant(neutral, table.dtype)
                with b.strided("e", size, threads, t) as e:
                    b.store(table, e, nothing)
                b.barrier()
                first = block * threads + t
                with (
                    b.strided("n", count, blocks * threads, first) as n,
                    self.element(b, n) as (target, named),
                ):
                    value = b.load(self.updates, n)
                    b.store(table, target, value, fold=self.fold, named=named, atomic=True)
                b.barrier()
                with b.strided("e", size, threads, t) as e:
                    value = b.load(table, e)
                    with b.where(test=b.compare("ne", value, nothing)):
                        b.store(self.array, e, value, fold=self.fold, atomic=True)
        return b.func()


def _fill(call: OpCall, target: Buffer) -> Func:
    """Zeros."""
    b = FuncBuilder(f"{call.name}_clear", [("out", target)])
    with b.parallel(n=target.size) as (n,):
        b.store(target, n, b.constant(0, target.dtype))
    return b.func()
