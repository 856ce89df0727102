"""The plugin of ``simulator-kernels``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_simulator.devices.plugins.common import HANDSHAKE, KernelsBackend


@hookimpl
def bringup_handshake() -> Handshake:
    """Called before all else."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device, and imports no driver."""
    return KernelsBackend(
        "simulator-kernels", "bringup_simulator.devices.kernels_device:KernelsSimulator"
    )
