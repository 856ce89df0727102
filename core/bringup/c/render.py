"""Functions of the loop level as C, in any dialect.

A call of plain C runs a range of units, the iterations of the outermost parallel loops: any split
of ``0 … units(func)`` among calls computes the same.  Where a dialect has threads, those loops are
grid-stride loops over the numbers of all threads, ``block`` loops go over the numbers of blocks,
and ``thread`` loops are the numbers of threads within one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from bringup.c import scalar
from bringup.c.circular import CIRCULAR_FAMILIES
from bringup.c.dialect import WIDE, Dialect
from bringup.c.geometry import geometry, nest, threads_of, units
from bringup.c.indices import Indices
from bringup.c.library import Library
from bringup.c.maths import OWN_FAMILIES
from bringup.c.memory import aliasing_free, index_dtype, live, scalar_registers, scratch_layout
from bringup.c.names import Names
from bringup.c.squares import Square, exchanges, squares
from bringup.c.text import block, conjunction, indented
from bringup.c.vectors import (
    OPERATORS,
    at_ends,
    folds_across,
    has_one_mask,
    is_common,
    is_copied,
    is_length,
    is_straight,
    lanes_within,
    touches_own,
    vector_registers,
)
from bringup.dtypes import BY_NAME, DType
from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Bound, Expr
from bringup.loops.form import (
    Alloc,
    Barrier,
    Buffer,
    Commit,
    For,
    Func,
    If,
    Let,
    Load,
    Scalar,
    Shuffle,
    Stmt,
    Store,
    Wait,
    statements,
)
from bringup.loops.text import print_stmt


def render_c(func: Func, dialect: Dialect) -> str:
    """The source of one function, with what it needs of the scalar library.

    Raises UnsupportedError where the dialect lacks a dtype, an op or threads that meet.

    >>> from bringup.c import C11
    >>> from bringup.loops import parse_func
    >>> twice = parse_func('''
    ... func twice(x: in f32[64], y: out f32[64]) {
    ...   for i in 64 parallel {
    ...     %0: f32 = x[i]
    ...     %1: f32 = add(%0, %0)
    ...     y[i] = %1
    ...   }
    ... }''')
    >>> print(render_c(twice, C11).partition(chr(10) * 2)[2])
    void twice(void *const *buffers, int64_t begin, int64_t end, void *scratch) {
      const float *x = (const float *)buffers[0];
      float *y = (float *)buffers[1];
      for (int64_t i = begin; i < end; i++) {
        const float v0 = x[i];
        const float v1 = v0 + v0;
        y[i] = v1;
      }
    }
    <BLANKLINE>
    """
    return render_all([func], dialect)


def render_all(funcs: Sequence[Func], dialect: Dialect) -> str:
    """The source of several functions of different names, which share the scalar library."""
    lib = Library(dialect, {**OWN_FAMILIES, **CIRCULAR_FAMILIES})
    texts = [_Function(func, lib).text() for func in funcs]
    head = [*dialect.head, *([dialect.for_f64] if lib.has_f64 and dialect.for_f64 else [])]
    parts = ["\n".join(head), *lib.texts.values(), *texts]
    return "\n\n".join(part for part in parts if part) + "\n"


def symbol(func: Func, dialect: Dialect) -> str:
    """What the function is called in the source."""
    return Names(dialect).fresh(func.name)


def scratch_bytes(func: Func, dialect: Dialect) -> int:
    """The bytes of scratch that a call needs, or each thread where the dialect has threads."""
    return scratch_layout(func, shared=bool(dialect.spaces["shared"])).size


#: Parameters have lines of their own where they do not fit one of so many columns.
LINE = 100


class _Function(Indices):
    """The text of one function."""

    def __init__(self, func: Func, lib: Library) -> None:
        super().__init__(lib, index_dtype(func, BY_NAME[lib.dialect.index]))
        self.func = func
        self.dialect = lib.dialect
        self.symbol = self.names.fresh(func.name)
        self.layout = scratch_layout(func, shared=bool(self.dialect.spaces["shared"]))
        self.unaliased = aliasing_free(func)
        self.scalars = scalar_registers(func)
        self.vectors = vector_registers(func, self.dialect)
        self.live = live(func)
        #: The constant that a scalar is.
        self.literals: dict[Scalar, str] = {}
        #: The straight loop that is being written, and the scalars that are vectors in it.
        self.straight: For | None = None
        self.varying: set[Scalar] = set()
        #: What loops of lanes read: copies of vectors by their index, and what they share.
        self.copied: dict[Load, str] = {}
        #: What lanes fold into one element, in memory.
        self.parts: dict[Store, str] = {}
        self.in_threads = False
        #: Conditions of the threads that a loop has, where others go along to its barriers.
        self.present: list[str] = []
        #: Buffers that each thread has of its own.
        self.own: set[Buffer] = set()
        self.inner: dict[Axis, int] = {}
        self.are_whole_warps = False
        self.has_threads = self.dialect.has_threads and any(
            isinstance(s, For) and s.kind == "thread" for s in statements(func.body)
        )

    def text(self) -> str:
        params = [self.names.of(p.buffer, p.buffer.name) for p in self.func.params]
        body = list(self.frame())
        every = list(self.params(params))
        head = f"{self.dialect.kernel.format(name=self.symbol, params=', '.join(every))} {{"
        if len(head) > LINE:
            lines = "\n    " + ",\n    ".join(every)
            head = f"{self.dialect.kernel.format(name=self.symbol, params=lines)} {{"
        return "\n".join([head, *indented(body), "}"])

    # -- the frame of a function -------------------------------------------------------------------

    def params(self, names: Sequence[str]) -> Iterator[str]:
        dialect = self.dialect
        if dialect.pointer:
            for n, (param, name) in enumerate(zip(self.func.params, names, strict=True)):
                restrict = dialect.restrict if param.buffer in self.unaliased else ""
                type_ = self.element(param.buffer)
                yield dialect.pointer.format(type=type_, restrict=restrict, name=name, n=n)
        if self.layout.size and dialect.scratch:
            yield dialect.scratch.format(n=len(names))
        yield from dialect.params

    def frame(self) -> Iterator[str]:
        if not units(self.func):
            return
        if self.dialect.begin or not self.dialect.pointer:
            yield from self.pointers()
        if not self.dialect.has_threads:
            loops, body = nest(self.func.body, ("parallel", "block"))
            yield from self.range(loops, body)
            return
        yield from self.shared()
        loops, body = nest(self.func.body, ("parallel",))
        if loops:
            yield from self.strided(loops, body, "unit")
            return
        loops, body = nest(self.func.body, ("block",))
        if self.has_threads:
            yield from self.strided(loops, body, "block")
        else:
            yield from self.strided(loops, body, "unit")

    def pointers(self) -> Iterator[str]:
        """The parameters out of the array of them, or as the dialect defines them."""
        form = self.dialect.begin or "{type} *{restrict}{name} = ({type} *)buffers[{n}];"
        for n, param in enumerate(self.func.params):
            if param.buffer not in self.live:
                continue
            type_, name = self.element(param.buffer), self.names.of(param.buffer, "")
            restrict = self.dialect.restrict if param.buffer in self.unaliased else ""
            yield form.format(type=type_, restrict=restrict, name=name, n=n)
        if self.layout.size and self.dialect.begin:
            byte = self.dialect.types["u8"]
            yield form.format(type=byte, restrict="", name="scratch", n=len(self.func.params))

    def element(self, buffer: Buffer) -> str:
        """The type of the elements of a parameter, which is constant if it is only read."""
        constant = self.dialect.constant if buffer in self.func.inputs else ""
        return f"{constant}{self.lib.memory_type(buffer.dtype)}"

    def shared(self) -> Iterator[str]:
        """Buffers of a block, which some dialects want at the beginning of the function."""
        declared: set[Buffer] = set()
        for stmt in statements(self.func.body):
            if isinstance(stmt, Alloc) and stmt.buffer.space == "shared":
                if stmt.buffer not in declared:
                    yield self.array(stmt.buffer)
                declared.add(stmt.buffer)

    def range(self, loops: Sequence[For], body: Sequence[Stmt]) -> Iterator[str]:
        """The units of a call.  The innermost loop of several is one of its own over those that
        have their other indices in common, so that compilers see a loop of unit steps.
        """
        loops = [loop for loop in loops if loop.axis.size != 1]
        if not loops:
            yield from block("if (begin < end)", self.body(body))
            return
        *outer, last = loops
        size, index = last.axis.size, self.loop_name(last)
        if not outer:
            head = f"for ({self.index} {index} = begin; {index} < end; {index}++)"
            yield from block(head, self.body(body))
            return
        yield f"for ({self.index} unit = begin; unit < end;) {{"
        yield from indented(self.indices(outer, "unit", size))
        first, stop = self.names.fresh(f"{index}_begin"), self.names.fresh(f"{index}_end")
        yield f"  const {self.index} {first} = unit % {size};"
        left = f"{first} + (end - unit)"
        yield f"  const {self.index} {stop} = {left} < {size} ? {left} : {size};"
        head = f"for ({self.index} {index} = {first}; {index} < {stop}; {index}++)"
        yield from indented(block(head, self.body(body)))
        yield f"  unit += {stop} - {first};"
        yield "}"

    def strided(self, loops: Sequence[For], body: Sequence[Stmt], what: str) -> Iterator[str]:
        """A loop over numbers of threads or of blocks, as far apart as there are any."""
        loops = [loop for loop in loops if loop.axis.size != 1]
        count = math.prod(loop.axis.size for loop in loops)
        variable = self.loop_name(loops[0]) if len(loops) == 1 else "unit"
        first, step = self.dialect.ids[what], self.dialect.ids[f"{what}s"]
        allocated = [s.buffer for s in statements(tuple(body)) if isinstance(s, Alloc)]
        shared = any(buffer.space == "shared" for buffer in allocated)
        end = self.lib.integer(count, self.index_dtype)
        if self.dialect.shares and what == "unit":
            share, stop = self.names.fresh("share"), self.names.fresh(f"{variable}_end")
            yield f"const {self.index} {share} = ({end} + {step} - 1) / {step};"
            yield f"const {self.index} {stop} = ({first} + 1) * {share};"
            first, step = f"{first} * {share}", "1"
            end = f"({stop} < {end} ? {stop} : {end})"
        start, test = f"{self.index} {variable} = {first}", f"{variable} < {end}"
        yield f"for ({start}; {test}; {variable} += {step}) {{"
        if len(loops) > 1:
            yield from indented(self.indices(loops, variable, 1))
        yield from indented(self.body(body))
        if what == "block" and shared:
            yield f"  {self.dialect.barrier}"
        yield "}"

    def indices(self, loops: Sequence[For], unit: str, inner: int) -> Iterator[str]:
        """The index of each loop, from the number of an iteration of all of them."""
        for loop in reversed(loops):
            quotient = f"{unit} / {inner}" if inner != 1 else unit
            inner *= loop.axis.size
            value = quotient if loop is loops[0] else f"{quotient} % {loop.axis.size}"
            yield f"const {self.index} {self.loop_name(loop)} = {value};"

    def loop_name(self, loop: For) -> str:
        return self.names.of(loop.axis, loop.name)

    # -- statements --------------------------------------------------------------------------------

    def wanted(self, body: Sequence[Stmt]) -> Iterator[Stmt]:
        """The statements of a body, without those that no result depends on."""
        for stmt in body:
            match stmt:
                case Let() | Load():
                    is_wanted = stmt.result in self.live
                case Store() | Alloc():
                    is_wanted = stmt.buffer in self.live
                case _:
                    is_wanted = True
            if is_wanted:
                yield stmt

    def body(self, body: Sequence[Stmt]) -> Iterator[str]:
        for stmt in self.wanted(body):
            match stmt:
                case Let():
                    yield from self.let(stmt)
                case Load():
                    yield self.declare(stmt.result, self.load(stmt))
                case Store():
                    yield from self.store(stmt)
                case Alloc():
                    yield from self.alloc(stmt.buffer)
                case If():
                    tests = self.tests(stmt.mask)
                    tests += [self.value(stmt.test)] if stmt.test is not None else []
                    yield from block(f"if ({conjunction(tests)})", self.body(stmt.body))
                case For():
                    yield from self.loop(stmt)
                case Barrier():
                    if self.has_threads:
                        yield self.dialect.barrier
                case Commit() | Wait():
                    continue  # What may come later has come when it was stored.
                case Shuffle():
                    yield self.declare(stmt.result, self.shuffle(stmt))

    def shuffle(self, stmt: Shuffle) -> str:
        mask = stmt.mask * self.inner.get(stmt.axis, self.dialect.warp)
        text = scalar.exchanged(self.lib, stmt.value.dtype, self.value(stmt.value), mask)
        if text is None:
            what = f"{self.dialect.name} has no function that exchanges {stmt.value.dtype}"
        elif not self.are_whole_warps or mask >= self.dialect.warp:
            what = f"only threads of one whole warp exchange values: loop {stmt.axis.name}"
        else:
            return text
        raise UnsupportedError(
            f"{self.func.name}: {what}",
            fix="share loops by replicate with lanes=1, through shared memory",
        )

    def let(self, stmt: Let) -> Iterator[str]:
        result, lib = stmt.result, self.lib
        operands = tuple(self.value(operand) for operand in stmt.operands)
        match stmt.op.name:
            case "constant":
                self.literals[result] = scalar.literal(
                    lib, stmt.attrs["value"].scalar, result.dtype
                )
                return
            case "index":
                value = self.expr(stmt.attrs["index"], stmt.operands)
                value = (
                    value
                    if result.dtype is self.index_dtype
                    else f"({lib.type(result.dtype)})({value})"
                )
            case "inside":
                value = conjunction(self.tests(stmt.attrs["mask"], stmt.operands))
            case name:
                leading = stmt.operands[0].dtype if stmt.operands else result.dtype
                value = scalar.render(lib, name, operands, stmt.attrs, leading, result.dtype)
        yield self.declare(result, value)

    def declare(self, result: Scalar, value: str) -> str:
        """The definition of a scalar; sibling blocks may have scalars of one name."""
        self.literals.pop(result, None)
        return f"const {self.lib.type(result.dtype)} v{result.name} = {value};"

    def value(self, operand: Scalar) -> str:
        if operand in self.varying and self.straight is not None:
            index, type_ = self.loop_name(self.straight), self.lib.type(operand.dtype)
            return self.dialect.lane.format(name=f"v{operand.name}", index=index, type=type_)
        text = self.literals.get(operand, f"v{operand.name}")
        return f"({text})" if text.startswith("-") else text

    def load(self, stmt: Load) -> str:
        element = self.copied.get(stmt) or self.element_of(stmt.buffer, stmt.index, stmt.operands)
        element = f"{element} != 0" if stmt.result.dtype.name == "bool" else element
        tests = self.tests(stmt.mask, stmt.operands)
        if not tests:
            return element
        return f"{conjunction(tests)} ? {element} : {scalar.zero(stmt.result.dtype)}"

    def store(self, stmt: Store) -> Iterator[str]:
        if stmt.atomic:
            raise UnsupportedError(
                f"{self.dialect.name} folds nothing atomically: {print_stmt(stmt)}"
            )
        element = self.element_of(stmt.buffer, stmt.index, stmt.operands)
        value, dtype = self.value(stmt.value), stmt.buffer.dtype
        if not stmt.fold:
            value = self.literals.get(stmt.value, value)
        else:
            before = f"({element} != 0)" if dtype.name == "bool" else element
            if stmt.factor is not None:
                value = scalar.muladd(self.lib, value, self.value(stmt.factor), before, dtype)
            else:
                value = scalar.combine(self.lib, stmt.fold, before, value, dtype)
        if stmt in self.parts:
            element, value = self.parts[stmt], self.value(stmt.value)
        tests = self.tests(stmt.mask, stmt.operands) + self.storing(stmt.buffer)
        yield (
            f"if ({conjunction(tests)}) {element} = {value};" if tests else f"{element} = {value};"
        )

    def storing(self, buffer: Buffer) -> list[str]:
        """The conditions of the threads that write an element of a buffer."""
        if not self.has_threads or buffer.space == "register" or buffer in self.own:
            return []
        return self.present if self.in_threads else [f"{self.dialect.ids['thread']} == 0"]

    def element_of(self, buffer: Buffer, index: Expr, operands: Sequence[Scalar]) -> str:
        name = self.names.of(buffer, buffer.name)
        if buffer in self.vectors:
            return self.lane(buffer, index.substitute(self.constants))
        if buffer not in self.scalars:
            return f"{name}[{self.expr(index, operands)}]"
        if buffer.size == 1:
            return name
        position = index.substitute(self.constants)
        return self.names.of((buffer, position.const), f"{name}_{position.const}")

    def lane(self, buffer: Buffer, index: Expr) -> str:
        """An element of a register buffer that is vectors."""
        place = index.const % self.vectors[buffer]
        return self.dialect.lane.format(
            name=self.register(buffer, index),
            index=self.expr(Expr(place, index.terms), ()),
            type=self.lib.memory_type(buffer.dtype),
        )

    def register(self, buffer: Buffer, index: Expr) -> str:
        """The vector of a register buffer that holds an element."""
        number = index.const // self.vectors[buffer]
        return self.names.of((buffer, number), f"{buffer.name}_{number}")

    def alloc(self, buffer: Buffer) -> Iterator[str]:
        name, type_ = self.names.of(buffer, buffer.name), self.lib.memory_type(buffer.dtype)
        if self.in_threads and buffer.space != "shared":
            self.own.add(buffer)
        if buffer.space == "fragment" and self.dialect.has_threads:
            raise UnsupportedError(
                f"{self.func.name}: a thread here may stand for several, so that {buffer.name} is "
                "in no registers",
                fix="leave the buffer in shared memory",
            )
        if buffer in self.vectors:
            lanes = self.vectors[buffer]
            vector = self.lib.vector_type(buffer.dtype, lanes)
            zero = self.dialect.vector_zero.format(type=vector)
            for n in range(buffer.size // lanes):
                yield f"{vector} {self.names.of((buffer, n), f'{buffer.name}_{n}')} = {zero};"
        elif buffer in self.scalars:
            every = (
                [name]
                if buffer.size == 1
                else [self.names.of((buffer, n), f"{name}_{n}") for n in range(buffer.size)]
            )
            yield f"{type_} {', '.join(every)};"
        elif buffer in self.layout.offsets:
            space = self.dialect.spaces["scratch"]
            bytes_ = f"{space}{self.lib.dialect.types['u8']} *"
            base = f"({bytes_})scratch"
            if self.dialect.has_threads:
                thread = self.dialect.ids["unit"]
                if self.has_threads and not self.in_threads:
                    thread = f"({thread} - {self.dialect.ids['thread']})"
                wide = self.dialect.types["i64"]
                base = f"scratch + ({wide}){thread} * {self.layout.size}"
            pointer = f"{space}{type_} *"
            offset = self.layout.offsets[buffer]
            base = f"({base} + {offset})" if offset else f"({base})"
            yield f"{pointer}{name} = ({pointer}){base};"
        elif buffer.space != "shared" or not self.dialect.spaces["shared"]:
            yield self.array(buffer)

    def array(self, buffer: Buffer) -> str:
        space = self.dialect.spaces[buffer.space] if buffer.space == "shared" else ""
        name, type_ = self.names.of(buffer, buffer.name), self.lib.memory_type(buffer.dtype)
        return f"{space}{type_} {name}[{max(buffer.size, 1)}];"

    def loop(self, stmt: For) -> Iterator[str]:
        if stmt.kind == "unroll":
            yield from self.copies(stmt)
        elif is_straight(stmt, self.dialect):
            self.straight = stmt
            yield from block("", list(self.statements_on_vectors(stmt)))
            self.straight, self.varying = None, set()
        elif stmt.kind == "thread" and self.dialect.has_threads:
            yield from self.thread(stmt)
        else:
            if stmt.kind == "thread" and any(isinstance(s, Barrier) for s in statements(stmt.body)):
                raise UnsupportedError(
                    f"{self.func.name}: loop {stmt.name} has threads that meet at barriers, and "
                    f"{self.dialect.name} has no threads",
                    fix="choose a schedule without thread loops for this device",
                )
            yield from self.serial(stmt)

    def serial(self, stmt: For) -> Iterator[str]:
        index, end, last = self.loop_name(stmt), str(stmt.axis.size), ""
        if stmt.axis.size == 1 and stmt.end is None:
            yield from block("", self.body(stmt.body))
            return
        if stmt.end is not None:
            value = self.expr(stmt.end, ())
            if stmt.end.last > stmt.axis.size:
                value = f"{value} < {end} ? {value} : {end}"
            end = self.names.of((stmt.axis, "end"), f"{index}_end")
            last = f", {end} = {value}"
        body, test = stmt.body, ""
        if stmt.while_true is not None:
            load, body = stmt.while_true
            test = f" && {self.load(load)}"
            self.literals[load.result] = scalar.literal(self.lib, np.True_, BY_NAME["bool"])
        folds = [
            store
            for store in folds_across(stmt, self.dialect)
            if not (self.unsure(store.mask) or self.storing(store.buffer))
        ]
        for store in folds:
            name = self.names.fresh(f"{store.buffer.name}_parts")
            yield f"{self.lib.memory_type(store.buffer.dtype)} {name}[{stmt.axis.size}];"
            self.parts[store] = f"{name}[{index}]"
        yield from self.copied_vectors(stmt)
        if stmt.kind == "vector" and touches_own(stmt, self.scalars):
            yield from self.in_lanes(stmt.axis.size)
        head = f"for ({self.index} {index} = 0{last}; {index} < {end}{test}; {index}++)"
        yield from block(head, self.body(body))
        for store in folds:
            yield from self.halved(store, self.parts.pop(store).partition("[")[0], stmt.axis.size)

    def in_lanes(self, size: int) -> Iterator[str]:
        """The line before a loop whose iterations are to be lanes of vectors."""
        if self.dialect.lanes and size > 1:
            width = self.dialect.width if is_length(size, self.dialect) else ""
            yield self.dialect.lanes + width.format(lanes=size)

    def halved(self, store: Store, name: str, size: int) -> Iterator[str]:
        """Fold the halves of an array, then those of the first one, and so on."""
        lib, dtype, n = self.lib, store.buffer.dtype, self.names.fresh("n")
        while size > 1:
            size //= 2
            both = scalar.combine(lib, store.fold, f"{name}[{n}]", f"{name}[{n} + {size}]", dtype)
            yield from self.in_lanes(size)
            yield f"for ({self.index} {n} = 0; {n} < {size}; {n}++) {name}[{n}] = {both};"
        element = self.element_of(store.buffer, store.index, ())
        yield f"{element} = {scalar.combine(lib, store.fold, element, f'{name}[0]', dtype)};"

    def copied_vectors(self, loop: For) -> Iterator[str]:
        """What the lanes of a loop read of vectors, as arrays, and what they have in common."""
        if loop.kind != "vector":
            return
        for stmt in statements(loop.body):
            if not isinstance(stmt, Load):
                continue
            index, type_ = stmt.index, self.lib.memory_type(stmt.buffer.dtype)
            if stmt.buffer in self.vectors and is_copied(stmt, loop):
                vector = self.register(stmt.buffer, index.substitute(self.constants))
                lanes, name = loop.axis.size, self.names.fresh(f"{vector}_lanes")
                yield f"{type_} {name}[{lanes}];"
                copy = self.dialect.vector_store
                yield copy.format(name=vector, first=f"{name}[0]", lanes=lanes)
                self.copied[stmt] = f"{name}[{self.loop_name(loop)}]"
            elif stmt.buffer in self.unaliased & {*self.func.inputs} and is_common(stmt, loop):
                name = self.names.fresh(f"{stmt.buffer.name}_common")
                yield f"const {type_} {name} = {self.element_of(stmt.buffer, index, ())};"
                self.copied[stmt] = name

    # -- straight loops ----------------------------------------------------------------------------

    def statements_on_vectors(self, loop: For) -> Iterator[str]:
        """One statement after the other, each for all iterations."""
        for stmt in self.wanted(loop.body):
            match stmt:
                case Store() if loop.end is not None:
                    masked = replace(stmt, mask=(*stmt.mask, *loop.bounds))
                    yield from self.vector_store(masked, loop)
                case Let() if self.varying.isdisjoint(stmt.operands):
                    yield from self.let(stmt)
                case Let():
                    yield self.vector_let(stmt, loop)
                case Load() if stmt.index.coefficient(loop.axis) == 0:
                    yield self.declare(stmt.result, self.load(stmt))
                case Load() if loop.end is not None and stmt.buffer not in self.vectors:
                    masked_load = replace(stmt, mask=(*stmt.mask, *loop.bounds))
                    yield from self.vector_load(masked_load, loop)
                case Load():
                    yield from self.vector_load(stmt, loop)
                case Store():
                    yield from self.vector_store(stmt, loop)

    def vector_of(self, dtype: DType, loop: For) -> str:
        return self.lib.vector_type(dtype, loop.axis.size)

    def each(self, loop: For, first: int = 0, stop: int | None = None) -> str:
        """The head of a loop over lanes, by default all."""
        index, stop = self.loop_name(loop), loop.axis.size if stop is None else stop
        return f"for ({self.index} {index} = {first}; {index} < {stop}; {index}++)"

    def vector_let(self, stmt: Let, loop: For) -> str:
        """An operator of C; operands that are the same for all iterations are scalars."""
        type_, sign = self.vector_of(stmt.result.dtype, loop), OPERATORS[stmt.op.name]
        *first, last = (f"v{v.name}" if v in self.varying else self.value(v) for v in stmt.operands)
        self.literals.pop(stmt.result, None)
        self.varying.add(stmt.result)
        value = f"{first[0]} {sign} {last}" if first else f"{sign}{last}"
        return f"const {type_} v{stmt.result.name} = {value};"

    def vector_load(self, stmt: Load, loop: For) -> Iterator[str]:
        stmt = replace(stmt, mask=self.unsure(stmt.mask))
        type_, name = self.vector_of(stmt.buffer.dtype, loop), f"v{stmt.result.name}"
        zero = self.dialect.vector_zero.format(type=type_)
        self.literals.pop(stmt.result, None)
        self.varying.add(stmt.result)
        tests = self.tests(stmt.mask)
        if stmt.buffer in self.vectors and not tests:
            register = self.register(stmt.buffer, stmt.index.substitute(self.constants))
            yield f"const {type_} {name} = {register};"
            return
        if stmt.buffer in self.vectors or not has_one_mask(stmt.mask, loop):
            element = self.element_of(stmt.buffer, stmt.index, ())
            within, mask = lanes_within(stmt.mask, loop)
            head = f"if ({conjunction(self.tests(mask))}) " if mask else ""
            yield f"{type_} {name} = {zero};"
            each = self.each(loop, within.start, within.stop)
            lanes = f"{each} {head}{self.value(stmt.result)} = {element};"
            is_memory = stmt.buffer not in self.vectors and len(within) == loop.axis.size
            whole = self.tests(at_ends(mask, loop)) if is_memory else []
            if whole:
                copy = self.copy(self.dialect.vector_load, name, stmt, loop)
                yield f"if ({conjunction(whole)}) {copy}"
            yield f"else {lanes}" if whole else lanes
            return
        yield f"{type_} {name} = {zero};" if tests else f"{type_} {name};"
        copy = self.copy(self.dialect.vector_load, name, stmt, loop)
        yield f"if ({conjunction(tests)}) {copy}" if tests else copy

    def copy(self, template: str, name: str, stmt: Load | Store, loop: For) -> str:
        """The statement that copies a vector from or to memory."""
        first = self.element_of(stmt.buffer, stmt.index + Expr.of(loop.axis) * -1, ())
        return template.format(name=name, first=first, lanes=loop.axis.size)

    def vector_store(self, stmt: Store, loop: For) -> Iterator[str]:
        stmt = replace(stmt, mask=self.unsure(stmt.mask))
        if not has_one_mask(stmt.mask, loop):
            within, mask = lanes_within(stmt.mask, loop)
            each = self.each(loop, within.start, within.stop)
            lanes = f"{each} {next(self.store(replace(stmt, mask=mask)))}"
            is_copy = not stmt.fold and stmt.value in self.varying
            is_copy &= stmt.buffer not in self.vectors and len(within) == loop.axis.size
            whole = self.tests(at_ends(mask, loop)) if is_copy else []
            if whole:
                tests = whole + self.storing(stmt.buffer)
                copy = self.copy(self.dialect.vector_store, f"v{stmt.value.name}", stmt, loop)
                yield f"if ({conjunction(tests)}) {copy}"
            yield f"else {lanes}" if whole else lanes
            return
        tests = self.tests(stmt.mask) + self.storing(stmt.buffer)
        head = f"if ({conjunction(tests)}) " if tests else ""
        buffer, value = stmt.buffer, f"v{stmt.value.name}"
        if stmt.fold and self.folds_vectors(stmt) and buffer in self.vectors:
            register = self.register(buffer, stmt.index.substitute(self.constants))
            yield f"{head}{register} = {self.folded(stmt, register, loop)};"
        elif stmt.fold and self.folds_vectors(stmt):
            before = self.names.fresh(f"{buffer.name}_before")
            yield from block(head.rstrip(), self.folded_in_memory(stmt, before, loop))
        elif not stmt.fold and buffer in self.vectors and self.dialect.vector_fma:
            register = self.register(buffer, stmt.index.substitute(self.constants))
            yield f"{head}{register} = {self.splat(stmt.value, loop)};"
        elif stmt.fold or stmt.value not in self.varying:
            yield f"{head}{self.each(loop)} {next(self.store(replace(stmt, mask=())))}"
        elif buffer in self.vectors:
            register = self.register(buffer, stmt.index.substitute(self.constants))
            yield f"{head}{register} = {value};"
        else:
            yield head + self.copy(self.dialect.vector_store, value, stmt, loop)

    def folds_vectors(self, stmt: Store) -> bool:
        """Whether a fold is one operation on vectors."""
        is_wide = stmt.buffer.dtype.name in WIDE
        return bool(self.dialect.vector_fma) and is_wide and stmt.fold in OPERATORS

    def folded_in_memory(self, stmt: Store, before: str, loop: For) -> Iterator[str]:
        """A fold of a vector that is read and written whole: later loads of vectors wait for stores
        of parts.
        """
        yield f"{self.vector_of(stmt.buffer.dtype, loop)} {before};"
        yield self.copy(self.dialect.vector_load, before, stmt, loop)
        yield f"{before} = {self.folded(stmt, before, loop)};"
        yield self.copy(self.dialect.vector_store, before, stmt, loop)

    def folded(self, stmt: Store, register: str, loop: For) -> str:
        """What a vector becomes by a fold."""
        operands = [stmt.value, *([] if stmt.factor is None else [stmt.factor])]
        xs = [self.splat(v, loop) for v in operands]
        if stmt.factor is not None:
            return self.dialect.vector_fma.format(x=xs[0], y=xs[1], z=register)
        return f"{register} {OPERATORS[stmt.fold]} {xs[0]}"

    def splat(self, value: Scalar, loop: For) -> str:
        """A vector; of what is the same for all iterations, that in each element."""
        if value in self.varying:
            return f"v{value.name}"
        return f"({self.vector_of(value.dtype, loop)})({self.value(value)})"

    def unsure(self, mask: Sequence[Bound]) -> tuple[Bound, ...]:
        """What of a mask may not hold where ``unroll`` loops have these constants, with them."""
        known = (replace(bound, expr=bound.expr.substitute(self.constants)) for bound in mask)
        return tuple(bound for bound in known if not bound.always)

    def copies(self, stmt: For) -> Iterator[str]:
        """The iterations of a loop one after the other, its index a constant in each."""
        found, by_columns = squares(stmt, self.unaliased & {*self.func.inputs}, self.dialect)
        found = [square for square in found if square.load.result in self.live]
        if found:
            rows = chain.from_iterable(map(self.square, found))
            yield from block("", [*rows, *self.copies(by_columns)])
            return
        for n in range(stmt.axis.size):
            self.constants[stmt.axis] = Expr(n)
            tests = self.tests(stmt.bounds)
            yield from block(f"if ({conjunction(tests)})" if tests else "", self.body(stmt.body))
        self.constants.pop(stmt.axis, None)

    def square(self, square: Square) -> Iterator[str]:
        """Rows in registers, which become columns."""
        buffer, size = square.buffer, square.rows.axis.size
        self.vectors[buffer], self.live = size, self.live | {buffer}
        yield from self.alloc(buffer)
        yield from self.loop(square.rows)
        for one, other, distance in exchanges(size):
            x, y = (self.register(buffer, Expr(row * size)) for row in (one, other))
            yield f"{self.lib.exchange(buffer.dtype, size, distance)}(&{x}, &{y});"

    def thread(self, stmt: For) -> Iterator[str]:
        """The iteration of this thread; threads that the loop does not need go past it."""
        inner = self.inner[stmt.axis] = threads_of(stmt.body)
        own = self.dialect.ids["thread"]
        outer_in_threads, self.in_threads = self.in_threads, True
        if not outer_in_threads:
            self.are_whole_warps = inner * stmt.axis.size % self.dialect.warp == 0
        index = self.loop_name(stmt)
        value = f"{own} / {inner}" if inner != 1 else own
        total, size = geometry(self.func).threads, stmt.axis.size
        value = f"{value} % {size}" if inner * size < total or outer_in_threads else value
        tests = self.tests(stmt.bounds)
        if not outer_in_threads and inner * size < total:
            tests.insert(0, f"{own} < {inner * size}")
        body = [f"const {self.index} {index} = {value};"]
        if tests and any(isinstance(s, Barrier | Shuffle) for s in statements(stmt.body)):
            body = list(self.with_all(stmt, value, tests))
        elif tests:
            body += block(f"if ({conjunction(tests)})", self.body(stmt.body))
        else:
            body += self.body(stmt.body)
        self.in_threads = outer_in_threads
        yield from block("", body)

    def with_all(self, stmt: For, value: str, tests: Sequence[str]) -> Iterator[str]:
        """The body for all threads, which have to meet: those that the loop does not have do what
        its last one does, but write nothing that others see.
        """
        index, present = self.loop_name(stmt), self.names.fresh(f"{stmt.name}_present")
        if stmt.end is None:
            yield f"const {self.index} {index} = {value};"
            yield f"const bool {present} = {conjunction(tests)};"
        else:
            every, last = (self.names.fresh(f"{stmt.name}_{n}") for n in ("any", "last"))
            yield f"const {self.index} {every} = {value};"
            yield f"const {self.index} {last} = {self.expr(stmt.end, ())} - 1;"
            yield f"const {self.index} {index} = {every} < {last} ? {every} : {last};"
            bounded = [test for test in tests if test not in self.tests(stmt.bounds)]
            yield f"const bool {present} = {conjunction([*bounded, f'{every} == {index}'])};"
        self.present.append(present)
        yield from self.body(stmt.body)
        self.present.pop()


__all__ = ["render_all", "render_c", "scratch_bytes", "symbol"]
