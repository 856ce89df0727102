"""The native runtime of the process: allocator and worker pool, compiled once and loaded."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bringup.llvm.host.emit import Emit
from bringup.llvm.host.engine import Code, Engine, engine
from bringup.llvm.host.halves import provide_halves
from bringup.llvm.host.object_cache import Deferred, Emitted, deferred
from bringup.llvm.text import Module, Val, void
from bringup_cpu.emit_memory import EXPORTS as MEMORY_EXPORTS
from bringup_cpu.emit_memory import HeaderLayout, MemoryEmitter
from bringup_cpu.emit_pool import EXPORTS as POOL_EXPORTS
from bringup_cpu.emit_pool import PoolEmitter
from bringup_cpu.launch_table import WALK, WALK_LEVEL, emit_walk

#: The level of LLVM's code generator: optimisation takes 30 ms and saves 2 ns per allocation.
RUNTIME_LEVEL = 0

#: Bytes at the start of every Python object.
OBJECT_BYTES = object.__basicsize__

_METH_O, _METH_FASTCALL, _METH_KEYWORDS = 0x08, 0x80, 0x02
_FROM_PYTHON = (
    "PyBuffer_FillInfo", "PyErr_NoMemory", "PyErr_Occurred", "PyEval_RestoreThread",
    "PyEval_SaveThread", "PyLong_AsSsize_t", "PyObject_Init", "PyObject_Vectorcall",
    "PyThread_get_thread_native_id", "PyTuple_New", "PyTuple_SetItem", "PyType_GenericAlloc",
    "Py_DecRef", "Py_IncRef",
)  # fmt: skip
_FROM_LIBC = (
    "clock_gettime", "free", "madvise", "memset", "mmap", "munmap", "posix_memalign",
    "pthread_cond_broadcast", "pthread_cond_init", "pthread_cond_wait", "pthread_create",
    "pthread_detach",
    "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_self",
    "pthread_sigmask", "sched_yield", "sigfillset",
)  # fmt: skip
_PAUSES = {
    "x86_64": "llvm.x86.sse2.pause",
    "AMD64": "llvm.x86.sse2.pause",
    "aarch64": "llvm.aarch64.hint",
    "arm64": "llvm.aarch64.hint",
}

#: The layout of a buffer's header in this interpreter.
header = HeaderLayout(OBJECT_BYTES)


def has_gil() -> bool:
    """Whether one lock guards every Python object of the process."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class Runtime:
    """The runtime's code, and typed ways to call it.

    Functions made by `python` run with the interpreter lock, those made by `native` without.
    """

    def __init__(self, engine: Engine, *, locked: bool) -> None:
        _publish(engine)
        self._halves: Code = provide_halves(engine)
        exports = (*MEMORY_EXPORTS, *POOL_EXPORTS)
        self.code: Code = engine.compile_native(_module(locked), exports, RUNTIME_LEVEL)
        walk = Module()
        emit_walk(walk, _in_pool)
        engine.symbol("bringup_parallel", self.code.addresses["bringup_parallel"])
        self.walk: Code = engine.compile_native(str(walk), (WALK,), WALK_LEVEL)

    def python(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """A function of the runtime that touches Python objects or the allocator."""
        return ctypes.PYFUNCTYPE(result, *arguments)(self.code.addresses[name])

    def native(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """A function of the runtime that does not."""
        return ctypes.CFUNCTYPE(result, *arguments)(self.code.addresses[name])


def _module(locked: bool) -> Emitted | Deferred:
    """The runtime's module: the same in every process, and emitting it takes as long as tracing and
    fusing a small program.
    """
    pause = _PAUSES.get(platform.machine(), "")

    def make() -> Emitted:
        module = Module()
        MemoryEmitter(module, header, locked=locked)
        PoolEmitter(module, pause)
        return Emitted(str(module))

    return deferred(f"runtime {header.python} {locked} {pause}", make, Path(__file__).parent)


def _in_pool(b: Emit, _tables: Val, launch: Sequence[Val]) -> None:
    """Share a launch among the workers of the pool."""
    b.c("bringup_parallel", void, *launch)


def _publish(engine: Engine) -> None:
    """Give LLVM the addresses of what the runtime calls."""
    libc = ctypes.CDLL(None)
    for library, names in ((ctypes.pythonapi, _FROM_PYTHON), (libc, _FROM_LIBC)):
        for name in names:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            assert address is not None
            engine.symbol(name, address)


@cache
def runtime() -> Runtime:
    """The process's runtime, known to compiled code by its symbols."""
    loaded = Runtime(engine(), locked=not has_gil())
    for name in ("bringup_alloc", "bringup_threads"):
        engine().symbol(name, loaded.code.addresses[name])
    engine().symbol(WALK, loaded.walk.addresses[WALK])
    return loaded


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


#: CPython has pointers to definitions as long as their functions live, so these are never freed.
_definitions: dict[tuple[str, int], _MethodDef] = {}

# A separate prototype, because attributes of `ctypes.pythonapi` are shared with all other users.
_new_builtin = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


def builtin(name: str, address: int, doc: str, own: object = None, *, fast: bool = False) -> Any:
    """A builtin function whose body is native code.

    own: what the body gets as ``self``.  fast: the body takes ``(self, args, nargs, kwnames)``,
    else ``(self, argument)``.
    """
    flags = _METH_FASTCALL | _METH_KEYWORDS if fast else _METH_O
    definition = _definitions.setdefault(
        (name, address), _MethodDef(name.encode(), address, flags, doc.encode())
    )
    return _new_builtin(ctypes.addressof(definition), None if own is None else id(own), None)
