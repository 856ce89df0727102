"""The plugin of ``template-ops``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_template.plugins.common import HANDSHAKE, TemplateBackend


@hookimpl
def bringup_handshake() -> Handshake:
    """Called before all else."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device, and imports no driver."""
    return TemplateBackend("template-ops", "bringup_template.ops_device:OpsTemplate")
