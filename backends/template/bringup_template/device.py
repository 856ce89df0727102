"""Template as a device of kernels: core fuses, plans memory, and launches in order."""

from __future__ import annotations

from typing import Any

from bringup.backend import BufferView, KernelsDevice
from bringup.kernel import Kernel

from bringup_template import simulated_chip
from bringup_template.capabilities import CAPABILITIES
from bringup_template.driver import TemplateMemory, reported
from bringup_template.render import render


class TemplateDevice(TemplateMemory, KernelsDevice):
    """Memory, and kernels: rendered, loaded, launched."""

    capabilities = CAPABILITIES

    def render(self, kernel: Kernel) -> str:
        """In the chip's language."""
        return render(kernel)

    @reported()
    def load(self, source: str | bytes, name: str) -> object:
        """What `launch` runs.  Core loads equal kernels once."""
        return simulated_chip.load(str(source), name)

    @reported()
    def launch(self, loaded: Any, kernel: Kernel, views: list[BufferView]) -> None:
        """At every point of the grid; a view for each buffer that is no tile, in order."""
        simulated_chip.launch(loaded, kernel.points, views)
