"""The plugin of ``level1-kernels``."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend import (
    Backend,
    BufferView,
    Capabilities,
    Device,
    DeviceInfo,
    Handshake,
    KernelsDevice,
    Limits,
    Lowered,
    Numerics,
    Program,
    Shapes,
    claims,
    hookimpl,
)
from bringup.dtypes import STORED
from bringup.errors import CompileError, UnsupportedError
from bringup.kernel import Dyn, Fold, Kernel, Store
from bringup_level1.memory import HANDSHAKE, SCALAR, Memory, run_kernel

NO_DYN = [name for name in SCALAR if name not in ("gather", "dynamic_slice")]
CAPABILITIES = Capabilities(
    kernels=claims(NO_DYN, STORED),
    limits=Limits(tile_bytes=1 << 16),
    numerics=Numerics(flush_subnormals=False, excess_precision=False),
    shapes=Shapes(vector=8, block=64, extra=(100,)),
    alignment=64,
    simulated=True,
)


def render(kernel: Kernel) -> str:
    """A walk over all that a kernel is, as a renderer does it."""
    lines = [f"{kernel.name}: {kernel.points} points"]
    lines += [f"{buffer.role} {buffer.type.dtype} {buffer.type.size}" for buffer in kernel.buffers]
    lines += [f"grid {axis.id} {axis.size}" for axis in kernel.grid]
    for stage in kernel.stages:
        lines.append(f"stage of {stage.trips}: {[axis.size for axis in stage.axes]}")
        for instr in stage.body.instrs:
            if "index" in instr.attrs:
                atoms = [atom for atom, _ in instr.attrs["index"].terms]
                if any(isinstance(atom, Dyn) for atom in atoms):
                    raise UnsupportedError(f"{kernel.name}: an index that is loaded")
            lines.append(f"{instr.op.name} of {len(instr.operands)} -> {instr.result.dtype}")
        for sink in stage.sinks:
            match sink:
                case Fold():
                    lines.append(f"fold {sink.kind} {sink.dtype} {sink.start(stage.trips)}")
                case Store():
                    bounds = [(str(bound.expr), bound.low, bound.high) for bound in sink.mask]
                    lines.append(f"store {sink.buffer} {sink.index.const} {bounds}")
    return "\n".join(lines)


class KernelsOfLevel1(Memory, KernelsDevice):
    """Kernels, by core's interpreter."""

    capabilities = CAPABILITIES

    def render(self, kernel: Kernel) -> str:
        """As text."""
        return render(kernel)

    def load(self, source: str | bytes, name: str) -> str:
        """The text."""
        if not str(source).startswith(name):
            raise CompileError("another kernel", log="", source=str(source))
        return str(source)

    def launch(self, loaded: object, kernel: Kernel, views: list[BufferView]) -> None:
        """At once."""
        run_kernel(kernel, views)


class BackendOfLevel1(Backend):
    """Without `SimpleBackend`."""

    name = "level1-kernels"

    def devices(self) -> Sequence[DeviceInfo]:
        """One."""
        return [DeviceInfo(0, "numpy")]

    def capabilities(self, target: str = "") -> Capabilities:
        """Whatever the target."""
        return CAPABILITIES

    def open(self, index: int) -> Device:
        """A new one."""
        return KernelsOfLevel1()

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The texts."""
        return Lowered("\n\n".join(map(render, program.kernels)), "")


@hookimpl
def bringup_handshake() -> Handshake:
    """Level 1."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """One device."""
    return BackendOfLevel1()
