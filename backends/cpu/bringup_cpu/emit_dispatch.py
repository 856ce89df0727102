"""Native code of the dispatcher: one function for all tables.

``dispatch_call(self, args, nargs, kwnames)`` is the body of a builtin whose ``self`` leads to a
table (`Table`) with a chain of entries (`Entry`).  It runs the first entry whose description fits
the arguments.  A call that fits no entry goes unchanged to the ``slow`` callable of the table.
Python's and numpy's objects are read at offsets that a self-test has verified.
"""

from __future__ import annotations

import ctypes

from bringup.llvm.host.emit import NULL, Emit, define, number
from bringup.llvm.text import Block, Module, Val, array, i32, i64, ptr, void
from bringup.records import record
from bringup_cpu.emit_memory import HeaderLayout

EXPORTS = ("dispatch_call", "dispatch_install")
#: The most buffers of one entry, and the most results.
MAX_BUFFERS = 64
MAX_RESULTS = 32

ANY_ARRAY, ANY_HOST = 0, 1
TUPLE, RELEASE, EPOCH = 1, 2, 4


def _words(*names: str) -> list[tuple[str, type]]:
    """Fields of 64 bits: integers and addresses."""
    return [(name, ctypes.c_int64) for name in names]


class Table(ctypes.Structure):
    """A table of entries.

    slow: the callable for calls that fit no entry.  entries: the first entry.
    array_class: the type of arrays.  type_slot, device_slot, buffer_slot: offsets in an array.
    epoch: address of the epoch.  defaults: pairs of an offset in a new array and its value.
    """

    _fields_ = _words(
        "slow", "entries", "array_class", "type_slot", "device_slot", "buffer_slot", "epoch",
        "defaults", "default_count",
    )  # fmt: skip


class Entry(ctypes.Structure):
    """An entry of a table.

    args: descriptions of the arguments, and then of the bound arrays.  code: the native function.
    template: the buffer addresses of a call, with those filled in that never change.
    inputs: their number.  results: descriptions of the results.
    bound: arrays that are inputs of every call.
    """

    _fields_ = _words(
        "next", "arg_count", "args", "code", "flags", "epoch", "device", "arena", "buffers",
        "template", "inputs", "result_count", "results", "bound_count", "bound",
    )  # fmt: skip


class Arg(ctypes.Structure):
    """The description of an argument.  place: offset of its input's address in the buffers."""

    _fields_ = _words("kind", "type", "descr", "rank", "shape", "place")


class Result(ctypes.Structure):
    """The description of a result."""

    _fields_ = _words("type", "nbytes")


@record
class ArrayHeader:
    """Byte offsets in a `numpy.ndarray`, and the flags that must be set."""

    data: int = 16
    rank: int = 24
    shape: int = 32
    descr: int = 56
    flags: int = 64
    wanted: int = 0x101  # C-contiguous, aligned


@record
class ObjectLayout:
    """The layout of objects in this interpreter.

    python: bytes of the header of every object.  table: offset, in a dispatcher, of the slot that
    holds the buffer with its table.
    """

    python: int
    table: int
    numpy: ArrayHeader


class DispatchEmitter:
    """Emits the dispatcher into a module; ``bringup_alloc`` is the allocator's."""

    def __init__(self, module: Module, header: HeaderLayout, layout: ObjectLayout) -> None:
        self.module = module
        self.header = header
        self.layout = layout
        self.allocate = module.declare("bringup_alloc", ptr, [i64], "nounwind")
        self.ndarray = module.global_variable("dispatch_ndarray", ptr, "null", linkage="internal")
        self.buffer_type = module.global_variable(
            "dispatch_buffer", ptr, "null", linkage="internal"
        )
        self._check_array()
        self._check_host()
        self._matches()
        self._release_all()
        self._wrap()
        self._collect()
        self._execute_unlocked()
        self._run()
        self._call()
        self._install()

    def _type_of(self, b: Emit, o: Val) -> Val:
        return b.get(o, self.layout.python - 8, ptr)

    def _install(self) -> None:
        """``dispatch_install(ndarray, buffer)``: the two types that objects are compared with."""
        params = [("ndarray", ptr), ("buffer", ptr)]
        b, (ndarray, buffer) = define(self.module, "dispatch_install", void, params, internal=False)
        b.store(ndarray, self.ndarray)
        b.store(buffer, self.buffer_type)
        b.ret()

    def _check_array(self) -> None:
        """``check_array(table, entry, arg, object)``: the address of the data, or null."""
        params = [("table", ptr), ("entry", ptr), ("arg", ptr), ("object", ptr)]
        b, (table, entry, arg, o) = define(self.module, "check_array", ptr, params)
        no = b.function.block("no")

        def require(a: Val, c: Val) -> None:
            _require(b, b.icmp("eq", a, c), no)

        require(self._type_of(b, o), b.get(table, Table.array_class, ptr))
        slots = [
            b.load(ptr, b.at(o, b.get(table, place)))
            for place in (Table.type_slot, Table.device_slot, Table.buffer_slot)
        ]
        require(slots[0], b.get(arg, Arg.type, ptr))
        require(slots[1], b.get(entry, Entry.device, ptr))
        _require(b, b.icmp("ne", slots[2], NULL), no)
        require(self._type_of(b, slots[2]), b.load(ptr, self.buffer_type))
        b.ret(b.get(slots[2], self.header.data, ptr))
        b.position(no)
        b.ret(NULL)

    def _check_host(self) -> None:
        """``check_host(arg, object)``: the address of the data of a numpy array, or null."""
        b, (arg, o) = define(self.module, "check_host", ptr, [("arg", ptr), ("object", ptr)])
        no, numpy = b.function.block("no"), self.layout.numpy

        def require(a: Val, c: Val) -> None:
            _require(b, b.icmp("eq", a, c), no)

        require(self._type_of(b, o), b.load(ptr, self.ndarray))
        require(b.get(o, numpy.descr, ptr), b.get(arg, Arg.descr, ptr))
        rank = b.get(arg, Arg.rank)
        require(b.zext(b.get(o, numpy.rank, i32), i64), rank)
        wanted = number(numpy.wanted)
        require(b.and_(b.zext(b.get(o, numpy.flags, i32), i64), wanted), wanted)
        shape, expected = b.get(o, numpy.shape, ptr), b.get(arg, Arg.shape, ptr)
        with b.loop(number(0), rank) as loop:
            size, wish = (b.load(i64, b.gep(p, loop.index, i64)) for p in (shape, expected))
            require(size, wish)
        b.ret(b.get(o, numpy.data, ptr))
        b.position(no)
        b.ret(NULL)

    def _matches(self) -> None:
        """``matches(table, entry, args, nargs, buffers)``: whether the entry fits the call.

        Fills in the inputs.
        """
        params = [("table", ptr), ("entry", ptr), ("args", ptr), ("nargs", i64), ("buffers", ptr)]
        b, (table, entry, args, nargs, buffers) = define(self.module, "matches", i64, params)
        no = b.function.block("no")
        _require(b, b.icmp("eq", nargs, b.get(entry, Entry.arg_count)), no)
        flags = b.get(entry, Entry.flags)
        with b.if_then(b.icmp("ne", b.and_(flags, number(EPOCH)), number(0))):
            now = b.load(i64, b.get(table, Table.epoch, ptr))
            _require(b, b.icmp("eq", now, b.get(entry, Entry.epoch)), no)
        descriptions = b.get(entry, Entry.args, ptr)
        with b.loop(number(0), nargs) as loop:
            arg = b.at(descriptions, b.mul(loop.index, number(ctypes.sizeof(Arg))))
            o = b.load(ptr, b.gep(args, loop.index, ptr))
            data = b.cond(
                b.icmp("eq", b.get(arg, Arg.kind), number(ANY_ARRAY)),
                lambda: b.call(self.module.functions["check_array"], (table, entry, arg, o)),
                lambda: b.call(self.module.functions["check_host"], (arg, o)),
            )[0]
            _require(b, b.not_(b.is_null(data)), no)
            b.store(data, b.at(buffers, b.get(arg, Arg.place)))
        bound = b.get(entry, Entry.bound, ptr)
        with b.loop(number(0), b.get(entry, Entry.bound_count)) as loop:
            arg = b.at(descriptions, b.mul(b.add(nargs, loop.index), number(ctypes.sizeof(Arg))))
            o = b.load(ptr, b.gep(bound, loop.index, ptr))
            data = b.call(self.module.functions["check_array"], (table, entry, arg, o))
            # The array may have been donated meanwhile.
            _require(b, b.not_(b.is_null(data)), no)
            b.store(data, b.at(buffers, b.get(arg, Arg.place)))
        b.ret(number(1))
        b.position(no)
        b.ret(number(0))

    def _release_all(self) -> None:
        """``release_all(objects, n)``: drop a reference to each that is not null."""
        b, (objects, n) = define(self.module, "release_all", void, [("objects", ptr), ("n", i64)])
        with b.loop(number(0), n) as loop:
            o = b.load(ptr, b.gep(objects, loop.index, ptr))
            with b.unless(b.is_null(o)):
                b.c("Py_DecRef", void, o)
        b.ret()

    def _wrap(self) -> None:
        """``wrap(table, entry, type, buffer)``: a new array that owns the buffer, or null."""
        params = [("table", ptr), ("entry", ptr), ("type", ptr), ("buffer", ptr)]
        b, (table, entry, type_, buffer) = define(self.module, "wrap", ptr, params)
        array = b.c("PyType_GenericAlloc", ptr, b.get(table, Table.array_class, ptr), number(0))
        with b.rarely(b.is_null(array)):
            b.ret(NULL)
        device = b.get(entry, Entry.device, ptr)
        for value in (type_, device):
            b.c("Py_IncRef", void, value)
        places = (Table.type_slot, Table.device_slot, Table.buffer_slot)
        for place, value in zip(places, (type_, device, buffer), strict=True):
            b.store(value, b.at(array, b.get(table, place)))
        defaults = b.get(table, Table.defaults, ptr)
        with b.loop(number(0), b.get(table, Table.default_count)) as loop:
            pair = b.at(defaults, b.shl(loop.index, number(4)))
            value = b.get(pair, 8, ptr)
            b.c("Py_IncRef", void, value)
            b.store(value, b.at(array, b.get(pair, 0)))
        b.ret(array)

    def _collect(self) -> None:
        """``collect(table, entry, made)``: the value of the call, from its new buffers."""
        params = [("table", ptr), ("entry", ptr), ("made", ptr)]
        b, (table, entry, made) = define(self.module, "collect", ptr, params)
        n = b.get(entry, Entry.result_count)
        results = b.get(entry, Entry.results, ptr)
        with b.loop(number(0), n) as loop:
            place = b.gep(made, loop.index, ptr)
            result = b.at(results, b.mul(loop.index, number(ctypes.sizeof(Result))))
            type_ = b.get(result, Result.type, ptr)
            wrap = self.module.functions["wrap"]
            wrapped = b.call(wrap, (table, entry, type_, b.load(ptr, place)))
            with b.rarely(b.is_null(wrapped)):
                b.call(self.module.functions["release_all"], (made, n))
                b.ret(NULL)
            b.store(wrapped, place)
        as_tuple = b.icmp("ne", b.and_(b.get(entry, Entry.flags), number(TUPLE)), number(0))
        with b.if_then(b.not_(as_tuple)):
            b.ret(b.load(ptr, made))
        items = b.c("PyTuple_New", ptr, n)
        with b.rarely(b.is_null(items)):
            b.call(self.module.functions["release_all"], (made, n))
            b.ret(NULL)
        with b.loop(number(0), n) as loop:
            item = b.load(ptr, b.gep(made, loop.index, ptr))
            b.c("PyTuple_SetItem", i32, items, loop.index, item)
        b.ret(items)

    def _run(self) -> None:
        """``run(table, entry, args, buffers)``: allocate, execute, wrap.

        Null without an exception means: call the ``slow`` callable.
        """
        params = [("table", ptr), ("entry", ptr), ("args", ptr), ("buffers", ptr)]
        b, (table, entry, args, buffers) = define(self.module, "run", ptr, params)
        made = b.alloca(array(ptr, MAX_RESULTS + 1), align=16)
        template, inputs = b.get(entry, Entry.template, ptr), b.get(entry, Entry.inputs)
        with b.loop(inputs, b.get(entry, Entry.buffers)) as loop:
            pointer = b.load(ptr, b.gep(template, loop.index, ptr))
            b.store(pointer, b.gep(buffers, loop.index, ptr))
        n = b.get(entry, Entry.result_count)
        results = b.get(entry, Entry.results, ptr)
        allocate = self.allocate
        release = self.module.functions["release_all"]
        with b.loop(number(0), n) as loop:
            result = b.at(results, b.mul(loop.index, number(ctypes.sizeof(Result))))
            buffer = b.call(allocate, (b.get(result, Result.nbytes),))
            with b.rarely(b.is_null(buffer)):
                b.call(release, (made, loop.index))
                b.ret(NULL)
            b.store(buffer, b.gep(made, loop.index, ptr))
            place = b.add(inputs, loop.index)
            b.store(b.get(buffer, self.header.data, ptr), b.gep(buffers, place, ptr))
        arena = self._arena(b, entry, made, n)
        self._execute(b, table, entry, args, buffers, arena)
        with b.unless(b.is_null(arena)):
            b.c("Py_DecRef", void, arena)
        b.ret(b.call(self.module.functions["collect"], (table, entry, made)))

    def _arena(self, b: Emit, entry: Val, made: Val, n: Val) -> Val:
        """A buffer for the arena, or null if the program has none."""
        nbytes = b.get(entry, Entry.arena)

        def allocate() -> Val:
            arena = b.call(self.allocate, (nbytes,))
            with b.rarely(b.is_null(arena)):
                b.call(self.module.functions["release_all"], (made, n))
                b.ret(NULL)
            return arena

        return b.cond(b.icmp("ne", nbytes, number(0)), allocate, lambda: NULL)[0]

    def _execute(
        self, b: Emit, table: Val, entry: Val, args: Val, buffers: Val, arena: Val
    ) -> None:
        scratch = b.cond(
            b.is_null(arena), lambda: NULL, lambda: b.get(arena, self.header.data, ptr)
        )[0]
        release = b.icmp("ne", b.and_(b.get(entry, Entry.flags), number(RELEASE)), number(0))
        unlocked = self.module.functions["execute_unlocked"]

        def with_lock() -> None:
            b.call_pointer(void, b.get(entry, Entry.code, ptr), (buffers, scratch))

        def without_lock() -> None:
            b.call(unlocked, (table, entry, args, buffers, scratch))

        b.cond(release, without_lock, with_lock)

    def _execute_unlocked(self) -> None:
        """``execute_unlocked(…)``: run without the interpreter lock."""
        params = [(name, ptr) for name in ("table", "entry", "args", "buffers", "scratch")]
        b, (table, entry, args, buffers, scratch) = define(
            self.module, "execute_unlocked", void, params
        )
        # Without the interpreter lock an argument may lose its buffer to another thread.
        held = b.alloca(array(ptr, 2 * MAX_BUFFERS), align=16)
        code, n = b.get(entry, Entry.code, ptr), b.get(entry, Entry.arg_count)
        n = b.add(n, b.get(entry, Entry.bound_count))
        self._hold(b, table, entry, args, held)
        state = b.c("PyEval_SaveThread", ptr)
        b.call_pointer(void, code, (buffers, scratch))
        b.c("PyEval_RestoreThread", void, state)
        b.call(self.module.functions["release_all"], (held, n))
        b.ret()

    def _hold(self, b: Emit, table: Val, entry: Val, args: Val, held: Val) -> None:
        """Take a reference to the buffer of every array, null for other arguments."""
        descriptions, n = b.get(entry, Entry.args, ptr), b.get(entry, Entry.arg_count)

        def hold(o: Val, place: Val) -> None:
            buffer = b.load(ptr, b.at(o, b.get(table, Table.buffer_slot)))
            b.c("Py_IncRef", void, buffer)
            b.store(buffer, place)

        with b.loop(number(0), n) as loop:
            arg = b.at(descriptions, b.mul(loop.index, number(ctypes.sizeof(Arg))))
            place = b.gep(held, loop.index, ptr)
            b.store(NULL, place)
            with b.if_then(b.icmp("eq", b.get(arg, Arg.kind), number(ANY_ARRAY))):
                hold(b.load(ptr, b.gep(args, loop.index, ptr)), place)
        bound = b.get(entry, Entry.bound, ptr)
        with b.loop(number(0), b.get(entry, Entry.bound_count)) as loop:
            o = b.load(ptr, b.gep(bound, loop.index, ptr))
            hold(o, b.gep(held, b.add(n, loop.index), ptr))

    def _call(self) -> None:
        """``dispatch_call(self, args, nargs, kwnames)``: see the module's text."""
        params = [("self", ptr), ("args", ptr), ("nargs", i64), ("kwnames", ptr)]
        b, (own, args, nargs, kwnames) = define(
            self.module, "dispatch_call", ptr, params, internal=False
        )
        buffers = b.alloca(array(ptr, MAX_BUFFERS + 1), align=16)
        table = b.get(b.get(own, self.layout.table, ptr), self.header.data, ptr)
        slow = b.function.block("slow")
        _require(b, b.is_null(kwnames), slow)
        first = b.get(table, Table.entries, ptr)
        with b.while_loop([first], lambda v: b.not_(b.is_null(v[0]))) as chain:
            entry = chain.carried[0]
            matches, run = self.module.functions["matches"], self.module.functions["run"]
            fits = b.call(matches, (table, entry, args, nargs, buffers))
            with b.if_then(b.icmp("ne", fits, number(0)), likely=True):
                result = b.call(run, (table, entry, args, buffers))
                failed = b.and_(b.is_null(result), b.is_null(b.c("PyErr_Occurred", ptr)))
                _require(b, b.not_(failed), slow)
                b.ret(result)
            chain.next(b.get(entry, Entry.next, ptr))
        b.br(slow)
        b.position(slow)
        callee = b.get(table, Table.slow, ptr)
        b.ret(b.c("PyObject_Vectorcall", ptr, callee, args, nargs, kwnames))


def _require(b: Emit, condition: Val, otherwise: Block) -> None:
    """Continue if the condition holds, else jump."""
    following = b.function.block("on")
    b.cond_br(condition, following, otherwise, b.branch_weights(likely=True))
    b.position(following)
