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
from bringup.ops.subgraphs import chosen
from bringup.ops.table import OpDef
from bringup.passes.check import Run, disagreement, is_strict, shown_inputs
from bringup.program.program import (
    ControlStep,
    KernelStep,
    OpStep,
    Program,
    ScanStep,
    Slot,
    WhileStep,
)
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


class _Memory:
    """The memory of one run: bytes by space and number."""

    def __init__(
        self, program: Program, inputs: Sequence[Array], outputs: Sequence[Array], arena: Array
    ) -> None:
        self.constants = [_bytes_of(c.array()) for c in program.constants]
        for constant in self.constants:
            constant.flags.writeable = False
        self.inputs, self.outputs, self.arena = inputs, outputs, arena

    def raw(self, slot: Slot) -> Array:
        """The bytes of a slot."""
        spaces = {"input": self.inputs, "output": self.outputs, "constant": self.constants}
        whole = self.arena if slot.space == "arena" else spaces[slot.space][slot.index]
        raw = whole[slot.offset : slot.offset + slot.type.nbytes]
        if raw.size != slot.type.nbytes:
            raise GraphError(f"slot {slot} lies outside its memory of {whole.size} bytes")
        return raw

    def view(self, slot: Slot) -> Array:
        """The array of a slot."""
        return _typed(self.raw(slot), slot.type)


class _Run:
    def __init__(self, program: Program, inputs: Sequence[object]) -> None:
        self.program = program
        self.given = _checked(program, inputs)
        self.inputs = [_bytes_of(a) for a in self.given]
        alias = dict(program.aliases)
        self.outputs = [
            self.inputs[alias[o]] if o in alias else np.full(t.nbytes, _POISON, np.uint8)
            for o, t in enumerate(program.outputs)
        ]

    def run(self) -> list[Array]:
        arena = np.full(self.program.arena_bytes, _POISON, np.uint8)
        _issue(self.program, _Memory(self.program, self.inputs, self.outputs, arena))
        self._check_inputs()
        typed = zip(self.outputs, self.program.outputs, strict=True)
        return [_typed(raw, type_).copy() for raw, type_ in typed]

    def _check_inputs(self) -> None:
        for i, (before, after) in enumerate(zip(self.given, self.inputs, strict=True)):
            if i not in self.program.donated and not np.array_equal(_bytes_of(before), after):
                raise GraphError(
                    f"program {self.program.name} changed input {i}, which is not donated"
                )


def _issue(program: Program, memory: _Memory) -> None:
    """Run the steps of a program."""
    for number, step in enumerate(program.steps):
        try:
            if isinstance(step, KernelStep):
                evaluate_kernel(step.kernel, [memory.view(s) for s in step.slots])
            elif isinstance(step, OpStep):
                _run_op(step, memory)
            else:
                _Control(step, memory).run()
        except GraphError as error:
            raise GraphError(
                f"program {program.name}, step {number}: {error.what}",
                notes=tuple(str(program).splitlines()),
                location=step.location,
            ) from error


def _run_op(step: OpStep, memory: _Memory) -> None:
    operands = [memory.view(s) for s in step.operands]
    results = _call(step.op, operands, step.attrs)
    for slot in step.results:
        memory.raw(slot).fill(_POISON)
    for slot, result in zip(step.results, results, strict=True):
        memory.view(slot)[...] = result


class _Control:
    """A loop or branch being run, over bytes: where a run of the body writes is poisoned first."""

    def __init__(self, step: ControlStep, memory: _Memory) -> None:
        self.step = step
        self.operands = [memory.raw(s) for s in step.operands]
        self.results = [memory.raw(s) for s in step.results]
        self.spare = [memory.raw(s) for s in step.places]
        self.scratch = memory.raw(step.scratch)

    def run(self) -> None:
        step = self.step
        if isinstance(step, WhileStep):
            self._while(step)
        elif isinstance(step, ScanStep):
            self._scan(step)
        else:
            number = int(self.operands[0].view(np.int32)[0])
            branch = step.branches[chosen(number, len(step.branches))]
            self._program(branch, self.operands[1:], self.results)

    def _program(self, program: Program, inputs: list[Array], outputs: list[Array]) -> None:
        aliased = {o for o, _ in program.aliases}
        for raw in (*(raw for o, raw in enumerate(outputs) if o not in aliased), self.scratch):
            raw.fill(_POISON)
        _issue(program, _Memory(program, inputs, outputs, self.scratch))

    def _start(self, step: WhileStep | ScanStep) -> tuple[list[Array], int]:
        """The state at first, and how many of its parts change: some of them where they are."""
        state, count = list(self.operands), len(step.carried)
        for place, raw in zip(step.updated, self.results[count:], strict=False):
            raw[...] = state[place]
            state[place] = raw
        return state, count + len(step.updated)

    def _while(self, step: WhileStep) -> None:
        flag = self.spare[len(step.spare)]
        state, changing = self._start(step)
        count = len(step.carried)
        rest = self.results[count:changing]
        target, other = self.results[:count], self.spare[:count]
        while True:
            self._program(step.cond, state, [flag])
            if not flag[0]:
                break
            self._program(step.body, state, [*target, *rest])
            for place, raw in zip(step.carried, target, strict=True):
                state[place] = raw
            target, other = other, target
        for place, raw in zip(step.carried, self.results, strict=False):
            raw[...] = state[place]

    def _scan(self, step: ScanStep) -> None:
        state, changing = self._start(step)
        count = len(step.carried)
        rest, stacks = self.results[count:changing], self.results[changing:]
        # The last run writes the results.
        sides = [self.results[:count], self.spare[:count]]
        for left in reversed(range(step.length)):
            at = left if step.reverse else step.length - 1 - left
            for place in step.stacks:
                state[place] = _row(self.operands[place], at, step.length)
            rows = [_row(raw, at, step.length) for raw in stacks]
            self._program(step.body, state, [*sides[left % 2], *rest, *rows])
            for place, raw in zip(step.carried, sides[left % 2], strict=True):
                state[place] = raw
        for place, raw in zip(step.carried, self.results, strict=False):
            raw[...] = state[place]


def _row(stack: Array, at: int, length: int) -> Array:
    nbytes = stack.size // length
    return stack[at * nbytes : (at + 1) * nbytes]


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


def check_program(graph: Graph, launches: Sequence[Launch], program: Program) -> None:
    """Run the fused graph and the program in numpy and compare both with the graph's own
    evaluation.

    graph: the one that was fused, with generated inputs that every loop in it survives.
    Raises GraphError that says whether fusion or planning changed a value, with the graph, the
    program and the inputs.
    """
    _compare("fusion", graph, lambda inputs: evaluate_launches(graph, launches, inputs), program)
    _compare("planning", graph, lambda inputs: evaluate_program(program, inputs), program)


def _compare(step: str, graph: Graph, run: Run, program: Program) -> None:
    inputs: Sequence[Array] | None = None
    try:
        found = disagreement(graph, run, strict=is_strict(graph))
        if found is None:
            return
        complaint, inputs = found
    except GraphError as error:
        complaint = error.what
    raise GraphError(
        f"{step} changed the value of graph {graph.name}: {complaint}",
        notes=(
            *str(graph).splitlines(),
            *str(program).splitlines(),
            *(line for kernel in program.kernels for line in str(kernel).splitlines()),
            *(shown_inputs(graph, inputs) if inputs is not None else ()),
        ),
        fix="the passes are right: their result, below, is what the run is compared with",
    )
