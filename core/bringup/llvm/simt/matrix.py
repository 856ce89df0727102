"""Functions whose blocks keep tiles in registers and fill shared memory ahead, for GPUs.

They are rendered as `render` says, but for these.  A fragment's elements are registers of the
threads.  A block runs one iteration of the block loops, and there is one for each.  Shared buffers
that are not used at the same time, with a barrier between, have the same memory.  What is stored
later goes by copies of the target that do not wait, and products that come later by its unit for
several warps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile

from bringup.errors import UnsupportedError
from bringup.graph.index import Expr, Mod
from bringup.integers import round_up
from bringup.llvm import text as ir
from bringup.llvm.func.registers import Registers
from bringup.llvm.simt.group_products import (
    PERIOD,
    THREADS,
    GroupProducts,
    asking_threads,
    asks,
    factors,
)
from bringup.llvm.simt.products import Products
from bringup.llvm.simt.render import (
    _blocks,
    _bytes,
    _fits_words,
    _ThreadEmitter,
    _threads,
)
from bringup.llvm.simt.target import (
    SHARED_BYTES,
    GroupUnit,
    SimtDialect,
    dynamic_shared,
)
from bringup.llvm.simt.tiles import TileIndices, TileMemory
from bringup.llvm.text import Builder, Module, Param, Val, i64_const
from bringup.loops.form import (
    NESTING,
    Alloc,
    Barrier,
    Body,
    Buffer,
    Commit,
    For,
    Func,
    Load,
    Stmt,
    Store,
    Wait,
    statements,
)
from bringup.loops.fragments import in_registers
from bringup.loops.schedule.rewrite import exprs_of
from bringup.program.commands import SimtKernel
from bringup.target import Target

#: Blocks of a multiprocessor that are few: an assembler that chooses might keep registers for more.
_FEW = 3


def emit_tiles(
    module: Module,
    func: Func,
    name: str,
    target: Target,
    dialect: SimtDialect,
    registers: int,
) -> SimtKernel:
    """Emit ``func`` into ``module`` as function ``name``.

    registers: that a thread should have.  If 0, as many as it needs where shared memory holds few
    blocks; else the assembler chooses.
    Raises UnsupportedError for what GPUs do not run.
    """
    moved, ranks = in_registers(func.body)
    func = Func(func.name, func.params, moved)
    nest, body = _blocks(func)
    units = math.prod(loop.axis.size for loop in nest)
    threads = round_up(_threads(body), target.warp)
    pointer = ir.pointer(dialect.global_space)
    params: list[Param] = [(param.buffer.name, pointer) for param in func.params]
    read = factors(body)
    places, size = shared_places(body, read)
    # No launch promises such an alignment.
    size += PERIOD if read else 0
    if not registers and size * (_FEW + 1) > target.shared_bytes:
        registers = target.thread_registers
    attributes = f"nounwind {dialect.attributes(threads, registers)}".rstrip()
    function = module.function(
        name, ir.void, params, attrs=attributes, calling_convention=dialect.calling_convention
    )
    b = Builder(function.block("entry"))
    index = ir.i32 if _fits_words(func, units) else ir.i64
    memory = TileMemory(b, TileIndices(b, index), Registers(b, func.body), dialect)
    memory.pointers = {p.buffer.name: a for p, a in zip(func.params, function.args, strict=True)}
    emitter = _TileEmitter(func, function, memory, target, dialect, threads)
    emitter.ranks = ranks
    emitter.loop_hints = module.loop_hints("llvm.loop.unroll.disable")
    base: Val | None = None
    if size > SHARED_BYTES:
        base = dynamic_shared(module, f"{name}_tiles", dialect)
    elif size:
        base = module.global_variable(
            f"{name}.tiles", ir.array(ir.i8, size), "undef", align=16,
            address_space=dialect.shared_space,
        )  # fmt: skip
    if base is not None and read:
        address = b.and_(b.sub(i64_const(0), b.ptrtoint(base, ir.i64)), i64_const(PERIOD - 1))
        base = b.gep(base, address, ir.i8)
    if base is not None:
        emitter.places = {stmt: b.gep(base, at, ir.i8) for stmt, at in places.items()}
    emitter.one_unit(nest, body)
    b.ret()
    return SimtKernel(name, units, threads, size if size > SHARED_BYTES else 0, fixed=True)


# -- shared memory ---------------------------------------------------------------------------------


def shared_places(body: Body, read: Collection[Buffer] = ()) -> tuple[dict[Alloc, int], int]:
    """Where the shared buffers of a block begin, and the bytes of all of them.

    read: those that a `GroupUnit` reads.
    """
    barriers = [n for n, stmt in enumerate(body) if isinstance(stmt, Barrier)]
    lives: list[tuple[int, int, Alloc]] = []
    for alloc in (s for s in statements(body) if isinstance(s, Alloc)):
        if alloc.buffer.space != "shared":
            continue
        used = [n for n, stmt in enumerate(body) if _uses(stmt, alloc.buffer)]
        first, last = (used[0], used[-1]) if used else (0, 0)
        lives.append((first, next((n for n in barriers if n > last), len(body)), alloc))
    places: dict[Alloc, int] = {}
    ends: list[tuple[int, int, int]] = []  # of those placed: until when, from where, to where
    for first, until, alloc in sorted(lives, key=lambda life: life[0]):
        alignment = PERIOD if alloc.buffer in read else 16
        size, at = round_up(_bytes(alloc.buffer), 16), 0
        for other, low, high in sorted(ends, key=lambda end: end[1]):
            if other > first and low < at + size and at < high:
                at = round_up(high, alignment)
        places[alloc] = at
        ends.append((until, at, at + size))
    return places, max((high for *_, high in ends), default=0)


def _uses(stmt: Stmt, buffer: Buffer) -> bool:
    return any(isinstance(s, Load | Store) and s.buffer == buffer for s in statements((stmt,)))


class _TileEmitter(_ThreadEmitter):
    """Emits what one block does.

    places: the shared buffers.  ranks: as in `in_registers`.
    group: the number of the thread's group, of those that multiply together, if any do.
    """

    memory: TileMemory
    places: dict[Alloc, Val]
    ranks: Mapping[str, Mapping[int, int]]
    products: Products | None = None
    groups: GroupProducts | None = None
    group: Val | None = None

    def one_unit(self, nest: Sequence[For], body: Body) -> None:
        """The unit of this block."""
        if any(asks(stmt) for stmt in body):
            if asking_threads(body) != self.threads:
                raise UnsupportedError(
                    f"{asking_threads(body)} of {self.threads} threads ask for products",
                    fix="give each thread of a block a part of them",
                )
            self.groups = GroupProducts(self.memory, self.group_unit())
            number = self.b.binary("udiv", self.thread, self.indices.const(THREADS))
            self.group = self.groups.unit.uniform(self.b, number)
        number = self.special(self.dialect.block_index)
        for n, each in reversed(list(enumerate(nest))):
            size = self.indices.const(each.axis.size)
            self.indices.axes[each.axis] = self.b.binary("urem", number, size) if n else number
            number = self.b.binary("udiv", number, size) if n else number
        self.memory.sent = {
            stmt.result.name: stmt for part in _parts(body) for stmt in _sent_from(part)
        }
        self._inside_ends(nest, body)

    def group_unit(self) -> GroupUnit:
        """The unit that products of several warps are for.  Raises UnsupportedError."""
        unit = self.dialect.groups
        if unit is None or unit.instruction not in self.target.instructions:
            raise UnsupportedError(f"{self.target.name} has no unit that several warps multiply by")
        return unit

    def _number(self, inner: int) -> Val:
        if self.group is None or inner % THREADS:
            return super()._number(inner)
        return self.b.binary("udiv", self.group, self.indices.const(inner // THREADS))

    def _barrier(self, scope: Sequence[Stmt]) -> None:
        following = takewhile(lambda stmt: not isinstance(stmt, Barrier), scope)
        if self.groups is not None and any(asks(stmt) for stmt in following):
            self.groups.unit.show(self.b)
        super()._barrier(scope)

    def _stmt(self, stmt: Stmt, scope: Sequence[Stmt] = ()) -> None:
        copies = self.dialect.copies
        if isinstance(stmt, (Barrier, Wait)) or (isinstance(stmt, Store) and not stmt.fold):
            self._forget()
        if isinstance(stmt, Alloc) and stmt in self.places:
            self.memory.pointers[stmt.buffer.name] = self.places[stmt]
            if stmt.buffer.swizzle:
                self.memory.swizzled[stmt.buffer.name] = stmt.buffer.swizzle
        elif isinstance(stmt, Commit) and stmt.what == "products":
            if self.groups is not None:
                self.groups.commit()
        elif isinstance(stmt, Wait) and stmt.what == "products":
            if self.groups is not None:
                self.groups.wait(stmt.pending)
        elif isinstance(stmt, Commit) and copies is not None:
            copies.commit(self.b)
        elif isinstance(stmt, Wait) and copies is not None:
            copies.wait(self.b, stmt.pending)
        elif isinstance(stmt, Load) and stmt.result.name in self.memory.sent:
            return
        elif isinstance(stmt, Store) and stmt.later:
            self.memory.send(stmt)
        else:
            super()._stmt(stmt, scope)

    def _threads_of(self, stmt: For) -> None:
        if not self.is_in_threads:
            self.products = Products(self.memory, self.dialect.matrices, self.thread, self.ranks)
        super()._threads_of(stmt)

    def _forget(self) -> None:
        if self.products is not None:
            self.products.forget()
        if self.groups is not None:
            self.groups.forget()

    def _serial(self, stmt: For, end: Val | None) -> None:
        self._forget()
        super()._serial(stmt, end)
        self._forget()

    def _counted(self, stmt: For) -> list[Mod]:
        """Copies of shared memory that are used in turn, of which there is no power of two."""
        atoms = (atom for s in statements(stmt.body) for e in exprs_of(s) for atom in e.atoms())
        return [
            atom
            for atom in dict.fromkeys(atoms)
            if isinstance(atom, Mod)
            and atom.by & (atom.by - 1)
            and atom.of + -atom.of.const == Expr.of(stmt.axis)
        ]

    def _branch(self, condition: Val, body: Sequence[Stmt], emit: Callable[[], object]) -> None:
        self._forget()
        super()._branch(condition, body, emit)
        self._forget()

    def _for(self, stmt: For) -> None:
        if stmt.by and self.groups is not None and asks(stmt):
            self.groups.emit(stmt)
            return
        if stmt.by and self.products is not None:
            self.products.emit(stmt)
            return
        is_sum = stmt.kind == "unroll" and any(isinstance(s, Store) and s.fold for s in stmt.body)
        nest = stmt
        while len(nest.body) == 1 and isinstance(nest.body[0], For):
            nest = nest.body[0]
            is_sum |= any(isinstance(s, Store) and bool(s.fold) for s in nest.body)
        if stmt.kind == "unroll" and is_sum and self._copies(stmt):
            return
        super()._for(stmt)


def _parts(body: Body) -> Iterator[Body]:
    yield body
    for stmt in body:
        if isinstance(stmt, NESTING):
            yield from _parts(stmt.body)


def _sent_from(body: Body) -> Iterator[Load]:
    """The loads of a block whose scalars are stored later."""
    later = {s.value for s in body if isinstance(s, Store) and s.later and not s.fold}
    return (stmt for stmt in body if isinstance(stmt, Load) and stmt.result in later)


__all__ = ["emit_tiles", "shared_places"]
