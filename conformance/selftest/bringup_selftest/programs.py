"""Depth 3 of the reference device: programs with loops and branches, run by core's interpreter on
the device's heap.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bringup.backend import BufferView
from bringup.backend.adapters import OpFunction
from bringup.backend.adapters_run import dense_bytes
from bringup.dtypes import u8
from bringup.errors import DeviceError
from bringup.ops.table import OpDef
from bringup.program.evaluate import ProgramRun
from bringup.program.program import KernelStep, OpStep, Program, Step
from bringup.types import TensorType
from bringup_selftest.memory import Array, Block

if TYPE_CHECKING:
    from bringup_selftest.device import KernelsReference


class ProgramExecutable:
    """A compiled program; see `bringup.backend.Executable`.

    It is the machine that `ProgramRun` runs its steps on.
    """

    def __init__(self, device: KernelsReference, program: Program) -> None:
        self.device = device
        self.program = program
        self._constants: dict[int, list[BufferView]] = {}
        self._upload_constants(program)
        blocks = [view.handle for views in self._constants.values() for view in views]
        weakref.finalize(self, _free_all, device, blocks)

    def _upload_constants(self, program: Program) -> None:
        """Those of a program and of the programs inside it."""
        views = []
        for literal in program.constants:
            block = self.device.alloc(literal.type.nbytes)
            self.device.upload(block, dense_bytes(literal))
            views.append(BufferView(block, 0, literal.type))
        self._constants[id(program)] = views
        for step in program.steps:
            for inner in _programs(step):
                self._upload_constants(inner)

    def __call__(self, inputs: Sequence[Block]) -> list[Block]:
        """Run on inputs; on an error nothing stays allocated."""
        device, program = self.device, self.program
        aliases = dict(program.aliases)
        owned = [inputs[i] for i in sorted(program.donated) if i not in aliases.values()]
        outputs: list[Block] = []
        fresh: list[Block] = []
        try:
            for i, type_ in enumerate(program.outputs):
                if i in aliases:
                    outputs.append(inputs[aliases[i]])
                    continue
                fresh.append(device.alloc(type_.nbytes))
                outputs.append(fresh[-1])
            arena = device.alloc(program.arena_bytes)
            owned.append(arena)
            sources = [BufferView(b, 0, t) for b, t in zip(inputs, program.inputs, strict=True)]
            targets = [BufferView(b, 0, t) for b, t in zip(outputs, program.outputs, strict=True)]
            scratch = BufferView(arena, 0, u8[program.arena_bytes])
            device.submit(lambda: ProgramRun(self).run(program, sources, targets, scratch))
        except BaseException:
            for block in (*owned, *fresh, *(inputs[i] for i in aliases.values())):
                device.free(block)
            raise
        for block in owned:
            device.free(block)
        return outputs

    # -- the machine

    def part(self, buffer: BufferView, offset: int, type_: TensorType) -> BufferView:
        """A view of the same block; whether it lies inside is nobody's concern here."""
        return BufferView(buffer.handle, buffer.offset + offset, type_)

    def constants(self, program: Program) -> Sequence[BufferView]:
        """Those uploaded when the program was compiled."""
        return self._constants[id(program)]

    def launch(self, step: KernelStep, buffers: Sequence[BufferView]) -> None:
        """Run a kernel, if it writes anything."""
        declared = (b for b in step.kernel.buffers if b.role != "tile")
        pairs = zip(declared, buffers, strict=True)
        if any(view.type.size for decl, view in pairs if decl.role == "out"):
            self.device.launched(step.kernel, buffers)

    def call(
        self, step: OpStep, operands: Sequence[BufferView], results: Sequence[BufferView]
    ) -> None:
        """Run the device's function for an op, if it writes anything."""
        assert isinstance(step.op, OpDef)
        if any(view.type.size for view in results):
            function, attrs = self._function(step.op, step.attrs)
            out = results[0] if len(results) == 1 else tuple(results)
            function(*operands, out=out, **attrs)

    def _function(
        self, op: OpDef, attrs: Mapping[str, Any]
    ) -> tuple[OpFunction, Mapping[str, Any]]:
        """The device's function for a claim or an op, and the attributes it takes."""
        function = self.device.ops.get(op.claim(attrs))
        if function is None or op.variant is None:
            return self.device.ops[op.name], attrs
        return function, {name: value for name, value in attrs.items() if name != op.variant}

    def copy(self, target: BufferView, source: BufferView, nbytes: int) -> None:
        """Copy bytes."""
        self.read(target, u8[nbytes])[...] = self.read(source, u8[nbytes])

    def read(self, buffer: BufferView, type_: TensorType) -> Array:
        """What is there now."""
        return self.device.dense(BufferView(buffer.handle, buffer.offset, type_))

    def enter(self, program: Program, outputs: Sequence[BufferView], scratch: BufferView) -> None:
        """Nothing: memory holds what it held."""


def _free_all(device: KernelsReference, blocks: Sequence[Block]) -> None:
    for block in blocks:
        with contextlib.suppress(DeviceError):
            device.free(block)


def _programs(step: Step) -> tuple[Program, ...]:
    return () if isinstance(step, KernelStep | OpStep) else step.programs
