"""The plugin of ``level1-program``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.backend import (
    Backend,
    BufferView,
    Capabilities,
    Handle,
    Handshake,
    KernelStep,
    Program,
    SimpleBackend,
    claims,
    hookimpl,
    located,
)
from bringup.dtypes import STORED
from bringup.errors import DeviceError
from bringup_level1.memory import HANDSHAKE, SCALAR, Memory, run_kernel

CAPABILITIES = Capabilities(kernels=claims(SCALAR, STORED), simulated=True)


class Executable:
    """A program, step by step."""

    def __init__(self, device: Memory, program: Program) -> None:
        self.device, self.program = device, program
        self.constants = []
        for literal in program.constants:
            data = np.ascontiguousarray(literal.array()).reshape(-1).view(np.uint8)
            self.constants.append(device.alloc(literal.type.nbytes))
            device.upload(self.constants[-1], data.data)

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """In core's plan of memory."""
        program, aliases = self.program, dict(self.program.aliases)
        outputs = [
            inputs[aliases[n]] if n in aliases else self.device.alloc(type_.nbytes)
            for n, type_ in enumerate(program.outputs)
        ]
        arena = [self.device.alloc(program.arena_bytes)]
        spaces = {"input": inputs, "output": outputs, "constant": self.constants, "arena": arena}
        for step in program.steps:
            assert isinstance(step, KernelStep)
            views = [BufferView(spaces[s.space][s.index], s.offset, s.type) for s in step.slots]
            try:
                run_kernel(step.kernel, views)
            except ValueError as error:
                place = located(step)
                raise DeviceError(f"{place.name}: {error}", location=place.location) from error
        return outputs


class ProgramsOfLevel1(Memory):
    """Whole programs."""

    capabilities = CAPABILITIES

    def compile(self, program: Program) -> Executable:
        """Once for each."""
        return Executable(self, program)


@hookimpl
def bringup_handshake() -> Handshake:
    """Level 1."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """One device."""
    return SimpleBackend("level1-program", lambda _index: ProgramsOfLevel1(), CAPABILITIES)
