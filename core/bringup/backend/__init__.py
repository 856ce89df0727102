"""The seam between core and devices: what a vendor implements, and how core finds it.

A plugin names a module in its metadata (`bringup.backend.plugin`), which makes a `Backend`, which
opens a `Device`: an `OpsDevice`, a `KernelsDevice`, or one that compiles whole programs itself.

The modules are imported when one of their names is first asked for: `import bringup` needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.backend.adapters import KernelsDevice, OpFunction, OpsDevice, SimpleBackend, claims
    from bringup.backend.adapters_run import current_step, located
    from bringup.backend.capabilities import (
        API_LEVEL,
        OPSET,
        Capabilities,
        Claims,
        Handshake,
        Numerics,
        Shapes,
    )
    from bringup.backend.device import (
        Backend,
        BufferView,
        Device,
        DeviceInfo,
        Executable,
        Handle,
        Lowered,
        NoHardware,
    )
    from bringup.backend.discovery import BackendStatus
    from bringup.backend.partition import Partition, Segment, Transfer
    from bringup.backend.placement import Placement, can_run, check_placement
    from bringup.backend.plugin import GROUP, hookimpl
    from bringup.backend.registry import list_backends, load
    from bringup.kernel.limits import Limits

__all__ = [
    "API_LEVEL",
    "GROUP",
    "OPSET",
    "Backend",
    "BackendStatus",
    "BufferView",
    "Capabilities",
    "Claims",
    "Device",
    "DeviceInfo",
    "Executable",
    "Handle",
    "Handshake",
    "KernelsDevice",
    "Limits",
    "Lowered",
    "NoHardware",
    "Numerics",
    "OpFunction",
    "OpsDevice",
    "Partition",
    "Placement",
    "Segment",
    "Shapes",
    "SimpleBackend",
    "Transfer",
    "can_run",
    "check_placement",
    "claims",
    "current_step",
    "hookimpl",
    "list_backends",
    "load",
    "located",
]

_HOMES = {
    "bringup.backend.adapters": (
        "KernelsDevice",
        "OpFunction",
        "OpsDevice",
        "SimpleBackend",
        "claims",
    ),
    "bringup.backend.adapters_run": ("current_step", "located"),
    "bringup.backend.capabilities": (
        "API_LEVEL",
        "OPSET",
        "Capabilities",
        "Claims",
        "Handshake",
        "Numerics",
        "Shapes",
    ),
    "bringup.backend.device": (
        "Backend",
        "BufferView",
        "Device",
        "DeviceInfo",
        "Executable",
        "Handle",
        "Lowered",
        "NoHardware",
    ),
    "bringup.backend.discovery": ("BackendStatus",),
    "bringup.backend.partition": ("Partition", "Segment", "Transfer"),
    "bringup.backend.placement": ("Placement", "can_run", "check_placement"),
    "bringup.backend.plugin": ("GROUP", "hookimpl"),
    "bringup.backend.registry": ("list_backends", "load"),
    "bringup.kernel.limits": ("Limits",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
