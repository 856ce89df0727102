"""NVIDIA GPUs, through their driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.backend import Backend, Capabilities, Device, DeviceInfo, Lowered, NoHardware, Target
from bringup.backend.capabilities import CONTROL_CLAIMS
from bringup.kernel.form import Kernel
from bringup.program.program import KernelStep, OpStep, Program
from bringup_cuda.driver.discovery import find_gpus, nearest, open_library, require_gpus
from bringup_cuda.targets import BASELINE, TARGETS, capabilities_of, target_of

if TYPE_CHECKING:  # dumps and libraries alone need these
    from bringup.backend.link import Linked, LinkOptions, LinkUnit, Weights
    from bringup.loops.schedule import Scheduled


class CudaBackend(Backend):
    """NVIDIA GPUs, through pycuda.  Describes and lowers for any architecture without one."""

    name = "cuda"

    def devices(
        self,
    ) -> Sequence[DeviceInfo]:  # pragma: no cover on cuda-emulated - only drivers
        """The GPUs.  Raises NoHardware: with what is missing; BackendError if it is pycuda, or if
        the driver is too old.
        """
        return tuple(
            DeviceInfo(index, gpu.product, (("architecture", gpu.architecture),))
            for index, gpu in enumerate(require_gpus())
        )

    def capabilities(self, target: str = "") -> Capabilities:
        """Capabilities of an architecture such as ``sm_90``; without a target, of that of this
        machine's first GPU, and without one of the oldest there is code for.
        """
        capabilities = capabilities_of(self._architecture(target))
        # The host controls loops and branches launch by launch.
        return replace(capabilities, ops={**capabilities.ops, **CONTROL_CLAIMS})

    def targets(self) -> Sequence[str]:
        """The architectures that there is a table of, oldest first."""
        return tuple(TARGETS)

    def target(self, name: str = "") -> Target:
        """The row of an architecture; without a name as `capabilities`."""
        return target_of(self._architecture(name))

    def open(self, index: int) -> Device:  # pragma: no cover on cuda-emulated - only drivers
        """Open a GPU by its primary context.  Raises NoHardware, BackendError as `devices`."""
        from bringup_cuda.runtime.device import CudaDevice

        gpu = require_gpus()[index]
        target = nearest(gpu.architecture)
        assert target is not None, "such GPUs are refused"
        capabilities = self.capabilities(target)
        return CudaDevice(
            open_library(), index, device_name(self.name, index), capabilities, target
        )

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """Chunks of long sums that would leave much of a GPU idle, by architecture."""
        from bringup.llvm.simt.plan import chunk_length
        from bringup_cuda.codegen.contraction.planning import plan_contraction

        architecture = self._architecture(target)
        plan = plan_contraction(kernel, architecture)
        if plan is None:
            return chunk_length(kernel, TARGETS[architecture])
        return plan.chunk_length

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled | None:
        """The loops of a kernel on an architecture; None for one that computes nothing."""
        from bringup.llvm.simt import scheduled_kernel
        from bringup_cuda.codegen.contraction.planning import plan_contraction

        architecture = self._architecture(target)
        plan = plan_contraction(step.kernel, architecture)
        if plan is not None:
            from bringup_cuda.codegen.contraction.schedule import scheduled_contraction

            return scheduled_contraction(plan, step.schedule)
        return scheduled_kernel(step.kernel, TARGETS[architecture], step.schedule)

    def scheduled_step(
        self, step: OpStep, target: str = "", *, prefix: str = "", in_place: bool = False
    ) -> Sequence[Scheduled]:
        """The functions of a step on an architecture, but for one that only copies."""
        from bringup.llvm.simt.nests import nest_steps
        from bringup.loops.schedule import Scheduled
        from bringup.program.loops import step_loops

        row = TARGETS[self._architecture(target)]
        loops = step_loops(step, prefix, row)
        funcs = () if loops is None else dict.fromkeys(loops.funcs[int(loops.copies) :])
        return [Scheduled.of(func, nest_steps(func, row)) for func in funcs]

    def lower(self, program: Program, target: str = "") -> Lowered:
        """LLVM IR and PTX for an architecture; needs no GPU.  Raises UnsupportedError,
        CompileError.
        """
        from bringup_cuda.codegen.lower import lower

        return lower(program, self._architecture(target))

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """A C file that launches PTX for an architecture; see `bringup_cuda.link`.  Needs no GPU.

        Raises UnsupportedError, CompileError.
        """
        from bringup_cuda.link import link

        return link(units, weights, self._architecture(target), options)

    def _architecture(self, target: str) -> str:  # pragma: no cover on cuda-emulated - only drivers
        """The architecture of a target; without a target, of the first GPU, else `BASELINE`."""
        if target:
            return target
        try:
            return nearest(find_gpus()[0].architecture) or BASELINE
        except NoHardware:
            return BASELINE


def device_name(backend: str, index: int) -> str:
    """The name of a device in messages."""
    return f"{backend}:{index}" if index else backend
