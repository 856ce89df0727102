"""The device: host memory, and functions of C that run on it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.backend import BufferView, Capabilities, LibraryClaims, Limits, LoopsDevice, Target
from bringup.c import C11, c_claims, render_all, render_c, scratch_bytes, symbol, units
from bringup.loops import Func
from bringup.types import TensorType
from bringup_c import compiler

Array = np.ndarray[Any, Any]

KERNELS = c_claims(C11)
CAPABILITIES = Capabilities(
    kernels=KERNELS, ops=LibraryClaims(KERNELS), limits=Limits(loop_runs=1024)
)
#: A call takes some microseconds.
TARGET = Target(launch_instructions=20_000)


def render(func: Func) -> str:
    """The source of one function."""
    return render_c(func, C11)


class CDevice(LoopsDevice):
    """The processor, by way of a C compiler.  A handle is an array of bytes."""

    capabilities = CAPABILITIES
    target = TARGET
    refcounted_handles = True

    def alloc(self, nbytes: int) -> Array:
        """Of any content."""
        memory = np.empty(nbytes + self.capabilities.alignment, np.uint8)
        start = -memory.ctypes.data % self.capabilities.alignment
        return memory[start : start + nbytes]

    def free(self, handle: Array) -> None:
        """Python does it."""

    def upload(self, handle: Array, data: memoryview) -> None:
        """At once."""
        handle[: len(data)] = data

    def download(self, handle: Array, out: memoryview) -> None:
        """At once."""
        out[:] = handle[: len(out)].data

    def copy(self, target: Array, source: Array, nbytes: int) -> None:
        """At once."""
        target[:nbytes] = source[:nbytes]

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def host_view(self, handle: Array, type_: TensorType) -> Array:
        """The memory itself."""
        return handle[: type_.nbytes].view(type_.dtype.numpy).reshape(type_.shape)

    def render(self, func: Func) -> str:
        """The source of one function."""
        return render(func)

    def build(self, funcs: Sequence[Func]) -> list[tuple[str | bytes, object]]:
        """One run of the compiler for all functions of a program."""
        source = render_all(funcs, C11)
        library = compiler.build(source)
        return [(source, getattr(library, symbol(func, C11))) for func in funcs]

    def scratch_bytes(self, func: Func) -> int:
        """As the source expects it."""
        return scratch_bytes(func, C11)

    def launch(self, loaded: Any, func: Func, views: list[BufferView]) -> None:
        """Run all units in this thread; the last view may be scratch."""
        pointers = [view.handle.ctypes.data + view.offset for view in views]
        scratch = pointers[len(func.params)] if len(pointers) > len(func.params) else None
        buffers = (ctypes.c_void_p * len(pointers))(*pointers)
        ends = ctypes.c_int64(0), ctypes.c_int64(units(func))
        loaded(buffers, *ends, ctypes.c_void_p(scratch))
