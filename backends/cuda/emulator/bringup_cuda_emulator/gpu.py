"""What a fault says: the kernel, the threads, the address, the instructions."""

from __future__ import annotations

import bisect
import ctypes
import struct
import threading
from collections.abc import Sequence
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from bringup.errors import BringupError
from bringup.records import record
from bringup_cuda_emulator.memory import GAP, Arena, Reserved
from bringup_cuda_emulator.native import Loaded, load, native
from bringup_cuda_emulator.rewrite import KernelCode
from bringup_cuda_emulator.structs import (
    COPY_BYTES,
    GROUP_BYTES,
    KIND_SHIFT,
    LEAST_STACK,
    MAX_COPIES,
    MAX_GROUPS,
    MAX_THREADS,
    SEVERAL,
    SHARED_WINDOW,
    STACKS_BYTES,
    STAMP_SHIFT,
    THREAD_SHIFT,
    Access,
    Context,
    Fault,
    Thread,
)

Coordinates = tuple[int, int, int]

_TITLES = {
    Fault.OUTSIDE: "out of bounds",
    Fault.MISALIGNED: "misaligned access",
    Fault.RACE_READ: "data race: a read of what another thread wrote",
    Fault.RACE_WRITE: "data race: two threads write",
    Fault.RACE_AFTER_READ: "data race: a write of what another thread reads",
    Fault.UNINITIALISED: "read of shared memory that this block has not written",
    Fault.IN_FLIGHT: "access to memory that an asynchronous copy is still writing",
    Fault.DIVERGENT_BARRIER: "divergent barrier: threads meet at different barriers",
    Fault.STUCK: "deadlock: nobody comes whom the waiting threads wait for",
    Fault.DIVERGENT_WARP: "divergent warp: lanes meet with different masks or instructions",
    Fault.NOT_IN_MASK: "a lane runs a warp instruction whose mask leaves it out",
    Fault.FOREIGN_LANE: "a shuffle reads a lane that takes no part in it",
    Fault.ENDLESS: "endless wait: the value that a thread waits for never comes",
    Fault.BAD_BARRIER: "no such barrier: a block has 16",
    Fault.TOO_MANY_COPIES: "more asynchronous copies under way than the emulator keeps",
    Fault.TRAP: "the kernel ran into llvm.trap",
    Fault.WRONG_SPACE: "an address of another address space",
    Fault.BEYOND_ARGUMENT: "out of bounds of the argument",
    Fault.SHORT_GROUP: "a warpgroup has fewer than 128 threads",
    Fault.DIVERGENT_GROUP: "divergent warpgroup: threads meet at different instructions",
    Fault.BAD_DESCRIPTOR: "no descriptor of a matrix that tensor cores read",
    Fault.NOT_VISIBLE: "tensor cores read what its writer has not made visible to them",
    Fault.OVERTAKEN: "shared memory was written while tensor cores read it",
    Fault.NOT_FENCED: "registers are given to tensor cores without a fence",
    Fault.SUMS_IN_FLIGHT: "sums are used while tensor cores still add to them",
    Fault.PRODUCTS_LEFT: "products of tensor cores that nobody waits for",
    Fault.TOO_MANY_PRODUCTS: "more products under way than the emulator keeps",
}
KINDS = {
    Fault.OUTSIDE: "out-of-bounds",
    Fault.MISALIGNED: "misaligned",
    Fault.RACE_READ: "race",
    Fault.RACE_WRITE: "race",
    Fault.RACE_AFTER_READ: "race",
    Fault.UNINITIALISED: "uninitialised",
    Fault.IN_FLIGHT: "in-flight",
    Fault.DIVERGENT_BARRIER: "divergent-barrier",
    Fault.STUCK: "deadlock",
    Fault.DIVERGENT_WARP: "divergent-warp",
    Fault.NOT_IN_MASK: "lane-not-in-mask",
    Fault.FOREIGN_LANE: "foreign-lane",
    Fault.ENDLESS: "endless-wait",
    Fault.BAD_BARRIER: "bad-barrier",
    Fault.TOO_MANY_COPIES: "too-many-copies",
    Fault.TRAP: "trap",
    Fault.WRONG_SPACE: "wrong-space",
    Fault.BEYOND_ARGUMENT: "out-of-bounds",
    Fault.SHORT_GROUP: "short-warpgroup",
    Fault.DIVERGENT_GROUP: "divergent-warpgroup",
    Fault.BAD_DESCRIPTOR: "bad-descriptor",
    Fault.NOT_VISIBLE: "not-visible",
    Fault.OVERTAKEN: "overtaken",
    Fault.NOT_FENCED: "not-fenced",
    Fault.SUMS_IN_FLIGHT: "sums-in-flight",
    Fault.PRODUCTS_LEFT: "products-left",
    Fault.TOO_MANY_PRODUCTS: "too-many-products",
}


@record
class Place:  # pragma: no cover - only wrong kernels
    """Who and where: a thread of a block, and the instruction."""

    thread: Coordinates
    block: Coordinates
    instruction: str

    def __str__(self) -> str:
        return f"thread {self.thread} of block {self.block}: {self.instruction}"


@record
class Finding:  # pragma: no cover - only wrong kernels
    """A fault of a kernel.

    kind: such as ``race``.  other: the other side of a race, None for other faults.
    address, size: the access; size 0 where memory has no part in it.
    where: the buffer or variable nearest to the address.
    """

    kind: str
    title: str
    kernel: str
    at: Place
    other: Place | None
    address: int
    size: int
    where: str
    details: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.title}", f"  {self.at}"]
        if self.other is not None:
            lines.append(f"  {self.other}")
        if self.size:
            lines.append(f"  {self.size} bytes at {self.address:#x}: {self.where}")
        lines += [f"  {line}" for line in self.details]
        return "\n".join(lines)


class EmulatorError(BringupError):  # pragma: no cover - only wrong kernels
    """A kernel did what no kernel may do.  finding: what, who and where."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


Shape = tuple[int, int, int]
_STRANGER = "an address of no allocation"
#: How `struct` spells the types of floats.
_REALS = {"float": "<f", "double": "<d"}
#: What threads do, by `Thread.STATE`.
_STATES = (
    "run", "wait at a barrier", "wait for their warp", "have returned", "wait for their warpgroup",
)  # fmt: skip


class Gpu:
    """An emulated GPU.

    memory: bytes of global memory.
    seed: picks the order of blocks and threads; 0 is ascending.
    """

    def __init__(self, memory: int = 4 << 30, seed: int = 0) -> None:
        self.arena = Arena(memory)
        self.seed = seed
        self._stacks = Reserved(STACKS_BYTES, large=True)
        self._threads = Reserved(MAX_THREADS * Thread.BYTES)
        self._copies = Reserved(MAX_THREADS * MAX_COPIES * COPY_BYTES)
        self._products = Reserved(MAX_GROUPS * GROUP_BYTES)
        self._context = Reserved(Context.BYTES)
        self._firsts: Any = (ctypes.c_uint64 * 1)()
        self._lock = threading.Lock()
        #: Launches and blocks run so far.
        self.launches = 0
        self.blocks = 0
        for offset, value in (
            (Context.THREADS_AT, self._threads.address),
            (Context.STACKS, self._stacks.address),
            (Context.STACKS_END, self._stacks.address + self._stacks.size),
            (Context.SHARED, self.arena.address),
            (Context.ARENA, self.arena.address),
            (Context.ARENA_BYTES, self.arena.bytes),
            (Context.MAP, self.arena.map_address),
            (Context.COPIES_AT, self._copies.address),
            (Context.PRODUCTS_AT, self._products.address),
        ):
            self._put(offset, value)

    def launch(
        self,
        module: Loaded,
        kernel: str,
        grid: Shape,
        block: Shape,
        arguments: Sequence[int | float | bytes],
        shared: int = 0,
    ) -> None:
        """Run a kernel and wait for it.

        arguments: pointers and integers, floats, or bytes as they lie in memory.
        shared: bytes of dynamic shared memory.
        Raises EmulatorError, ValueError for a shape or arguments that no GPU takes.
        """
        code = module.kernels[kernel]
        threads = block[0] * block[1] * block[2]
        blocks = grid[0] * grid[1] * grid[2]
        if not 0 < threads <= MAX_THREADS or blocks <= 0:  # pragma: no cover - only wrong calls
            raise ValueError(f"{kernel}: a grid of {grid} blocks of {block} threads")
        if len(arguments) != len(code.params):  # pragma: no cover - only wrong calls
            raise ValueError(f"{kernel} takes {len(code.params)} arguments, not {len(arguments)}")
        _check_constants(kernel, code, arguments)
        packed = b"".join(_pack(a, t) for a, t in zip(arguments, code.params, strict=True))
        with self._lock:
            self._prepare(module, kernel, grid, block, shared)
            buffer = ctypes.create_string_buffer(packed, max(len(packed), 8))
            self._put(Context.ARGUMENTS, ctypes.addressof(buffer))
            native().launch(self._context.address)
            self.launches += 1
            self.blocks += self._get(Context.RAN)
            if self._get(Context.FAULT):  # pragma: no cover - only wrong kernels
                fault = _Fault(self, code, module.sites)
                raise EmulatorError(fault.finding(kernel, grid, block))

    def _prepare(self, module: Loaded, kernel: str, grid: Shape, block: Shape, shared: int) -> None:
        code = module.kernels[kernel]
        threads = block[0] * block[1] * block[2]
        blocks = grid[0] * grid[1] * grid[2]
        if blocks > len(self._firsts):
            self._firsts = (ctypes.c_uint64 * blocks)()
        self.arena.share(_shared_map(code, shared))
        tables = (ctypes.c_uint64 * (2 * len(module.tables)))(*sum(module.tables, ()))
        self._tables = tables
        for offset, value in (
            (Context.ENTRY, module.entries[kernel]),
            (Context.THREADS, threads),
            (Context.BLOCKS, blocks),
            (Context.FIBRES, int(code.waits)),
            (Context.STACK, _stack(kernel, code, threads)),
            (Context.CELLS, self.arena.cells_address if module.checked else 0),
            (Context.GRANULE, code.granule),
            (Context.CONSTANTS, ctypes.addressof(tables)),
            (Context.CONSTANT_COUNT, len(module.tables)),
            (Context.FIRSTS_AT, ctypes.addressof(self._firsts)),
            (Context.FAULT, 0),
            (Context.RAN, 0),
            *_order(Context.BLOCK_FIRST, blocks, self.seed),
            *_order(Context.THREAD_FIRST, threads, self.seed),
        ):
            self._put(offset, value)
        shapes = struct.pack("<6I", *block, *grid)
        ctypes.memmove(self._context.address + Context.NTID, shapes, len(shapes))
        assert Context.NCTAID == Context.NTID + 12

    def _put(self, offset: int, value: int) -> None:
        ctypes.c_uint64.from_address(self._context.address + offset).value = value

    def _get(self, offset: int) -> int:
        return ctypes.c_uint64.from_address(self._context.address + offset).value


class _Fault:  # pragma: no cover - only wrong kernels
    """A fault of the last launch, as a GPU's context tells it."""

    def __init__(self, gpu: Gpu, code: KernelCode, sites: Sequence[tuple[str, str]]) -> None:
        self.gpu = gpu
        self.code = code
        self.sites = sites
        self.kind, self.record = gpu._get(Context.FAULT), gpu._get(Context.FAULT_OTHER)
        self.info, self.address = gpu._get(Context.FAULT_INFO), gpu._get(Context.FAULT_ADDRESS)

    def finding(self, kernel: str, grid: Shape, block: Shape) -> Finding:
        """What, who and where."""
        get, record, number = self.gpu._get, self.record, self.gpu._get(Context.BLOCK)
        thread = _coordinates(get(Context.FAULT_THREAD), block)
        at = Place(thread, _coordinates(number, grid), self.sites[get(Context.FAULT_SITE)][1])
        other = None
        beyond = self.kind == Fault.BEYOND_ARGUMENT
        if record and not beyond:
            who = _coordinates(record >> THREAD_SHIFT & 1023, block)
            where = _coordinates(self._block_of(record >> STAMP_SHIFT, number, grid), grid)
            other = Place(who, where, self.sites[record & 0xFFFF][1])
        return Finding(
            KINDS[self.kind],
            _TITLES[self.kind],
            kernel,
            at,
            other if self.kind != Fault.UNINITIALISED else None,
            self.address,
            self.info & 0xFF if self.address else 0,
            self._beyond() if beyond else self._where(),
            self._details(block),
        )

    def _block_of(self, stamp: int, now: int, grid: Shape) -> int:
        """The block that ran at a stamp."""
        gpu = self.gpu
        if stamp >= gpu._get(Context.FIRST_OF_BLOCK) or stamp == 0:
            return now
        since = gpu._get(Context.FIRST_OF_LAUNCH)
        blocks = grid[0] * grid[1] * grid[2]
        begun = sorted((gpu._firsts[i], i) for i in range(blocks) if gpu._firsts[i] >= since)
        return begun[bisect.bisect_right(begun, (stamp, blocks)) - 1][1]

    def _beyond(self) -> str:
        which, offset = self.info >> 32, self.record
        signed = offset - (1 << 64) if offset >> 63 else offset
        return f"byte {signed} of argument {which}, which has {self.code.extents[which]} bytes"

    def _where(self) -> str:
        address, arena, code = self.address, self.gpu.arena, self.code
        offset = address - arena.address
        if 0 <= offset < SHARED_WINDOW:
            for variable in code.shared:
                if variable.offset <= offset < variable.offset + variable.size:
                    return f"byte {offset - variable.offset} of @{variable.name} (shared)"
            if offset >= code.dynamic:
                return f"byte {offset - code.dynamic} of dynamic shared memory"
            return f"byte {offset} of shared memory, between its variables"
        found = arena.find(address)
        if found is None:
            return _STRANGER
        inside = address - found.address
        if inside < found.size:
            return f"byte {inside} of an allocation of {found.size} bytes"
        behind = f"{inside - found.size} bytes behind an allocation of {found.size} bytes"
        if inside - found.size < GAP:
            return behind
        for freed in reversed(arena.freed):
            if freed.address <= address < freed.address + freed.size:
                return f"byte {address - freed.address} of {freed.size} bytes that were freed"
        return _STRANGER if inside - found.size > 1 << 20 else behind

    def _details(self, block: Shape) -> tuple[str, ...]:
        fault, info = self.kind, self.info
        if fault == Fault.DIVERGENT_WARP:
            return (f"masks {info & 0xFFFFFFFF:#010x} and {info >> 32:#010x}",)
        if fault == Fault.NOT_IN_MASK:
            return (f"mask {info:#010x}",)
        if fault == Fault.BAD_DESCRIPTOR:
            return (f"descriptor {info:#018x}",)
        if fault == Fault.FOREIGN_LANE:
            return (f"lane {info}",)
        if fault == Fault.MISALIGNED:
            return (f"{info >> Access.ALIGN_SHIFT & 0xFF} bytes of alignment are claimed",)
        # The record of a read that stands for several threads.
        if fault == Fault.RACE_AFTER_READ and self.record >> KIND_SHIFT & SEVERAL:
            return ("other threads read as well",)
        return self._waiting(block) if fault == Fault.STUCK else ()

    def _waiting(self, block: Shape) -> tuple[str, ...]:
        """How many threads stand where."""
        counts: dict[str, list[int]] = {}
        for n in range(block[0] * block[1] * block[2]):
            base = self.gpu._threads.address + n * Thread.BYTES
            state = ctypes.c_uint32.from_address(base + Thread.STATE).value
            counts.setdefault(_STATES[state], []).append(n)
        return tuple(f"{len(v)} threads {k}: {_ranges(v)}" for k, v in counts.items())


def _coordinates(number: int, shape: Shape) -> Coordinates:  # pragma: no cover - only wrong kernels
    """The x, y and z of a linear number."""
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def _ranges(numbers: Sequence[int]) -> str:  # pragma: no cover - only wrong kernels
    """``0-31, 64-95``."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in parts[:8]]
    return ", ".join(shown) + (", …" if len(parts) > 8 else "")


def _check_constants(
    kernel: str, code: KernelCode, arguments: Sequence[int | float | bytes]
) -> None:
    """That nothing is written which loads take for constant: a GPU reads those by another cache,
    whatever barriers there are.
    """
    nobody = (0, 0, 0)
    for which, reader in code.constant.items():
        for other, store in code.written.items():
            first, second = arguments[which], arguments[other]
            assert isinstance(first, int)
            assert isinstance(second, int)
            begin = max(first, second)
            ends = first + code.extents[which], second + code.extents[other]
            if begin < min(ends):  # pragma: no cover - only wrong kernels
                title = "a kernel writes what it reads as constant"
                at, by = Place(nobody, nobody, reader), Place(nobody, nobody, store)
                details = (f"arguments {which} and {other} share memory",)
                raise EmulatorError(
                    Finding("constant-written", title, kernel, at, by, begin, 0, "", details)
                )


def _order(offset: int, count: int, seed: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first index and the step of an order of ``count``; they stand side by side."""
    first, step = 0, 1
    if seed and count > 1:  # pragma: no cover - only with CUDA_EMULATED_SEED
        mixed = (seed * 0x9E3779B97F4A7C15) >> 7 & 0xFFFFFFFF
        first, step = (mixed >> 16) % count, mixed % count or 1
        while gcd(step, count) != 1:
            step += 1
    return (offset, first), (offset + 8, step)


def _stack(kernel: str, code: KernelCode, threads: int) -> int:
    """Bytes for the stack of each thread."""
    size = LEAST_STACK
    while size < LEAST_STACK // 2 + code.stack:
        size *= 2
    if size * (threads if code.waits else 1) > STACKS_BYTES:  # pragma: no cover - only wrong calls
        raise ValueError(f"{kernel}: {threads} threads that need stacks of {code.stack} bytes each")
    return size


def _shared_map(code: KernelCode, dynamic: int) -> bytes:
    """The arena's map of a block's shared memory."""
    areas = [(v.offset, v.size) for v in code.shared]
    end = max((o + s for o, s in areas), default=0)
    if dynamic:
        areas.append((code.dynamic, dynamic))
        end = max(end, code.dynamic + dynamic)
    if end > SHARED_WINDOW:  # pragma: no cover - only wrong calls
        raise ValueError(f"{end} bytes of shared memory")
    made = bytearray(end // 16 + 2)
    for offset, size in areas:
        first = offset // 16
        made[first : first + size // 16] = b"\x10" * (size // 16)
        if size % 16:
            made[first + size // 16] = size % 16
    return bytes(made)


def _pack(value: int | float | bytes, type: str) -> bytes:
    """An argument as the kernel's entry reads it: 8 bytes."""
    if isinstance(value, (bytes, bytearray)):  # pragma: no cover - only kernels run by hand
        return bytes(value).ljust(8, b"\0")
    if type in _REALS:  # pragma: no cover - only kernels run by hand
        return struct.pack(_REALS[type], value).ljust(8, b"\0")
    return (int(value) & (1 << 64) - 1).to_bytes(8, "little")


Dims = int | Sequence[int]


def run(  # pragma: no cover - only kernels run by hand
    module: str | Loaded,
    kernel: str,
    grid: Dims,
    block: Dims,
    args: Sequence[Any],
    *,
    shared_bytes: int = 0,
    seed: int = 0,
    gpu: Gpu | None = None,
) -> None:
    """Run a kernel over arrays, which hold its results afterwards.

    module: LLVM IR for NVPTX, or a module loaded before.
    args: C-contiguous numpy arrays, copied to the GPU and back, and numbers.
    shared_bytes: of dynamic shared memory.  seed: picks the order of blocks and threads.
    Raises EmulatorError, CompileError.
    """
    loaded = load(module) if isinstance(module, str) else module
    machine = gpu or _gpu()
    machine.seed = seed
    addresses: list[tuple[np.ndarray[Any, Any], int]] = []
    given: list[Any] = []
    try:
        for value in args:
            if not isinstance(value, np.ndarray):
                given.append(value)
                continue
            assert value.flags.c_contiguous, "an array must be contiguous"
            address = machine.arena.allocate(value.nbytes)
            addresses.append((value, address))
            ctypes.memmove(address, value.ctypes.data, value.nbytes)
            given.append(address)
        machine.launch(loaded, kernel, _dims(grid), _dims(block), given, shared_bytes)
        for array, address in addresses:
            if array.flags.writeable:
                ctypes.memmove(array.ctypes.data, address, array.nbytes)
    finally:
        for _, address in addresses:
            machine.arena.free(address)


def _dims(value: Dims) -> Shape:  # pragma: no cover - only kernels run by hand
    given = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


@cache
def _gpu() -> Gpu:  # pragma: no cover - only kernels run by hand
    return Gpu()
