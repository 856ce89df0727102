"""Functions of the loop level as LLVM functions for CPUs.

The function is ``void name(ptr buffers, i64 begin, i64 end, i64 worker)``.  It runs the units
``begin … end - 1``: the iterations of the ``parallel`` loops round everything else, which threads
may share in any way.  ``buffers`` holds one pointer per parameter, then one to scratch memory, of
which each worker has `NativeKernel.tile_bytes`.

The iterations of a ``vector`` loop are lanes: a scalar is a vector exactly where it depends on
them.  ``unroll`` loops are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from bringup.errors import UnsupportedError
from bringup.integers import ceil_power_of_two, round_up
from bringup.llvm import text as ir
from bringup.llvm.body import Reciprocal, divide, divides_fast, reciprocal
from bringup.llvm.func.copies import Copies, copies_of
from bringup.llvm.func.memory import Memory
from bringup.llvm.func.prefetch import Ahead, prefetches
from bringup.llvm.func.registers import Registers
from bringup.llvm.index import Indices
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel, unit_function
from bringup.llvm.scalar import combine, literal, memory_type, register_type, render
from bringup.llvm.text import Builder, Function, Module, Val, const, const_vector, i64_const
from bringup.llvm.text.masked import clamp, lanes_below, pairwise, prefetch
from bringup.loops.form import (
    Alloc,
    Barrier,
    For,
    Func,
    If,
    Let,
    Load,
    Scalar,
    Shuffle,
    Stmt,
    Store,
)
from bringup.loops.schedule.rewrite import used_scalars


def emit_func(module: Module, func: Func, name: str) -> NativeKernel:
    """Emit ``func`` into ``module`` as function ``name``; nothing if there are no units.

    Raises UnsupportedError for what CPUs do not run: blocks of threads, vector loops within vector
    loops, and ends of loops that differ between lanes.
    """
    nest, body = _units(func)
    units = math.prod(loop.axis.size for loop in nest)
    if not units:
        return NativeKernel(name, 0, 0, 0)
    function = unit_function(module, name)
    b = Builder(function.block("entry"))
    memory = Memory(b, Indices(b), Registers(b, func.body))
    return FuncEmitter(func, function, memory).run(nest, body, units)


def _units(func: Func) -> tuple[list[For], tuple[Stmt, ...]]:
    """The parallel loops round everything else, outermost first, and what is within them."""
    nest: list[For] = []
    body = func.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "parallel":
        nest.append(body[0])
        body = body[0].body
    return nest, body


def _place(body: Sequence[Stmt], start: int, offsets: dict[Stmt, int]) -> int:
    """Set offsets of the scratch buffers of a block, from ``start`` on; returns where they end.

    Blocks beside one another have the same memory, because a buffer lives to the end of its block.
    """
    end = start
    for stmt in body:
        if isinstance(stmt, For | If):
            end = max(end, _place(stmt.body, start, offsets))
        elif isinstance(stmt, Alloc) and stmt.buffer.space != "register":
            offsets[stmt] = start
            element = memory_type(stmt.buffer.dtype)
            start += round_up(stmt.buffer.size * element.bits // 8, LINE_BYTES)
            end = max(end, start)
    return end


def _work(body: Sequence[Stmt]) -> int:
    """About how many scalar operations a body has; conditions in one block are alternatives."""
    total = most = 0
    for stmt in body:
        if isinstance(stmt, For):
            total += stmt.axis.size * _work(stmt.body)
        elif isinstance(stmt, If):
            most = max(most, _work(stmt.body))
        else:
            total += isinstance(stmt, Let | Load) or (
                isinstance(stmt, Store) and stmt.factor is not None
            )
    return total + most


class FuncEmitter:
    """Emits a function, statement by statement.

    scalars: the registers of the scalars that are visible, by name.
    divisors: definitions of scalars that divide in deeper loops, whose reciprocal is computed once.
    reciprocals: of such scalars, by name.
    ahead: what vector loops prefetch.
    """

    #: Whether each lane of a vector is a register of its own, as it is on GPUs.
    lane_registers = False

    def __init__(self, func: Func, function: Function, memory: Memory) -> None:
        self.func = func
        self.function = function
        self.b = memory.b
        self.indices = memory.indices
        self.registers = memory.registers
        self.memory = memory
        self.scalars: dict[str, Val] = {}
        self.divisors = frozenset(_divisors(func.body, {}, 0))
        self.reciprocals: dict[str, Reciprocal] = {}
        self.scratch: dict[Stmt, Val] = {}
        self.tile_bytes = 0
        self.ahead: Mapping[For, Sequence[Ahead]] = {}

    def run(self, nest: Sequence[For], body: tuple[Stmt, ...], units: int) -> NativeKernel:
        """The loop over the units that a call is about."""
        b = self.b
        _, begin, end, worker = self.function.args
        self._load_pointers(worker)
        if nest:
            self.ahead = prefetches(nest[-1].axis, body)
        with b.loop(begin, end) as loop, self.indices.block():
            unit: Val = loop.index
            for n, each in reversed(list(enumerate(nest))):
                axis = each.axis
                self.indices.axes[axis] = i64_const(0)
                if axis.size > 1:
                    size = i64_const(axis.size)
                    self.indices.axes[axis] = b.urem(unit, size) if n else unit
                    unit = b.udiv(unit, size) if n else unit
            self._inside_ends(nest, body)
        b.ret()
        return NativeKernel(self.function.name, units, self.tile_bytes, _work(body))

    def _inside_ends(self, nest: Sequence[For], body: tuple[Stmt, ...]) -> None:
        """The body of a unit, if none of its loops has ended before."""
        inside = self.indices.inside([bound for loop in nest for bound in loop.bounds])
        self._where(inside, body)

    def _load_pointers(self, worker: Val) -> None:
        b, buffers = self.b, self.function.args[0]
        for number, buffer in enumerate(p.buffer for p in self.func.params):
            pointer = b.load(ir.ptr, b.gep(buffers, number, ir.ptr), 8)
            self.memory.pointers[buffer.name] = pointer
        offsets: dict[Stmt, int] = {}
        self.tile_bytes = _place(self.func.body, 0, offsets)
        if not offsets:
            return
        scratch = b.load(ir.ptr, b.gep(buffers, len(self.func.params), ir.ptr), 8)
        base = b.gep(scratch, b.mul(worker, i64_const(self.tile_bytes)), ir.i8)
        self.scratch = {stmt: b.gep(base, offset, ir.i8) for stmt, offset in offsets.items()}

    # -- statements --------------------------------------------------------------------------------

    def body(self, body: Sequence[Stmt]) -> None:
        """Emit the statements of a block, in order."""
        for stmt in body:
            match stmt:
                case Let():
                    self._define(stmt, self._let(stmt))
                case Load():
                    self._define(stmt, self.memory.load(stmt, self._values(stmt.operands)))
                case Store():
                    value = self.scalars[stmt.value.name]
                    factor = None if stmt.factor is None else self.scalars[stmt.factor.name]
                    self.memory.store(stmt, value, factor, self._values(stmt.operands))
                case Alloc():
                    self._alloc(stmt)
                case If():
                    self._if(stmt)
                case For():
                    self._for(stmt)
                case Barrier() | Shuffle():
                    raise UnsupportedError(
                        "a CPU has no threads that meet at a barrier or exchange values"
                    )

    def _values(self, scalars: Sequence[Scalar]) -> tuple[Val, ...]:
        return tuple(self.scalars[scalar.name] for scalar in scalars)

    def _define(self, stmt: Let | Load, value: Val) -> None:
        name = stmt.result.name
        self.scalars[name] = value
        self.reciprocals.pop(name, None)
        if stmt in self.divisors and value.type.lanes == 1:
            self.reciprocals[name] = reciprocal(self.b, value)

    def _alloc(self, stmt: Alloc) -> None:
        if stmt.buffer.space == "register":
            self.registers.alloc(stmt.buffer, self.indices.lanes)
        else:
            self.memory.pointers[stmt.buffer.name] = self.scratch[stmt]

    def _let(self, stmt: Let) -> Val:
        operands = self._values(stmt.operands)
        match stmt.op.name:
            case "constant":
                return literal(stmt.attrs["value"].scalar, stmt.result.dtype)
            case "index":
                return self._index(stmt, operands)
            case "inside":
                inside = self.indices.inside(stmt.attrs["mask"], operands)
                return const(ir.i1, 1) if inside is None else inside
        if any(v.type.lanes > 1 for v in operands):
            if stmt.op.name == "div" and stmt.operands[1].name in self.reciprocals:
                by = self.reciprocals[stmt.operands[1].name]
                return divide(self.b, operands[0], by, lane_registers=self.lane_registers)
            operands = tuple(map(self.indices.splat, operands))
        return render(self.b, stmt, operands)

    def _index(self, stmt: Let, loaded: Sequence[Val]) -> Val:
        expr = stmt.attrs["index"]
        varies = self.indices.varies(expr, loaded)
        value = (self.indices.vector if varies else self.indices.scalar)(expr, loaded)
        target = register_type(stmt.result.dtype)
        if value.integer is not None:
            return const(target, value.integer)
        if value.type.bits > target.bits:
            return self.b.trunc(value, target)
        return self.b.sext(value, target)

    # -- conditions --------------------------------------------------------------------------------

    def _if(self, stmt: If) -> None:
        inside = self.indices.inside(stmt.mask)
        if stmt.test is not None:
            inside = self.indices.both(inside, self.scalars[stmt.test.name])
        self._where(inside, stmt.body)

    def _where(self, condition: Val | None, body: Sequence[Stmt]) -> None:
        """A body where a condition holds: a branch, or a mask if it differs between lanes."""
        if condition is None or condition.text in ("1", "true"):
            self.body(body)
        elif condition.type.lanes > 1:
            with self._lanes(self.indices.both(self.memory.alive, condition), guarded=True):
                self.body(body)
        elif condition.text not in ("0", "false"):
            self._branch(condition, body, lambda: self.body(body))

    @contextmanager
    def _lanes(self, alive: Val | None, *, guarded: bool) -> Iterator[None]:
        """What is emitted within concerns these lanes only."""
        before = self.memory.alive, self.memory.guarded
        self.memory.alive, self.memory.guarded = alive, guarded
        yield
        self.memory.alive, self.memory.guarded = before

    def _branch(self, condition: Val, body: Sequence[Stmt], emit: Callable[[], None]) -> None:
        """``emit`` where a scalar condition holds.  body: the statements that it emits."""
        parts = self.registers.stored(body)
        values = self.registers.values
        before = [values[part] for part in parts]

        def then() -> list[Val]:
            with self.indices.block():
                emit()
            return [values[part] for part in parts]

        merged = self.b.cond(condition, then, lambda: before)
        values.update(zip(parts, merged, strict=True))

    # -- loops -------------------------------------------------------------------------------------

    def _for(self, stmt: For) -> None:
        if not stmt.axis.size:
            return
        if stmt.kind in ("block", "thread"):
            raise UnsupportedError(f"a CPU has no loops of kind {stmt.kind}: {stmt.name}")
        end = self._end(stmt)
        if stmt.kind == "vector":
            self._vector(stmt, end)
        elif stmt.kind == "unroll" and self._copies(stmt):
            return
        elif stmt.kind == "unroll" or stmt.axis.size == 1:
            for i in range(stmt.axis.size):
                self.indices.axes[stmt.axis] = index = self.indices.const(i)
                exists = None if end is None else self._less(index, end)
                self._where(exists, stmt.body)
        else:
            self._serial(stmt, end)

    def _copies(self, loop: For) -> bool:
        """Emit a loop to unroll statement by statement, if that may be done, and say so."""
        copies = copies_of(loop)
        points = None if copies is None else self._points(copies)
        if copies is None or points is None:
            return False
        if copies.vectors is None:
            self._interleaved(copies, points)
        elif points:
            with self._vectors(copies.vectors, None):
                self._interleaved(copies, points)
        return True

    def _points(self, copies: Copies) -> list[Point] | None:
        """The copies that exist, with the lanes that do; None if that is not known."""
        early = copies.early()
        if not early:
            return [(at, None) for at in copies.points()]
        points: list[Point] = []
        for at in copies.points():
            lanes = None
            self._open(copies, at)
            for loop in early:
                end = self._end(loop)
                last = loop.axis.size if end is None else end.integer
                if last is None:
                    return None
                if loop is copies.vectors:
                    lanes = _first_lanes(last, loop.axis.size)
                    exists = last > 0
                else:
                    exists = at[copies.nest.index(loop)] < last
                if not exists:
                    break
            else:
                points.append((at, lanes))
        return points

    def _open(self, copies: Copies, at: Sequence[int]) -> None:
        """Go to one of the copies."""
        for loop, i in zip(copies.nest, at, strict=True):
            self.indices.axes[loop.axis] = self.indices.const(i)

    def _interleaved(self, copies: Copies, points: Sequence[Point]) -> None:
        """Copies statement by statement, so that none waits for another.

        Those that do not differ are one: a tile of products loads each factor once.
        """
        outer, alive = self.scalars, self.memory.alive
        self.scalars = dict(outer)
        groups: dict[tuple[int, ...], list[list[int]]] = {}
        results: dict[str, list[Val]] = {}
        for stmt in copies.body:
            axes = copies.axes[stmt]
            if axes not in groups:
                groups[axes] = _equal(points, axes)
            if isinstance(stmt, Load) and copies.is_plain:
                square = self.memory.load_square(stmt, copies.nest[0].axis)
                if square is not None:
                    results[stmt.result.name] = square
                    continue
            used = [scalar.name for scalar in used_scalars(stmt) if scalar.name in results]
            result: dict[int, Val] = {}
            for numbers in groups[axes]:
                at, lanes = points[numbers[0]]
                self._open(copies, at)
                self.memory.alive = alive if lanes is None else lanes
                for name in used:
                    self.scalars[name] = results[name][numbers[0]]
                if isinstance(stmt, Store) and len(numbers) > 1:
                    step = partial(combine, self.b, stmt.fold, stmt.buffer.dtype)
                    parts = [results[stmt.value.name][number] for number in numbers]
                    self.memory.store(stmt, pairwise(parts, step), None, ())
                    continue
                self.body((stmt,))
                if isinstance(stmt, Let | Load):
                    result.update(dict.fromkeys(numbers, self.scalars[stmt.result.name]))
            if isinstance(stmt, Let | Load):
                results[stmt.result.name] = [result[number] for number in range(len(points))]
        if copies.vectors is not None:
            for at, _ in points:
                self._open(copies, at)
                self._prefetch(copies.vectors)
        self.scalars, self.memory.alive = outer, alive

    def _prefetch(self, stmt: For) -> None:
        for buffer, index in self.ahead.get(stmt, ()):
            element, pointer = memory_type(buffer.dtype), self.memory.pointers[buffer.name]
            offset = self.indices.scalar(index)
            prefetch(self.b, self.b.gep(pointer, offset, element, flags=""))

    def _end(self, stmt: For) -> Val | None:
        """Where a loop ends early; None if it does not."""
        if stmt.end is None or stmt.end.first >= stmt.axis.size:
            return None
        if self.indices.varies(stmt.end):
            raise UnsupportedError(f"the end of loop {stmt.name} differs between lanes")
        return self.indices.scalar(stmt.end)

    def _less(self, index: Val, end: Val) -> Val:
        one, other = index.integer, end.integer
        if one is not None and other is not None:
            return const(ir.i1, one < other)
        return self.b.icmp("slt", index, end)

    def _serial(self, stmt: For, end: Val | None) -> None:
        b, axis = self.b, stmt.axis
        stop = self.indices.const(axis.size) if end is None else end
        if stmt.end is not None and end is not None and stmt.end.last > axis.size:
            stop = b.smin(end, self.indices.const(axis.size))
        parts = self.registers.stored(stmt.body)
        values = self.registers.values
        carried = [values[part] for part in parts]
        with b.loop(self.indices.const(0), stop, 1, carried) as loop, self.indices.block():
            self.indices.axes[axis] = loop.index
            values.update(zip(parts, loop.carried, strict=True))
            self.body(stmt.body)
            loop.next(*(values[part] for part in parts))
        values.update(zip(parts, loop.carried, strict=True))

    def _vector(self, stmt: For, end: Val | None) -> None:
        """The lanes of a vector loop; those beyond its end are masked."""
        size = stmt.axis.size
        known = size if end is None else end.integer
        if known is not None:
            if known > 0:
                self._emit_vector(stmt, _first_lanes(known, size))
            return
        assert end is not None
        assert stmt.end is not None
        alive = lanes_below(self.b, clamp(self.b, end, size), ceil_power_of_two(size))
        if stmt.end.first < 1:
            some = self.b.icmp("sgt", end, self.indices.const(0))
            self._branch(some, stmt.body, lambda: self._emit_vector(stmt, alive))
        else:
            self._emit_vector(stmt, alive)

    def _emit_vector(self, stmt: For, alive: Val | None) -> None:
        with self._vectors(stmt, alive):
            self.body(stmt.body)
            self._prefetch(stmt)

    @contextmanager
    def _vectors(self, stmt: For, alive: Val | None) -> Iterator[None]:
        """What is emitted within is in the lanes of a vector loop."""
        indices = self.indices
        if indices.lane is not None:
            raise UnsupportedError(f"vector loop {stmt.name} is within vector loop {indices.lane}")
        indices.lane, indices.lanes = stmt.axis, ceil_power_of_two(stmt.axis.size)
        indices.axes[stmt.axis] = self.indices.const(0)
        with self._lanes(alive, guarded=False):
            yield
        indices.lane, indices.lanes = None, 1


#: A copy that is written out: the iteration of each loop, and its lanes, None for all.
Point = tuple[tuple[int, ...], Val | None]


def _equal(points: Sequence[Point], axes: Sequence[int]) -> list[list[int]]:
    """The numbers of the copies that agree in these loops."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, (at, _) in enumerate(points):
        groups.setdefault(tuple(at[axis] for axis in axes), []).append(number)
    return list(groups.values())


def _first_lanes(count: int, size: int) -> Val | None:
    """The mask of the first lanes of a vector loop; None for all."""
    lanes = ceil_power_of_two(size)
    if min(count, size) == lanes:
        return None
    return const_vector(ir.i1, [i < min(count, size) for i in range(lanes)])


def _divisors(body: Sequence[Stmt], defined: dict[str, tuple[int, Stmt]], depth: int) -> list[Stmt]:
    """The definitions of scalars by which deeper loops divide, in many iterations.

    defined: the depth and the definition of every scalar that the block sees.
    """
    found: list[Stmt] = []
    defined = dict(defined)
    for stmt in body:
        if isinstance(stmt, For):
            found += _divisors(stmt.body, defined, depth + (stmt.kind == "serial"))
        elif isinstance(stmt, If):
            found += _divisors(stmt.body, defined, depth)
        elif isinstance(stmt, Let | Load):
            defined[stmt.result.name] = depth, stmt
            if isinstance(stmt, Let) and stmt.op.name == "div" and len(stmt.operands) == 2:
                at, definition = defined[stmt.operands[1].name]
                if at < depth and divides_fast(register_type(stmt.result.dtype)):
                    found.append(definition)
    return found


__all__ = ["FuncEmitter", "emit_func"]
