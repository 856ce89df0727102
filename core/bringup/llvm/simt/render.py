"""Functions of the loop level as LLVM functions for GPUs.

The function has a pointer to each parameter, aligned to 16 bytes.  The iterations of the ``block``
loops round everything else are units of work; a block of threads takes every n-th of them, so that
any number of blocks computes the same.  A ``thread`` loop is a condition on the number of the
thread.  The lanes of a ``vector`` loop belong to one thread: it moves them by accesses of up to 16
bytes where their address allows that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product

from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Bound, Div, Expr, Mod
from bringup.integers import ceil_power_of_two, round_up
from bringup.llvm import text as ir
from bringup.llvm.func.memory import Memory
from bringup.llvm.func.registers import Registers
from bringup.llvm.func.render import FuncEmitter
from bringup.llvm.index import Indices, fits_i32
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import WIDEST, divides, is_even
from bringup.llvm.simt.atomics import fold_atomically
from bringup.llvm.simt.target import (
    MAX_BLOCKS,
    SHARED_BYTES,
    SimtDialect,
    dynamic_shared,
    shuffled,
)
from bringup.llvm.text import Builder, Function, Module, Param, Type, Val, const, vec
from bringup.loops.contents import contents_in, contents_of
from bringup.loops.form import (
    ACCESSES,
    NESTING,
    PRIVATE,
    STRAIGHT,
    Alloc,
    Barrier,
    Buffer,
    For,
    Func,
    If,
    Load,
    Shuffle,
    Stmt,
    Store,
    statements,
)
from bringup.loops.schedule.rewrite import exprs_of
from bringup.loops.text import print_stmt
from bringup.program.commands import SimtKernel
from bringup.target import Target

#: Copies of a loop with so many statements, none of which holds others, are in flight together.
_SHORT = 12
_ROLLED = "llvm.loop.unroll.disable"


def emit_threads(
    module: Module,
    func: Func,
    name: str,
    target: Target,
    dialect: SimtDialect,
    constant: frozenset[str] = frozenset(),
    registers: int = 0,
    *,
    fixed: bool = False,
) -> SimtKernel:
    """Emit ``func`` into ``module`` as function ``name``.

    constant: parameters that nobody writes while the function runs.
    registers: that a thread should have.
    fixed: it is launched with a block for each unit, so that no block loops over units.
    Raises UnsupportedError for what GPUs do not run.
    """
    nest, body = _blocks(func)
    units = math.prod(loop.axis.size for loop in nest)
    shared = [
        s for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.space == "shared"
    ]
    threads = round_up(_threads(body), target.warp)
    pointer = ir.pointer(dialect.global_space)
    params: list[Param] = [(param.buffer.name, pointer) for param in func.params]
    attributes = f"nounwind {dialect.attributes(threads, registers)}".rstrip()
    function = module.function(
        name, ir.void, params, attrs=attributes, calling_convention=dialect.calling_convention
    )
    b = Builder(function.block("entry"))
    index = ir.i32 if _fits_words(func, units) else ir.i64
    memory = _ThreadMemory(b, _ThreadIndices(b, index), Registers(b, func.body), constant, dialect)
    memory.pointers = {p.buffer.name: a for p, a in zip(func.params, function.args, strict=True)}
    if constant:
        memory.invariant = f", !invariant.load {module.metadata('!{}')}"
    emitter = _ThreadEmitter(func, function, memory, target, dialect, threads)
    fixed = fixed and 0 < units <= MAX_BLOCKS
    emitter.shared = _Shared(module, name, dialect, shared, loops=not fixed)
    if fixed:
        emitter.rolled = module.loop_hints(_ROLLED)
        emitter.unit(nest, body, emitter.special(dialect.block_index))
    elif units:
        emitter.units(nest, body, units)
    b.ret()
    blocks, nbytes = min(units, MAX_BLOCKS), emitter.shared.dynamic_bytes
    return SimtKernel(name, blocks, threads, nbytes, fixed)


class _Shared:
    """The shared memory of a function.

    is_double: each buffer exists twice, for even and for odd iterations of a block.  Then the
    barrier of the iteration between two of equal parity separates them.
    dynamic_bytes: memory that the launch has to give, if there is more than a kernel has anyway.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        dialect: SimtDialect,
        allocs: Sequence[Alloc],
        *,
        loops: bool,
    ) -> None:
        """loops: whether a block has several iterations."""
        self.allocs = allocs
        sizes = [round_up(_bytes(stmt.buffer), 16) for stmt in allocs]
        self.is_double = loops and 2 * sum(sizes) <= SHARED_BYTES // 2
        self.dynamic_bytes = sum(sizes) if sum(sizes) > SHARED_BYTES else 0
        self.arrays: dict[Alloc, Val] = {}
        if self.dynamic_bytes:
            self.base = dynamic_shared(module, f"{name}_tiles", dialect)
            return
        for stmt, size in zip(allocs, sizes, strict=True):
            self.arrays[stmt] = module.global_variable(
                f"{name}.{stmt.buffer.name}",
                ir.array(ir.i8, size * (2 if self.is_double else 1)),
                "undef",
                align=16,
                address_space=dialect.shared_space,
            )

    def pointer(self, b: Builder, stmt: Alloc, parity: Val) -> Val:
        """Where a buffer is in an iteration of this parity."""
        size = round_up(_bytes(stmt.buffer), 16)
        if self.dynamic_bytes:
            before = self.allocs[: self.allocs.index(stmt)]
            return b.gep(self.base, sum(round_up(_bytes(s.buffer), 16) for s in before), ir.i8)
        if not self.is_double:
            return self.arrays[stmt]
        offset = b.mul(parity, const(parity.type, size))
        return b.gep(self.arrays[stmt], b.zext(offset, ir.i64), ir.i8)


def _meets_next(body: Sequence[Stmt]) -> bool:
    """Whether a unit may touch shared memory after its last barrier that the next one touches
    before its first.
    """
    every = list(statements(tuple(body)))
    places = [number for number, stmt in enumerate(every) if isinstance(stmt, Barrier)]
    conditional = (s for s in every if isinstance(s, If) or (isinstance(s, For) and _in_order(s)))
    if not places or any(isinstance(s, Barrier) for c in conditional for s in statements(c.body)):
        return True
    first, last = (
        {s.buffer for s in part if isinstance(s, ACCESSES) and s.buffer.space == "shared"}
        for part in (every[: places[0]], every[places[-1] :])
    )
    return not first.isdisjoint(last)


def _in_order(loop: For) -> bool:
    """Whether one thread runs the iterations of a loop one after the other."""
    return loop.kind in ("serial", "parallel")


def _bytes(buffer: Buffer) -> int:
    return buffer.size * memory_type(buffer.dtype).bits // 8


def _blocks(func: Func) -> tuple[list[For], tuple[Stmt, ...]]:
    """The block loops round everything else, outermost first, and what is within them."""
    nest: list[For] = []
    body = func.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "block":
        nest.append(body[0])
        body = body[0].body
    return nest, body


def _threads(body: Sequence[Stmt]) -> int:
    """The most threads that thread loops, within one another, have."""
    most = 1
    for stmt in body:
        if isinstance(stmt, NESTING):
            own = stmt.axis.size if isinstance(stmt, For) and stmt.kind == "thread" else 1
            inner = _threads(stmt.body) if "thread" in contents_of(stmt).kinds else 1
            most = max(most, own * inner)
    return most


def _fits_words(func: Func, units: int) -> bool:
    """Whether every index and position fits 32 bits, with room to spare."""
    loops = [s.axis.size for s in statements(func.body) if isinstance(s, For)]
    exprs = (expr for stmt in statements(func.body) for expr in exprs_of(stmt))
    return max((units, *loops)) < (1 << 28) and all(map(fits_i32, exprs))


class _ThreadIndices(Indices):
    """Indices of a thread, whose lanes share a condition where all or none of them meet it."""

    def differs(self, bound: Bound, loaded: Sequence[Val]) -> bool:
        if not self.varies(bound.expr, loaded):
            return False
        assert self.lane is not None, "lanes are along an axis"
        is_one = is_even(bound, self.lane, self.lanes)
        return not is_one or self.stride(bound.expr, loaded) is None

    def _divided(self, atom: Div | Mod, value: Val) -> Val:
        """Powers of two divide negative numbers, too, by a shift or a mask."""
        by = atom.by
        if value.integer is not None or atom.of.first >= 0 or by & (by - 1):
            return super()._divided(atom, value)
        if isinstance(atom, Mod):
            return self.b.and_(value, const(value.type, by - 1))
        return self.b.binary("ashr", value, const(value.type, by.bit_length() - 1))


class _ThreadMemory(Memory):
    """Accesses of threads.

    constant: as in `emit_threads`.  invariant: metadata of their loads.
    present: whether the loops have this thread; None if they do.  One that they do not have
    computes what another one does, because all come to barriers and shuffles, but writes nothing.
    """

    def __init__(
        self,
        b: Builder,
        indices: Indices,
        registers: Registers,
        constant: frozenset[str],
        dialect: SimtDialect,
    ) -> None:
        super().__init__(b, indices, registers)
        self.constant = constant
        self.dialect = dialect
        self.invariant = ""
        self.present: Val | None = None

    def _address(self, name: str, index: Expr, loaded: Sequence[Val], element: Type) -> Val:
        offset = self.b.sext(self.indices.scalar(index, loaded), ir.i64)
        return self.b.gep(self.pointers[name], offset, element)

    def _address_or_first(self, stmt: Load, alive: Val, element: Type) -> Val:
        """The address of an element, or of the first one where a condition does not hold."""
        b, indices = self.b, self.indices
        offset = b.select(alive, indices.scalar(stmt.index), indices.const(0))
        return b.gep(self.pointers[stmt.buffer.name], b.sext(offset, ir.i64), element)

    def _may_load_another(self, stmt: Load, alive: Val, mask: Val | None) -> bool:
        """Whether a load that a loop does not have may be of any element, as nobody reads it."""
        is_plain = mask is None and not stmt.operands and alive.type.lanes == 1
        return is_plain and stmt.buffer.name in self.constant

    def _lane_addresses(
        self, name: str, index: Expr, loaded: Sequence[Val], element: Type
    ) -> list[Val]:
        stride, lanes = self.indices.stride(index, loaded), self.indices.lanes
        if stride is not None:
            first = self._address(name, index, loaded, element)
            return [self.b.gep(first, stride * lane, element) for lane in range(lanes)]
        wide = self.indices.wide(index, loaded)
        offsets = [self.b.extractelement(wide, lane) for lane in range(lanes)]
        return [self.b.gep(self.pointers[name], offset, element) for offset in offsets]

    def _is_whole(self, index: Expr, loaded: Sequence[Val]) -> bool:
        """Whether the lanes are one access, whose address is a multiple of its length."""
        lane, lanes = self.indices.lane, self.indices.lanes
        return self.indices.stride(index, loaded) == 1 and divides(index, lane, lanes)

    def _load(self, stmt: Load, loaded: Sequence[Val]) -> Val:
        b, name, lanes = self.b, stmt.buffer.name, self.indices.lanes
        element = memory_type(stmt.result.dtype)
        mask = self.indices.inside(stmt.mask, loaded)
        if stmt.buffer.space == "global" and name not in self.constant:
            mask = self.indices.both(mask, self.present)
        is_whole = self._is_whole(stmt.index, loaded)
        is_uniform = self.indices.stride(stmt.index, loaded) == 0
        one = is_whole or is_uniform
        if one and self.alive is not None and self._may_load_another(stmt, self.alive, mask):
            address = self._address_or_first(stmt, self.alive, element)
            return self._guarded(vec(element, lanes if is_whole else 1), address, None, name)
        mask = self.indices.both(mask, self.alive)
        if one and (mask is None or mask.type.lanes == 1):
            address = self._address(name, stmt.index, loaded, element)
            return self._guarded(vec(element, lanes if is_whole else 1), address, mask, name)
        addresses = self._lane_addresses(name, stmt.index, loaded, element)
        wide = vec(element, lanes)
        if mask is None or mask.type.lanes > 1:
            return self._gathered(wide, addresses, mask, name)
        return b.cond(
            mask, lambda: self._gathered(wide, addresses, None, name), lambda: ir.zero(wide)
        )[0]

    def _guarded(self, type: Type, address: Val, mask: Val | None, name: str) -> Val:
        meta = self.invariant if name in self.constant else ""
        align = min(WIDEST, type.lanes * type.bits // 8)
        if mask is None:
            return self.b.load(type, address, align, meta=meta)
        zero = ir.zero(type)
        load = self.b.load
        return self.b.cond(mask, lambda: load(type, address, align, meta=meta), lambda: zero)[0]

    def _gathered(self, type: Type, addresses: Sequence[Val], mask: Val | None, name: str) -> Val:
        value = ir.poison(type)
        for lane, address in enumerate(addresses):
            condition = None if mask is None else self.b.extractelement(mask, lane)
            element = self._guarded(type.scalar, address, condition, name)
            value = self.b.insertelement(value, element, lane)
        return value

    def _store(self, stmt: Store, value: Val, mask: Val | None, loaded: Sequence[Val]) -> None:
        if stmt.buffer.space not in PRIVATE:
            mask = self.indices.both(mask, self.present)
        lanes, dtype = self.indices.lanes, stmt.buffer.dtype
        name, element = stmt.buffer.name, memory_type(dtype)
        is_uniform = self.indices.stride(stmt.index, loaded) == 0
        if not is_uniform:
            value = self.indices.splat(value)
        is_whole = lanes == 1 or self._is_whole(stmt.index, loaded)
        if (is_whole or is_uniform) and (mask is None or mask.type.lanes == 1):
            self._put(value, dtype, self._address(name, stmt.index, loaded, element), mask)
            return
        for lane, address in enumerate(self._lane_addresses(name, stmt.index, loaded, element)):
            condition = mask
            if mask is not None and mask.type.lanes > 1:
                condition = self.b.extractelement(mask, lane)
            self._put(self.b.extractelement(value, lane), dtype, address, condition)

    def _fold_atomically(
        self, stmt: Store, value: Val, mask: Val | None, loaded: Sequence[Val]
    ) -> None:
        b, lanes, dtype = self.b, self.indices.lanes, stmt.buffer.dtype
        scope = self.dialect.block_scope
        if stmt.buffer.space != "shared":
            scope = self.dialect.device_scope
        value = self.indices.splat(value) if lanes > 1 else value
        element = memory_type(dtype)
        addresses = self._lane_addresses(stmt.buffer.name, stmt.index, loaded, element)
        for lane, address in enumerate(addresses):
            one, condition = value, mask
            if lanes > 1:
                one = b.extractelement(value, lane)
            if mask is not None and mask.type.lanes > 1:
                condition = b.extractelement(mask, lane)
            fold = partial(fold_atomically, b, stmt.fold, dtype, address, one, scope)
            if condition is None:
                fold()
            else:
                with b.if_then(condition):
                    fold()

    def _put_aligned(self, value: Val, address: Val, mask: Val | None, align: int) -> None:
        align = min(WIDEST, align * value.type.lanes)
        if mask is None:
            self.b.store(value, address, align)
            return
        with self.b.if_then(mask):
            self.b.store(value, address, align)


class _ThreadEmitter(FuncEmitter):
    """Emits a function for the threads of a block.

    threads: of a block.
    inner: how many threads the loops inside a thread loop have, by its axis.
    """

    lane_registers = True
    memory: _ThreadMemory
    #: What LLVM is told of loops whose copies would gain nothing.
    rolled = ""
    shared: _Shared
    parity = const(ir.i32, 0)

    def __init__(
        self,
        func: Func,
        function: Function,
        memory: _ThreadMemory,
        target: Target,
        dialect: SimtDialect,
        threads: int,
    ) -> None:
        super().__init__(func, function, memory)
        self.target, self.dialect = target, dialect
        self.threads = threads
        self.is_in_threads = False
        self.inner: dict[Axis, int] = {}
        self.thread = self.special(dialect.thread)

    def special(self, intrinsic: str) -> Val:
        """The number of the thread or the block, or the size of the grid."""
        return self.b.zext(self.b.intrinsic(intrinsic, ir.i32, (), ()), self.indices.type)

    def units(self, nest: Sequence[For], body: tuple[Stmt, ...], units: int) -> None:
        """A loop over the units of this block."""
        b, const = self.b, self.indices.const
        first, step = map(self.special, (self.dialect.block_index, self.dialect.grid_size))
        meta = b.module.loop_hints(_ROLLED)
        with b.loop(first, const(units), step, [const(0)], meta=meta) as loop, self.indices.block():
            (self.parity,) = loop.carried
            self.unit(nest, body, loop.index)
            if self.shared.allocs and not self.shared.is_double and _meets_next(body):
                self._barrier(())
            loop.next(b.xor(self.parity, const(1)))

    def unit(self, nest: Sequence[For], body: tuple[Stmt, ...], unit: Val) -> None:
        """One unit."""
        b, const = self.b, self.indices.const
        for n, each in reversed(list(enumerate(nest))):
            size = const(each.axis.size)
            self.indices.axes[each.axis] = b.binary("urem", unit, size) if n else unit
            unit = b.binary("udiv", unit, size) if n else unit
        if any(isinstance(s, For) and s.kind == "thread" for s in statements(body)):
            self._inside_ends(nest, body)
        else:
            with b.if_then(b.icmp("eq", self.thread, const(0))):
                self.is_in_threads = True
                self._inside_ends(nest, body)

    def _stmt(self, stmt: Stmt, scope: Sequence[Stmt] = ()) -> None:
        if isinstance(stmt, STRAIGHT) and (self.is_in_threads or not isinstance(stmt, Store)):
            super()._stmt(stmt)
        elif isinstance(stmt, Barrier):
            self._barrier(scope)
        elif isinstance(stmt, Shuffle):
            self.scalars[stmt.result.name] = self._shuffle(stmt)
        elif isinstance(stmt, Alloc) and stmt.buffer.space == "shared":
            pointer = self.shared.pointer(self.b, stmt, self.parity)
            self.memory.pointers[stmt.buffer.name] = pointer
        elif isinstance(stmt, Alloc) and stmt.buffer.space == "scratch":
            if stmt.buffer.size:
                raise UnsupportedError(
                    f"{self.func.name}: threads of a GPU have no memory for {stmt.buffer}",
                    fix="keep it in registers, or let the block share it",
                )
        elif isinstance(stmt, Store) and _is_shared(stmt):
            is_first = self.b.icmp("eq", self.thread, self.indices.const(0))
            self._branch(is_first, (stmt,), partial(super()._stmt, stmt))
        else:
            super()._stmt(stmt)

    def _barrier(self, scope: Sequence[Stmt]) -> None:
        """Wait until all threads of the block have come here.  scope: the rest of its block."""
        self.b.intrinsic(self.dialect.barrier, ir.void, (), ())

    def _shuffle(self, stmt: Shuffle) -> Val:
        """The value of a thread whose number differs in some bits."""
        mask = stmt.mask * self.inner[stmt.axis]
        if not self.are_whole_warps or mask >= self.target.warp:
            raise UnsupportedError(
                f"{self.func.name}: only threads of one whole warp exchange values: "
                f"{print_stmt(stmt)}"
            )
        return shuffled(self.b, self.scalars[stmt.value.name], mask, self.dialect)

    # -- threads -----------------------------------------------------------------------------------

    def _for(self, stmt: For) -> None:
        if stmt.kind == "thread":
            self._threads_of(stmt)
        elif stmt.kind == "unroll" and _is_straight((nest := _copied(stmt))[-1].body):
            if _combines(nest[-1].body) and self._copies(stmt):
                return
            self._loads_first(nest)
        else:
            super()._for(stmt)

    def _hints(self, stmt: For) -> str:
        is_short = len(stmt.body) <= _SHORT and not any(isinstance(s, NESTING) for s in stmt.body)
        # Nor are loops written out of which only the running function knows the length.
        if stmt.end is not None and not stmt.end.is_const:
            return self.b.module.loop_hints(_ROLLED)
        return super()._hints(stmt) if is_short or not self.rolled else self.rolled

    def _threads_of(self, stmt: For) -> None:
        """The iteration of this thread, if it has one."""
        self.inner[stmt.axis] = inner = _threads(stmt.body)
        size = stmt.axis.size
        if not self.is_in_threads:
            self.are_whole_warps = inner * size % self.target.warp == 0
        value = self._number(inner)
        exists: Val | None = None
        if self.is_in_threads:
            value = self.b.binary("urem", value, self.indices.const(size))
        elif inner * size < self.threads:
            exists = self.b.icmp("ult", value, self.indices.const(size))
        present, end = self.memory.present, self._end(stmt)
        if _meets(stmt.body):
            if exists is not None:
                raise UnsupportedError(
                    f"{self.func.name}: {self.threads - inner * size} threads of a block would not "
                    f"come to the barriers or shuffles of loop {stmt.name}"
                )
            if end is not None:
                inside = self._less(value, end)
                self.memory.present = self.indices.both(present, inside)
                value = self.b.select(inside, value, self.indices.const(0))
        elif end is not None:
            exists = self.indices.both(exists, self._less(value, end))
        self.indices.axes[stmt.axis] = value
        outer, self.is_in_threads = self.is_in_threads, True
        self._where(exists, stmt.body)
        self.is_in_threads, self.memory.present = outer, present

    def _number(self, inner: int) -> Val:
        """The number of this thread among groups of so many."""
        if inner == 1:
            return self.thread
        return self.b.binary("udiv", self.thread, self.indices.const(inner))

    # -- conditions --------------------------------------------------------------------------------

    def _where(self, condition: Val | None, body: Sequence[Stmt]) -> None:
        """Straight code where a condition holds is without branches, but for loads and stores."""
        if condition is None or condition.type.lanes > 1 or condition.integer is not None:
            super()._where(condition, body)
            return
        if any(isinstance(stmt, For) for stmt in body) and _is_flat(body):
            with self._lanes(condition, guarded=True):
                self.body(body)
            return
        present = self.memory.present
        if present is not None and not _meets(body):
            # Whatever a thread that there is not does here serves nobody.
            condition, self.memory.present = self.b.and_(condition, present), None
        super()._where(condition, body)
        self.memory.present = present

    @contextmanager
    def _lanes(self, alive: Val | None, *, guarded: bool) -> Iterator[None]:
        """What is emitted within concerns these lanes only, where a condition round it holds."""
        guarded = guarded or self.memory.guarded
        with super()._lanes(self.indices.both(self.memory.alive, alive), guarded=guarded):
            yield

    # -- loads in flight ---------------------------------------------------------------------------

    def _loads_first(self, nest: Sequence[For]) -> None:
        """Copies of straight code: all loads come first, so that they are in flight together.

        nest: the loops, of which the last one may be that of a vector.
        """
        loops = [loop for loop in nest if loop.kind == "unroll"]
        straight, outer = nest[-1].body, self.scalars
        axes, const = [loop.axis for loop in loops], self.indices.const
        numbers = product(*(range(axis.size) for axis in axes))
        points = [dict(zip(axes, map(const, point), strict=True)) for point in numbers]
        exists = [self._exists(loops, point) for point in points]
        copies = [dict(outer) for _ in points]

        def each(part: Sequence[Stmt]) -> None:
            for point, scalars, alive in zip(points, copies, exists, strict=True):
                self.indices.axes.update(point)
                self.scalars = scalars
                if alive is None:
                    self.body(part)
                    continue
                with self._lanes(alive, guarded=True):
                    self.body(part)

        def emit() -> None:
            stores = [s for s in straight if isinstance(s, Store)]
            first: list[Stmt] = [s for s in straight if isinstance(s, Load)]
            if any(isinstance(s, Load) and s.operands for s in straight):
                first = [s for s in straight if s not in stores]
            for one in first:
                each((one,))
            each([s for s in straight if s not in first and s not in stores])
            for store in stores:
                each((store,))

        if nest[-1].kind == "vector":
            with self._vectors(nest[-1], None, None):
                emit()
        else:
            emit()
        self.scalars = outer

    def _exists(self, loops: Sequence[For], point: Mapping[Axis, Val]) -> Val | None:
        """Whether the loops have this iteration; None if that is certain."""
        result: Val | None = None
        self.indices.axes.update(point)
        for loop in loops:
            end = self._end(loop)
            if end is not None:
                inside = self._less(self.indices.axes[loop.axis], end)
                result = self.indices.both(result, inside)
        return result


def _copied(stmt: For) -> list[For]:
    """Unrolled loops that hold one another alone, and the vector loop within them."""
    nest, inside = [stmt], stmt.body
    while len(inside) == 1 and isinstance(inside[0], For) and nest[-1].kind == "unroll":
        loop = inside[0]
        size = loop.axis.size
        is_whole = loop.kind == "vector" and loop.end is None and size == ceil_power_of_two(size)
        if loop.kind != "unroll" and not is_whole:
            break
        nest.append(loop)
        inside = loop.body
    return nest


def _meets(body: Sequence[Stmt]) -> bool:
    """Whether threads wait for one another in a block, or exchange values."""
    return contents_in(body).has_barrier


def _is_flat(body: Sequence[Stmt]) -> bool:
    """Whether a block is straight code, in loops that are written out at most."""
    loops = [stmt for stmt in body if isinstance(stmt, For)]
    rest = [stmt for stmt in body if not isinstance(stmt, (For, Alloc))]
    return all(s.kind in ("unroll", "vector") and _is_flat(s.body) for s in loops) and (
        _is_straight(rest)
    )


def _combines(body: Sequence[Stmt]) -> bool:
    """Whether straight code does nothing but fold registers, which then fold pairwise."""
    return all(
        stmt.buffer.space == "register" and (isinstance(stmt, Load) or bool(stmt.fold))
        if isinstance(stmt, ACCESSES)
        else False
        for stmt in body
    )


def _is_shared(stmt: Store) -> bool:
    """Whether a store is to memory that other threads see."""
    return stmt.buffer.space not in PRIVATE


def _is_straight(body: Sequence[Stmt]) -> bool:
    """Whether statements may come in another order: none reads memory that another one writes."""
    if not all(isinstance(stmt, STRAIGHT) for stmt in body):
        return False
    stored = {stmt.buffer.name for stmt in body if isinstance(stmt, Store)}
    return stored.isdisjoint(stmt.buffer.name for stmt in body if isinstance(stmt, Load))


__all__ = ["emit_threads"]
