"""What the plugin modules share: the backends' description, and kernels as text."""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from bringup.backend import DeviceInfo, Handshake, Lowered, NoHardware, Program, SimpleBackend

if TYPE_CHECKING:
    from bringup_template.driver import Chip

#: The seam levels and opsets this distribution was written for: `API_LEVEL` and `OPSET` of
#: `bringup.backend` as they were then.  Raise the upper ends when the suite passes with newer ones.
HANDSHAKE = Handshake(api=(1, 1), opset=(1, 1))


def _devices() -> Sequence[DeviceInfo]:
    """Ask the driver what is there.  The driver is imported here, not with the plugin, so that a
    machine without it is told so in one line and everything else goes on working.
    """
    try:
        import bringup_simulator  # noqa: F401
    except ImportError as error:
        raise NoHardware(f"the driver is not installed: {error}") from None
    return [DeviceInfo(index, "simulated accelerator") for index in range(2)]


class TemplateBackend(SimpleBackend):
    """A backend of simulated devices; device: ``module:Class``, imported when first needed."""

    def __init__(self, name: str, device: str) -> None:
        def open_(index: int) -> Chip:
            from bringup_simulator import Accelerator

            opened: Chip = resolve_name(device)(Accelerator(index=index))
            return opened

        super().__init__(name, open_, lambda: resolve_name(device).capabilities, _devices)


class KernelsBackend(TemplateBackend):
    """A backend whose kernels can be looked at without a device."""

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The kernels in the chip's language; its compiler shows nothing of what it makes."""
        from bringup_template.render import render

        return Lowered(source="\n".join(map(render, dict.fromkeys(program.kernels))), asm="")
