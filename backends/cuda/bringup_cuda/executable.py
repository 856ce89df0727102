"""Compiled programs: what is queued for one call, and the memory it needs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bringup import config
from bringup.backend.adapters_run import dense_bytes, locator
from bringup.errors import BringupError
from bringup.program.program import CONTROL_STEPS, Program
from bringup_cuda.bodies import Body, Loaded
from bringup_cuda.commands import Command, Control, Translated
from bringup_cuda.memory import Block
from bringup_cuda.targets import ALIGNMENT

if TYPE_CHECKING:
    from bringup_cuda.device import CudaDevice


class CudaExecutable:
    """A loaded program.  Calls from several threads may overlap.

    body: what a call queues.  source, asm: the texts it was made of.
    """

    __slots__ = (
        "__weakref__", "_aliases", "_device", "_donated", "_fresh", "_inputs", "_launched",
        "_scratch", "_scratch_at", "body", "program", "source",
    )  # fmt: skip

    def __init__(
        self, device: CudaDevice, program: Program, translated: Translated, loaded: Loaded
    ) -> None:
        self.program = program
        self.source = translated.text
        self._device = device
        maker = _Maker(device, loaded, waits=config.level("BRINGUP_CHECK") > 0)
        # From the finaliser, so that what was made before an error is given back as well.
        weakref.finalize(self, maker.close)
        self.body = maker.body(program, translated.commands)
        self._launched = tuple((x.step, x.kernel.name) for x in translated.launches)
        self._inputs = len(program.inputs)
        self._aliases = dict(program.aliases)
        self._fresh = [t.nbytes for i, t in enumerate(program.outputs) if i not in self._aliases]
        # The arena and scratch are one block.
        self._scratch_at = -(-program.arena_bytes // ALIGNMENT) * ALIGNMENT
        self._scratch = self._scratch_at + translated.scratch_bytes
        taken = set(self._aliases.values())
        self._donated = [i for i in sorted(program.donated) if i not in taken]

    def __call__(self, inputs: Sequence[Block]) -> list[Block]:
        """Queue everything and return; see `bringup.backend.Executable`.

        On an error nothing stays allocated, and donated inputs are gone.
        """
        device = self._device
        assert len(inputs) == self._inputs
        made: list[Block] = []
        try:
            for nbytes in self._fresh:
                made.append(device.alloc(nbytes))
            outputs = self._placed(inputs, made) if self._aliases else list(made)
            arena = device.alloc(self._scratch) if self._scratch else None
            if arena is not None:
                made.append(arena)
            at = 0 if arena is None else arena.address
            # Before it is queued: what fails at once may be about launches just queued.
            device.pending.append((device.streams.latest + 1, locator(), self._launched))
            device.queue(
                self.body,
                [block.address for block in inputs],
                [block.address for block in outputs],
                at,
                at + self._scratch_at,
            )
        except BaseException:
            self._give_back(inputs, made)
            raise
        used = device.streams.tick()
        for block in inputs:
            block.used = used
        for block in made:
            block.used = used
        if arena is not None:
            device.free(arena)
        for i in self._donated:
            device.free(inputs[i])
        return outputs

    def _placed(self, inputs: Sequence[Block], made: Sequence[Block]) -> list[Block]:
        """The outputs in order: new ones, and donated inputs that they are written over."""
        new, aliases = iter(made), self._aliases
        return [
            inputs[aliases[i]] if i in aliases else next(new)
            for i in range(len(self.program.outputs))
        ]

    def _give_back(self, inputs: Sequence[Block], made: Sequence[Block]) -> None:
        device = self._device
        # Some commands may be queued already.
        used = device.streams.tick()
        for block in (*made, *(inputs[i] for i in self.program.donated)):
            block.used = used
            with suppress(BringupError):  # the first error is the one to report
                device.free(block)


class _Maker:
    """Makes the bodies of a program, and gives back what they hold.

    waits: whether each command is waited for, to know which one failed.
    """

    def __init__(self, device: CudaDevice, loaded: Loaded, *, waits: bool) -> None:
        self.device, self.loaded, self.waits = device, loaded, waits
        self.constants: list[Block] = []
        self.bodies: list[Body] = []

    def body(self, program: Program, commands: Sequence[Command]) -> Body:
        """The body of a program, and of all programs that its loops run."""
        constants = [self._constant(literal) for literal in program.constants]
        made = Body(self.device, self.loaded, program, constants, waits=self.waits)
        self.bodies.append(made)
        for command in commands:
            if isinstance(command, Control):
                step = command.step
                assert isinstance(step, CONTROL_STEPS)
                pairs = zip(step.programs, command.programs, strict=True)
                made.add_control(step, [self.body(p, inner) for p, inner in pairs])
            else:
                made.add(command)
        made.finish()
        return made

    def _constant(self, literal: Any) -> int:
        block = self.device.alloc(literal.type.nbytes)
        self.constants.append(block)
        self.device.upload(block, dense_bytes(literal))
        return block.address

    def close(self) -> None:
        """Give back graphs, code and constants; work that is queued still runs."""
        device = self.device
        used = device.streams.latest
        with suppress(Exception), device.activated():
            # The driver wants the context current where code is dropped.
            while self.bodies:
                self.bodies.pop().close()
            self.loaded.release()
        while self.constants:
            block = self.constants.pop()
            block.used = max(block.used, used)
            with suppress(BringupError):
                device.free(block)


__all__ = ["CudaExecutable"]
