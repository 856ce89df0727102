"""Reference runs of what fusion and planning made: launches over separate arrays, and programs over
one arena.

Equal results of the first and the graph's own evaluation speak for fusion; of both, for planning.
Memory that holds nothing yet is poisoned with 0xFF, so that a wrong place gives wrong values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from bringup.errors import ConversionError, GraphError
from bringup.graph import Graph, Operation, Value
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.fuse import Launch
from bringup.ops.subgraphs import chosen
from bringup.ops.table import OpDef
from bringup.passes.check import Run, disagreement, is_strict, shown_inputs
from bringup.program.program import (
    BranchStep,
    KernelStep,
    LoopStep,
    OpStep,
    Program,
    Slot,
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


Buffer = TypeVar("Buffer")


class Machine(Protocol[Buffer]):
    """What `ProgramRun` runs the steps of programs on.

    A buffer is memory from some address on.
    """

    def part(self, buffer: Buffer, offset: int, type_: TensorType) -> Buffer:
        """The memory of an array that lies ``offset`` bytes behind the start of a buffer."""
        ...

    def constants(self, program: Program) -> Sequence[Buffer]:
        """The constants of a program, or of one inside it."""
        ...

    def launch(self, step: KernelStep, buffers: Sequence[Buffer]) -> None:
        """Run a kernel."""
        ...

    def call(self, step: OpStep, operands: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        """Run an op."""
        ...

    def copy(self, target: Buffer, source: Buffer, nbytes: int) -> None:
        """Copy bytes."""
        ...

    def read(self, buffer: Buffer, type_: TensorType) -> Array:
        """The array in a buffer: the flag of a loop, or the number of a branch."""
        ...

    def enter(self, program: Program, outputs: Sequence[Buffer], scratch: Buffer) -> None:
        """Told before a body runs, whose outputs and scratch hold nothing of worth yet."""
        ...


class ProgramRun(Generic[Buffer]):
    """Runs programs step by step, loops and branches inside them too."""

    def __init__(self, machine: Machine[Buffer]) -> None:
        self.machine = machine

    def run(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        arena: Buffer,
    ) -> None:
        """Run a program on its inputs, outputs and scratch memory.

        Raises GraphError, with the step, if the machine raises it.
        """
        constants = self.machine.constants(program)
        spaces = {"input": inputs, "output": outputs, "constant": constants, "arena": (arena,)}

        def at(slots: Sequence[Slot]) -> list[Buffer]:
            return [
                self.machine.part(
                    spaces[s.space][0 if s.space == "arena" else s.index], s.offset, s.type
                )
                for s in slots
            ]

        for number, step in enumerate(program.steps):
            try:
                if isinstance(step, KernelStep):
                    self.machine.launch(step, at(step.slots))
                elif isinstance(step, OpStep):
                    self.machine.call(step, at(step.operands), at(step.results))
                elif isinstance(step, BranchStep):
                    self._branch(step, at(step.operands), at(step.results), at(step.temporaries))
                else:
                    self._loop(step, at(step.operands), at(step.results), at(step.temporaries))
            except GraphError as error:
                raise GraphError(
                    f"program {program.name}, step {number}: {error.what}",
                    notes=tuple(str(program).splitlines()),
                    location=step.location,
                ) from error

    def _body(
        self, program: Program, inputs: list[Buffer], outputs: list[Buffer], scratch: Buffer
    ) -> None:
        aliased = {o for o, _ in program.aliases}
        fresh = [buffer for o, buffer in enumerate(outputs) if o not in aliased]
        self.machine.enter(program, fresh, scratch)
        self.run(program, inputs, outputs, scratch)

    def _branch(
        self,
        step: BranchStep,
        operands: list[Buffer],
        results: list[Buffer],
        temporaries: list[Buffer],
    ) -> None:
        number = int(self.machine.read(operands[0], step.operands[0].type).reshape(-1)[0])
        program = step.programs[chosen(number, len(step.programs))]
        self._body(program, operands[1:], results, temporaries[-1])

    def _loop(
        self,
        step: LoopStep,
        operands: list[Buffer],
        results: list[Buffer],
        temporaries: list[Buffer],
    ) -> None:
        count = len(step.carried)
        first_stack = count + len(step.updated)
        updated = results[count:first_stack]
        stacks = list(zip(results[first_stack:], step.results[first_stack:], strict=True))
        state = list(operands)
        for index, buffer in zip(step.updated, updated, strict=True):
            self.machine.copy(buffer, state[index], step.operands[index].type.nbytes)
            state[index] = buffer
        run = 0
        while self._continues(step, run, state, temporaries):
            row = step.row(run)
            for index in step.stacks:
                state[index] = self._row(operands[index], step.operands[index], row)
            target = temporaries[:count] if step.writes_spare(run) else results[:count]
            rows = [self._row(stack, slot, row) for stack, slot in stacks]
            self._body(step.body, state, [*target, *updated, *rows], temporaries[-1])
            for index, buffer in zip(step.carried, target, strict=True):
                state[index] = buffer
            run += 1
        for index, buffer in zip(step.carried, results, strict=False):
            self.machine.copy(buffer, state[index], step.operands[index].type.nbytes)

    def _continues(
        self, step: LoopStep, run: int, state: list[Buffer], temporaries: list[Buffer]
    ) -> bool:
        """Whether the body of a loop runs once more."""
        if step.cond is None or step.flag is None:
            return run != step.trips
        *_, flag, scratch = temporaries
        self._body(step.cond, state, [flag], scratch)
        return bool(self.machine.read(flag, step.flag.type).reshape(-1)[0])

    def _row(self, stack: Buffer, slot: Slot, at: int) -> Buffer:
        row = TensorType(slot.type.shape[1:], slot.type.dtype)
        return self.machine.part(stack, at * row.nbytes, row)


class _HostMachine:
    """Core's evaluators on arrays of bytes.  Where something is about to be written, there is
    poison before.
    """

    def part(self, buffer: Array, offset: int, type_: TensorType) -> Array:
        raw = buffer[offset : offset + type_.nbytes]
        if raw.size != type_.nbytes:
            raise GraphError(f"{type_} at {offset} lies outside its memory of {buffer.size} bytes")
        return raw

    def constants(self, program: Program) -> list[Array]:
        found = [_bytes_of(c.array()) for c in program.constants]
        for constant in found:
            constant.flags.writeable = False
        return found

    def launch(self, step: KernelStep, buffers: Sequence[Array]) -> None:
        arrays = [_typed(raw, s.type) for raw, s in zip(buffers, step.slots, strict=True)]
        evaluate_kernel(step.kernel, arrays)

    def call(self, step: OpStep, operands: Sequence[Array], results: Sequence[Array]) -> None:
        arrays = [_typed(raw, s.type) for raw, s in zip(operands, step.operands, strict=True)]
        made = _call(step.op, arrays, step.attrs)
        for raw in results:
            raw.fill(_POISON)
        for raw, slot, array in zip(results, step.results, made, strict=True):
            _typed(raw, slot.type)[...] = array

    def copy(self, target: Array, source: Array, nbytes: int) -> None:
        target[:nbytes] = source[:nbytes]

    def read(self, buffer: Array, type_: TensorType) -> Array:
        return _typed(buffer, type_)

    def enter(self, program: Program, outputs: Sequence[Array], scratch: Array) -> None:
        for raw in (*outputs, scratch):
            raw.fill(_POISON)


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
        ProgramRun(_HostMachine()).run(self.program, self.inputs, self.outputs, arena)
        self._check_inputs()
        typed = zip(self.outputs, self.program.outputs, strict=True)
        return [_typed(raw, type_).copy() for raw, type_ in typed]

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
