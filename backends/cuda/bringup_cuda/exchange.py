"""DLPack: device memory to and from other libraries of this process, without the host.

The layout is that of dlpack.h 1.0; older consumers, which give no version, get the older form.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from bringup.dtypes import ALL, DType
from bringup.errors import ConversionError
from bringup.types import TensorType
from bringup_cuda.callbacks import sheltered
from bringup_cuda.driver import CUDA
from bringup_cuda.memory import Block

if TYPE_CHECKING:
    from bringup_cuda.device import CudaDevice

_VERSION = (1, 0)
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
#: What a consumer passes that waits for nothing itself, or wants nothing waited for.
NO_WAIT = -1
#: The stream of those who name none: the legacy default stream.
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


_NAMES = {_Managed: b"dltensor", _Versioned: b"dltensor_versioned"}
_USED = {_Managed: b"used_dltensor", _Versioned: b"used_dltensor_versioned"}
_READ_ONLY, _IS_COPIED = 1, 2

_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
# For a capsule that is being deallocated: a reference to it would deallocate it again.
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_still = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)

#: What capsules point to, and what keeps the memory, until the consumer is done: by address.
_handed_out: dict[int, tuple[Any, ...]] = {}


# Consumers may let go while the interpreter ends and modules are empty already: what is needed then
# is bound to the functions, and the functions are never freed.


def _done(
    address: int | None,
    handed_out: dict[int, tuple[Any, ...]] = _handed_out,
    ending: Callable[[], bool] = sys.is_finalizing,
) -> None:
    held = handed_out.pop(address or 0, None)
    if held is None or ending():  # pragma: no cover - only while the interpreter ends
        return
    device = held[0]
    # The consumer's streams are not ours: what it queued may use the memory still.
    with suppress(Exception), device.activated():
        device.driver.Context.synchronize()


def _dropped(
    capsule: int,
    names: tuple[bytes, ...] = tuple(_NAMES.values()),
    still: Any = _still,
    address_of: Any = _address_of,
    handed_out: dict[int, tuple[Any, ...]] = _handed_out,
) -> None:
    """A capsule goes: if nobody took what it holds, that goes, too."""
    for name in names:
        if still(capsule, name):
            handed_out.pop(address_of(capsule, name), None)


_deleter = _Deleter(_done)
_drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_dropped)


@cache
def _called() -> tuple[int, int]:
    """Addresses of what consumers call when they are done, and of what goes with a capsule."""
    found = sheltered(dlpack_done=_deleter, dlpack_dropped=_drop)
    return found["dlpack_done"], found["dlpack_dropped"]


class CudaExchange:
    """`bringup.backend.device.Exchange` of one device.

    device: its type and number in DLPack.
    """

    def __init__(self, gpu: CudaDevice, kind: int) -> None:
        self.device = (kind, gpu.index if kind == CUDA else 0)
        self._gpu = gpu

    def give(
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

        owner: kept until the consumer is done.
        stream: of the consumer, which waits for the work so far, and nobody else does: a number as
        CUDA has them, 1 for the legacy default stream (None means that, too), 2 for that of the
        thread, -1 if nothing is to wait.  Memory of the host has no streams: then this waits.
        copied: nobody else has this memory, and the consumer may write to it; else it is read-only,
        where the protocol's version can say that.
        Raises BufferError for what is no stream, or a dtype that DLPack does not have.
        """
        code, bits = _code_of(type_.dtype)
        self._ready(stream)
        kind = _Versioned if max_version is not None and max_version >= _VERSION else _Managed
        made = kind()
        # Newer versions of the protocol want strides where older ones may leave them out.
        sizes = (ctypes.c_int64 * max(2 * type_.rank, 1))(*type_.shape, *_strides(type_))
        made.deleter, dropped = _called()
        if isinstance(made, _Versioned):
            made.major, made.minor = _VERSION
            made.flags = _IS_COPIED if copied else _READ_ONLY
        tensor = made.tensor
        tensor.data = handle.address or None
        tensor.device_type, tensor.device_id = self.device
        tensor.ndim = type_.rank
        tensor.code, tensor.bits, tensor.lanes = code, bits, 1
        tensor.shape = ctypes.cast(sizes, _INTS)
        tensor.strides = ctypes.cast(ctypes.byref(sizes, 8 * type_.rank), _INTS)
        address = ctypes.addressof(made)
        _handed_out[address] = (self._gpu, owner, made, sizes)
        return _new(address, _NAMES[kind], dropped)

    @property
    def _has_streams(self) -> bool:
        return self.device[0] == CUDA

    def _ready(self, stream: Any) -> None:
        """Let a consumer's stream wait."""
        if self._has_streams:  # pragma: no cover on cuda-emulated - only drivers
            self._let_wait(stream)
        elif stream is not None:
            raise BufferError(f"memory of the host has no stream {stream!r}: leave it out")
        else:
            self._gpu.synchronize()

    def _let_wait(self, stream: Any) -> None:  # pragma: no cover on cuda-emulated - only drivers
        known = stream is None or (type(stream) is int and stream >= NO_WAIT and stream != 0)
        if not known:
            # 0 might mean each of the default streams, and the protocol forbids it.
            raise BufferError(f"{stream!r} is no stream: give 1, 2, -1 or the number of a stream")
        if stream != NO_WAIT:
            self._gpu.make_wait(_LEGACY if stream is None else stream)

    def take(
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
        kind = _Versioned if _is_valid(capsule, _NAMES[_Versioned]) else _Managed
        address = _pointer(capsule, _NAMES[kind])
        made = kind.from_address(address)
        try:
            type_ = _type_of(made.tensor)
            # Read when this returns: the other library may use its memory again as soon as it hears
            # that we are done.
            block = gpu.take((made.tensor.data or 0) + made.tensor.byte_offset, type_.nbytes)
        finally:
            _rename(capsule, _USED[kind])
            if made.deleter:
                _Deleter(made.deleter)(address)
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


__all__ = ["CudaExchange"]
