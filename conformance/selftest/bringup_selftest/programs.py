"""Depth 3 of the reference device: programs with loops and branches, step by step on the heap."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.backend import BufferView
from bringup.backend.adapters import OpFunction
from bringup.backend.adapters_run import dense_bytes
from bringup.dtypes import u8
from bringup.errors import DeviceError
from bringup.ops.subgraphs import chosen
from bringup.ops.table import OpDef, opdef
from bringup.program.program import (
    CaseStep,
    KernelStep,
    OpStep,
    Program,
    ScanStep,
    Slot,
    Step,
    WhileStep,
)
from bringup.types import TensorType
from bringup_selftest.memory import Block

if TYPE_CHECKING:
    from bringup_selftest.device import KernelsReference

Spaces = Mapping[str, Sequence[BufferView]]


class ProgramExecutable:
    """A compiled program; see `bringup.backend.Executable`."""

    def __init__(self, device: KernelsReference, program: Program) -> None:
        self.device = device
        self.program = program
        self._constants: dict[int, list[BufferView]] = {}
        self._keep(program)
        blocks = [view.handle for views in self._constants.values() for view in views]
        weakref.finalize(self, _give_back, device, blocks)

    def _keep(self, program: Program) -> None:
        """Upload the constants of a program and of those in it."""
        made = []
        for literal in program.constants:
            block = self.device.alloc(literal.type.nbytes)
            self.device.upload(block, dense_bytes(literal))
            made.append(BufferView(block, 0, literal.type))
        self._constants[id(program)] = made
        for step in program.steps:
            for inner in _programs(step):
                self._keep(inner)

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
            given = [BufferView(b, 0, t) for b, t in zip(inputs, program.inputs, strict=True)]
            results = [BufferView(b, 0, t) for b, t in zip(outputs, program.outputs, strict=True)]
            whole = BufferView(arena, 0, TensorType((program.arena_bytes,), u8))
            device.submit(lambda: self.run(program, given, results, whole))
        except BaseException:
            for block in (*owned, *fresh, *(inputs[i] for i in aliases.values())):
                device.free(block)
            raise
        for block in owned:
            device.free(block)
        return outputs

    def run(
        self,
        program: Program,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
        arena: BufferView,
    ) -> None:
        """Run the steps of a program on places for its inputs, outputs and scratch."""
        spaces: Spaces = {
            "input": inputs,
            "output": outputs,
            "constant": self._constants[id(program)],
            "arena": (arena,),
        }
        for step in program.steps:
            self._step(step, spaces)

    def _step(self, step: Step, spaces: Spaces) -> None:
        if isinstance(step, KernelStep):
            views = [_placed(slot, spaces) for slot in step.slots]
            declared = (b for b in step.kernel.buffers if b.role != "tile")
            pairs = zip(declared, views, strict=True)
            if any(v.type.size for b, v in pairs if b.role == "out"):
                self.device.launched(step.kernel, views)
        elif isinstance(step, OpStep):
            self._op(step, spaces)
        elif isinstance(step, CaseStep):
            self._case(step, spaces)
        elif isinstance(step, WhileStep):
            self._while(step, spaces)
        else:
            self._scan(step, spaces)

    def _op(self, step: OpStep, spaces: Spaces) -> None:
        op = opdef(step)
        results = tuple(_placed(slot, spaces) for slot in step.results)
        if not any(view.type.size for view in results):
            return
        operands = [_placed(slot, spaces) for slot in step.operands]
        out = results[0] if len(results) == 1 else results
        function, attrs = self._function(op, step.attrs)
        function(*operands, out=out, **attrs)

    def _function(
        self, op: OpDef, attrs: Mapping[str, Any]
    ) -> tuple[OpFunction, Mapping[str, Any]]:
        """The device's function for a claim or an op, and the attributes it takes."""
        found = self.device.ops.get(op.claim(attrs))
        if found is None or op.variant is None:
            return self.device.ops[op.name], attrs
        return found, {name: value for name, value in attrs.items() if name != op.variant}

    def _case(self, step: CaseStep, spaces: Spaces) -> None:
        operands = [_placed(slot, spaces) for slot in step.operands]
        results = [_placed(slot, spaces) for slot in step.results]
        number = int(self.device.dense(operands[0]))
        branch = step.branches[chosen(number, len(step.branches))]
        self.run(branch, operands[1:], results, _placed(step.scratch, spaces))

    def _start(
        self, step: WhileStep | ScanStep, spaces: Spaces
    ) -> tuple[list[BufferView], list[BufferView], int]:
        """The state at first, the results, and how many parts of the state change."""
        state = [_placed(slot, spaces) for slot in step.operands]
        results = [_placed(slot, spaces) for slot in step.results]
        count = len(step.carried)
        for place, view in zip(step.updated, results[count:], strict=False):
            self._copy(view, state[place])
            state[place] = view
        return state, results, count + len(step.updated)

    def _while(self, step: WhileStep, spaces: Spaces) -> None:
        state, results, changing = self._start(step, spaces)
        count = len(step.carried)
        rest = results[count:changing]
        target, other = results[:count], [_placed(slot, spaces) for slot in step.spare]
        flag, scratch = _placed(step.flag, spaces), _placed(step.scratch, spaces)
        while True:
            self.run(step.cond, state, [flag], scratch)
            if not bool(self.device.dense(flag)):
                break
            self.run(step.body, state, [*target, *rest], scratch)
            for place, view in zip(step.carried, target, strict=True):
                state[place] = view
            target, other = other, target
        for place, view in zip(step.carried, results, strict=False):
            self._copy(view, state[place])

    def _scan(self, step: ScanStep, spaces: Spaces) -> None:
        state, results, changing = self._start(step, spaces)
        count = len(step.carried)
        rest, stacks = results[count:changing], results[changing:]
        operands = list(state)
        scratch = _placed(step.scratch, spaces)
        # The last run writes the results.
        sides = [results[:count], [_placed(slot, spaces) for slot in step.spare]]
        for left in reversed(range(step.length)):
            at = left if step.reverse else step.length - 1 - left
            for place in step.stacks:
                state[place] = _row(operands[place], at, step.length)
            rows = [_row(view, at, step.length) for view in stacks]
            self.run(step.body, state, [*sides[left % 2], *rest, *rows], scratch)
            for place, view in zip(step.carried, sides[left % 2], strict=True):
                state[place] = view
        for place, view in zip(step.carried, results, strict=False):
            self._copy(view, state[place])

    def _copy(self, target: BufferView, source: BufferView) -> None:
        a, b = self.device.dense(target), self.device.dense(source)
        a.reshape(-1).view(np.uint8)[...] = b.reshape(-1).view(np.uint8)


def _give_back(device: KernelsReference, blocks: Sequence[Block]) -> None:
    for block in blocks:
        with contextlib.suppress(DeviceError):
            device.free(block)


def _programs(step: Step) -> tuple[Program, ...]:
    return () if isinstance(step, KernelStep | OpStep) else step.programs


def _placed(slot: Slot, spaces: Spaces) -> BufferView:
    base = spaces[slot.space][0 if slot.space == "arena" else slot.index]
    return BufferView(base.handle, base.offset + slot.offset, slot.type)


def _row(stack: BufferView, at: int, length: int) -> BufferView:
    """The bytes of one row; programs see them with the types of their own."""
    nbytes = stack.type.nbytes // length
    row = TensorType(stack.type.shape[1:], stack.type.dtype)
    return BufferView(stack.handle, stack.offset + at * nbytes, row)
