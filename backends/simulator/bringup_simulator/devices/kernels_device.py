"""Depth 2: render a kernel, load it, launch it; core fuses, plans memory, and launches in order."""

from __future__ import annotations

from bringup import backend
from bringup.backend import BufferView, KernelsDevice
from bringup.dtypes import STORED
from bringup.kernel import Kernel
from bringup_simulator import VECTOR_WIDTH, Binding, LoadedKernel
from bringup_simulator.devices.driver import Chip, reported
from bringup_simulator.devices.render import render

# Ops that move elements need no claim: they become indices of loads.
_CLAIMED = """
    neg abs floor exp log sqrt sin cos tanh add sub mul div rem pow max min and or xor shl shr
    compare select convert bitcast reduce dot_general
""".split()  # noqa: SIM905

CAPABILITIES = backend.Capabilities(
    kernels=backend.claims(_CLAIMED, STORED),
    limits=backend.Limits(tile_bytes=1 << 16),
    shapes=backend.Shapes(vector=VECTOR_WIDTH, block=VECTOR_WIDTH),
    asynchronous=True,
    simulated=True,
)


class KernelsSimulator(Chip, KernelsDevice):
    """The chip as a device of kernels."""

    capabilities = CAPABILITIES

    def render(self, kernel: Kernel) -> str:
        """What the chip's own compiler takes."""
        return render(kernel)

    @reported()
    def load(self, source: str | bytes, name: str) -> LoadedKernel:
        """Core loads equal kernels once; the chip forgets one when core lets go of it."""
        assert isinstance(source, str)
        return self.chip.load(source, name)

    @reported()
    def launch(self, loaded: LoadedKernel, kernel: Kernel, views: list[BufferView]) -> None:
        """Queue a run; the grid is part of the text."""
        bindings = [Binding(view.handle, view.offset) for view in views]
        self.chip.launch(loaded, bindings, tag=backend.current_step())
