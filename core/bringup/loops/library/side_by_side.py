"""Updates of an array that may meet, each by an iteration of its own, on blocks of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from bringup.dtypes import DType, bool_, i32, i64, u32, u64
from bringup.errors import UnsupportedError
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, below, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.codes import KeyCode
from bringup.loops.library.radix_sorts import LONGEST, SortLines, radix_sort
from bringup.loops.library.updates import Write, copy, stride_of
from bringup.ops.monoids import MONOIDS
from bringup.records import record

#: Blocks fold into tables of their own up to so many bytes, from so many updates on, in all and for
#: each element.
_TABLE_BYTES, _TABLE_UPDATES, _TABLE_UPDATES_EACH = 16 << 10, 4096, 4
#: Updates of a thread, and the most blocks, where blocks have tables.
_TABLE_ITEMS, _TABLE_BLOCKS = 16, 528
#: Updates that one thread folds in a row.
_CHUNK = 256


@record(eq=False)
class SideBySide:
    """Updates of which several may change one element, each by an iteration of its own.

    write: what is written where; all of its dimensions are free.
    fold: a monoid of which every order gives the same bits; none to set the last update.
    """

    write: Write
    fold: str

    def loops(self) -> StepLoops:
        """All functions."""
        call = self.write.call
        x, y = call.operands[0], call.results[0]
        first = copy(call, "copy", x, y)
        if self.fold:
            func = self.folds_in_blocks() if self.are_many else self.folds()
            return StepLoops(call, (first, func), copies=True)
        # Numbers count from 1; 0 means no update.
        dtype = i32 if self.updates.size + 1 < 2**31 else i64
        winners = Buffer("winners", dtype, y.size // self.unit)
        funcs = (first, _fill(call, winners), self.numbers(winners), self.last(winners))
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


@record(eq=False)
class OrderedFolds:
    """A fold whose order matters: the updates of an element in their order.

    They are sorted by the element that they change.  Elements with many updates are folded in
    chunks: those of an element at the head of each chunk are folded first, by all threads, so that
    no thread folds many.
    """

    updates: SideBySide

    @property
    def call(self) -> OpCall:
        """The scatter."""
        return self.updates.write.call

    @property
    def unit(self) -> int:
        """The elements of the array that have one key."""
        return self.updates.unit

    @property
    def rows(self) -> int:
        """The updates, of ``unit`` elements each."""
        return self.updates.updates.size // self.unit

    @property
    def dropped(self) -> int:
        """The key of updates that are left out, larger than all others."""
        return self.updates.array.size // self.unit

    @property
    def chunks(self) -> int:
        """Of the sorted updates."""
        return ceil_div(self.rows, _CHUNK)

    @property
    def dtype(self) -> DType:
        """Of the folds."""
        return wide(self.updates.array.dtype)

    def loops(self) -> StepLoops:
        """All functions."""
        call, y = self.call, self.updates.array
        if self.rows >= LONGEST:
            raise UnsupportedError(
                f"scatter of {self.rows} updates that may meet: threads order less than {LONGEST}",
                fix="scatter them in several calls",
            )
        number = u32 if self.dropped < 1 << 32 else u64
        keys, ordered = (Buffer(name, number, self.rows) for name in ("keys", "ordered"))
        order = Buffer("order", i32, self.rows)
        code = KeyCode(number, False, self.dropped.bit_length())
        sort_call = replace(call, name=f"{call.name}_sort")
        lines = SortLines(sort_call, (keys,), (ordered,), (code,), 1, self.rows, 1, order)
        sort = radix_sort(lines)
        heads = Buffer("heads", self.dtype, max(self.chunks - 1, 1) * self.unit)
        folds = (self.heads(ordered, order, heads),) if self.chunks > 1 else ()
        funcs = (copy(call, "copy", call.operands[0], y), self.keys(keys), *sort.funcs, *folds)
        last = self.folds(ordered, order, heads)
        given = [tuple(p.buffer for p in func.params) for func in funcs[:2]]
        given += sort.arguments
        given += [tuple(p.buffer for p in func.params) for func in (*folds, last)]
        memory = (keys, ordered, order, *sort.temporaries, *((heads,) if folds else ()))
        return StepLoops(call, (*funcs, last), memory, copies=True, given=tuple(given))

    def keys(self, keys: Buffer) -> Func:
        """The key of each update: the unit of the array that it changes."""
        b = FuncBuilder(f"{self.call.name}_keys", [*self.updates.write.places, ("out", keys)])
        with b.parallel(n=self.rows) as (n,):
            key = b.variable("key", b.constant(self.dropped, keys.dtype))
            with self.updates.element(b, n * self.unit) as (target, named):
                b.set(key, b.index(target // self.unit, keys.dtype, named=named))
            b.store(keys, n, b.load(key))
        return b.func()

    def run(
        self, b: FuncBuilder, place: tuple[Expr, Expr], memory: tuple[Buffer, Buffer]
    ) -> Buffer:
        """The fold of updates of one key, from a row to the end of its chunk at most.

        place: the first row, and the element of the unit.  memory: the sorted keys, their order.
        """
        (first, column), (keys, order), x = place, memory, self.updates.updates
        key = b.load(keys, first)
        neutral = MONOIDS[self.updates.fold].neutral(self.dtype.numpy)
        total = b.variable("total", b.constant(neutral, self.dtype))
        more = b.variable("more", b.constant(True, bool_))
        with b.loop("k", _CHUNK, until=first % _CHUNK * -1 + _CHUNK) as k, b.goes_on(more):
            row = first + k
            exists = below(row, self.rows)
            source = b.load(order, row, exists)
            place_ = data(self.rows) * self.unit + column
            update = b.load(x, place_, exists, named=[source])
            b.set(total, b.convert(update, self.dtype), fold=self.updates.fold)
            next_ = below(row + 1, self.rows)
            is_equal = b.compare("eq", b.load(keys, row + 1, next_), key)
            b.set(more, b.op("and", is_equal, b.inside(next_)))
        return total

    def heads(self, keys: Buffer, order: Buffer, heads: Buffer) -> Func:
        """Fold the updates with the first key of each chunk but the first chunk."""
        updates = self.updates.updates
        params: list[tuple[Role, Buffer]]
        params = [("in", keys), ("in", order), ("in", updates), ("out", heads)]
        b = FuncBuilder(f"{self.call.name}_heads", params)
        with b.parallel(c=self.chunks - 1, e=self.unit) as (c, e):
            total = self.run(b, (c * _CHUNK + _CHUNK, e), (keys, order))
            b.store(heads, c * self.unit + e, b.load(total))
        return b.func()

    def folds(self, keys: Buffer, order: Buffer, heads: Buffer) -> Func:
        """Let the first update of each key fold all of them into the array."""
        array, updates = self.updates.array, self.updates.updates
        params: list[tuple[Role, Buffer]]
        params = [("in", keys), ("in", order), ("in", updates), ("inout", array)]
        params += [("in", heads)] if self.chunks > 1 else []
        b = FuncBuilder(self.call.name, params)
        with b.parallel(n=self.rows, e=self.unit) as (n, e):
            key, before = b.load(keys, n), Bound(n, 1, self.rows)
            differs = b.compare("ne", b.load(keys, n + -1, before), key)
            is_first = b.op("or", differs, b.inside(below(n, 1)))
            is_kept = b.compare("ne", key, b.constant(self.dropped, keys.dtype))
            with b.where(test=b.op("and", is_first, is_kept)):
                total = self.run(b, (n, e), (keys, order))
                if self.chunks > 1:
                    self.following(b, total, (n, e, key), (keys, heads))
                target = data(self.dropped) * self.unit + e
                named = [b.convert(key, i32 if self.dropped < 2**31 else i64)]
                old = b.convert(b.load(array, target, named=named), self.dtype)
                new = b.op(self.updates.fold, old, b.load(total))
                b.store(array, target, b.convert(new, array.dtype), named=named)
        return b.func()

    def following(
        self,
        b: FuncBuilder,
        total: Buffer,
        place: tuple[Expr, Expr, Scalar],
        memory: tuple[Buffer, Buffer],
    ) -> None:
        """Fold the updates of a key in the chunks that begin with it."""
        (n, e, key), (keys, heads) = place, memory

        def begins(chunk: Expr) -> Scalar:
            exists = below(chunk * _CHUNK, self.rows)
            is_equal = b.compare("eq", b.load(keys, chunk * _CHUNK, exists), key)
            return b.op("and", is_equal, b.inside(exists))

        more = b.variable("further", begins(n // _CHUNK + 1))
        with b.loop("c", self.chunks - 1) as c, b.goes_on(more):
            number = n // _CHUNK + c
            head = b.load(heads, number * self.unit + e, below(number, self.chunks - 1))
            b.set(total, head, fold=self.updates.fold)
            b.set(more, begins(number + 2))
