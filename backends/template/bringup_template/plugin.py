"""The two hooks under the entry point ``template``; neither imports a driver."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend import (
    Backend,
    Device,
    DeviceInfo,
    Handshake,
    NoHardware,
    SimpleBackend,
    hookimpl,
)

from bringup_template.capabilities import CAPABILITIES
from bringup_template.render import render


@hookimpl
def bringup_handshake() -> Handshake:
    """The API level and the opset that this was written for, `API_LEVEL` and `OPSET` then."""
    return Handshake(api=(1, 1), opset=(1, 1))


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device."""
    return SimpleBackend("template", _open, CAPABILITIES, _devices, render_kernel=render)


def _devices() -> Sequence[DeviceInfo]:
    """Those that are present.  Raises `NoHardware`, with why in one line, if there are none."""
    try:
        from bringup_template import simulated_memory
    except ImportError as error:
        raise NoHardware(f"the driver is not installed: {error}") from None
    products = simulated_memory.devices()
    return [DeviceInfo(index, product) for index, product in enumerate(products)]


def _open(index: int) -> Device:
    from bringup_template.device import TemplateDevice

    return TemplateDevice(index)
