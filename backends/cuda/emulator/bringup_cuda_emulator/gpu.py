"""One emulated GPU: its memory, launches that run to their end, and the reports of faults."""

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
    Copy,
    Fault,
    Thread,
    ThreadState,
    nbytes,
    struct_at,
)

Coordinates = tuple[int, int, int]


@record
class Place:  # pragma: no cover - only wrong kernels
    """A thread of a block, and the instruction that it runs."""

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
    """A kernel has a fault.  finding: the fault, the threads and the instructions."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


Shape = tuple[int, int, int]
_STRANGER = "an address of no allocation"
#: How `struct` spells the types of floats.
_REALS = {"float": "<f", "double": "<d"}
#: What threads do, by `Thread.state`.
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
        self._threads = Reserved(MAX_THREADS * nbytes(Thread))
        self._copies = Reserved(MAX_THREADS * MAX_COPIES * nbytes(Copy))
        self._products = Reserved(MAX_GROUPS * GROUP_BYTES)
        self._context_memory = Reserved(nbytes(Context))
        self._block_stamps: Any = (ctypes.c_uint64 * 1)()
        self._lock = threading.Lock()
        #: Launches and blocks run so far.
        self.launches = 0
        self.blocks = 0
        self.context = struct_at(Context, self._context_memory.address)
        context = self.context
        context.threads_at = self._threads.address
        context.stacks = self._stacks.address
        context.stacks_end = self._stacks.address + self._stacks.size
        context.shared = context.arena = self.arena.address
        context.arena_bytes = self.arena.bytes
        context.map = self.arena.map_address
        context.copies_at = self._copies.address
        context.products_at = self._products.address

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
            self.context.arguments = ctypes.addressof(buffer)
            native().launch(self._context_memory.address)
            self.launches += 1
            self.blocks += self.context.blocks_run
            if self.context.fault:  # pragma: no cover - only wrong kernels
                fault = _Fault(self, code, module.sites)
                raise EmulatorError(fault.finding(kernel, grid, block))

    def _prepare(self, module: Loaded, kernel: str, grid: Shape, block: Shape, shared: int) -> None:
        code = module.kernels[kernel]
        threads = block[0] * block[1] * block[2]
        blocks = grid[0] * grid[1] * grid[2]
        if blocks > len(self._block_stamps):
            self._block_stamps = (ctypes.c_uint64 * blocks)()
        self.arena.map_shared_memory(_shared_map(code, shared))
        tables = (ctypes.c_uint64 * (2 * len(module.tables)))(*sum(module.tables, ()))
        self._tables = tables
        context = self.context
        context.entry = module.entries[kernel]
        context.threads, context.blocks = threads, blocks
        context.ntid[:], context.nctaid[:] = block, grid
        context.fibers = int(code.waits)
        context.stack = _stack(kernel, code, threads)
        context.cells = self.arena.cells_address if module.checked else 0
        context.granule = code.granule
        context.constants = ctypes.addressof(tables)
        context.constant_count = len(module.tables)
        context.block_stamps = ctypes.addressof(self._block_stamps)
        context.fault = context.blocks_run = 0
        context.block_first, context.block_step = _order(blocks, self.seed)
        context.thread_first, context.thread_step = _order(threads, self.seed)

    def thread_state(self, index: int) -> ThreadState:  # pragma: no cover - only wrong kernels
        """What a thread of the block does."""
        address = self._threads.address + index * nbytes(Thread)
        return ThreadState(struct_at(Thread, address).state)


class _Fault:  # pragma: no cover - only wrong kernels
    """A fault of the last launch, as a GPU's context tells it."""

    def __init__(self, gpu: Gpu, code: KernelCode, sites: Sequence[tuple[str, str]]) -> None:
        self.gpu = gpu
        self.code = code
        self.sites = sites
        context = gpu.context
        self.kind, self.record = Fault.of(context.fault), context.fault_other
        self.info, self.address = context.fault_info, context.fault_address

    def finding(self, kernel: str, grid: Shape, block: Shape) -> Finding:
        """The fault, the threads and the instructions."""
        context, record, number = self.gpu.context, self.record, self.gpu.context.block
        thread = _coordinates(context.fault_thread, block)
        at = Place(thread, _coordinates(number, grid), self.sites[context.fault_site][1])
        other = None
        beyond = self.kind == Fault.BEYOND_ARGUMENT
        if record and not beyond:
            who = _coordinates(record >> THREAD_SHIFT & 1023, block)
            where = _coordinates(self._block_of(record >> STAMP_SHIFT, number, grid), grid)
            other = Place(who, where, self.sites[record & 0xFFFF][1])
        return Finding(
            self.kind.kind,
            self.kind.title,
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
        gpu, context = self.gpu, self.gpu.context
        if stamp >= context.first_of_block or stamp == 0:
            return now
        since = context.first_of_launch
        blocks = grid[0] * grid[1] * grid[2]
        begun = sorted(
            (gpu._block_stamps[i], i) for i in range(blocks) if gpu._block_stamps[i] >= since
        )
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
        allocation = arena.find(address)
        if allocation is None:
            return _STRANGER
        inside = address - allocation.address
        if inside < allocation.size:
            return f"byte {inside} of an allocation of {allocation.size} bytes"
        behind = f"{inside - allocation.size} bytes behind an allocation of {allocation.size} bytes"
        if inside - allocation.size < GAP:
            return behind
        for freed in reversed(arena.freed):
            if freed.address <= address < freed.address + freed.size:
                return f"byte {address - freed.address} of {freed.size} bytes that were freed"
        return _STRANGER if inside - allocation.size > 1 << 20 else behind

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
        """The number of threads in each state."""
        counts: dict[str, list[int]] = {}
        for n in range(block[0] * block[1] * block[2]):
            state = self.gpu.thread_state(n)
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
    """Check that no memory is written that loads take for constant: a GPU reads it through a cache
    whatever barriers there are.
    """
    nobody = (0, 0, 0)
    for which, reader in code.constant.items():
        for other, store in code.written.items():
            first, second = arguments[which], arguments[other]
            assert isinstance(first, int)
            assert isinstance(second, int)
            begin = max(first, second)
            dynamic_offsets = first + code.extents[which], second + code.extents[other]
            if begin < min(dynamic_offsets):  # pragma: no cover - only wrong kernels
                title = "a kernel writes what it reads as constant"
                at, by = Place(nobody, nobody, reader), Place(nobody, nobody, store)
                details = (f"arguments {which} and {other} share memory",)
                raise EmulatorError(
                    Finding("constant-written", title, kernel, at, by, begin, 0, "", details)
                )


def _order(count: int, seed: int) -> tuple[int, int]:
    """The first index and the step of an order of ``count``."""
    first, step = 0, 1
    if seed and count > 1:  # pragma: no cover - only with CUDA_EMULATED_SEED
        mixed = (seed * 0x9E3779B97F4A7C15) >> 7 & 0xFFFFFFFF
        first, step = (mixed >> 16) % count, mixed % count or 1
        while gcd(step, count) != 1:
            step += 1
    return first, step


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
    map_ = bytearray(end // 16 + 2)
    for offset, size in areas:
        first = offset // 16
        map_[first : first + size // 16] = b"\x10" * (size // 16)
        if size % 16:
            map_[first + size // 16] = size % 16
    return bytes(map_)


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
    arguments: list[Any] = []
    try:
        for value in args:
            if not isinstance(value, np.ndarray):
                arguments.append(value)
                continue
            assert value.flags.c_contiguous, "an array must be contiguous"
            address = machine.arena.allocate(value.nbytes)
            addresses.append((value, address))
            ctypes.memmove(address, value.ctypes.data, value.nbytes)
            arguments.append(address)
        machine.launch(loaded, kernel, _dims(grid), _dims(block), arguments, shared_bytes)
        for array, address in addresses:
            if array.flags.writeable:
                ctypes.memmove(array.ctypes.data, address, array.nbytes)
    finally:
        for _, address in addresses:
            machine.arena.free(address)


def _dims(value: Dims) -> Shape:  # pragma: no cover - only kernels run by hand
    dims = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*dims, 1, 1)[:3]
    return x, y, z


@cache
def _gpu() -> Gpu:  # pragma: no cover - only kernels run by hand
    return Gpu()
