"""Arrays of the host to device memory and back, and who gives that memory back.

What an array keeps is called a *buffer* here: the device's handle itself where handles count their
own references (`Device.refcounted_handles`), else a `Buffer` that frees the handle when the last
array lets go of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.errors import DeviceError
from bringup.runtime import timeline
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.backend.device import Device, Handle

Host = np.ndarray[Any, Any]


class Buffer:
    """A handle and the duty to free it."""

    __slots__ = ("__weakref__", "device", "handle")

    def __init__(self, device: Device, handle: Handle) -> None:
        self.device = device
        self.handle: Handle | None = handle

    def release(self) -> Handle:
        """The handle, which somebody else frees from now on."""
        handle, self.handle = self.handle, None
        return handle

    def __del__(self) -> None:
        if self.handle is None or sys.is_finalizing():
            return
        try:
            self.device.free(self.release())
        except DeviceError:
            # The device reported its error where the work was waited for; a finaliser has nobody to
            # tell.
            return


def wrap(device: Device, handle: Handle) -> Any:
    """The buffer for a handle that belongs to us."""
    return handle if device.refcounted_handles else Buffer(device, handle)


def handle_of(buffer: Any) -> Handle:
    """The handle of a buffer."""
    return buffer.handle if type(buffer) is Buffer else buffer


def release(buffer: Any) -> Handle:
    """The handle of a buffer that is given away, as a donated input is."""
    return buffer.release() if type(buffer) is Buffer else buffer


def upload(device: Device, data: Host) -> Any:
    """A new buffer with the elements of an array of the host in row-major order."""
    # np.ascontiguousarray would turn 0-d into 1-d; numpy has no buffer protocol for bfloat16, so
    # bytes it is.
    dense = np.asarray(data, order="C")
    buffer = wrap(device, device.alloc(dense.nbytes))
    if dense.nbytes:
        with timeline.span("upload", "transfer", bytes=dense.nbytes):
            device.upload(handle_of(buffer), dense.reshape(-1).view(np.uint8).data)
    return buffer


def download(device: Device, buffer: Any, type_: TensorType) -> Host:
    """A new, writable array of the host."""
    out = np.empty(type_.shape, type_.dtype.numpy)
    if out.nbytes:
        with timeline.span("download", "transfer", bytes=out.nbytes):
            device.download(handle_of(buffer), out.reshape(-1).view(np.uint8).data)
    return out


def view(device: Device, buffer: Any, type_: TensorType) -> Host | None:
    """A read-only array over the device's own memory; None if the host cannot see it."""
    seen = device.host_view(handle_of(buffer), type_)
    if seen is not None:
        seen.flags.writeable = False
    return seen


def duplicate(device: Device, buffer: Any, type_: TensorType) -> Any:
    """A new buffer with the same content."""
    copy = wrap(device, device.alloc(type_.nbytes))
    if type_.nbytes:
        with timeline.span("copy", "transfer", bytes=type_.nbytes):
            device.copy(handle_of(copy), handle_of(buffer), type_.nbytes)
    return copy


def wrap_all(device: Device, handles: Sequence[Handle]) -> list[Any]:
    """`wrap` of each."""
    if device.refcounted_handles:
        return list(handles)
    return [Buffer(device, handle) for handle in handles]
