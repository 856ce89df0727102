"""Functions of the loop level as LLVM functions for CPUs.

The function is ``void name(ptr buffers, i64 begin, i64 end, i64 worker)``.  It runs the units
``begin … end - 1``: the iterations of the ``parallel`` loops round everything else, or of several
such nests side by side, which threads may share in any way.  ``buffers`` holds one pointer per
parameter, then one to scratch memory, of which each worker has `NativeKernel.tile_bytes`.

The iterations of a ``vector`` loop are lanes: a scalar is a vector exactly where it depends on
them.  ``unroll`` loops are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from bringup.errors import UnsupportedError
from bringup.graph.index import Div, Dyn, Expr, Mod
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.llvm import text as ir
from bringup.llvm.division import Reciprocal, divide, divides_fast, reciprocal
from bringup.llvm.func.copies import Copies, Point, copies_of, equal
from bringup.llvm.func.memory import Memory
from bringup.llvm.func.nests import Nest, Parallel, independent, nest_of
from bringup.llvm.func.panels import Panels, panels_of
from bringup.llvm.func.prefetch import (
    Ahead,
    Fill,
    Results,
    fills_behind,
    members_of,
    prefetches,
    results_behind,
)
from bringup.llvm.func.registers import Part, Registers
from bringup.llvm.func.squares import square_bytes
from bringup.llvm.index import Indices
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel, unit_function
from bringup.llvm.scalar import combine, literal, memory_type, register_type, render
from bringup.llvm.text import Builder, Function, Module, Param, Val, const, const_vector, i64_const
from bringup.llvm.text.masked import clamp, lanes_below, pairwise, prefetch
from bringup.loops.form import (
    NESTING,
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Scalar,
    Shuffle,
    Stmt,
    Store,
)
from bringup.loops.schedule.rewrite import exprs_of, used_scalars


def emit_func(module: Module, func: Func, name: str) -> NativeKernel:
    """Emit ``func`` into ``module`` as function ``name``; nothing if there are no units.

    Raises UnsupportedError for what CPUs do not run: blocks of threads, vector loops within vector
    loops, and ends of loops that differ between lanes.
    """
    nests = [nest_of(body) for body in independent(func.body)]
    if len(nests) > 1 and any(each.before for nest in nests for each in nest.loops):
        nests = [nest_of(func.body)]
    if not any(nest.units for nest in nests):
        return NativeKernel(name, 0, 0, 0)
    function = unit_function(module, name)
    b = Builder(function.block("entry"))
    memory = Memory(b, Indices(b), Registers(b, func.body))
    return FuncEmitter(func, function, memory).run(nests)


def _place(body: Sequence[Stmt], start: int, offsets: dict[Stmt, int]) -> int:
    """Set offsets of the scratch buffers of a block, from ``start`` on; returns where they end.

    Blocks beside one another have the same memory, because a buffer lives to the end of its block.
    """
    end = start
    for stmt in body:
        if isinstance(stmt, NESTING):
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
            total += isinstance(stmt, (Let, Load)) or (
                isinstance(stmt, Store) and stmt.factor is not None
            )
    return total + most


class FuncEmitter:
    """Emits a function, statement by statement.

    scalars: the registers of the scalars that are visible, by name.
    divisors: definitions of scalars that divide in deeper loops, whose reciprocal is computed once.
    reciprocals: of such scalars, by name.
    ahead: what vector loops prefetch.  panels: loops that become functions.
    """

    #: Whether each lane of a vector is a register of its own, as it is on GPUs.
    lane_registers = False
    #: What LLVM is told of serial loops.
    loop_hints = ""

    def __init__(self, func: Func, function: Function, memory: Memory) -> None:
        self.func = func
        self.function = function
        self.b = memory.b
        self.indices = memory.indices
        self.registers = memory.registers
        self.memory = memory
        self.scalars: dict[str, Val] = {}
        kinds: list[LoopKind] = (
            ["serial", "unroll", "vector"] if self.lane_registers else ["serial"]
        )
        self.divisors = frozenset(_divisors(func.body, {}, 0, kinds))
        self.reciprocals: dict[str, Reciprocal] = {}
        self.scratch: dict[Stmt, Val] = {}
        self.tile_bytes = 0
        self.ahead: dict[For, Sequence[Ahead]] = {}
        self.results: Mapping[For, Sequence[Results]] = {}
        self.fills: Mapping[For, Sequence[Fill]] = {}
        self.quotients: dict[For, list[Expr]] = {}
        self.panels: Mapping[For, Panels] = {}

    def run(self, nests: Sequence[Nest]) -> NativeKernel:
        """The loop over the units that a call is about."""
        b = self.b
        self.results = results_behind(self.func.body)
        self.panels = panels_of(self.func.body)
        self.fills = fills_behind(self.func.body)
        _fixed_quotients(self.func.body, (), self.quotients)
        _, begin, end, worker = self.function.args
        self._load_pointers(worker)
        self._make_square(self.func.body)
        for nest in nests:
            if nest.loops:
                self.ahead |= prefetches(nest.loops[-1].loop.axis, nest.body)
        filling = [each for nest in nests for each in nest.loops if each.before]
        units = 0
        with b.loop(begin, end, carried=[i64_const(-1)] * len(filling)) as loop:
            numbers: list[Val] = []
            for nest in nests:
                unit = b.sub(loop.index, i64_const(units))
                if len(nests) == 1:
                    with self.indices.block():
                        numbers = self._unit(unit, nest, loop.carried)
                else:
                    is_mine = b.icmp("ult", unit, i64_const(nest.units))
                    self._branch(is_mine, nest.body, partial(self._unit, unit, nest, ()))
                units += nest.units
            if filling:
                loop.next(*numbers)
        b.ret()
        work = sum(nest.units * _work(nest.body) for nest in nests)
        work += sum(_work(each.before) for each in filling)
        return NativeKernel(self.function.name, units, self.tile_bytes, work // units)

    def _make_square(self, body: Body) -> None:
        size = square_bytes(body)
        if size:
            self.square = self.b.alloca(ir.array(ir.i8, size), align=LINE_BYTES)

    def _unit(self, unit: Val, nest: Nest, last: Sequence[Val]) -> list[Val]:
        """One iteration of all parallel loops; the rest as in `_fill`."""
        self._indices(unit, nest.loops)
        self._prefetch_members(unit, nest)
        numbers = self._fill(unit, nest.loops, last)
        self._inside_ends([each.loop for each in nest.loops], nest.body)
        return numbers

    def _indices(self, unit: Val, nest: Sequence[Parallel]) -> None:
        """Set the index of each parallel loop."""
        b = self.b
        for n, each in reversed(list(enumerate(nest))):
            axis = each.loop.axis
            self.indices.axes[axis] = i64_const(0)
            if axis.size > 1:
                size = i64_const(axis.size)
                self.indices.axes[axis] = b.urem(unit, size) if n else unit
                unit = b.udiv(unit, size) if n else unit

    def _fill(self, unit: Val, nest: Sequence[Parallel], last: Sequence[Val]) -> list[Val]:
        """Emit what stands before parallel loops, where the unit before was of another iteration.

        last: the numbers of the iterations for which memory is filled.  Returns the new ones.
        """
        b = self.b
        numbers: list[Val] = []
        for n, each in enumerate(nest):
            if each.before:
                inner = math.prod(further.loop.axis.size for further in nest[n:])
                numbers.append(b.udiv(unit, i64_const(inner)))
                differs = b.icmp("ne", numbers[-1], last[len(numbers) - 1])
                with b.if_then(differs), self.indices.block():
                    self.body(each.before)
        return numbers

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
        registers: list[Buffer] = []
        for number, stmt in enumerate(body):
            if isinstance(stmt, Barrier):
                self._stmt(stmt, body[number + 1 :])
            else:
                self._stmt(stmt)
            if isinstance(stmt, Alloc) and stmt.buffer.space == "register":
                registers.append(stmt.buffer)
        for buffer in registers:
            self.registers.free(buffer)

    def _stmt(self, stmt: Stmt, scope: Sequence[Stmt] = ()) -> None:
        """Emit one statement.  scope: the rest of its block, for a `Barrier`."""
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
        return tuple([self.scalars[scalar.name] for scalar in scalars]) if scalars else ()

    def _define(self, stmt: Let | Load, value: Val) -> None:
        name = stmt.result.name
        self.scalars[name] = value
        if self.divisors:
            self.reciprocals.pop(name, None)
            if stmt in self.divisors and value.type.lanes == 1:
                self.reciprocals[name] = reciprocal(self.b, value)

    def _alloc(self, stmt: Alloc) -> None:
        if stmt.buffer.space == "register":
            self.registers.alloc(stmt, self.indices.lanes)
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
        if max([v.type.lanes for v in operands], default=1) > 1:
            if stmt.op.name == "div" and stmt.operands[1].name in self.reciprocals:
                by = self.reciprocals[stmt.operands[1].name]
                return divide(self.b, operands[0], by, lane_registers=self.lane_registers)
            operands = tuple([self.indices.splat(v) for v in operands])
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

    def _branch(self, condition: Val, body: Sequence[Stmt], emit: Callable[[], object]) -> None:
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
        if stmt in self.panels:
            self._function(stmt, self.panels[stmt])
            return
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

    def _function(self, stmt: For, needs: Panels) -> None:
        """Emit a loop as a function, and call it."""
        module, pointers = self.function.module, [self.memory.pointers[n] for n in needs.buffers]
        places = [self.indices.axes[axis] for axis in needs.axes]
        params: list[Param] = [(f"p{n}", ir.ptr) for n in range(len(pointers))]
        params += [(f"i{n}", place.type) for n, place in enumerate(places)]
        name = f"{self.function.name}.panels{list(self.panels).index(stmt)}"
        function = module.function(
            name, ir.void, params, attrs="noinline nounwind", linkage="internal"
        )
        b = Builder(function.block("entry"))
        memory = Memory(b, Indices(b), Registers(b, (stmt,)))
        memory.pointers = dict(zip(needs.buffers, function.args, strict=False))
        memory.indices.axes = dict(zip(needs.axes, function.args[len(pointers) :], strict=True))
        inner = FuncEmitter(Func(name, self.func.params, (stmt,)), function, memory)
        _fixed_quotients((stmt,), (), inner.quotients)
        inner._make_square((stmt,))
        inner.body((stmt,))
        b.ret()
        self.b.call(function, [*pointers, *places])

    def _copies(self, loop: For) -> bool:
        """Emit a loop to unroll statement by statement, if that may be done, and say so."""
        copies = copies_of(loop)
        points = None if copies is None else self._points(copies)
        if copies is None or points is None:
            return False
        if copies.vectors is None:
            self._interleaved(copies, points)
        elif points:
            end = None if copies.vectors in copies.early() else self._end(copies.vectors)
            if end is not None and copies.vectors.end is not None and copies.vectors.end.first < 1:
                return False
            with self._vectors(copies.vectors, *self._alive(copies.vectors, end)):
                self._interleaved(copies, points)
        return True

    def _points(self, copies: Copies) -> list[Point] | None:
        """The copies that exist, with the lanes that do; None if that is not known."""
        early = copies.early()
        points: list[Point] = []
        axes_of = [loop.axis for loop in copies.nest]
        for at in copies.points():
            axes = dict(zip(axes_of, map(self.indices.const, at), strict=True))
            lanes, exists = None, True
            if early:
                self.indices.axes.update(axes)
            for loop in early:
                end = self._end(loop)
                last = loop.axis.size if end is None else end.integer
                if last is None:
                    return None
                if loop is copies.vectors:
                    lanes = _first_lanes(last, loop.axis.size)
                    exists &= last > 0
                else:
                    exists &= at[copies.nest.index(loop)] < last
            if exists:
                points.append(Point(at, axes, lanes))
        return points

    def _interleaved(self, copies: Copies, points: Sequence[Point]) -> None:
        """Copies statement by statement, so that none waits for another.

        Those that do not differ are one: a tile of products loads each factor once.
        """
        outer, alive = self.scalars, self.memory.alive
        self.scalars = dict(outer)
        groups: dict[tuple[int, ...], list[list[int]]] = {}
        results: dict[str, list[Val]] = {}
        nothing = const(ir.i1, 0)
        for stmt in copies.body:
            axes = copies.axes[stmt]
            if axes not in groups:
                groups[axes] = equal(points, axes)
            if isinstance(stmt, Load) and copies.is_plain:
                square = self.memory.load_square(stmt, copies.nest[0].axis)
                if square is not None:
                    results[stmt.result.name] = square
                    continue
            if isinstance(stmt, Store) and self._is_across(copies, stmt):
                self._store_across(copies, points, stmt, results)
                continue
            used = [scalar.name for scalar in used_scalars(stmt) if scalar.name in results]
            named = None if isinstance(stmt, Store) else stmt.result.name
            result = [nothing] * len(points)
            for numbers in groups[axes]:
                point = points[numbers[0]]
                self.indices.axes.update(point.axes)
                self.memory.alive = alive if point.lanes is None else point.lanes
                for name in used:
                    self.scalars[name] = results[name][numbers[0]]
                if isinstance(stmt, Store) and len(numbers) > 1:
                    step = partial(combine, self.b, stmt.fold, stmt.buffer.dtype)
                    name = stmt.value.name
                    values = (
                        results[name] if name in results else [self.scalars[name]] * len(points)
                    )
                    parts = [values[number] for number in numbers]
                    self.memory.store(stmt, pairwise(parts, step), None, ())
                    continue
                self._stmt(stmt)
                if named is not None:
                    for number in numbers:
                        result[number] = self.scalars[named]
            if named is not None:
                results[named] = result
        if copies.vectors is not None:
            for point in points:
                self.indices.axes.update(point.axes)
                self._prefetch(copies.vectors)
        self.scalars, self.memory.alive = outer, alive

    def _is_across(self, copies: Copies, stmt: Store) -> bool:
        """Whether the copies of a store are stored together, lane by lane."""
        return not self.lane_registers and copies.is_transposed(stmt)

    def _store_across(
        self,
        copies: Copies,
        points: Sequence[Point],
        stmt: Store,
        results: Mapping[str, list[Val]],
    ) -> None:
        """Store the copies of the innermost loop together, lane by lane."""
        name, count = stmt.value.name, copies.nest[-1].axis.size
        values = results[name] if name in results else [self.scalars[name]] * len(points)
        for start in range(0, len(points), count):
            self.indices.axes.update(points[start].axes)
            rows = values[start : start + count]
            self.memory.store_across(stmt, copies.nest[-1].axis, rows, self.square)

    def _prefetch(self, stmt: For) -> None:
        for buffer, index in self.ahead.get(stmt, ()):
            element, pointer = memory_type(buffer.dtype), self.memory.pointers[buffer.name]
            offset = self.indices.scalar(index)
            prefetch(self.b, self.b.gep(pointer, offset, element, flags=""))

    def _prefetch_members(self, unit: Val, nest: Nest) -> None:
        """Ask for a part of the next iteration's factors: all units together ask for all."""
        axes = [each.loop.axis for each in nest.loops]
        units = math.prod(axis.size for axis in axes[1:])
        for member in members_of(axes, nest.body):
            b, buffer = self.b, member.buffer
            pointer, element = self.memory.pointers[buffer.name], memory_type(buffer.dtype)
            line = LINE_BYTES // buffer.dtype.itemsize
            part = round_up(ceil_div(member.step, units), line)
            first = b.mul(b.urem(unit, i64_const(units)), i64_const(part))
            start = b.add(first, self.indices.scalar(Expr.of(axes[0]) * member.step + member.step))
            with b.loop(i64_const(0), i64_const(part), line) as loop:
                offset = b.add(start, loop.index)
                prefetch(b, b.gep(pointer, offset, element, flags=""))

    def _prefetch_results(self, results: Results) -> None:
        """Ask for the memory of stores: their rows may be pages apart, and each would wait."""
        b, buffer = self.b, results.store.buffer
        vectors = [loop for loop in results.columns if loop.kind == "unroll"]
        pointer, element = self.memory.pointers[buffer.name], memory_type(buffer.dtype)

        def emit() -> None:
            rows = self.indices.const(results.rows.axis.size)
            with b.loop(self.indices.const(0), rows) as loop, self.indices.block():
                self.indices.axes[results.rows.axis] = loop.index
                for column in results.columns:
                    self.indices.axes[column.axis] = self.indices.const(0)
                for i in range(vectors[0].axis.size if vectors else 1):
                    if vectors:
                        self.indices.axes[vectors[0].axis] = self.indices.const(i)
                    offset = self.indices.scalar(results.store.index)
                    prefetch(b, b.gep(pointer, offset, element, flags=""), write=True)

        inside = self.indices.inside(results.condition)
        if inside is None:
            emit()
        elif inside.integer != 0:
            with b.if_then(inside), self.indices.block():
                emit()

    def _prefetch_fill(self, fill: Fill, rows: Sequence[For]) -> None:
        """Ask for the rows of a copy, whose memory may be pages apart."""
        b = self.b
        if rows:
            stop = self.indices.const(rows[0].axis.size)
            with b.loop(self.indices.const(0), stop) as loop, self.indices.block():
                self.indices.axes[rows[0].axis] = loop.index
                self._prefetch_fill(fill, rows[1:])
            return
        element = memory_type(fill.buffer.dtype)
        for start in range(0, fill.length, LINE_BYTES // fill.buffer.dtype.itemsize):
            offset = self.indices.scalar(fill.index + start)
            prefetch(b, b.gep(self.memory.pointers[fill.buffer.name], offset, element, flags=""))

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
        for results in self.results.get(stmt, ()):
            self._prefetch_results(results)
        for fill in self.fills.get(stmt, ()):
            self._prefetch_fill(fill, fill.rows)
        for quotient in self.quotients.get(stmt, ()):
            self.indices.scalar(quotient)
        parts = self.registers.stored(stmt.body)
        values = self.registers.values
        carried = [values[part] for part in parts]
        guard = stmt.while_true
        if guard is not None and (guard[0].buffer.name, 0) in parts and self.indices.lanes == 1:
            self._while(stmt, guard, stop, parts)
            return
        start, hints = self.indices.const(0), self._hints(stmt)
        counted = self._counted(stmt)
        carried += [self.indices.const(atom.of.const % atom.by) for atom in counted]
        with b.loop(start, stop, 1, carried, meta=hints) as loop, self.indices.block():
            self.indices.axes[axis] = loop.index
            values.update(zip(parts, loop.carried, strict=False))
            counts = dict(zip(counted, loop.carried[len(parts) :], strict=True))
            outer, self.indices.counts = self.indices.counts, self.indices.counts | counts
            self.body(stmt.body)
            loop.next(*(values[part] for part in parts), *map(self._next_count, counts.items()))
            self.indices.counts = outer
        values.update(zip(parts, loop.carried, strict=False))

    def _counted(self, stmt: For) -> list[Mod]:
        """Remainders that a serial loop counts, in place of dividing in each iteration."""
        return []

    def _next_count(self, counted: tuple[Mod, Val]) -> Val:
        b, (atom, count) = self.b, counted
        following = b.add(count, self.indices.const(1))
        is_whole = b.icmp("eq", following, self.indices.const(atom.by))
        return b.select(is_whole, self.indices.const(0), following)

    def _hints(self, stmt: For) -> str:
        """What LLVM is told of a serial loop."""
        return self.loop_hints

    def _while(self, stmt: For, guard: tuple[Load, Body], stop: Val, parts: Sequence[Part]) -> None:
        """A serial loop that ends where a register is false.  parts: the registers it changes."""
        b, values, (load, body) = self.b, self.registers.values, guard
        number = 1 + parts.index((load.buffer.name, 0))
        first = [self.indices.const(0), *(values[part] for part in parts)]

        def goes_on(carried: Sequence[Val]) -> Val:
            return b.and_(b.icmp("slt", carried[0], stop), carried[number])

        with b.while_loop(first, goes_on) as loop, self.indices.block():
            index, *carried = loop.carried
            self.indices.axes[stmt.axis] = index
            values.update(zip(parts, carried, strict=True))
            self.scalars[load.result.name] = const(ir.i1, 1)
            self.body(body)
            after = b.add(index, self.indices.const(1), "nuw nsw")
            loop.next(after, *(values[part] for part in parts))
        values.update(zip(parts, loop.carried[1:], strict=True))

    def _vector(self, stmt: For, end: Val | None) -> None:
        """The lanes of a vector loop; those beyond its end are masked."""
        if end is None or (end.integer is not None and end.integer > 0):
            self._emit_vector(stmt, end)
        elif end.integer is None and stmt.end is not None and stmt.end.first < 1:
            some = self.b.icmp("sgt", end, self.indices.const(0))
            self._branch(some, stmt.body, lambda: self._emit_vector(stmt, end))
        elif end.integer is None:
            self._emit_vector(stmt, end)

    def _emit_vector(self, stmt: For, end: Val | None) -> None:
        with self._vectors(stmt, *self._alive(stmt, end)):
            self.body(stmt.body)
            self._prefetch(stmt)

    def _alive(self, stmt: For, end: Val | None) -> tuple[Val | None, Val | None]:
        """The mask of the lanes of a vector loop and how many there are; None for all."""
        size = stmt.axis.size
        known = size if end is None else end.integer
        if known is not None:
            mask = _first_lanes(known, size)
            return mask, None if mask is None else self.indices.const(min(known, size))
        assert end is not None
        count = clamp(self.b, end, size)
        return lanes_below(self.b, count, ceil_power_of_two(size)), count

    @contextmanager
    def _vectors(self, stmt: For, alive: Val | None, count: Val | None) -> Iterator[None]:
        """What is emitted within is in the lanes of a vector loop.  count: of those that exist."""
        indices = self.indices
        if indices.lane is not None:
            raise UnsupportedError(f"vector loop {stmt.name} is within vector loop {indices.lane}")
        indices.lane, indices.lanes = stmt.axis, ceil_power_of_two(stmt.axis.size)
        indices.axes[stmt.axis] = self.indices.const(0)
        self.memory.first_lanes = count
        with self._lanes(alive, guarded=False):
            yield
        indices.lane, indices.lanes = None, 1


def _first_lanes(count: int, size: int) -> Val | None:
    """The mask of the first lanes of a vector loop; None for all."""
    lanes = ceil_power_of_two(size)
    if min(count, size) == lanes:
        return None
    return const_vector(ir.i1, [i < min(count, size) for i in range(lanes)])


def _fixed_quotients(
    body: Sequence[Stmt], outer: tuple[For, ...], found: dict[For, list[Expr]]
) -> None:
    """The quotients and remainders in each loop that no loop inside it changes.

    They are computed before the outermost loop of which that is true.
    """
    for stmt in body:
        for expr in exprs_of(stmt):
            atoms = tuple(expr.atoms())
            if any(isinstance(atom, Dyn) for atom in atoms):
                continue
            for atom in atoms:
                if not isinstance(atom, (Div, Mod)):
                    continue
                axes = atom.of.axes()
                inside = [n for n, loop in enumerate(outer) if loop.axis in axes]
                free = outer[inside[-1] + 1 :] if inside else outer
                serial = next((loop for loop in free if loop.kind == "serial"), None)
                if serial is not None:
                    value = Expr.of(atom)
                    known = found.setdefault(serial, [])
                    if value not in known:
                        known.append(value)
        if isinstance(stmt, NESTING):
            around = (*outer, stmt) if isinstance(stmt, For) else outer
            _fixed_quotients(stmt.body, around, found)


def _divisors(
    body: Sequence[Stmt],
    defined: dict[str, tuple[int, Stmt]],
    depth: int,
    kinds: Sequence[LoopKind],
) -> list[Stmt]:
    """The definitions of scalars by which deeper loops divide, in many iterations.

    defined: the depth and the definition of every scalar that the block sees.
    kinds: of the loops that have many iterations.
    """
    found: list[Stmt] = []
    defined = dict(defined)
    for stmt in body:
        if isinstance(stmt, For):
            found += _divisors(stmt.body, defined, depth + (stmt.kind in kinds), kinds)
        elif isinstance(stmt, If):
            found += _divisors(stmt.body, defined, depth, kinds)
        elif isinstance(stmt, (Let, Load)):
            defined[stmt.result.name] = depth, stmt
            if isinstance(stmt, Let) and stmt.op.name == "div" and len(stmt.operands) == 2:
                at, definition = defined[stmt.operands[1].name]
                if at < depth and divides_fast(register_type(stmt.result.dtype)):
                    found.append(definition)
    return found


__all__ = ["FuncEmitter", "emit_func"]
