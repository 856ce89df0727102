"""Buffers: the handles of this device.

A `Buffer` is a Python object with its bytes, 64-byte aligned, behind it or, from 1 MiB on, in a
region of huge pages.  Freed blocks are cached and reused, so that a program that runs again touches
no fresh page.  Buffers speak the buffer protocol: ``numpy.ndarray(shape, dtype, buffer)``
shares the memory and keeps it alive.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from bringup.errors import OutOfMemoryError
from bringup_cpu import host
from bringup_cpu.emit_memory import HEADER, State
from bringup_cpu.runtime import Runtime, builtin, header, runtime

#: Addresses of buffers are multiples of this.
ALIGNMENT = 64

_PY_TP_DEALLOC, _PY_TP_DOC, _PY_TP_MEMBERS, _PY_BF_GETBUFFER = 52, 56, 72, 1
_T_PYSSIZET, _T_ULONGLONG, _READONLY = 19, 18, 1
_NO_NEW, _IMMUTABLE = 1 << 7, 1 << 8


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("value", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_type = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Spec))(
    ("PyType_FromSpec", ctypes.pythonapi)
)


class Memory:
    """The process's allocator.

    buffer_type: the type of buffers.  state: counters and bounds: ``live_bytes`` and
    ``live_allocations`` of buffers in use, ``peak_bytes`` since `reset_peak`, ``cached_bytes`` kept
    for reuse, which ``cache_limit`` bounds, and the ``budget`` of live bytes.
    """

    def __init__(self, runtime: Runtime) -> None:
        addresses = runtime.code.addresses
        address = runtime.native("memory_address", ctypes.c_void_p)()
        self.state = State.from_address(address)
        self.state.budget = host.memory()
        self.state.cache_limit = self.state.budget // 8
        self.buffer_type = _make_type(addresses["buffer_dealloc"], addresses["buffer_view"])
        # The allocator keeps its own reference: blocks outlive this object.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.buffer_type))
        self.state.type = id(self.buffer_type)
        doc = "buffer_alloc(nbytes, /)\n--\n\nA new buffer.  Raises MemoryError."
        self._alloc = builtin("buffer_alloc", addresses["buffer_alloc"], doc)
        self._release = runtime.python("memory_release", None, ctypes.c_int64)
        self._borrow = runtime.python(
            "buffer_borrow", ctypes.py_object, ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
        )

    def alloc(self, nbytes: int) -> Any:
        """A new buffer of ``nbytes >= 0`` uninitialised bytes.  Raises OutOfMemoryError."""
        assert nbytes >= 0, f"a buffer of {nbytes} bytes"
        try:
            return self._alloc(nbytes)
        except (MemoryError, OverflowError):
            live, budget = self.state.live_bytes, self.state.budget
            raise OutOfMemoryError(
                f"no memory for a buffer of {nbytes} bytes",
                notes=(f"{live} bytes are in use of {budget} that this process may have",),
                fix="drop references to arrays, or compute in smaller pieces",
            ) from None

    def borrow(self, data: memoryview) -> Any:
        """A buffer over memory of somebody else's, which nobody writes; it keeps ``data``.

        It counts as an allocation of no bytes.
        """
        address = np.frombuffer(data, np.uint8).ctypes.data
        return self._borrow(address, data.nbytes, data)

    def trim(self, keep: int = 0) -> None:
        """Give cached blocks back to the system until ``keep`` bytes are cached."""
        self._release(keep)

    def reset_peak(self) -> None:
        """Start measuring the peak again."""
        self.state.peak_bytes = self.state.live_bytes


def _make_type(dealloc: int, view: int) -> type:
    members = (_Member * 3)(
        _Member(b"address", _T_ULONGLONG, header.data, _READONLY, b"Of the first byte."),
        _Member(b"nbytes", _T_PYSSIZET, header.nbytes, _READONLY, b"The size."),
    )
    doc = ctypes.c_char_p(b"Memory of this process, 64-byte aligned; made by an allocator.")
    slots = (_Slot * 5)(
        _Slot(_PY_TP_DEALLOC, dealloc),
        _Slot(_PY_BF_GETBUFFER, view),
        _Slot(_PY_TP_MEMBERS, ctypes.addressof(members)),
        _Slot(_PY_TP_DOC, ctypes.cast(doc, ctypes.c_void_p)),
    )
    name = b"bringup_cpu.memory.Buffer"
    buffer_type: type = _new_type(_Spec(name, HEADER, 0, _NO_NEW | _IMMUTABLE, slots))
    # CPython before 3.12 uses names and members in place.
    _alive.append((members, doc, slots, name))
    return buffer_type


_alive: list[Any] = []


@cache
def memory() -> Memory:
    """The process's allocator."""
    return Memory(runtime())
