"""Faults that begin where small sizes and small counts end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bringup.dtypes import i32
from bringup.graph import Builder, Instr, Literal, Value, rebuild, replay
from bringup.ops.table import lookup
from bringup.passes.base import Pass, as_results, deep
from bringup.program.program import (
    BranchStep,
    KernelStep,
    LoopStep,
    OpStep,
    Program,
    Slot,
    Step,
)
from bringup_selftest.corpus import (
    Array,
    Faults,
    OpCall,
    with_passes,
    with_programs,
)
from bringup_selftest.editing import in_steps

FAULTS = Faults("Far sizes and counts", "rt", depth=3)
_COUNTER = i32[()]
#: Elements of a line that one block holds, and that one chunk of a running fold does.
_LINE, _CHUNK = 2048, 1 << 15
#: Entries of tables: parts of a join, branches, rows, inputs, outputs, launches, trips, dimensions.
_PARTS, _BRANCHES, _ROWS, _INPUTS, _OUTPUTS, _LAUNCHES, _TRIPS = 16, 16, 32, 64, 32, 128, 100
_RANK = 8
_POSITIONS = ("argmax", "argmin")
_SOFT = ("softmax", "log_softmax", "layer_norm", "rms_norm")


# -- sizes -----------------------------------------------------------------------------------------


def _beginning(call: OpCall, dims: Sequence[int]) -> Array | None:
    """The one operand with what lies past a block of one of the dimensions as at its end."""
    x = call.operands[0]
    for d in dims:
        if x.shape[d] > _LINE:
            return np.take(x, np.minimum(np.arange(x.shape[d]), _LINE - 1), axis=d)
    return None


@FAULTS.op("FA04", "means end with a block", ("mean", "var"))
def mean_of_a_block(call: OpCall) -> Array | None:
    x = _beginning(call, call.attrs["dims"])
    return None if x is None else call.reference(x)


@FAULTS.op("FA05", "long rows are scaled by their beginning", _SOFT)
def scale_of_a_block(call: OpCall) -> Array | None:
    x = _beginning(call, call.attrs["dims"])
    if x is None:
        return None
    wrong = call.reference(x, *call.operands[1:])
    return np.asarray(np.where(np.isfinite(call.right), wrong, call.right))


@FAULTS.op("FA06", "running folds begin anew at 32,768", "cumulative")
def chunk_alone(call: OpCall) -> Array | None:
    (x,), d = call.operands, call.attrs["dim"]
    if x.shape[d] <= _CHUNK or call.attrs["reverse"]:
        return None
    cuts = range(_CHUNK, x.shape[d], _CHUNK)
    return np.concatenate([call.reference(part) for part in np.split(x, cuts, axis=d)], axis=d)


@FAULTS.op("FA07", "stretches of 4,096 are not merged", "sort")
def stretches_apart(call: OpCall) -> Array | None:
    x, d = call.operands[0], call.attrs["dim"]
    if len(call.operands) > 1 or x.shape[d] <= 4096:
        return None
    parts = np.split(x, range(4096, x.shape[d], 4096), axis=d)
    return np.concatenate([call.reference(part) for part in parts], axis=d)


@FAULTS.op("FA08", "rows of a factor past 160 are old", "cholesky")
def rows_left(call: OpCall) -> Array | None:
    if call.right.shape[-1] <= 160:
        return None
    wrong = call.right
    wrong[..., 160:, :] = call.operands[0][..., 160:, :]
    return wrong


@FAULTS.op("FA09", "the end of a spectrum is wrong", ("eigh", "svd"))
def last_of_many(call: OpCall) -> Array | None:
    """Of more than 12 numbers of a spectrum the last is the one before it."""
    if call.right.shape[-1] <= 12:
        return None
    wrong = call.right
    wrong[..., -1] = wrong[..., -2] + 1
    return wrong


# -- counts ----------------------------------------------------------------------------------------


@FAULTS.op("FA10", "a join has 16 parts", "concatenate")
def parts_repeated(call: OpCall) -> Array | None:
    """A join has 16 parts: those after them are its last elements again."""
    if len(call.operands) <= _PARTS:
        return None
    d = call.attrs["dim"]
    done = sum(x.shape[d] for x in call.operands[:_PARTS])
    places = np.minimum(np.arange(call.right.shape[d]), done - 1)
    return np.asarray(np.take(call.right, places, axis=d))


@FAULTS.by(in_steps, "FA12", "a choice has 16 branches")
def branches_end(step: Step) -> Step:
    """There are 16 branches: numbers past them select the last."""
    if not isinstance(step, BranchStep):
        return step
    return replace(step, programs=step.programs[:_BRANCHES])


@FAULTS.by(in_steps, "FA13", "a scan has 32 rows")
def rows_end(step: Step) -> Step:
    if not isinstance(step, LoopStep) or step.cond is not None or step.trips is None:
        return step
    return replace(step, trips=min(step.trips, _ROWS))


def trips_end(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
    """A loop ends after a hundred trips, whatever its condition says."""
    if instr.op.name != "while":
        return None
    types = [v.type for v in operands]

    def number(value: int) -> Value:
        found: Value = lookup("constant")(value=Literal.splat(value, _COUNTER))
        return found

    with Builder() as cond:
        state, at = [cond.input(t) for t in types], cond.input(_COUNTER)
        (flag,) = replay(instr.attrs["cond"], arguments=state)
        more = lookup("compare")(at, number(_TRIPS), direction="lt")
        wanted = cond.build([lookup("and")(flag, more)], "cond")
    with Builder() as body:
        state, at = [body.input(t) for t in types], body.input(_COUNTER)
        after = replay(instr.attrs["body"], arguments=state)
        done = body.build([*after, lookup("add")(at, number(1))], "body")
    ended = lookup("while")(*operands, number(0), cond=wanted, body=done)
    return as_results(ended)[:-1]


def _in_table(space: str, most: int, program: Program) -> Program:
    """Arguments past the end of a table are its last one, where they have its type."""

    def placed(slot: Slot) -> Slot:
        types = program.inputs if space == "input" else program.outputs
        beyond = slot.space == space and slot.index >= most
        if not beyond or types[most - 1] != slot.type:
            return slot
        return replace(slot, index=most - 1)

    def edit(step: Step) -> Step:
        if isinstance(step, KernelStep):
            return replace(step, slots=tuple(map(placed, step.slots)))
        if isinstance(step, OpStep):
            operands, results = (tuple(map(placed, x)) for x in (step.operands, step.results))
            return replace(step, operands=operands, results=results)
        return step

    steps = tuple(map(edit, program.steps))
    return program if steps == program.steps else replace(program, steps=steps)


@FAULTS.by(with_programs, "FA15", "a program has 64 inputs")
def inputs_end(program: Program) -> Program:
    return _in_table("input", _INPUTS, program)


@FAULTS.by(with_programs, "FA16", "a program has 32 outputs")
def outputs_end(program: Program) -> Program:
    return _in_table("output", _OUTPUTS, program)


@FAULTS.by(with_programs, "FA17", "a program has 128 steps")
def launches_end(program: Program) -> Program:
    """What comes after 128 launches is not done."""
    if len(program.steps) <= _LAUNCHES:
        return program
    return replace(program, steps=program.steps[:_LAUNCHES])


_ENDLESS = Pass("trips", "while -> a hundred trips", deep(lambda g: rebuild(g, trips_end)))


@FAULTS.op("FA03", "indices have 16 bits", "gather")
def short_indices(call: OpCall) -> Array | None:
    x, indices = call.operands
    if x.ndim != 1 or indices.dtype.itemsize < 4:
        return None
    return call.reference(x, np.where(indices > 0xFFFF, indices & 0xFFFF, indices))


FAULTS.op("FA01", "positions are bytes", _POSITIONS)(lambda c: c.right & 255)
FAULTS.op("FA02", "positions have 16 bits", _POSITIONS)(lambda c: c.right & 65535)
FAULTS.op("FA11", "a transpose has 8 dimensions", "transpose")(
    lambda c: None if c.x.ndim <= _RANK else np.reshape(c.x, c.right.shape)
)
FAULTS.add("FA14", "a loop makes 100 trips", with_passes(_ENDLESS))
