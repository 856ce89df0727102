"""Faults of loops and branches, as rewrites of their instructions or of their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bringup.dtypes import bool_, i32, u8
from bringup.graph import Graph, Instr, Literal, Value, rebuild, replay
from bringup.graph.builder import Builder
from bringup.ops.table import opdef
from bringup.passes.base import Pass, as_results, deep
from bringup.program.program import BranchStep, LoopStep, Step
from bringup_selftest.corpus import Faults, Inject, with_passes
from bringup_selftest.editing import call, in_steps, number

FAULTS = Faults("Control flow", "rt", depth=3)
_COUNTER = i32[()]
Values = tuple[Value, ...]
Rewriting = Callable[[Instr, Values], Sequence[Value] | None]


def as_rewrite(rewrite: Rewriting) -> Inject:
    """Inject a pass that rewrites instructions, at any depth."""
    name = rewrite.__name__
    run = deep(lambda graph: rebuild(graph, rewrite))
    return with_passes(Pass(name, f"loops -> {name}", run))


def _inlined(graph: Graph, arguments: Sequence[Value]) -> Values:
    return replay(graph, arguments=arguments)


def _emit(instr: Instr, operands: Sequence[Value], **attrs: object) -> Values:
    return as_results(opdef(instr)(*operands, **{**instr.attrs, **attrs}))


@FAULTS.by(as_rewrite, "CF01", "a loop runs although its condition is false at entry")
def once_too_often(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "while":
        return None
    return _emit(instr, _inlined(instr.attrs["body"], operands))


@FAULTS.by(as_rewrite, "CF02", "a loop of no trips gives its body's results")
def body_of_nothing(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "while":
        return None
    (flag,) = _inlined(instr.attrs["cond"], operands)
    once = _inlined(instr.attrs["body"], operands)
    ended = _emit(instr, operands)
    made: list[Value] = []
    for right, wrong in zip(ended, once, strict=True):
        spread = call("broadcast_in_dim", flag, shape=right.shape, dims=())
        made.append(call("select", spread, right, wrong))
    return made


@FAULTS.by(as_rewrite, "CF03", "all branches run, and the last one stays")
def last_branch(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "case":
        return None
    return _inlined(instr.attrs["branches"][-1], operands[1:])


@FAULTS.by(as_rewrite, "CF03b", "a number of no branch selects the first")
def first_for_outside(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "case":
        return None
    count = len(instr.attrs["branches"])
    index, *rest = operands
    first = number(0, index)
    below = call("compare", index, first, direction="lt")
    above = call("compare", index, number(count - 1, index), direction="gt")
    return _emit(instr, (call("select", call("or", below, above), first, index), *rest))


@FAULTS.by(as_rewrite, "CF03d", "the number of a branch is read as a byte")
def number_of_a_byte(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "case":
        return None
    index, *rest = operands
    byte = call("convert", call("convert", index, dtype=u8), dtype=index.dtype)
    return _emit(instr, (byte, *rest))


@FAULTS.by(as_rewrite, "CF05", "carried values of one type are swapped", kind="plan")
def carried_swapped(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "while":
        return None
    body = instr.attrs["body"]
    outputs = list(body.outputs)
    for i, one in enumerate(outputs):
        for j in range(i + 1, len(outputs)):
            if outputs[j].type is one.type and one.type is not _COUNTER:
                outputs[i], outputs[j] = outputs[j], outputs[i]
                return _emit(instr, operands, body=_giving(body, outputs))
    return None


@FAULTS.by(as_rewrite, "CF05b", "carried values are assigned one by one", kind="plan")
def carried_in_turn(instr: Instr, operands: Values) -> Sequence[Value] | None:
    """Carried values are assigned one after the other: the second sees the new first."""
    if instr.op.name != "while":
        return None
    body = instr.attrs["body"]
    builder = Builder()
    state = [builder.input(v.type) for v in body.inputs]
    with builder:
        for place in range(len(state)):
            state[place] = replay(body, arguments=state)[place]
    return _emit(instr, operands, body=builder.build(state, body.name))


def _giving(body: Graph, outputs: Sequence[Value]) -> Graph:
    return rebuild(Graph(body.inputs, body.instrs, outputs, body.name))


@FAULTS.by(as_rewrite, "CF07", "a scan writes step i at i - 1")
def row_before(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "scan" or instr.attrs["length"] < 2:
        return None
    made = _emit(instr, operands)
    count = instr.attrs["carries"]
    return (*made[:count], *map(_rotated, made[count:]))


def _rotated(rows: Value) -> Value:
    rest = rows.shape[1:]
    parts = []
    for first, last in ((1, rows.shape[0]), (0, 1)):
        start, limit = (first, *(0 for _ in rest)), (last, *rest)
        stride = (1,) * len(rows.shape)
        parts.append(call("slice", rows, start=start, limit=limit, stride=stride))
    return call("concatenate", *parts, dim=0)


@FAULTS.by(as_rewrite, "CF07c", "a scan runs the other way")
def other_direction(instr: Instr, operands: Values) -> Sequence[Value] | None:
    """A scan over more than one row runs backwards, or forwards."""
    if instr.op.name != "scan":
        return None
    return _emit(instr, operands, reverse=not instr.attrs["reverse"])


@FAULTS.by(as_rewrite, "CF07d", "a scan's rows see the first carry")
def carry_not_taken(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "scan" or not instr.attrs["carries"]:
        return None
    right = _emit(instr, operands)
    body, consts, count = instr.attrs["body"], instr.attrs["consts"], instr.attrs["carries"]
    kept = [*body.inputs[consts : consts + count], *body.outputs[count:]]
    wrong = _emit(instr, operands, body=_giving(body, kept))
    return (*right[:count], *wrong[count:])


@FAULTS.by(as_rewrite, "CF01b", "a loop runs once more after its condition fails")
def flag_of_before(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name != "while":
        return None
    ended = _emit(instr, operands)
    (flag,) = _inlined(instr.attrs["cond"], operands)
    once_more = _inlined(instr.attrs["body"], ended)
    made: list[Value] = []
    for right, wrong in zip(ended, once_more, strict=True):
        spread = call("broadcast_in_dim", flag, shape=right.shape, dims=())
        made.append(call("select", spread, wrong, right))
    return made


@FAULTS.by(as_rewrite, "CF08a", "an odd number of trips ends in the other place")
def other_side(instr: Instr, operands: Values) -> Sequence[Value] | None:
    """What is carried has two places, and the one of the trip before is returned after odd ones."""
    if instr.op.name != "while":
        return None
    cond, body, count = instr.attrs["cond"], instr.attrs["body"], len(operands)
    flag = number_of(False)
    state = [*operands, *operands, flag]
    builder, conditions = Builder(), Builder()
    inputs = [builder.input(v.type) for v in state]
    with builder:
        after = replay(body, arguments=inputs[:count])
        odd = call("compare", inputs[-1], number(False, inputs[-1]), direction="eq")
    turned = builder.build((*after, *inputs[:count], odd), body.name)
    given = [conditions.input(v.type) for v in state]
    with conditions:
        holds = replay(cond, arguments=given[:count])
    ended = _emit(instr, state, cond=conditions.build(holds, cond.name), body=turned)
    made: list[Value] = []
    for right, old in zip(ended[:count], ended[count:-1], strict=True):
        spread = call("broadcast_in_dim", ended[-1], shape=right.shape, dims=())
        made.append(right if right.type is _COUNTER else call("select", spread, old, right))
    return made


def number_of(value: bool) -> Value:
    """A flag."""
    return call("constant", value=Literal.splat(value, bool_[()]))


@FAULTS.by(as_rewrite, "CF07b", "an inner loop goes on with the outer one's counter")
def outer_counter(instr: Instr, operands: Values) -> Sequence[Value] | None:
    if instr.op.name not in ("while", "scan"):
        return None
    body = instr.attrs["body"]
    outer = next((v for v in body.inputs if v.type is _COUNTER), None)
    if outer is None:
        return None
    place = body.inputs.index(outer)
    builder = Builder()
    inputs = [builder.input(v.type) for v in body.inputs]

    def begun(inner: Instr, given: Values) -> Sequence[Value] | None:
        if inner.op.name != "while":
            return None
        own = next((n for n, v in enumerate(given) if v.type is _COUNTER), None)
        if own is None:
            return None
        return _emit(inner, [inputs[place] if n == own else v for n, v in enumerate(given)])

    outputs = replay(body, begun, builder=builder, arguments=inputs)
    return _emit(instr, operands, body=builder.build(outputs, body.name))


# -- steps -----------------------------------------------------------------------------------------


@FAULTS.by(in_steps, "CF03c", "branches are numbered from one")
def branches_rotated(step: Step) -> Step:
    if isinstance(step, BranchStep) and len(step.programs) > 1:
        return replace(step, programs=(*step.programs[-1:], *step.programs[:-1]))
    return step


@FAULTS.by(in_steps, "CF09", "what a loop changes is not copied first", kind="plan")
def start_not_copied(step: Step) -> Step:
    """A part that a loop changes in place begins as whatever lies in its place."""
    if not isinstance(step, LoopStep):
        return step
    operands = list(step.operands)
    for place, result in zip(step.updated, step.results[len(step.carried) :], strict=False):
        operands[place] = result
    return replace(step, operands=tuple(operands))
