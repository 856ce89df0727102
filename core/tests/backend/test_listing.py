"""Devices that a backend lists wrongly: one line about that backend, and nothing of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.backend import DeviceInfo
from bringup.backend.adapters import SimpleBackend
from bringup.backend.capabilities import Capabilities
from bringup.backend.discovery import BackendStatus
from bringup.backend.loading import with_devices
from bringup.errors import BackendError
from bringup.runtime.devices import get

Install = Callable[..., Path]

SOURCE = """
from bringup.backend import *

class Rude:
    def __repr__(self): raise SystemExit(3)

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    return SimpleBackend({name!r}, None, Capabilities(), lambda: FOUND)
"""


@pytest.mark.parametrize(
    ("found", "due"),
    [
        ("[DeviceInfo(0, 3)]", "product int 3 where text"),
        ("[DeviceInfo('0', 'x')]", "index str '0' where an integer >= 0"),
        ("[DeviceInfo(-1, 'x')]", "index int -1 where an integer >= 0"),
        ("[DeviceInfo(0, 'x', 'driver')]", "details str 'driver' where a tuple of pairs"),
        ("[DeviceInfo(0, 'x', (('a', 'b'), 7))]", r"details\[1\] int 7 where a pair"),
        ("[DeviceInfo(0, 'x', (('driver', 5),))]", r"details\[0\]\[1\] int 5 where text"),
        (
            "[DeviceInfo(0, 'x' * 99, (('a', 'b'), ('c', None)))]",
            r"details\[1\]\[1\] NoneType None",
        ),
        ("[DeviceInfo(0, 'x'), DeviceInfo(0, 'y')]", "one DeviceInfo per index"),
        ("Rude()", "a sequence of DeviceInfo"),
    ],
)
def test_what_is_listed_wrongly_breaks_that_backend_alone(
    install: Install, found: str, due: str
) -> None:
    install("rude", SOURCE.replace("FOUND", found))
    with pytest.raises(BackendError, match=f"backend 'rude' is broken: .*{due}.* is due"):
        get("rude")


class Version(str):
    """As `torch.__version__` is one."""


def test_details_are_kept() -> None:
    info = DeviceInfo(2, "Chip", (("driver", Version("1.0")),))
    backend = SimpleBackend("chip", None, Capabilities(), [info])  # type: ignore[arg-type]
    status = with_devices(BackendStatus("chip", "vendor", "1", "installed"), backend)
    assert status.state == "ready"
    assert status.devices == (info,)
