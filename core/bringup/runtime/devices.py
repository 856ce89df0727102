"""Opened devices by name, the default one, and how the default changes.

>>> from bringup.runtime.devices import get, use
>>> with use("name:1"):                                     # doctest: +SKIP
...     get() is get("name:1")
True
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from bringup.backend.adapters_run import observe_steps
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Device, DeviceInfo, NoHardware
from bringup.backend.loading import Refusal, checked_devices, sentence
from bringup.backend.registry import core_backends, list_backends, load
from bringup.backend.vendor_errors import is_vendor_error
from bringup.errors import BackendError, BringupError
from bringup.locks import ProcessLock
from bringup.records import record
from bringup.runtime import timeline


@record(eq=False, weakref=True)
class OpenDevice:
    """A device in use.  There is one object per (backend, index) and process; compare with ``is``,
    or with ``==``, which its name equals too.

    backend_name: the plugin's.
    index: as in `DeviceInfo`.
    info: product and details.
    """

    backend_name: str
    index: int
    backend: Backend
    device: Device
    info: DeviceInfo

    @property
    def name(self) -> str:
        """The shortest text that selects it: ``name`` for index 0, else ``name:index``."""
        return f"{self.backend_name}:{self.index}" if self.index else self.backend_name

    @property
    def machine(self) -> str:
        """Backend, product and its details: machines of one name run code at the same speed."""
        details = (f"{name} {value}" for name, value in self.info.details)
        return " ".join([self.backend_name, self.info.product, *details])

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self.device.capabilities

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and other == self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<device {self.name}: {self.info.product}>"


DeviceSpec = str | OpenDevice | None

#: Counts changes of the default device; negative while any thread is inside `use`.  Native code
#: that remembers a default device may trust it while the cell still holds the same number, and must
#: not remember anything under a negative one: another thread's default differs then.
epoch = ctypes.c_int64(1)

observe_steps(timeline.launch)

_lock = ProcessLock()
_open: dict[tuple[str, int], OpenDevice] = {}
_default: OpenDevice | None = None
_chosen: ContextVar[OpenDevice | None] = ContextVar("bringup_device", default=None)
_users = 0


def get(spec: DeviceSpec = None) -> OpenDevice:
    """The device meant: ``"name"``, ``"name:index"``, an open device, or None for the default.

    Opens it on the first call.
    Raises BackendError if there is no such device, or if its backend is broken, incompatible or
    without hardware.
    """
    if isinstance(spec, OpenDevice):
        return spec
    if spec is None:
        return _chosen.get() or _default_device()
    if not isinstance(spec, str):
        raise BackendError(f"{spec!r} names no device", fix='write "name" or "name:index"')
    name, index = parse(spec)
    device = _open.get((name, index))
    return device if device is not None else _open_device(name, index)


def parse(spec: str) -> tuple[str, int]:
    """Backend name and index of ``"name"`` or ``"name:index"``.  Raises BackendError."""
    name, colon, index = spec.partition(":")
    if not name or (colon and not index.isdecimal()):
        raise BackendError(f"{spec!r} names no device", fix='write "name" or "name:index"')
    return name, int(index or "0")


@contextmanager
def use(spec: DeviceSpec) -> Iterator[OpenDevice]:
    """Make a device the default inside the block, for this thread or task alone.

    >>> with use("name") as device:                         # doctest: +SKIP
    ...     ...
    """
    device = get(spec)
    token = _chosen.set(device)
    _count_users(1)
    try:
        yield device
    finally:
        _count_users(-1)  # first: the reset fails in a generator that another context closes
        _chosen.reset(token)


def opened() -> tuple[OpenDevice, ...]:
    """Every device opened so far, in that order."""
    return tuple(_open.values())


def _count_users(change: int) -> None:
    global _users  # noqa: PLW0603  (the state of the process)
    with _lock:
        _users += change
        changes = abs(epoch.value) + 1
        epoch.value = -changes if _users else changes


def _default_device() -> OpenDevice:
    global _default  # noqa: PLW0603
    device = _default
    if device is None:
        with _lock:
            device = _default = _default or _first_ready()
    return device


def _first_ready() -> OpenDevice:
    notes: list[str] = []
    fixes: list[str] = []
    built_in = core_backends()
    for name in built_in:
        try:
            return get(name)
        except BringupError as error:
            notes.append(error.what)
            fixes += [error.fix] if error.fix else []
    further = ", ".join(
        n for n in dict.fromkeys(s.name for s in list_backends()) if n not in built_in
    )
    raise BackendError(
        "there is no default device: no backend that comes with bringup itself is ready",
        notes=tuple(notes),
        fix="; or ".join(
            [*fixes, f"name a device of another backend: {further or 'none is installed'}"]
        ),
    )


def _open_device(name: str, index: int) -> OpenDevice:
    backend = load(name)
    with _lock:
        opened_device = _open.get((name, index))
        if opened_device is None:
            info = _info(name, backend, index)
            handle = _opened(name, backend, index)
            opened_device = _open[name, index] = OpenDevice(name, index, backend, handle, info)
            # Exit handlers of this kind run last in, first out: buffers go before their device.
            weakref.finalize(opened_device, _close, handle, os.getpid())
    return opened_device


def _info(name: str, backend: Backend, index: int) -> DeviceInfo:
    try:
        infos = checked_devices(backend)
    except NoHardware as absent:
        raise BackendError(
            f"backend {name!r} has no hardware: {absent}",
            fix="run `bringup devices` to see what is there",
        ) from absent
    except Refusal as refusal:
        raise BackendError(f"backend {name!r} is broken: {refusal}", fix=refusal.fix) from None
    except Exception as error:
        if not is_vendor_error(error):
            raise
        problem = f"backend {name!r} cannot list its devices: {sentence(error)}"
        raise BackendError(problem) from error
    for info in infos:
        if info.index == index:
            return info
    indices = ", ".join(f'"{name}:{i.index}"' for i in infos)
    raise BackendError(f"backend {name!r} has no device {index}", fix=f"use one of {indices}")


def _opened(name: str, backend: Backend, index: int) -> Device:
    try:
        device: Any = backend.open(index)
    except Exception as error:
        if not is_vendor_error(error):
            raise
        raise BackendError(f"device {name}:{index} cannot be opened: {sentence(error)}") from error
    if not isinstance(device, Device) or not _has_capabilities(device):
        raise BackendError(
            f"device {name}:{index} is no Device with capabilities: {type(device).__name__}",
            fix="report this to the backend's authors",
        )
    return device


def _has_capabilities(device: Device) -> bool:
    capabilities: object = getattr(device, "capabilities", None)
    return isinstance(capabilities, Capabilities)


def _close(device: Device, process: int) -> None:
    if os.getpid() == process:  # a forked child must not release what its parent uses
        device.close()
