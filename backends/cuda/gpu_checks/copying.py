"""The ceiling of programs bound by memory: copying as many bytes as they move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bringup_cuda.driver import protocol
from bringup_cuda.driver.errors import leak
from gpu_checks.measuring import Side

THREADS = 512
#: 16-byte vectors that a thread has in flight.
VECTORS = 4

# Each block copies THREADS * VECTORS vectors; loads come before stores, all of them coalesced.
PTX = (
    f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry copy(.param .u64 target, .param .u64 source, .param .u64 count)
.maxntid {THREADS}, 1, 1
{{
.reg .b32 %r<4>; .reg .b64 %a<24>; .reg .b32 %v<{4 * VECTORS}>; .reg .pred %p<{VECTORS}>;
ld.param.u64 %a0, [target]; ld.param.u64 %a1, [source]; ld.param.u64 %a2, [count];
cvta.to.global.u64 %a0, %a0; cvta.to.global.u64 %a1, %a1;
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x;
mul.wide.u32 %a3, %r0, {THREADS * VECTORS}; cvt.u64.u32 %a4, %r1; add.u64 %a3, %a3, %a4;
"""
    + "".join(
        f"""add.u64 %a{4 + i}, %a3, {i * THREADS}; setp.lt.u64 %p{i}, %a{4 + i}, %a2;
shl.b64 %a{8 + i}, %a{4 + i}, 4; add.u64 %a{12 + i}, %a1, %a{8 + i};
add.u64 %a{16 + i}, %a0, %a{8 + i};
@%p{i} ld.global.v4.b32 {{%v{4 * i}, %v{4 * i + 1}, %v{4 * i + 2}, %v{4 * i + 3}}}, [%a{12 + i}];
"""
        for i in range(VECTORS)
    )
    + "".join(
        f"@%p{i} st.global.v4.b32 [%a{16 + i}], "
        f"{{%v{4 * i}, %v{4 * i + 1}, %v{4 * i + 2}, %v{4 * i + 3}}};\n"
        for i in range(VECTORS)
    )
    + "ret;\n}\n"
)


class Copier:
    """Copies within one GPU, by the driver and by a kernel of our own.

    Memory is apart from that of every side.  The context is kept until the process ends.
    """

    def __init__(self, library: protocol.Library, index: int, capacity: int) -> None:
        """capacity: bytes of the source, and of the target."""
        self._driver = library.driver
        self._driver.init()
        self._context = self._driver.Device(index).retain_primary_context()
        # Dropped, it would be taken for no primary one.
        leak(self._context)
        self._capacity = capacity
        with self._current():
            self._stream = self._driver.Stream()
            self._target = self._driver.mem_alloc(capacity)
            self._source = self._driver.mem_alloc(capacity)
            # Memory that nothing was written to need not be real yet.
            self._driver.memset_d8_async(int(self._target), 1, capacity, self._stream)
            self._driver.memset_d8_async(int(self._source), 2, capacity, self._stream)
            self._kernel = self._load() if library.image == "ptx" else None

    def sides(self, moved: int) -> list[Side]:
        """The driver's own copy, and the kernel where there is one, of ``moved`` bytes read and
        written together.
        """
        half = min(max(16, moved // 2 // 16 * 16), self._capacity)
        places = max(1, self._capacity // half)

        def offset(number: int) -> int:
            return number % places * half

        sides = [Side("copy by the driver", lambda n: self._by_driver(offset(n), half), self._wait)]
        if self._kernel is not None:
            kernel = self._kernel
            sides.append(
                Side("copy by a kernel", lambda n: self._by(kernel, offset(n), half), self._wait)
            )
        return sides

    def check(self) -> bool:
        """Whether the kernel copies every byte, of a number of vectors that no block divides."""
        if self._kernel is None:
            return True
        nbytes = 16 * (3 * THREADS * VECTORS + 5)
        wanted = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
        found = np.zeros(nbytes + 16, np.uint8)
        with self._current():
            self._driver.memset_d8_async(int(self._target), 0, nbytes + 16, self._stream)
            self._driver.memcpy_htod_async(int(self._source), wanted, self._stream)
            self._stream.synchronize()
        self._by(self._kernel, 0, nbytes)
        with self._current():
            self._driver.memcpy_dtoh_async(found, int(self._target), self._stream)
            self._stream.synchronize()
        return bool((found[:nbytes] == wanted).all() and not found[nbytes:].any())

    def _load(self) -> Any:
        module = self._driver.module_from_buffer(PTX.encode() + b"\0")
        return module.get_function("copy").prepare("PPQ")

    def _by_driver(self, offset: int, half: int) -> None:
        with self._current():
            self._driver.memcpy_dtod_async(
                int(self._target) + offset, int(self._source) + offset, half, self._stream
            )

    def _by(self, kernel: Any, offset: int, half: int) -> None:
        count = half // 16
        grid = (-(-count // (THREADS * VECTORS)), 1)
        target, source = int(self._target) + offset, int(self._source) + offset
        with self._current():
            kernel.prepared_async_call(grid, (THREADS, 1, 1), self._stream, target, source, count)

    def _wait(self) -> None:
        with self._current():
            self._stream.synchronize()

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._context.push()
        try:
            yield
        finally:
            self._driver.Context.pop()
