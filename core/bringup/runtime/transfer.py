"""Arrays of the host to device memory and back, and who gives that memory back.

What an array keeps is called a *buffer* here: the device's handle itself where handles count their
own references (`Device.refcounted_handles`) and work is done when a call returns, else a `Buffer`
that frees the handle when the last array lets go of it, and knows the run that writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bringup.backend.vendor_errors import REPORT, vendor_call
from bringup.errors import DeviceError
from bringup.runtime import async_errors, timeline
from bringup.runtime.full_memory import with_room
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.backend.device import Device, Executable, Handle
    from bringup.runtime.async_errors import Run

Host = np.ndarray[Any, Any]
_Seen = TypeVar("_Seen")
# What errors call an executable, which has no name of its own.
_EXECUTABLE = "compile(…)()"


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
    buffer = _allocated(device, dense.nbytes)
    if dense.nbytes:
        with timeline.span("upload", "transfer", bytes=dense.nbytes), vendor_call(device, "upload"):
            device.upload(handle_of(buffer), dense.reshape(-1).view(np.uint8).data)
    return buffer


def borrow(device: Device, data: Host) -> Any:
    """A buffer with the elements of an array of the host that never changes: its own memory, where
    the device reads it, else a copy.
    """
    dense = np.asarray(data, order="C")
    alignment = device.capabilities.alignment
    if dense.nbytes and not dense.ctypes.data % alignment:
        with vendor_call(device, "borrow"):
            handle = device.borrow(dense.reshape(-1).view(np.uint8).data)
        if handle is not None:
            return wrap(device, handle)
    return upload(device, dense)


def download(device: Device, buffer: Any, type_: TensorType) -> Host:
    """A new, writable array of the host."""
    out = np.empty(type_.shape, type_.dtype.numpy)

    def ask() -> Host | None:
        if not out.nbytes:
            return None
        with (
            timeline.span("download", "transfer", bytes=out.nbytes),
            vendor_call(device, "download"),
        ):
            device.download(handle_of(buffer), out.reshape(-1).view(np.uint8).data)
        return out

    _look(device, buffer, ask)
    return out


def wait(device: Device, buffer: Any) -> None:
    """Wait until the content of a buffer is there, and all else that the device was given."""
    if device.capabilities.asynchronous:
        async_errors.wait(device, _runs(buffer))
    else:
        async_errors.synchronize(device)


def view(device: Device, buffer: Any, type_: TensorType) -> Host | None:
    """A read-only array over the device's own memory; None if the host cannot see it."""

    def ask() -> Any:
        with (
            timeline.span("view", "transfer", bytes=type_.nbytes),
            vendor_call(device, "host_view"),
        ):
            return device.host_view(handle_of(buffer), type_)

    seen = _look(device, buffer, ask)
    if seen is None:
        return None
    if not isinstance(seen, np.ndarray) or (seen.shape, seen.dtype) != (
        type_.shape,
        type_.dtype.numpy,
    ):
        raise _wrong(device, "host_view", f"host_view gave {_kind(seen)} where {type_} is due")
    seen.flags.writeable = False
    return seen


def duplicate(device: Device, buffer: Any, type_: TensorType) -> Any:
    """A new buffer with the same content."""
    copy = _allocated(device, type_.nbytes)
    if type_.nbytes:
        with timeline.span("copy", "transfer", bytes=type_.nbytes), vendor_call(device, "copy"):
            device.copy(handle_of(copy), handle_of(buffer), type_.nbytes)
    if type(copy) is Buffer and type(buffer) is Buffer:
        copy.run = buffer.run
    return copy


def adopted(source: Device, target: Device, buffer: Any, type_: TensorType) -> Any:
    """A new buffer on another device, copied without the host; None if that cannot be."""
    for run in _runs(buffer):
        run.check()
    with timeline.span("copy", "transfer", bytes=type_.nbytes), vendor_call(target, "adopt"):
        handle = target.adopt(source, handle_of(buffer), type_.nbytes)
    if handle is None:
        return None
    made = wrap(target, handle)
    if type(made) is Buffer and type(buffer) is Buffer:
        made.run = buffer.run
    return made


def execute(
    device: Device,
    executable: Executable,
    buffers: Sequence[Any],
    count: int,
    taken: frozenset[int] = frozenset(),
) -> list[Any]:
    """Run a program on buffers and return new ones.

    count: how many results it has.
    taken: positions of the buffers that the program takes for itself.
    Raises at once the error of late work that a buffer depends on, and DeviceError for results that
    are not as many handles of their own.
    """
    if not device.capabilities.asynchronous:
        made = _run(device, executable, buffers, count, taken)
        return made if device.refcounted_handles else [Buffer(device, h) for h in made]
    parents = [run for b in buffers for run in _runs(b)]
    for run in parents:
        run.check()
    with async_errors.submitting(device, parents) as run:
        made = _run(device, executable, buffers, count, taken)
        return [Buffer(device, handle, run) for handle in made]


def _run(
    device: Device,
    executable: Executable,
    buffers: Sequence[Any],
    count: int,
    taken: frozenset[int],
) -> list[Handle]:
    handles = _handles(buffers, taken)
    with vendor_call(device, _EXECUTABLE):
        # A run that has taken inputs for itself has lost them when it fails.
        given: Any = executable(handles) if taken else with_room(executable, handles)
        made = list(given) if given is not None else None
    if made is None:
        fault = "an executable gave NoneType where a list of handles is due"
        raise _wrong(device, _EXECUTABLE, fault)
    own = {id(h) for i, h in enumerate(handles) if i not in taken}
    apart = {id(h) for h in made}
    if len(made) != count:
        fault = f"an executable gave {len(made)} results where {count} are due"
    elif any(h is None for h in made):
        fault = "an executable gave a result None: None is no handle"
    elif len(apart) < count:
        fault = "an executable gave one handle twice"
    elif not own.isdisjoint(apart):
        fault = "an executable gave the handle of an input that was not donated"
    else:
        return made
    raise _wrong(device, _EXECUTABLE, fault)


def _allocated(device: Device, nbytes: int) -> Any:
    with vendor_call(device, "alloc"):
        handle = with_room(device.alloc, nbytes)
    if handle is None:
        raise _wrong(device, "alloc", "alloc gave no handle")
    return wrap(device, handle)


def _wrong(device: Device, call: str, fault: str) -> DeviceError:
    error = DeviceError(f"{type(device).__name__}: {fault}", fix=REPORT)
    error.call = call
    return error


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    return type(value).__name__


def _handles(buffers: Sequence[Any], taken: frozenset[int]) -> list[Handle]:
    if not taken:
        return [handle_of(b) for b in buffers]
    return [release(b) if i in taken else handle_of(b) for i, b in enumerate(buffers)]


def _runs(buffer: Any) -> Sequence[Run]:
    """The run that a buffer depends on, if there is one."""
    return () if type(buffer) is not Buffer or buffer.run is None else (buffer.run,)


def _look(device: Device, buffer: Any, ask: Callable[[], _Seen]) -> _Seen:
    """A wait of the host for the content of a buffer; ``ask`` as for `async_errors.look`."""
    if not device.capabilities.asynchronous:
        return ask()
    return async_errors.look(device, _runs(buffer), ask)
