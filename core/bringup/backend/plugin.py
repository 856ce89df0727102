"""The hooks a plugin implements, through pluggy.

A distribution names a module under the entry-point group ``bringup.backends``; the entry point's
name is the device's name::

    [project.entry-points."bringup.backends"]
    mydevice = "bringup_mydevice.plugin"

and the module implements both hooks::

    from bringup.backend import Handshake, hookimpl

    @hookimpl
    def bringup_handshake() -> Handshake:
        return Handshake(api=(1, 1), opset=(1, 1))

    @hookimpl
    def bringup_backend() -> Backend:
        return MyBackend()
"""

from __future__ import annotations

import pluggy

from bringup.backend.capabilities import Handshake
from bringup.backend.device import Backend

#: The group of entry points by which plugins are found.
GROUP = "bringup.backends"
hookspec = pluggy.HookspecMarker("bringup")
#: The decorator of the two hooks of a plugin's module, `bringup_handshake` and `bringup_backend`.
hookimpl = pluggy.HookimplMarker("bringup")


@hookspec(firstresult=True)
def bringup_handshake() -> Handshake:  # type: ignore[empty-body]
    """Say which seam levels and opsets the plugin accepts.  Called before anything else."""


@hookspec(firstresult=True)
def bringup_backend() -> Backend:  # type: ignore[empty-body]
    """Make the backend object.  Must not touch hardware."""
