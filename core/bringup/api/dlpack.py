"""DLPack: arrays to and from other libraries, through host memory or the device's own."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bringup.api.arguments import flag_of
from bringup.api.array import Array
from bringup.api.creation import copy_of, from_host, refuse_masked
from bringup.backend.device import Exchange
from bringup.backend.vendor_errors import vendor_call
from bringup.errors import ConversionError
from bringup.runtime import devices, transfer
from bringup.runtime.devices import DeviceSpec, OpenDevice, get

_VERSIONED = b"dltensor_versioned"
#: Whether numpy makes capsules that say that memory is read-only; others get a copy of what is.
_VERSIONED_BY_NUMPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
#: Of ``DLManagedTensorVersioned``: behind two numbers of 32 bits and two pointers.
_FLAGS_AT = 8 + 2 * ctypes.sizeof(ctypes.c_void_p)
_IS_COPIED = 2

_pointer = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)

#: What `__dlpack_device__` says of arrays whose device hands out no memory of its own.
HOST = (1, 0)
#: Kinds of devices of DLPack whose memory the host sees: its own, pinned and managed by CUDA, and
#: pinned by ROCm.
_SEEN_BY_HOST = (1, 3, 13, 11)


def device_of(x: Array) -> tuple[int, int]:
    """Where other libraries find an array: on its device, if that says how, else on the host."""
    result = _exchange(x._device) if not x.is_traced else None
    return HOST if result is None else result.device


def export(
    x: Array,
    *,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """The capsule of an array: its own memory, read-only, where the consumer reaches it, else a
    copy on the host.

    stream: of the consumer; the work that makes the array is done before it goes on.  None where
    the capsule is of host memory.
    Raises BufferError if ``copy=False``, a device or a stream cannot be had, as the protocol says.
    """
    exchange = _exchange(x._device) if not x.is_traced else None
    if exchange is not None and dl_device in (None, exchange.device):
        return _device_capsule(x, exchange, stream, max_version, copy)
    if dl_device not in (None, HOST):
        where = (
            "in host memory only" if exchange is None else f"in host memory or on {exchange.device}"
        )
        raise BufferError(f"arrays are handed out {where}, not on device {dl_device}")
    if stream is not None:
        raise BufferError(f"host memory has no streams, and none like {stream!r} waits for it")
    host = x._exported("a DLPack capsule of")
    shared = not host.flags.writeable
    if copy is False and not shared:
        raise BufferError(f"the host does not see the memory of {x.device}: leave out copy=False")
    if not _VERSIONED_BY_NUMPY:
        max_version = None
    if shared and (copy or max_version is None or max_version < (1, 0)):
        # Older versions of the protocol cannot say that memory is read-only.
        host, shared = host.copy(), False
    if max_version is None:
        return host.__dlpack__()
    result = host.__dlpack__(max_version=max_version)
    if not shared:
        _mark_copied(result)
    return result


def _mark_copied(capsule: Any) -> None:
    """Say of the memory of a capsule that its consumer alone has it."""
    if _is_valid(capsule, _VERSIONED):
        ctypes.c_uint64.from_address(_pointer(capsule, _VERSIONED) + _FLAGS_AT).value |= _IS_COPIED


def _exchange(device: OpenDevice | None) -> Exchange | None:
    if device is None:
        return None
    with vendor_call(device.device, "exchange"):
        return device.device.exchange()


def _device_capsule(
    x: Array,
    exchange: Exchange,
    stream: Any,
    max_version: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    buffer = x._shared("a DLPack capsule of")
    device = x.device.device
    # Older versions of the protocol cannot say that memory is read-only.
    copied = copy or max_version is None or max_version < (1, 0)
    if copied and copy is False:
        raise BufferError("read-only memory takes version 1.0 of DLPack: leave out copy=False")
    if copied:
        buffer = transfer.duplicate(device, buffer, x.type)
    handle = transfer.handle_of(buffer)
    return exchange.to_dlpack(
        handle, x.type, buffer, stream=stream, max_version=max_version, copied=copied
    )


def from_dlpack(x: Any, /, *, device: DeviceSpec = None, copy: bool | None = None) -> Array:
    """An array with the content of any object with ``__dlpack__``; always a copy.

    From host memory, or, where the device takes memory of its own from other libraries, from there.
    numpy's DLPack has no bfloat16 and no floats of 8 bits: objects with ``__array__`` too hand them
    over by that.
    Raises ConversionError for ``copy=False``, for memory that nobody here reaches, and for objects
    whose capsule is none.

    >>> import numpy as np
    >>> bu.from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    copy = None if copy is None else flag_of("from_dlpack", "copy", copy)
    if isinstance(x, Array):
        moved = x if device is None else x.to(device)
        if copy is False and moved is not x:
            raise ConversionError(
                f"{x.type} does not move to {moved.device} without a copy",
                fix="leave out copy=False",
            )
        return copy_of(x) if copy and moved is x else moved
    if copy is False:
        raise ConversionError("from_dlpack copies always", fix="leave out copy=False")
    refuse_masked(x)
    if not hasattr(x, "__dlpack__"):
        raise ConversionError(
            f"a {type(x).__name__} has no __dlpack__", fix="make an array of it with asarray(…)"
        )
    where = _foreign_device(x)
    result = _from_device_memory(x, device, where)
    if result is not None:
        return result
    try:
        if where[0] not in _SEEN_BY_HOST:
            raise BufferError(f"it lies on device {where} of DLPack, which no open device takes")
        host = _from_host_memory(x)
    except Exception as error:
        # The exporter's own code ran and may raise any exception; report it as the exporter's.
        raise ConversionError(
            f"a {type(x).__name__} hands out no host memory: {error}",
            fix="copy it to the host first",
        ) from error
    return from_host(host, device)


def _from_host_memory(x: Any) -> np.ndarray[Any, Any]:
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError):
        host = np.asarray(x) if hasattr(x, "__array__") else None
        if host is None or host.dtype.kind not in "Vbiufc":
            raise
        return host


def _foreign_device(x: Any) -> tuple[int, int]:
    """The device that an object names for its memory.  Raises ConversionError if it is none."""
    if not hasattr(x, "__dlpack_device__"):
        return HOST
    try:
        kind, index = map(int, x.__dlpack_device__())
    except Exception as error:
        raise ConversionError(
            f"the __dlpack_device__ of a {type(x).__name__} names no device: {error}",
            fix="copy it to the host first",
        ) from error
    return kind, index


def _from_device_memory(x: Any, device: DeviceSpec, where: tuple[int, int]) -> Array | None:
    """The array if a device takes it in its own memory: the one named, or any open one."""
    if where == HOST:
        return None
    for candidate in devices.opened() if device is None else (get(device),):
        exchange = _exchange(candidate)
        if exchange is not None and exchange.device == where:
            with vendor_call(exchange, "from_dlpack"):
                handle, type_ = exchange.from_dlpack(x)
            return Array(type_, candidate, transfer.wrap(candidate.device, handle))
    return None
