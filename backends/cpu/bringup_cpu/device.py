"""The opened device: memory, transfers, compilation."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bringup import config
from bringup.backend import Capabilities, Device, Handle
from bringup.backend.dispatch import ArrayLayout, Dispatcher
from bringup.llvm.host.engine import engine
from bringup.llvm.host.object_cache import Emitted, deferred
from bringup.program.program import Program
from bringup.runtime import timeline
from bringup.types import TensorType
from bringup_cpu.executable import ENTRY, CpuExecutable, TracedExecutable
from bringup_cpu.memory import Memory, memory
from bringup_cpu.pool import pool
from bringup_cpu.target import host_target


class CpuDevice(Device):
    """This process's CPUs.  Handles are `Buffer` objects: see `bringup_cpu.memory`.

    memory: the allocator, with its counters.
    """

    refcounted_handles = True

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.memory: Memory = memory()
        # Compiled code refers to the pool by symbol, so it must be there first.
        self.pool = pool()

    def alloc(self, nbytes: int) -> Handle:
        """A new buffer.  Raises OutOfMemoryError."""
        return self.memory.alloc(nbytes)

    def free(self, handle: Handle) -> None:
        """Nothing: the memory comes back when the last reference to the buffer goes."""

    def upload(self, handle: Handle, data: memoryview) -> None:
        """Copy bytes of the host into a buffer."""
        memoryview(handle)[: data.nbytes] = data.cast("B") if data.format != "B" else data

    def download(self, handle: Handle, out: memoryview) -> None:
        """Copy a buffer's first bytes to the host."""
        bytes_out = out.cast("B") if out.format != "B" else out
        bytes_out[:] = memoryview(handle)[: out.nbytes]

    def copy(self, target: Handle, source: Handle, nbytes: int) -> None:
        """Copy from one buffer to another."""
        assert nbytes <= min(target.nbytes, source.nbytes), "the copy leaves a buffer"
        ctypes.memmove(target.address, source.address, nbytes)

    def synchronize(self) -> None:
        """Nothing: every call has finished its work when it returns."""

    def borrow(self, data: memoryview) -> Handle:
        """A buffer over memory of the host, which it keeps alive."""
        return self.memory.borrow(data)

    def host_view(self, handle: Handle, type_: TensorType) -> np.ndarray[Any, Any]:
        """The buffer itself as an array, which keeps it alive."""
        return np.ndarray(type_.shape, type_.dtype.numpy, handle)

    def dispatcher(self, layout: ArrayLayout, slow: Callable[..., Any]) -> Dispatcher | None:
        """A native dispatcher, where this interpreter's objects allow one."""
        from bringup_cpu.dispatch import dispatcher

        return dispatcher(layout, slow)

    def compile(self, program: Program) -> CpuExecutable:
        """Native code for a program; what is compiled while the timeline is on measures itself.

        Raises CompileError, UnsupportedError.
        """
        level = None if program.optimize else 0
        if timeline.enabled():
            return self._compile_traced(program, level)
        target = replace(host_target(), threads=self.pool.threads)

        def emit() -> Emitted:
            from bringup_cpu.codegen import generate  # a program on disk needs no emitter

            native = generate(program, target)
            return Emitted(native.text, native.arena_bytes.to_bytes(8, "little"))

        source = f"program {program.code_key} {target}"
        package = Path(__file__).parent
        module = emit() if config.level("BRINGUP_EMIT") else deferred(source, emit, package)
        code = engine().compile_native(module, (ENTRY,), level)
        return CpuExecutable(program, code, int.from_bytes(code.facts, "little"), self.memory)

    def _compile_traced(self, program: Program, level: int | None) -> TracedExecutable:
        """Code that notes when each thread worked on each launch, whose names it needs."""
        from bringup_cpu.codegen import generate

        target = replace(host_target(), threads=self.pool.threads)
        with timeline.span("emit", "compile"):
            native = generate(program, target, traced=True)
        with timeline.span("llvm", "compile") as span:
            before = engine().compiled
            code = engine().compile_native(native.text, (ENTRY,), level)
            span.note(compiled=engine().compiled > before)
        return TracedExecutable(program, native, code, self.memory, target.threads)
