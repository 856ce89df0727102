"""The two hooks under the entry point ``c``; no compiler is looked for before devices are."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend import Backend, DeviceInfo, Handshake, SimpleBackend, hookimpl
from bringup_c.compiler import command, version
from bringup_c.device import CAPABILITIES, TARGET, CDevice, render


@hookimpl
def bringup_handshake() -> Handshake:
    """Written against level 1 of the seam and opset 1."""
    return Handshake(api=(1, 1), opset=(1, 1))


@hookimpl
def bringup_backend() -> Backend:
    """The backend, whose source can be looked at without a compiler."""
    return SimpleBackend(
        "c", lambda index: CDevice(), CAPABILITIES, _devices, render=render, target=TARGET
    )


def _devices() -> Sequence[DeviceInfo]:
    return [DeviceInfo(0, version(), (("command", " ".join(command())),))]
