"""What the backend says of itself; without a driver, as of a processor that OpenCL knows."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend import (
    Capabilities,
    Device,
    DeviceInfo,
    KernelStep,
    NoHardware,
    SimpleBackend,
    Target,
)
from bringup.c import render_c
from bringup.kernel.form import Kernel
from bringup.llvm.choices import chunk_length_for, scheduled_for
from bringup.loops import Func
from bringup.loops.schedule import Scheduled
from bringup_opencl.machine import Machine, capabilities_of, dialect_of, target_of


def machine() -> Machine:
    """That of the first device."""
    try:
        from bringup_opencl.discovery import devices

        return devices()[0][1]
    except (ImportError, NoHardware):
        return Machine()


class OpenCLBackend(SimpleBackend):
    """The devices of all OpenCL platforms; capabilities and texts are those of the first."""

    def __init__(self) -> None:
        super().__init__("opencl", _open, _capabilities, _devices, render=_render)

    def target(self, name: str = "") -> Target:
        """The row of the first device."""
        return target_of(machine())

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled:
        """By core's choices for machines of the kind."""
        return scheduled_for(step, self.target())

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """As core chooses it for machines of the kind."""
        return chunk_length_for(kernel, self.target())


def _render(func: Func) -> str:
    return render_c(func, dialect_of(machine()))


def _capabilities() -> Capabilities:
    return capabilities_of(machine())


def _devices() -> Sequence[DeviceInfo]:
    from bringup_opencl.discovery import devices

    infos = []
    for index, (_, each) in enumerate(devices()):
        details = (("platform", each.platform), ("version", each.version), ("kind", each.kind))
        infos.append(DeviceInfo(index, each.name, details))
    return infos


def _open(index: int) -> Device:
    from bringup_opencl.device import OpenCLDevice
    from bringup_opencl.discovery import devices

    return OpenCLDevice(*devices()[index])
