"""What the backend says of itself; without a driver, as of a processor that OpenCL knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bringup.backend import (
    Capabilities,
    Device,
    DeviceInfo,
    NoHardware,
    Target,
)
from bringup.backend.adapters import scheduled_loops
from bringup.backend.capabilities import CONTROL_CLAIMS
from bringup.backend.link import Linked, LinkOptions, LinkUnit, Weights
from bringup.c import render_c
from bringup.errors import UnsupportedError
from bringup.llvm.choices import ChosenLoopsBackend
from bringup.loops import Func
from bringup_opencl.machine import KINDS, Machine, capabilities_of, dialect_of, target_of
from bringup_opencl.quirks import quirks_of


def machine() -> Machine:
    """That of the first device."""
    try:
        from bringup_opencl.discovery import devices

        return devices()[0][1]
    except (ImportError, NoHardware):
        return Machine()


class OpenCLBackend(ChosenLoopsBackend):
    """The devices of all OpenCL platforms; capabilities and texts are those of the first."""

    def __init__(self) -> None:
        super().__init__("opencl", _open, Capabilities(), _devices, render=_render)

    def targets(self) -> Sequence[str]:
        """The kinds of machines that libraries are made for."""
        return tuple(KINDS)

    def capabilities(self, target: str = "") -> Capabilities:
        """Those of the first device, or of a kind, whose loops and branches the host of a library
        controls.  Raises UnsupportedError.
        """
        own = capabilities_of(_machine(target))
        if not target:
            return own
        limits = replace(own.limits, loop_runs=0)
        return replace(own, ops={**own.ops, **CONTROL_CLAIMS}, limits=limits)

    def target(self, name: str = "") -> Target:
        """The row of the first device, or of a kind."""
        return target_of(_machine(name))

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """OpenCL C and a C file that launches it, for a kind of machines; needs no device.

        Raises UnsupportedError.
        """
        from bringup.aot.loop_commands import LoopCommands
        from bringup.aot.opencl_source import located, opencl_library

        dialect = located(dialect_of(_machine(target)))
        scheduled = scheduled_loops if options.small else partial(self.scheduled, target=target)
        kernels = LoopCommands(dialect, self.target(target), scheduled)
        return opencl_library(units, weights, options, kernels)


def _machine(target: str) -> Machine:
    """A kind of machines; the first device without one."""
    if target and target not in KINDS:
        raise UnsupportedError(f"OpenCL has no {target!r}", fix=f"use {' or '.join(KINDS)}")
    return KINDS[target] if target else machine()


def _render(func: Func) -> str:
    return render_c(func, dialect_of(machine()))


def _devices() -> Sequence[DeviceInfo]:
    from bringup_opencl.discovery import devices

    infos = []
    for index, (_, each) in enumerate(devices()):
        details = (("platform", each.platform), ("version", each.version), ("kind", each.kind))
        faults = (
            (f"fault of {quirk.op}", quirk.why)
            for quirk in quirks_of(each.platform, each.version)
            if quirk.expression
        )
        infos.append(DeviceInfo(index, each.name, (*details, *faults)))
    return infos


def _open(index: int) -> Device:
    from bringup_opencl.device import OpenCLDevice
    from bringup_opencl.discovery import devices

    return OpenCLDevice(*devices()[index])
