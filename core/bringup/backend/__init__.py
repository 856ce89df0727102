"""The seam between core and devices: what a vendor implements, and how core finds it.

A plugin names a module in its metadata (`bringup.backend.plugin`), which makes a `Backend`, which
opens a `Device`: an `OpsDevice`, a `KernelsDevice` or `LoopsDevice`, or one that compiles whole
programs itself.
"""

from __future__ import annotations

from bringup.backend.adapters import (
    KernelsDevice,
    LoopsDevice,
    OpFunction,
    OpsDevice,
    RenderingDevice,
    SimpleBackend,
    claims,
)
from bringup.backend.adapters_run import current_step, located, step_locator
from bringup.backend.capabilities import (
    API_LEVEL,
    OPSET,
    Capabilities,
    Claims,
    Handshake,
    LibraryClaims,
    Numerics,
    Shapes,
)
from bringup.backend.device import (
    Backend,
    BufferView,
    Device,
    DeviceInfo,
    Exchange,
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
from bringup.program.program import KernelStep, Program, Step
from bringup.target import Target

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
    "Exchange",
    "Executable",
    "Handle",
    "Handshake",
    "KernelStep",
    "KernelsDevice",
    "LibraryClaims",
    "Limits",
    "LoopsDevice",
    "Lowered",
    "NoHardware",
    "Numerics",
    "OpFunction",
    "OpsDevice",
    "Partition",
    "Placement",
    "Program",
    "RenderingDevice",
    "Segment",
    "Shapes",
    "SimpleBackend",
    "Step",
    "Target",
    "Transfer",
    "can_run",
    "check_placement",
    "claims",
    "current_step",
    "hookimpl",
    "list_backends",
    "load",
    "located",
    "step_locator",
]


def __dir__() -> list[str]:
    return __all__
