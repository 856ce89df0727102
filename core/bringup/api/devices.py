"""Devices by name, opened when first needed."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bringup.backend.registry import list_backends
from bringup.runtime.devices import DeviceSpec, OpenDevice, get, use


def device(spec: DeviceSpec) -> AbstractContextManager[OpenDevice]:
    """Make a device the default inside a ``with`` block, for this thread or task alone.

    spec: ``"name"``, ``"name:index"``, or an open device.
    Raises BackendError for an unknown one.

    >>> with bu.device(bu.devices()[0]) as device:
    ...     bu.zeros(3).device is device
    True
    """
    return use(get(spec))


def devices() -> list[str]:
    """The names of the devices that can be opened, each found out in an interpreter of its own.
    An array's device equals its name.

    >>> bu.zeros(2).device in bu.devices()
    True
    """
    return [
        f"{status.name}:{info.index}" if info.index else status.name
        for status in list_backends(probe=True)
        if status.state == "ready"
        for info in status.devices
    ]


__all__ = ["device", "devices"]
