"""The loop level's reference interpreter: numpy, vectorised over parallel loops, and strict.

Iterations of ``parallel``, ``block`` and ``thread`` loops are work items, one element each of numpy
arrays; all other loops run one iteration after the other.  Threads therefore run in lockstep, and
what the form leaves to chance is an error, never some result.  These raise GraphError: an access
outside its buffer where the mask allows it; a read of an element that was never written; an ``out``
element left unwritten; a write to an ``in`` buffer; two items of which one writes what the other
reads or writes, with nothing that orders them (see `bringup.loops.races`); a barrier to which only
some threads of a block come; an element on its way that is used before a wait and a barrier; a
factor that is changed, or a sum that is used, before its product is waited for; a fragment's
element that another thread has; a loaded index outside its declared range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Never

import numpy as np

from bringup.errors import GraphError
from bringup.graph.index import Axis, Bound, Dyn, Expr
from bringup.kernel.ranges import expr_value, mask_value
from bringup.loops.form import (
    CONCURRENT,
    OF_BLOCK,
    PRIVATE,
    Alloc,
    Barrier,
    Buffer,
    Commit,
    For,
    Func,
    If,
    InFlight,
    Let,
    Load,
    Param,
    Scalar,
    Shuffle,
    Stmt,
    Store,
    Wait,
    statements,
)
from bringup.loops.races import Accesses, ItemTree
from bringup.loops.text import print_stmt
from bringup.ops.monoids import MONOIDS

Array = np.ndarray[Any, Any]

#: Items, and elements of their buffers, that are held at once: the outermost loop runs in parts.
_AT_ONCE = 1 << 20


@dataclass(slots=True)
class _Memory:
    """The elements of a buffer, once for each item of a level.

    row: the first element of each item, of the shape of that level.
    written: which elements hold something; None where all do.
    accesses: None where no two items can meet.
    shares: the ``out`` buffer that has the same memory, of an ``in`` buffer.
    owners: the thread that has an element of a fragment, -1 where none does yet.
    groups: the group with which an element comes that is on its way, -1 for all others.
    factors: the group of products that reads an element last, -1 where none may still read it.
    """

    buffer: Buffer
    level: int
    row: Array
    values: Array
    written: Array | None
    accesses: Accesses | None = None
    shares: Buffer | None = None
    owners: Array | None = None
    groups: Array | None = None
    factors: Array | None = None


def evaluate_func(func: Func, buffers: Sequence[Array]) -> None:
    """Run a function; its ``out`` buffers are written in place.

    buffers: one C-contiguous array per parameter, in order, of the declared dtype and size, of any
    shape.  An ``out`` array may be the very memory of an ``in`` array; see `Param`.
    Folds that multiply sum exact products where f64 holds those.
    Raises GraphError naming the statement that breaks a rule of the form; see the module's text.

    >>> from bringup.loops import parse_func
    >>> x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    >>> evaluate_func(parse_func('''
    ... func double(x: in f32[4], y: out f32[4]) {
    ...   for i in 4 parallel {
    ...     %0: f32 = x[i]
    ...     %1: f32 = add(%0, %0)
    ...     y[i] = %1
    ...   }
    ... }'''), [x, y])
    >>> y.tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    machine = _Machine(func)
    machine.bind(buffers)
    with np.errstate(all="ignore"):
        machine.block(func.body, np.ones(1, np.bool_))
    machine.finish()


class _Machine:
    def __init__(self, func: Func) -> None:
        self.func = func
        self.tree = ItemTree()
        self.memories: dict[Buffer, _Memory] = {}
        self.scalars: dict[Scalar, Array] = {}
        self.axes: dict[Axis, Array] = {}
        self.stmt: Stmt | None = None
        # The threads that there are, and whether all that their block does is within.
        self.present = np.ones(1, np.bool_)
        self.is_alone = False
        self.groups: dict[InFlight, Array] = {}
        # Whether products are only asked for here, which read their factors until a wait.
        self.is_asking = False
        # The level of the first threads that an instruction for loops has; 0 outside of one.
        self.sharing = 0

    def fail(self, what: str) -> Never:
        notes = (print_stmt(self.stmt),) if self.stmt is not None else ()
        raise GraphError(f"func {self.func.name}: {what}", notes=notes)

    # -- parameters --------------------------------------------------------------------------------

    def bind(self, buffers: Sequence[Array]) -> None:
        """Give the parameters their memory."""
        params = self.func.params
        if len(buffers) != len(params):
            self.fail(f"takes {len(params)} buffers, got {len(buffers)}")
        for param, array in zip(params, buffers, strict=True):
            buffer = param.buffer
            if array.dtype != buffer.dtype.numpy or array.size != buffer.size:
                self.fail(f"{param}: got {array.dtype} of shape {array.shape}")
            if not array.flags.c_contiguous:
                self.fail(f"{param}: the array is not contiguous")
            written = None
            if param.role != "in":
                written = np.full(array.size, param.role == "inout")
            values = array.reshape(-1)
            memory = _Memory(buffer, 0, np.zeros(1, np.int64), values, written)
            if written is not None:
                memory.accesses = Accesses(self.tree, array.size, private=False)
            self.memories[buffer] = memory
        for out in self.func.outputs:
            for buffer, memory in self.memories.items():
                if buffer != out and np.may_share_memory(memory.values, self.memories[out].values):
                    self.share(memory, self.memories[out])

    def share(self, memory: _Memory, out: _Memory) -> None:
        """Let an ``in`` buffer and an ``out`` buffer be one memory."""
        same = memory.values.ctypes.data == out.values.ctypes.data
        same = same and memory.values.nbytes == out.values.nbytes
        same = same and Param(out.buffer, "out") in self.func.params
        if memory.written is not None or memory.shares is not None or not same:
            self.fail(f"{memory.buffer.name} and {out.buffer.name} overlap in memory")
        if memory.values.itemsize != out.values.itemsize:
            self.fail(f"{memory.buffer.name} and {out.buffer.name} overlap in memory")
        memory.shares, memory.accesses = out.buffer, out.accesses

    def finish(self) -> None:
        """Every element of an ``out`` buffer is written."""
        self.stmt = None
        for buffer in self.func.outputs:
            written = self.memories[buffer].written
            assert written is not None
            missing = np.flatnonzero(~written)
            if missing.size:
                many = f"{missing.size} of {buffer.size} elements of {buffer.name}"
                self.fail(f"{many} are never written, element {missing[0]} first")

    # -- statements --------------------------------------------------------------------------------

    def block(self, body: Sequence[Stmt], alive: Array) -> None:
        """Run statements in the items where ``alive``, which broadcasts with them, holds."""
        outer, is_alone = self.scalars, self.is_alone
        self.scalars = dict(outer)
        self.is_alone = is_alone and sum(not isinstance(stmt, Alloc) for stmt in body) == 1
        for stmt in body:
            self.stmt = stmt
            match stmt:
                case Let():
                    self.scalars[stmt.result] = self.let(stmt, alive)
                case Load():
                    self.scalars[stmt.result] = self.load(stmt, alive)
                case Store():
                    self.store(stmt, alive)
                case For():
                    self.loop(stmt, alive)
                case If():
                    self.branch(stmt, alive)
                case Alloc():
                    self.alloc(stmt.buffer, alive)
                case Barrier():
                    self.barrier(alive)
                case Commit():
                    self.commit(stmt.what, alive)
                case Wait():
                    self.wait(stmt, alive)
                case Shuffle():
                    self.scalars[stmt.result] = self.shuffle(stmt, alive)
        self.scalars, self.is_alone = outer, is_alone

    def branch(self, stmt: If, alive: Array) -> None:
        alive = alive & self.holds(stmt.mask)
        if stmt.test is not None:
            alive = alive & self.value(stmt.test)
        if alive.any():
            self.block(stmt.body, alive)

    def loop(self, loop: For, alive: Array) -> None:
        if loop.axis in self.axes:
            self.fail(f"loop {loop.name} stands within itself")
        end = self.index(loop.end) if loop.end is not None else None
        is_asking = self.is_asking
        self.is_asking |= bool(loop.by) and _asks(loop)
        self.sharing = self.tree.depth + 1 if loop.by else self.sharing
        if loop.kind in CONCURRENT:
            self.items(loop, end, alive)
        else:
            for i in range(loop.axis.size):
                running = alive if end is None else alive & (i < end)
                if not running.any():
                    break
                self.axes[loop.axis] = np.array([i], np.int64)
                self.block(loop.body, running)
        self.sharing = 0 if loop.by else self.sharing
        self.axes.pop(loop.axis, None)
        self.is_asking = is_asking

    def items(self, loop: For, end: Array | None, alive: Array) -> None:
        """Run the iterations of a loop beside each other."""
        size, depth = loop.axis.size, self.tree.depth
        step = max(1, _AT_ONCE // _elements_of(loop)) if depth == 0 else max(size, 1)
        if self.tree.has_other_threads(loop):
            for accesses in self.accesses():
                accesses.strangers()
        for low in range(0, size, step):
            self.stmt = loop
            values = self.tree.spread(np.arange(low, min(low + step, size), dtype=np.int64))
            self.axes[loop.axis] = values
            self.tree.enter(loop, values)
            self.groups = self.groups if loop.kind == "thread" else {}
            running = alive & (values < (size if end is None else end))
            outer = self.present, self.is_alone
            if loop.kind == "block" or (loop.kind == "thread" and self.is_alone):
                self.present, self.is_alone = running, True
            if running.any():
                self.block(loop.body, running)
            self.present, self.is_alone = outer
            self.memories = {b: m for b, m in self.memories.items() if m.level <= depth}
            if loop.kind != "thread" and low + step >= size:
                for accesses in self.accesses():
                    accesses.join()
            self.tree.leave()

    def accesses(self) -> Iterator[Accesses]:
        """Those of every memory that is there, once each."""
        known = {id(m.accesses): m.accesses for m in self.memories.values()}
        return (accesses for accesses in known.values() if accesses is not None)

    def alloc(self, buffer: Buffer, alive: Array) -> None:
        level = self.tree.block if buffer.space in OF_BLOCK else self.tree.depth
        memory, shape = self.memories.get(buffer), self.tree.ids[level].shape
        if memory is None or memory.row.shape != shape:
            rows = np.arange(self.tree.ids[level].size, dtype=np.int64).reshape(shape)
            count = rows.size * buffer.size
            values = np.zeros(count, buffer.dtype.numpy)
            memory = _Memory(buffer, level, rows * buffer.size, values, np.zeros(count, np.bool_))
            if buffer.space == "fragment":
                memory.owners = np.full(count, -1)
            elif buffer.space not in PRIVATE:
                memory.accesses = Accesses(self.tree, count, private=False)
            self.memories[buffer] = memory
            return
        # It is the memory of the iteration before, whose readers writes may still disturb.
        assert memory.written is not None
        again = np.broadcast_to(alive, self.tree.shape).reshape(-1, memory.row.size).any(axis=0)
        memory.written.reshape(memory.row.size, buffer.size)[again] = False
        if memory.owners is not None:
            memory.owners.reshape(memory.row.size, buffer.size)[again] = -1

    def whole_blocks(self, alive: Array, place: str) -> tuple[Array, Array]:
        """The numbers of the blocks, and which of them have come to a place with all threads."""
        level = self.tree.block
        if self.tree.levels[level].kind != "block":
            self.fail(f"a {place} stands outside of a block")
        blocks = self.tree.ids[level].reshape(-1)
        here, there = (
            np.broadcast_to(threads, self.tree.shape).reshape(-1, blocks.size)
            for threads in (alive, self.present)
        )
        every = np.asarray(here.any(axis=0))
        if (here != (there & every)).any():
            self.fail(f"only some threads of a block come to this {place}")
        return blocks, every

    def barrier(self, alive: Array) -> None:
        blocks, every = self.whole_blocks(alive, "barrier")
        for accesses in self.accesses():
            accesses.barrier(blocks[every])

    # -- copies and products on their way ----------------------------------------------------------

    def block_groups(self, what: InFlight) -> Array:
        """The number of groups that each block has made."""
        count = self.tree.ids[self.tree.block].size
        if what not in self.groups or self.groups[what].size != count:
            self.groups[what] = np.zeros(count, np.int64)
        return self.groups[what]

    def commit(self, what: InFlight, alive: Array) -> None:
        _, every = self.whole_blocks(alive, "commit")
        self.block_groups(what)[every] += 1

    def wait(self, stmt: Wait, alive: Array) -> None:
        blocks, every = self.whole_blocks(alive, "wait")
        last = np.where(every, self.block_groups(stmt.what) - stmt.pending, 0)
        for memory in self.memories.values():
            size = max(memory.buffer.size, 1)
            if memory.groups is not None and _arriving(memory.buffer) == stmt.what:
                here = _until(memory.groups, last, size)
                if memory.accesses is not None:
                    memory.accesses.arrive(here, self.tree.block, blocks[here // size])
            if memory.factors is not None and stmt.what == "products":
                here = _until(memory.factors, last, size)
                if memory.accesses is not None:
                    memory.accesses.release(here, self.tree.block, blocks[here // size])

    def in_group(self, known: Array | None, memory: _Memory, what: InFlight, here: Array) -> Array:
        """The groups of elements, of which some are in the next one now.  known: until now."""
        groups = np.full(memory.values.size, -1) if known is None else known
        groups[here] = self.block_groups(what)[here // memory.buffer.size]
        return groups

    def send(self, memory: _Memory, positions: Array, live: Array) -> None:
        """Note elements that are on their way from now on."""
        if memory.buffer.space != ("fragment" if self.is_asking else "shared"):
            self.fail(f"{memory.buffer.name} is stored later, which is no shared memory")
        here = self.spread(positions)[self.spread(live)]
        memory.groups = self.in_group(memory.groups, memory, _arriving(memory.buffer), here)

    def check_arrived(
        self, stmt: Load | Store, memory: _Memory, positions: Array, live: Array
    ) -> None:
        adds = self.is_asking and memory.buffer.space == "fragment"
        for groups, why in (
            (None if adds else memory.groups, "it is on its way"),
            (memory.factors if isinstance(stmt, Store) else None, "products read it"),
        ):
            if groups is None:
                continue
            wrong = live & (groups[positions] >= 0)
            if wrong.any():
                index = np.broadcast_to(positions - memory.row, wrong.shape)[wrong][0]
                element = f"element {index} of {stmt.buffer.name}"
                self.fail(f"{element} is {_done(stmt)} while {why}")

    def own(self, stmt: Load | Store, memory: _Memory, positions: Array, live: Array) -> None:
        """Note which thread has elements of a fragment."""
        if self.tree.block == self.tree.depth:
            self.fail(f"{stmt.buffer.name} is a fragment, and no thread uses it")
        assert memory.owners is not None
        threads = self.tree.threads
        live = self.spread(live)
        here, thread = self.spread(positions)[live], self.spread(self.tree.ids[-1])[live] % threads
        owners = memory.owners[here]
        if self.sharing and isinstance(stmt, Load):
            # The threads of an instruction read what any of them has.
            group = math.prod(v.size for v in self.tree.levels[self.sharing : self.tree.depth + 1])
            owners, thread = owners // group, thread // group
        wrong = (owners >= 0) & (owners != thread)
        if wrong.any():
            element = f"element {here[wrong][0] % stmt.buffer.size} of {stmt.buffer.name}"
            self.fail(f"{element} is {_done(stmt)}, which is in a register of another thread")
        if not self.sharing or isinstance(stmt, Store):
            memory.owners[here] = thread

    def shuffle(self, stmt: Shuffle, alive: Array) -> Array:
        """The values of the threads' partners."""
        if stmt.axis not in self.axes:
            self.fail("only some threads of a block come to this shuffle")
        numbers = self.axes[stmt.axis]
        here = np.broadcast_to(alive, self.tree.shape)
        here = np.moveaxis(here, here.ndim - numbers.ndim, 0)
        if (here != here[:1]).any():
            self.fail("only some threads of a block come to this shuffle")
        if numbers.size < stmt.axis.size or stmt.axis.size % (1 << stmt.mask.bit_length()):
            self.fail(f"not all threads of loop {stmt.axis.name} have a partner")
        value = np.broadcast_to(self.value(stmt.value), self.tree.shape)
        return np.take(value, numbers.ravel() ^ stmt.mask, axis=value.ndim - numbers.ndim)

    # -- scalars -----------------------------------------------------------------------------------

    def value(self, scalar: Scalar) -> Array:
        if scalar not in self.scalars:
            self.fail(f"{scalar} is not defined here")
        return self.scalars[scalar]

    def let(self, stmt: Let, alive: Array) -> Array:
        dtype, attrs = stmt.result.dtype.numpy, stmt.attrs
        match stmt.op.name:
            case "constant":
                return np.full(1, attrs["value"].scalar)
            case "index":
                return self.index(attrs["index"], stmt.operands, alive).astype(dtype)
            case "inside":
                return self.holds(attrs["mask"], stmt.operands, alive)
        operands = [self.value(scalar) for scalar in stmt.operands]
        if len({operand.shape for operand in operands}) > 1:
            operands = list(np.broadcast_arrays(*operands))
        result = np.asarray(stmt.op.reference(*operands, **attrs))
        if result.dtype != dtype:
            self.fail(f"{stmt.op.name} gives {result.dtype}, not {stmt.result.dtype}")
        return result

    def index(
        self, expr: Expr, scalars: Sequence[Scalar] = (), alive: Array | None = None
    ) -> Array:
        """The value of an index expression in every item."""
        try:
            return expr_value(expr, self.axes, self.loaded([expr], scalars, alive))
        except KeyError:
            self.fail(f"{expr} uses a loop that is not round it")
        except GraphError as error:
            self.fail(error.what)

    def holds(
        self, mask: Sequence[Bound], scalars: Sequence[Scalar] = (), alive: Array | None = None
    ) -> Array:
        """Whether every bound holds, in every item."""
        exprs = [bound.expr for bound in mask]
        try:
            return mask_value(mask, self.axes, self.loaded(exprs, scalars, alive))
        except KeyError:
            self.fail("a bound uses a loop that is not round it")
        except GraphError as error:
            self.fail(error.what)

    def loaded(
        self, exprs: Iterable[Expr], scalars: Sequence[Scalar], alive: Array | None
    ) -> list[Array]:
        """The values of loaded indices, in range in items that do not run."""
        values = [self.value(scalar) for scalar in scalars]
        if not values or alive is None or alive.all():
            return values
        for atom in (a for e in exprs for a in e.atoms() if isinstance(a, Dyn)):
            value = values[atom.operand]
            values[atom.operand] = np.where(alive, value, value.dtype.type(atom.first))
        return values

    # -- memory ------------------------------------------------------------------------------------

    def access(self, stmt: Load | Store, alive: Array) -> tuple[_Memory, Array, Array]:
        """The memory of an access, the element in every item, and where there is an access."""
        if stmt.buffer not in self.memories:
            self.fail(f"there is no buffer {stmt.buffer.name} here")
        memory, size = self.memories[stmt.buffer], stmt.buffer.size
        index = self.index(stmt.index, stmt.operands, alive)
        live = alive & self.holds(stmt.mask, stmt.operands, alive) if stmt.mask else alive
        if stmt.index.first < 0 or stmt.index.last >= size:
            index, live = np.broadcast_arrays(index, live)
            wrong = live & ((index < 0) | (index >= size))
            if wrong.any():
                element = f"element {index[wrong][0]} of {stmt.buffer.name}"
                self.fail(f"{element} is {_done(stmt)}, which has {size}")
            index = np.where(live, index, 0)
        return memory, index + memory.row, live

    def can_meet(self, memory: _Memory) -> bool:
        """Whether two of the items that run may access one element of a memory."""
        if memory.owners is not None or (memory.written is None and memory.shares is None):
            return False
        if memory.accesses is None and memory.level < self.tree.depth:
            memory.accesses = Accesses(self.tree, memory.values.size, private=True)
        return memory.accesses is not None

    def load(self, stmt: Load, alive: Array) -> Array:
        memory, positions, live = self.access(stmt, alive)
        if not memory.values.size:  # nothing is read, or it would be out of range
            return np.zeros(1, stmt.buffer.dtype.numpy)
        self.check_written(stmt, memory, positions, live)
        if memory.shares is not None:
            replaced = self.memories[memory.shares].written
            assert replaced is not None
            if (live & replaced[positions]).any():
                other = memory.shares.name
                self.fail(f"{stmt.buffer.name} is read where {other} has replaced it")
        self.check_arrived(stmt, memory, positions, live)
        if memory.owners is not None:
            self.own(stmt, memory, positions, live)
        if self.can_meet(memory):
            self.note(stmt, memory, positions, live)
        if self.is_asking:
            here = self.spread(positions)[self.spread(live)]
            memory.factors = self.in_group(memory.factors, memory, "products", here)
        return np.where(live, memory.values[positions], stmt.buffer.dtype.numpy.type(0))

    def store(self, stmt: Store, alive: Array) -> None:
        memory, positions, live = self.access(stmt, alive)
        if memory.written is None:
            self.fail(f"{stmt.buffer.name} is written, an in buffer is only read")
        if stmt.buffer.space in PRIVATE:
            levels = range(memory.level, self.tree.depth)
            if any(self.tree.splits_threads(level) for level in levels):
                self.fail(f"a thread writes {stmt.buffer.name}, which is private to its block")
        value, dtype = self.value(stmt.value), stmt.buffer.dtype.numpy
        if value.dtype != dtype:
            self.fail(f"{stmt.buffer.name} holds {stmt.buffer.dtype}, not {stmt.value.dtype}")
        if stmt.fold:
            self.check_written(stmt, memory, positions, live)
        self.check_arrived(stmt, memory, positions, live)
        if memory.owners is not None:
            self.own(stmt, memory, positions, live)
        if self.can_meet(memory):
            self.note(stmt, memory, positions, live)
        if stmt.later:
            self.send(memory, positions, live)
        live = self.spread(live)
        positions = self.spread(positions)[live]
        parts = [self.spread(value)[live]]
        if stmt.factor is not None:
            parts.append(self.spread(self.value(stmt.factor))[live])
        for some in _rounds(positions) if stmt.atomic else (slice(None),):
            place, mine = positions[some], [part[some] for part in parts]
            if stmt.fold:
                mine = [_combined(stmt.fold, memory.values[place], *mine)]
            memory.values[place] = mine[0]
        memory.written[positions] = True

    def spread(self, value: Array) -> Array:
        """A value for every item, of those that do not depend on all loops too."""
        shape = self.tree.shape
        return value if value.shape == shape else np.broadcast_to(value, shape)

    def check_written(
        self, stmt: Load | Store, memory: _Memory, positions: Array, live: Array
    ) -> None:
        if memory.written is None or not memory.written.size:
            return
        wrong = live & ~memory.written[positions]
        if wrong.any():
            index = np.broadcast_to(positions - memory.row, wrong.shape)[wrong][0]
            element = f"element {index} of {stmt.buffer.name}"
            self.fail(f"{element} is {_done(stmt)} before it was written")

    def note(self, stmt: Load | Store, memory: _Memory, positions: Array, live: Array) -> None:
        """Check an access against those of other items."""
        assert memory.accesses is not None
        live = self.spread(live)
        used = self.spread(positions)[live]
        accesses = memory.accesses
        noted = accesses.read if isinstance(stmt, Load) else accesses.write
        if isinstance(stmt, Store) and stmt.atomic:
            noted = accesses.fold
        conflict = noted(used, live)
        if conflict is not None:
            at, loop = conflict
            element = f"element {used[at] % max(stmt.buffer.size, 1)} of {stmt.buffer.name}"
            other = "writes" if isinstance(stmt, Load) else "accesses"
            self.fail(f"{element} is {_done(stmt)}, and another iteration {other} it: {loop}")


def _done(stmt: Load | Store) -> str:
    if isinstance(stmt, Load):
        return "read"
    return "folded into" if stmt.fold else "written"


def _asks(loop: For) -> bool:
    """Whether products of a loop that has a shape come later."""
    return any(isinstance(stmt, Store) and stmt.later for stmt in statements(loop.body))


def _arriving(buffer: Buffer) -> InFlight:
    """As what elements of a buffer come that are on their way."""
    return "products" if buffer.space == "fragment" else "copies"


def _until(groups: Array, last: Array, size: int) -> Array:
    """The elements whose groups are among those before the last ones of their block, which are in
    no group from now on.  size: elements of a block.
    """
    block = np.arange(groups.size) // size
    here = np.flatnonzero((groups >= 0) & (groups < last[block]))
    groups[here] = -1
    return here


def _combined(fold: str, element: Array, value: Array, factor: Array | None = None) -> Array:
    """What a folding store makes of the elements."""
    if factor is None:
        return np.asarray(MONOIDS[fold].row.reference(element, value))
    dtype = element.dtype
    if dtype.kind in "iu":
        return np.asarray(element + value * factor)
    # Products of two f32 are exact in f64, those of f64 are rounded.
    wide = np.float64
    return (element.astype(wide) + value.astype(wide) * factor.astype(wide)).astype(dtype)


def _rounds(positions: Array) -> Iterator[Array]:
    """Which accesses happen at the same time, so that no two of them are to one element."""
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    number = np.arange(ordered.size) - np.searchsorted(ordered, ordered)
    for n in range(number.max(initial=-1) + 1):
        yield order[number == n]


def _elements_of(loop: For) -> int:
    """Items within one iteration of a loop, or elements of the buffers within it if more."""
    items = 1
    for stmt in loop.body:
        if isinstance(stmt, For):
            inner = _elements_of(stmt)
            items = max(items, inner * max(stmt.axis.size, 1) if stmt.kind in CONCURRENT else inner)
        elif isinstance(stmt, If):
            items = max(items, _elements_of(For(loop.axis, stmt.body)))
    memory = sum(s.buffer.size for s in loop.body if isinstance(s, Alloc))
    return max(items, memory)


__all__ = ["evaluate_func"]
