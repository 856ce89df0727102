"""Reference runs of what fusion and planning made: launches over separate arrays, and programs over
one arena.

Equal results of the first and the graph's own evaluation speak for fusion; of both, for planning.
Memory that holds nothing yet is poisoned with 0xFF, so that a wrong place gives wrong values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.errors import ConversionError, GraphError
from bringup.graph import Graph, Operation, Value
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.fuse import Launch
from bringup.ops.table import OpDef
from bringup.program.program import KernelStep, OpStep, Program, Slot
from bringup.types import TensorType

Array = np.ndarray[Any, Any]

_POISON = 0xFF


def evaluate_launches(
    graph: Graph, launches: Sequence[Launch], inputs: Sequence[Array]
) -> list[Array]:
    """The outputs of a fused graph, every value in an array of its own.

    inputs: one array for each graph input, of its shape and dtype.
    Raises GraphError if a launch reads a value that no earlier one made, or breaks a rule of
    `evaluate_kernel`.
    """
    values: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for launch in launches:
        for value in launch.reads:
            if value not in values:
                raise GraphError(f"a launch reads a {value.type} that no earlier one made")
        if launch.kernel is not None:
            values.update((v, _poisoned(v.type)) for v in launch.writes)
            evaluate_kernel(launch.kernel, [np.ascontiguousarray(values[v]) for v in launch.values])
        else:
            assert launch.instr is not None
            operands = [values[v] for v in launch.reads]
            results = _call(launch.instr.op, operands, launch.instr.attrs)
            values.update(zip(launch.writes, results, strict=True))
    return [values[v] for v in graph.outputs]


def evaluate_program(program: Program, inputs: Sequence[object]) -> list[Array]:
    """The outputs of a program run over one arena as a device would.

    inputs: one array per input, of its type; they are copied, and stay as they are.
    Raises GraphError if a step breaks a rule of `evaluate_kernel`, or an input that is not donated
    was changed, ConversionError if an input does not have the program's type.
    """
    return _Run(program, inputs).run()


class _Run:
    def __init__(self, program: Program, inputs: Sequence[object]) -> None:
        self.program = program
        self.given = _checked(program, inputs)
        self.inputs = [_bytes_of(a) for a in self.given]
        self.constants = [_bytes_of(c.array()) for c in program.constants]
        for constant in self.constants:
            constant.flags.writeable = False
        alias = dict(program.aliases)
        self.outputs = [
            self.inputs[alias[o]] if o in alias else np.full(t.nbytes, _POISON, np.uint8)
            for o, t in enumerate(program.outputs)
        ]
        self.arena = np.full(program.arena_bytes, _POISON, np.uint8)

    def run(self) -> list[Array]:
        for number, step in enumerate(self.program.steps):
            try:
                if isinstance(step, KernelStep):
                    evaluate_kernel(step.kernel, [self._view(s) for s in step.slots])
                else:
                    self._call(step)
            except GraphError as error:
                raise GraphError(
                    f"program {self.program.name}, step {number}: {error.what}",
                    notes=tuple(str(self.program).splitlines()),
                    location=step.location,
                ) from error
        self._check_inputs()
        typed = zip(self.outputs, self.program.outputs, strict=True)
        return [_typed(raw, type_).copy() for raw, type_ in typed]

    def _view(self, slot: Slot) -> Array:
        spaces = {"input": self.inputs, "output": self.outputs, "constant": self.constants}
        whole = self.arena if slot.space == "arena" else spaces[slot.space][slot.index]
        raw = whole[slot.offset : slot.offset + slot.type.nbytes]
        if raw.size != slot.type.nbytes:
            raise GraphError(f"slot {slot} lies outside its memory of {whole.size} bytes")
        return _typed(raw, slot.type)

    def _call(self, step: OpStep) -> None:
        operands = [self._view(s) for s in step.operands]
        results = _call(step.op, operands, step.attrs)
        for slot in step.results:
            self._view(slot).reshape(-1).view(np.uint8).fill(_POISON)
        for slot, result in zip(step.results, results, strict=True):
            self._view(slot)[...] = result

    def _check_inputs(self) -> None:
        for i, (before, after) in enumerate(zip(self.given, self.inputs, strict=True)):
            if i not in self.program.donated and not np.array_equal(_bytes_of(before), after):
                raise GraphError(
                    f"program {self.program.name} changed input {i}, which is not donated"
                )


def _call(op: Operation, operands: Sequence[Array], attrs: Any) -> tuple[Array, ...]:
    """The results of an op on copies of its operands, so that it cannot change them."""
    assert isinstance(op, OpDef)
    results = op.reference(*(a.copy() for a in operands), **attrs)
    return tuple(np.array(a) for a in (results if isinstance(results, tuple) else (results,)))


def _checked(program: Program, inputs: Sequence[object]) -> list[Array]:
    arrays = [np.asarray(a) for a in inputs]
    found = [(a.shape, a.dtype) for a in arrays]
    wanted = [(t.shape, t.dtype.numpy) for t in program.inputs]
    if found != wanted:
        raise ConversionError(
            f"program {program.name} takes {_listed(program.inputs)}, got {found}",
            fix="pass one array for each input",
        )
    return arrays


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _bytes_of(array: Array) -> Array:
    return np.frombuffer(bytearray(np.ascontiguousarray(array).tobytes()), np.uint8)


def _typed(raw: Array, type_: TensorType) -> Array:
    return raw.view(type_.dtype.numpy).reshape(type_.shape)


def _poisoned(type_: TensorType) -> Array:
    return _typed(np.full(type_.nbytes, _POISON, np.uint8), type_)
