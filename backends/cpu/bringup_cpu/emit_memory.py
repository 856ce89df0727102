"""Native code of the allocator and of the buffer type's methods.

A *block* is a 64-byte header, which is the Python object, and its data.  The data of small blocks
follow the header; large ones are in a region of their own on 2-MiB boundaries.  Free blocks are in
bins by size class, with four classes per doubling, linked through their headers.
"""

from __future__ import annotations

import ctypes
import mmap

from bringup.llvm.host.emit import NULL, Emit, define, number
from bringup.llvm.text import Module, Val, array, const, i1, i8, i32, i64, ptr, void
from bringup.records import record

HEADER = 64
LARGE = 1 << 20
HUGE_PAGE = 2 << 20
#: Blocks up to this size are carved from slabs and never leave the process.
SMALL_BINS = 20
SLAB = 1 << 16
LARGE_BIN = 64
BIN_COUNT = 255
#: In place of a bin, of a buffer whose data are somebody else's.
BORROWED = 255
EXPORTS = (
    "bringup_alloc", "buffer_alloc", "buffer_borrow", "buffer_dealloc", "buffer_view",
    "memory_address", "memory_release",
)  # fmt: skip


@record
class HeaderLayout:
    """Byte offsets in a header, after the ``python`` bytes at the start of every object."""

    python: int

    @property
    def data(self) -> int:
        """Address of the first byte."""
        return self.python

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self.python + 8

    @property
    def bin(self) -> int:
        """``capacity << 8 | bin``."""
        return self.python + 16

    @property
    def link(self) -> int:
        """The next block, while free; what keeps borrowed data alive, a Python object."""
        return self.python + 24


class State(ctypes.Structure):
    """The state of the allocator.

    live_bytes, live_allocations: of buffers in use.  peak_bytes: the most of them.
    cached_bytes: of free blocks, which ``cache_limit`` bounds.  budget: the most live bytes.
    slab, slab_end: the rest of the current slab.  type: of buffers.  bins: the first block of each.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "live_bytes", "live_allocations", "peak_bytes", "cached_bytes", "cache_limit",
            "budget", "slab", "slab_end", "type", "lock",
        )),
        ("bins", ctypes.c_int64 * BIN_COUNT),
    )  # fmt: skip


class MemoryEmitter:
    """Emits the allocator into a module.

    header: the layout of headers.  locked: take a lock; needed where no interpreter lock is held.
    """

    def __init__(self, module: Module, header: HeaderLayout, *, locked: bool) -> None:
        self.module = module
        self.header = header
        self.locked = locked
        self.state = module.global_variable(
            "memory_state", array(i8, ctypes.sizeof(State)), align=64
        )
        self._class_of()
        self._refill_declared = module.declare("memory_refill", ptr, [i64])
        self._trim()
        self._map_region()
        self._refill()
        self._alloc()
        self._borrow()
        self._dealloc()
        self._python_methods()

    def _lock(self, b: Emit) -> None:
        if self.locked:  # pragma: no cover - only interpreters without a global lock
            word = b.at(self.state, State.lock)
            busy = number(1)
            with b.while_loop([busy], lambda v: b.icmp("ne", v[0], number(0))) as loop:
                loop.next(b.atomicrmw("xchg", word, number(1), "acquire"))

    def _unlock(self, b: Emit) -> None:
        if self.locked:  # pragma: no cover - only interpreters without a global lock
            b.atomic_store(number(0), b.at(self.state, State.lock))

    def _bin(self, b: Emit, index: Val) -> Val:
        return b.at(self.state, b.add(b.shl(index, number(3)), number(State.bins.offset)))

    def _push(self, b: Emit, index: Val, block: Val) -> None:
        head = self._bin(b, index)
        b.put(block, self.header.link, b.load(ptr, head))
        b.store(block, head)

    def _pop(self, b: Emit, index: Val) -> Val:
        """The first block of a bin, taken out, or null."""
        head = self._bin(b, index)
        block = b.load(ptr, head)
        with b.unless(b.is_null(block)):
            b.store(b.get(block, self.header.link, ptr), head)
        return block

    def _class_of(self) -> None:
        """``class_of(t)``: 0, 1, 2, 3, then four classes for every doubling of ``t + 1`` units."""
        b, (t,) = define(self.module, "class_of", i64, [("t", i64)])
        zeros = b.intrinsic("llvm.ctlz", i64, (b.or_(t, number(4)), const(i1, 1)), (i64,))
        log = b.sub(number(63), zeros)
        high = b.shl(b.sub(log, number(1)), number(2))
        low = b.and_(b.lshr(t, b.sub(log, number(2))), number(3))
        b.ret(b.select(b.icmp("ult", t, number(4)), t, b.add(high, low)))
        b, (index,) = define(self.module, "units_of", i64, [("index", i64)])
        log = b.add(b.lshr(index, number(2)), number(1))
        steps = b.add(b.and_(index, number(3)), number(5))
        units = b.shl(steps, b.sub(log, number(2)))
        small = b.icmp("ult", index, number(4))
        b.ret(b.select(small, b.add(index, number(1)), units))

    def _trim(self) -> None:
        """``memory_trim(keep, spare)``: free cached blocks until ``keep`` bytes are cached.

        The largest blocks are freed first, those of bin ``spare`` last.
        """
        b, (keep, spare) = define(self.module, "memory_trim", void, [("keep", i64), ("spare", i64)])
        with b.loop(number(0), number(BIN_COUNT - SMALL_BINS)) as loop:
            index = b.sub(number(BIN_COUNT - 1), loop.index)
            with b.if_then(b.icmp("ne", index, spare)):
                self._drain(b, index, keep)
        with b.if_then(b.icmp("uge", spare, number(SMALL_BINS))):
            self._drain(b, spare, keep)
        b.ret()
        b, (keep,) = define(self.module, "memory_release", void, [("keep", i64)], internal=False)
        self._lock(b)
        b.call(self.module.functions["memory_trim"], (keep, number(0)))
        self._unlock(b)
        b.ret()

    def _drain(self, b: Emit, index: Val, keep: Val) -> None:
        head = self._bin(b, index)

        def more(_: object) -> Val:
            full = b.icmp("ugt", b.get(self.state, State.cached_bytes), keep)
            return b.and_(full, b.not_(b.is_null(b.load(ptr, head))))

        with b.while_loop([number(0)], more) as loop:
            block = self._pop(b, index)
            capacity = b.lshr(b.get(block, self.header.bin), number(8))
            b.bump(self.state, State.cached_bytes, b.sub(number(0), capacity))
            b.cond(
                b.icmp("uge", index, number(LARGE_BIN)),
                lambda: self._unmap(b, block, capacity),
                lambda: _free(b, block),
            )
            loop.next(number(0))

    def _unmap(self, b: Emit, block: Val, capacity: Val) -> None:
        b.c("munmap", i32, b.get(block, self.header.data, ptr), capacity)
        self._as_small(b, block)

    def _as_small(self, b: Emit, block: Val) -> None:
        """Free a header whose data is gone: it is a block of the smallest class."""
        b.put(block, self.header.data, b.at(block, HEADER))
        b.put(block, self.header.bin, number(HEADER << 8))
        self._push(b, number(0), block)

    def _map_region(self) -> None:
        """``map_region(size)``: fresh memory on huge-page boundaries, or null."""
        b, (size,) = define(self.module, "map_region", ptr, [("size", i64)])
        slack = number(HUGE_PAGE)
        whole = b.add(size, slack)
        protection = const(i32, mmap.PROT_READ | mmap.PROT_WRITE)
        flags = const(i32, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        raw = b.c("mmap", ptr, NULL, whole, protection, flags, const(i32, -1), number(0))
        start = b.ptrtoint(raw, i64)
        with b.rarely(b.icmp("eq", start, number(-1))):
            b.ret(NULL)
        aligned = b.and_(b.add(start, number(HUGE_PAGE - 1)), number(-HUGE_PAGE))
        before = b.sub(aligned, start)
        with b.if_then(b.icmp("ne", before, number(0))):
            b.c("munmap", i32, raw, before)
        after = b.sub(slack, before)
        with b.if_then(b.icmp("ne", after, number(0))):
            b.c("munmap", i32, b.at(raw, b.add(before, size)), after)
        region = b.inttoptr(aligned, ptr)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # pragma: no branch - only systems without huge pages
            b.c("madvise", i32, region, size, const(i32, mmap.MADV_HUGEPAGE))
        b.ret(region)

    def _refill(self) -> None:
        """``memory_refill(index)``: a new block for a bin, or null."""
        b, (index,) = define(self.module, "memory_refill", ptr, [("index", i64)])
        units = b.call(self.module.functions["units_of"], (index,))
        with b.if_then(b.icmp("ult", index, number(SMALL_BINS))):
            b.ret(self._carve(b, index, b.shl(units, number(6))))
        with b.if_then(b.icmp("ult", index, number(LARGE_BIN))):
            size = b.shl(units, number(6))
            block = self._aligned(b, size)
            with b.rarely(b.is_null(block)):
                b.ret(NULL)
            self._set_up(b, block, b.at(block, HEADER), size, index)
            b.ret(block)
        over = b.sub(index, number(LARGE_BIN))
        size = b.shl(b.call(self.module.functions["units_of"], (over,)), number(21))
        block = self._pop(b, number(0))
        block = b.cond(
            b.is_null(block),
            lambda: b.call(self._refill_declared, (number(0),)),
            lambda: block,
            likely=False,
        )[0]
        with b.rarely(b.is_null(block)):
            b.ret(NULL)
        region = b.call(self.module.functions["map_region"], (size,))
        with b.rarely(b.is_null(region)):
            self._push(b, number(0), block)
            b.ret(NULL)
        self._set_up(b, block, region, size, index)
        b.ret(block)

    def _set_up(self, b: Emit, block: Val, data: Val, size: Val, index: Val) -> None:
        b.put(block, self.header.data, data)
        b.put(block, self.header.bin, b.or_(b.shl(size, number(8)), index))

    def _aligned(self, b: Emit, size: Val) -> Val:
        """Memory from the C library on a 64-byte boundary, or null."""
        pointer = b.alloca(ptr)
        failed = b.c("posix_memalign", i32, pointer, number(64), size)
        return b.select(b.icmp("eq", failed, const(i32, 0)), b.load(ptr, pointer), NULL)

    def _carve(self, b: Emit, index: Val, size: Val) -> Val:
        """The next block of the current slab, or of a new one; null without memory."""
        left = b.sub(b.get(self.state, State.slab_end), b.get(self.state, State.slab))
        with b.rarely(b.icmp("ult", left, size)):
            slab = self._aligned(b, number(SLAB))
            with b.rarely(b.is_null(slab)):
                b.ret(NULL)
            b.put(self.state, State.slab, slab)
            b.put(self.state, State.slab_end, b.at(slab, SLAB))
        block = b.get(self.state, State.slab, ptr)
        b.put(self.state, State.slab, b.at(block, size))
        self._set_up(b, block, b.at(block, HEADER), size, index)
        return block

    def _alloc(self) -> None:
        """``bringup_alloc(nbytes)``: a new buffer, or null with no exception set."""
        b, (nbytes,) = define(self.module, "bringup_alloc", ptr, [("nbytes", i64)], internal=False)
        total = b.add(b.get(self.state, State.live_bytes), nbytes)
        budget = b.get(self.state, State.budget)
        # The first test excludes sizes near 2**64, for which the sum of the second wraps.
        refused = b.or_(b.icmp("ugt", nbytes, budget), b.icmp("ugt", total, budget))
        with b.rarely(refused):
            b.ret(NULL)
        large = b.icmp("uge", nbytes, number(LARGE))
        huge_units = b.lshr(b.sub(nbytes, number(1)), number(21))
        units = b.select(large, huge_units, b.lshr(b.add(nbytes, number(63)), number(6)))
        first = b.select(large, number(LARGE_BIN), number(0))
        index = b.add(b.call(self.module.functions["class_of"], (units,)), first)
        self._lock(b)
        block = self._take(b, index)
        with b.rarely(b.is_null(block)):
            self._unlock(b)
            b.ret(NULL)
        live = b.bump(self.state, State.live_bytes, nbytes)
        b.bump(self.state, State.live_allocations, number(1))
        peak = b.get(self.state, State.peak_bytes)
        b.put(self.state, State.peak_bytes, b.select(b.icmp("ugt", live, peak), live, peak))
        self._unlock(b)
        b.put(block, self.header.nbytes, nbytes)
        b.ret(b.c("PyObject_Init", ptr, block, b.get(self.state, State.type, ptr)))

    def _take(self, b: Emit, index: Val) -> Val:
        """A block of a bin's size: cached, or new; null without memory."""
        block = self._pop(b, index)

        def cached() -> Val:
            with b.if_then(b.icmp("uge", index, number(SMALL_BINS))):
                capacity = b.lshr(b.get(block, self.header.bin), number(8))
                b.bump(self.state, State.cached_bytes, b.sub(number(0), capacity))
            return block

        return b.cond(b.is_null(block), lambda: self._make(b, index), cached, likely=False)[0]

    def _make(self, b: Emit, index: Val) -> Val:
        """A new block; if that fails, free the whole cache and try again."""
        refill = self.module.functions["memory_refill"]
        first = b.call(refill, (index,))

        def again() -> Val:
            b.call(self.module.functions["memory_trim"], (number(0), number(0)))
            return b.call(refill, (index,))

        return b.cond(b.is_null(first), again, lambda: first, likely=False)[0]

    def _borrow(self) -> None:
        """``buffer_borrow(data, nbytes, owner)``: a buffer over memory that an object keeps."""
        arguments = [("data", ptr), ("nbytes", i64), ("owner", ptr)]
        b, (data, nbytes, owner) = define(
            self.module, "buffer_borrow", ptr, arguments, internal=False
        )
        block = b.call(self.module.functions["bringup_alloc"], (number(0),))
        with b.rarely(b.is_null(block)):
            b.ret(b.c("PyErr_NoMemory", ptr))
        b.c("Py_IncRef", void, owner)
        b.put(block, self.header.data, data)
        b.put(block, self.header.nbytes, nbytes)
        b.put(block, self.header.bin, number(BORROWED))
        b.put(block, self.header.link, owner)
        b.ret(block)

    def _dealloc(self) -> None:
        """The type's deallocator: the block goes back to its bin."""
        b, (block,) = define(self.module, "buffer_dealloc", void, [("block", ptr)], internal=False)
        type_object = b.get(block, self.header.python - 8, ptr)
        word = b.get(block, self.header.bin)
        with b.rarely(b.icmp("eq", word, number(BORROWED))):
            owner = b.get(block, self.header.link, ptr)
            self._lock(b)
            b.bump(self.state, State.live_allocations, number(-1))
            self._as_small(b, block)
            self._unlock(b)
            b.c("Py_DecRef", void, owner)
            b.c("Py_DecRef", void, type_object)
            b.ret()
        self._lock(b)
        self._give_back(b, block, b.and_(word, number(255)), b.lshr(word, number(8)))
        self._unlock(b)
        b.c("Py_DecRef", void, type_object)
        b.ret()

    def _give_back(self, b: Emit, block: Val, index: Val, capacity: Val) -> None:
        b.bump(self.state, State.live_bytes, b.sub(number(0), b.get(block, self.header.nbytes)))
        b.bump(self.state, State.live_allocations, number(-1))
        self._push(b, index, block)
        with b.if_then(b.icmp("uge", index, number(SMALL_BINS))):
            cached = b.bump(self.state, State.cached_bytes, capacity)
            limit = b.get(self.state, State.cache_limit)
            with b.rarely(b.icmp("ugt", cached, limit)):
                half = b.lshr(limit, number(1))
                b.call(self.module.functions["memory_trim"], (half, index))

    def _python_methods(self) -> None:
        b, _ = define(self.module, "memory_address", ptr, [], internal=False)
        b.ret(self.state)
        b, (_, size) = define(
            self.module, "buffer_alloc", ptr, [("self", ptr), ("size", ptr)], internal=False
        )
        nbytes = b.c("PyLong_AsSsize_t", i64, size)
        with b.rarely(b.icmp("slt", nbytes, number(0))):
            b.ret(NULL)
        buffer = b.call(self.module.functions["bringup_alloc"], (nbytes,))
        with b.rarely(b.is_null(buffer)):
            b.ret(b.c("PyErr_NoMemory", ptr))
        b.ret(buffer)
        b, (block, view, flags) = define(
            self.module, "buffer_view", i32, [("block", ptr), ("view", ptr), ("flags", i32)],
            internal=False,
        )  # fmt: skip
        data, nbytes = b.get(block, self.header.data, ptr), b.get(block, self.header.nbytes)
        b.ret(b.c("PyBuffer_FillInfo", i32, view, block, data, nbytes, const(i32, 0), flags))


def _free(b: Emit, block: Val) -> None:
    b.c("free", void, block)
