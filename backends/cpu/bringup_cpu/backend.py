"""What this backend says of itself without opening the device."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bringup import config
from bringup.backend import (
    Backend,
    Capabilities,
    Device,
    DeviceInfo,
    Limits,
    Lowered,
    Numerics,
    Shapes,
)
from bringup.backend.capabilities import CONTROL_CLAIMS
from bringup.kernel.form import Kernel
from bringup.program.program import KernelStep, OpStep, Program
from bringup.target import Target
from bringup_cpu import host

if TYPE_CHECKING:
    from bringup.backend.link import Linked, LinkOptions, LinkUnit, Weights
    from bringup.loops.schedule import Scheduled

#: Elements of a row that a kernel reads several times: so many stay in the second-level cache.
_ROW_ELEMENTS = 1 << 18
#: A processor of which only that it has vectors is asked for.
_ANY = Target(vector_bits=128)


class CpuBackend(Backend):
    """The CPUs of this machine as one device, by code that LLVM compiles in the process."""

    name = "cpu"

    def devices(self) -> Sequence[DeviceInfo]:
        """One device with the CPU's name, and that of ``BRINGUP_CPU`` if it is set."""
        details = [("architecture", platform.machine())]
        named = config.text("BRINGUP_CPU")
        if named not in ("", "native"):  # pragma: no cover - only with BRINGUP_CPU set
            details.append(("compiled for", named))
        return (DeviceInfo(0, host.product(), tuple(details)),)

    def capabilities(self, target: str = "") -> Capabilities:
        """Capabilities of the host, or of a target that `lower` takes.  Raises UnsupportedError."""
        return _capabilities(target)

    def targets(self) -> Sequence[str]:
        """Levels of the host's architecture."""
        from bringup_cpu.target import named

        return tuple(named())

    def target(self, name: str = "") -> Target:
        """The row of the host or of a level, with as many threads as the device has here.

        Raises UnsupportedError.
        """
        from bringup_cpu.emit_pool import MAX_THREADS
        from bringup_cpu.target import target

        return replace(target(name), threads=host.threads(MAX_THREADS))

    def open(self, index: int) -> Device:
        """Open the device; every call gives one over the same memory and threads."""
        from bringup_cpu.device import CpuDevice

        assert index == 0, f"there is no device {index}"
        return CpuDevice(self.capabilities())

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """As for all processors, whatever they are."""
        from bringup.llvm.choices import chunk_length_for

        return chunk_length_for(kernel, _ANY)

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled | None:
        """The loops of a kernel on the host or a target; None for packed products and some folds.

        Raises UnsupportedError for an unknown target.
        """
        from bringup.llvm.loops.kernel import scheduled_kernel

        return scheduled_kernel(step.kernel, self.target(target), step.schedule)

    def scheduled_step(
        self, step: OpStep, target: str = "", *, prefix: str = "", in_place: bool = False
    ) -> Sequence[Scheduled]:
        """The functions of a step on the host or a target.

        Raises UnsupportedError for an unknown target.
        """
        from bringup.llvm.loops.library import scheduled_step

        _, scheduled = scheduled_step(step, prefix, self.target(target), in_place=in_place)
        return list(scheduled.values())

    def link_targets(self) -> Sequence[str]:
        """Processors of every architecture that code is made for ahead of time."""
        from bringup_cpu.processors import names

        return names()

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """An object file of programs.  Raises UnsupportedError, CompileError."""
        from bringup_cpu.link import link

        return link(units, weights, target, options)

    def schedule_tables(self) -> Path:
        """Beside this module."""
        return Path(__file__).parent / "schedules"

    def lower(self, program: Program, target: str = "") -> Lowered:
        """LLVM IR and assembly for the host, or a level of its architecture such as ``x86-64-v3``.

        Raises UnsupportedError, CompileError.
        """
        from bringup.llvm.host.engine import engine
        from bringup_cpu.codegen import generate

        text = generate(program, self.target(target)).text
        return Lowered(text, engine().assembly(text, target))


@cache
def _capabilities(target: str) -> Capabilities:
    from bringup.llvm.claims import emitter_claims, step_claims
    from bringup.llvm.loops.heuristics import LONGEST_CHAIN, PRODUCTS
    from bringup_cpu.processors import names, processors
    from bringup_cpu.target import target as find_target

    cpu = find_target(target)
    # The levels of a library share its weights, but not the width of their vectors.
    is_one = target not in names() or len(processors(target)) == 1
    return Capabilities(
        ops=step_claims(*CONTROL_CLAIMS),
        kernels=emitter_claims(),
        limits=Limits(row_elements=_ROW_ELEMENTS, memory_bytes=host.memory()),
        numerics=Numerics(longest_chain=LONGEST_CHAIN),
        shapes=Shapes(
            vector=cpu.lanes(32),
            block=1024,
            contraction=PRODUCTS.lengths(cpu),
            products=PRODUCTS.least_products,
            panel=PRODUCTS.panel_bits(cpu) if is_one else 0,
        ),
        target=target,
    )
