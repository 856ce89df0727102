"""The plugin of ``simulator-ops``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_simulator.devices.plugins.common import HANDSHAKE, SimulatorBackend


@hookimpl
def bringup_handshake() -> Handshake:
    """Called before all else."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device, and imports no driver."""
    return SimulatorBackend("simulator-ops", "bringup_simulator.devices.ops_device:OpsSimulator")
