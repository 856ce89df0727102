"""DLPack: device memory to and from other libraries of this process, without the host.

The layout is that of dlpack.h 1.0; older consumers, which give no version, get the older form.

Consumers call back from C, also while an exception is raised: one that refuses a capsule sets an
exception and drops the capsule.  A callback of `ctypes` would start with that exception as if it
were its own, fail by it and clear it, and the consumer would fail without a reason.  So callbacks
are native functions that save and restore the exception.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from bringup.dtypes import ALL, DType
from bringup.errors import ConversionError
from bringup.types import TensorType
from bringup_cuda.driver.discovery import CUDA
from bringup_cuda.driver.errors import leak
from bringup_cuda.runtime.gpu import Gpu
from bringup_cuda.runtime.memory import Block

_VERSION = (1, 0)
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
#: The stream of consumers that need not wait for anything.
NO_WAIT = -1
#: The stream of consumers that name none: the legacy default stream.
_LEGACY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_INTS = ctypes.POINTER(ctypes.c_int64)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_CAPSULE_NAMES = {_Managed: b"dltensor", _Versioned: b"dltensor_versioned"}
_USED_NAMES = {_Managed: b"used_dltensor", _Versioned: b"used_dltensor_versioned"}
_READ_ONLY_FLAG, _COPIED_FLAG = 1, 2

_api = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", _api))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_is_valid_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
# For a capsule that is being deallocated: a reference to it would deallocate it again.
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_is_valid_address = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_rename_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)

#: Managed tensors with the objects that keep their memory, by address, until consumers are done.
_exported: dict[int, tuple[Any, ...]] = {}


# Consumers may call back while the interpreter ends and modules are already empty.  So these
# functions have what they need as defaults, and are never freed.


def _on_consumer_done(
    address: int | None,
    exported: dict[int, tuple[Any, ...]] = _exported,
    ending: Callable[[], bool] = sys.is_finalizing,
) -> None:
    export = exported.pop(address or 0, None)
    if export is None or ending():  # pragma: no cover - only while the interpreter ends
        return
    device = export[0]
    # Work that the consumer queued in streams of its own may still use the memory.
    with suppress(Exception), device.activated():
        device.driver.Context.synchronize()


def _on_capsule_dropped(
    capsule: int,
    names: tuple[bytes, ...] = tuple(_CAPSULE_NAMES.values()),
    is_valid: Any = _is_valid_address,
    address_of: Any = _address_of,
    exported: dict[int, tuple[Any, ...]] = _exported,
) -> None:
    """Drop the managed tensor of a capsule that nobody consumed."""
    for name in names:
        if is_valid(capsule, name):
            exported.pop(address_of(capsule, name), None)


_deleter = _Deleter(_on_consumer_done)
_capsule_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_on_capsule_dropped)


@cache
def _native_callbacks() -> tuple[int, int]:
    """Addresses of the deleter of managed tensors, and of the destructor of capsules."""
    addresses = exception_safe(dlpack_done=_deleter, dlpack_dropped=_capsule_destructor)
    return addresses["dlpack_done"], addresses["dlpack_dropped"]


class CudaExchange:
    """`bringup.backend.device.Exchange` of one device.

    device: its type and number in DLPack.
    """

    def __init__(self, gpu: Gpu, kind: int) -> None:
        self.device = (kind, gpu.index if kind == CUDA else 0)
        self._gpu = gpu

    def to_dlpack(
        self,
        handle: Block,
        type_: TensorType,
        owner: object,
        *,
        stream: int | None,
        max_version: tuple[int, int] | None,
        copied: bool,
    ) -> Any:
        """A capsule of the memory itself.

        owner: an object to keep until the consumer is done.
        stream: the consumer's stream, which alone waits for the work so far: a CUDA stream number,
        1 or None for the legacy default stream, 2 for that of the thread, -1 if nothing must wait.
        Memory of the host has no streams: then this call waits.
        copied: whether the consumer alone has this memory, and may write to it; else it is
        read-only, if the protocol's version can say so.
        Raises BufferError for a stream that is none, or a dtype that DLPack does not have.
        """
        code, bits = _code_of(type_.dtype)
        self._order_consumer(stream)
        managed_type = (
            _Versioned if max_version is not None and max_version >= _VERSION else _Managed
        )
        managed = managed_type()
        # Newer versions of the protocol want strides where older ones may leave them out.
        sizes = (ctypes.c_int64 * max(2 * type_.rank, 1))(*type_.shape, *_strides(type_))
        managed.deleter, destructor = _native_callbacks()
        if isinstance(managed, _Versioned):
            managed.major, managed.minor = _VERSION
            managed.flags = _COPIED_FLAG if copied else _READ_ONLY_FLAG
        tensor = managed.tensor
        tensor.data = handle.address or None
        tensor.device_type, tensor.device_id = self.device
        tensor.ndim = type_.rank
        tensor.code, tensor.bits, tensor.lanes = code, bits, 1
        tensor.shape = ctypes.cast(sizes, _INTS)
        tensor.strides = ctypes.cast(ctypes.byref(sizes, 8 * type_.rank), _INTS)
        address = ctypes.addressof(managed)
        _exported[address] = (self._gpu, owner, managed, sizes)
        return _new_capsule(address, _CAPSULE_NAMES[managed_type], destructor)

    @property
    def _has_streams(self) -> bool:
        return self.device[0] == CUDA

    def _order_consumer(self, stream: Any) -> None:
        """Order the consumer's work behind all work so far."""
        if self._has_streams:  # pragma: no cover on cuda-emulated - only drivers
            self._make_stream_wait(stream)
        elif stream is not None:
            raise BufferError(f"memory of the host has no stream {stream!r}: leave it out")
        else:
            self._gpu.synchronize()

    def _make_stream_wait(
        self, stream: Any
    ) -> None:  # pragma: no cover on cuda-emulated - only drivers
        known = stream is None or (type(stream) is int and stream >= NO_WAIT and stream != 0)
        if not known:
            # 0 could mean either default stream; the protocol forbids it.
            raise BufferError(f"{stream!r} is no stream: give 1, 2, -1 or the number of a stream")
        if stream != NO_WAIT:
            self._gpu.make_wait(_LEGACY if stream is None else stream)

    def from_dlpack(
        self, x: Any
    ) -> tuple[Block, TensorType]:  # pragma: no cover on cuda-emulated - only drivers
        """A copy of another library's array on this device.

        Raises ConversionError for memory that is not dense and row-major, or of a dtype that no
        array here has.
        """
        gpu = self._gpu
        stream = gpu.streams.uploads.handle if self._has_streams else None
        try:
            capsule = x.__dlpack__(stream=stream, max_version=_VERSION)
        except TypeError:  # an older library
            capsule = x.__dlpack__(stream=stream)
        managed_type = (
            _Versioned if _is_valid_capsule(capsule, _CAPSULE_NAMES[_Versioned]) else _Managed
        )
        address = _capsule_pointer(capsule, _CAPSULE_NAMES[managed_type])
        managed = managed_type.from_address(address)
        try:
            type_ = _type_of(managed.tensor)
            # The copy is done when this returns: the other library may then reuse its memory.
            block = gpu.copy_from_address(
                (managed.tensor.data or 0) + managed.tensor.byte_offset, type_.nbytes
            )
        finally:
            _rename_capsule(capsule, _USED_NAMES[managed_type])
            if managed.deleter:
                _Deleter(managed.deleter)(address)
        return block, type_


def _strides(type_: TensorType) -> list[int]:
    """In elements, of a dense array."""
    return [math.prod(type_.shape[d + 1 :]) for d in range(type_.rank)]


def _code_of(dtype: DType) -> tuple[int, int]:
    """DLPack's code and bits.  Raises BufferError for a dtype that it has none for."""
    if dtype.name == "bool":
        return _BOOL, 8
    if dtype.name == "bf16":
        return _BFLOAT, 16
    if dtype.is_integer:
        return (_INT if dtype.is_signed else _UINT), dtype.bits
    if dtype.name in ("f16", "f32", "f64"):
        return _FLOAT, dtype.bits
    raise BufferError(f"DLPack 1.0 has no {dtype}")


def _type_of(tensor: _Tensor) -> TensorType:  # pragma: no cover on cuda-emulated - only drivers
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    codes = {_code_of(d): d for d in ALL if not d.name.startswith("f8")}
    dtype = codes.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ConversionError(
            f"an array of DLPack type {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
            " is of no dtype here",
            fix="convert it first",
        )
    if tensor.strides:
        step = 1
        for size, stride in zip(reversed(shape), reversed(range(tensor.ndim)), strict=True):
            if size > 1 and tensor.strides[stride] != step:
                raise ConversionError(
                    f"an array of shape {shape} is not dense and row-major",
                    fix="make it contiguous first",
                )
            step *= size
    return TensorType(shape, dtype)


_TEXT = """
declare void @bringup.py.fetch(ptr, ptr, ptr)
declare void @bringup.py.restore(ptr, ptr, ptr)
declare i32 @bringup.py.ensure()
declare void @bringup.py.release(i32)

define void @call(ptr %function, ptr %argument) {
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %state = call i32 @bringup.py.ensure()
  call void @bringup.py.fetch(ptr %type, ptr %value, ptr %trace)
  call void %function(ptr %argument)
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b = load ptr, ptr %trace
  call void @bringup.py.restore(ptr %t, ptr %v, ptr %b)
  call void @bringup.py.release(i32 %state)
  ret void
}
"""
_ENTRY = """
declare void @bringup.py.%(name)s(ptr)

define void @%(name)s(ptr %%argument) {
  call void @call(ptr @bringup.py.%(name)s, ptr %%argument)
  ret void
}
"""
_HELPERS = {
    "fetch": "PyErr_Fetch",
    "restore": "PyErr_Restore",
    "ensure": "PyGILState_Ensure",
    "release": "PyGILState_Release",
}


def exception_safe(**functions: Any) -> dict[str, int]:
    """Addresses of native ``void (*)(void *)`` that call functions of `ctypes`, by name.

    They live until the process ends: some are called after modules were emptied.
    """
    # Loads LLVM, which a process that exports no array may not need.
    from bringup.llvm.host.engine import engine

    text = _TEXT + "".join(_ENTRY % {"name": name} for name in functions)
    for short, name in _HELPERS.items():
        engine().symbol(f"bringup.py.{short}", _address(getattr(ctypes.pythonapi, name)))
    for name, function in functions.items():
        engine().symbol(f"bringup.py.{name}", _address(function))
    code = engine().compile_native(text, list(functions))
    for object_ in (code, *functions.values()):
        leak(object_)
    return dict(code.addresses)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
