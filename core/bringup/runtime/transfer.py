"""Arrays of the host to device memory and back, and who gives that memory back.

What an array keeps is called a *buffer* here: the device's handle itself where handles count their
own references (`Device.refcounted_handles`) and work is done when a call returns, else a `Buffer`
that frees the handle when the last array lets go of it, and knows the run that writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.errors import DeviceError
from bringup.runtime import runs, timeline
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.backend.device import Device, Executable, Handle
    from bringup.runtime.runs import Run

Host = np.ndarray[Any, Any]


class Buffer:
    """A handle and the duty to free it.

    run: the one that writes it, on devices that work late.
    """

    __slots__ = ("__weakref__", "device", "handle", "run")

    def __init__(self, device: Device, handle: Handle, run: Run | None = None) -> None:
        self.device = device
        self.handle: Handle | None = handle
        self.run = run

    def release(self) -> Handle:
        """The handle, which somebody else frees from now on."""
        handle, self.handle = self.handle, None
        return handle

    def __del__(self) -> None:
        if self.handle is None or self.device.refcounted_handles or sys.is_finalizing():
            return
        try:
            self.device.free(self.release())
        except DeviceError:
            # The device reported its error where the work was waited for; a finaliser has nobody to
            # tell.
            return


def wrap(device: Device, handle: Handle) -> Any:
    """The buffer for a handle that belongs to us."""
    bare = device.refcounted_handles and not device.capabilities.asynchronous
    return handle if bare else Buffer(device, handle)


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
    with _looking(device, buffer):
        if out.nbytes:
            with timeline.span("download", "transfer", bytes=out.nbytes):
                device.download(handle_of(buffer), out.reshape(-1).view(np.uint8).data)
    return out


def view(device: Device, buffer: Any, type_: TensorType) -> Host | None:
    """A read-only array over the device's own memory; None if the host cannot see it."""
    with _looking(device, buffer) as unproved:
        seen = device.host_view(handle_of(buffer), type_)
        if seen is None:
            unproved.clear()
    if seen is not None:
        seen.flags.writeable = False
    return seen


def duplicate(device: Device, buffer: Any, type_: TensorType) -> Any:
    """A new buffer with the same content."""
    copy = wrap(device, device.alloc(type_.nbytes))
    if type_.nbytes:
        with timeline.span("copy", "transfer", bytes=type_.nbytes):
            device.copy(handle_of(copy), handle_of(buffer), type_.nbytes)
    if type(copy) is Buffer and type(buffer) is Buffer:
        copy.run = buffer.run
    return copy


def execute(
    device: Device,
    executable: Executable,
    buffers: Sequence[Any],
    taken: frozenset[int] = frozenset(),
) -> list[Any]:
    """Run a program on buffers and return new ones.

    taken: positions of the buffers that the program takes for itself.
    Raises at once the error of late work that a buffer depends on.
    """
    if not device.capabilities.asynchronous:
        made = executable(_handles(buffers, taken))
        if device.refcounted_handles:
            return list(made)
        return [Buffer(device, handle) for handle in made]
    parents = [b.run for b in buffers if type(b) is Buffer and b.run is not None]
    for run in parents:
        run.check()
    with runs.issuing(device, parents) as run:
        return [Buffer(device, h, run) for h in executable(_handles(buffers, taken))]


def _handles(buffers: Sequence[Any], taken: frozenset[int]) -> list[Handle]:
    if not taken:
        return [handle_of(b) for b in buffers]
    return [release(b) if i in taken else handle_of(b) for i, b in enumerate(buffers)]


@contextmanager
def _looking(device: Device, buffer: Any) -> Iterator[list[Run]]:
    """A wait of the host for the content of a buffer."""
    if not device.capabilities.asynchronous:
        yield []
        return
    if type(buffer) is Buffer and buffer.run is not None:
        buffer.run.check()
    with runs.waiting(device) as unproved:
        yield unproved
