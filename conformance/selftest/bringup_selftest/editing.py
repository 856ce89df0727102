"""Edits of kernels and programs that faults are made of: bodies rebuilt, sinks and slots changed.

What is edited is what the device is given to compile: core has fused and planned rightly, and the
device makes something else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from bringup.dtypes import bool_, i32
from bringup.graph import Builder, Instr, Literal, Value, current_builder, rebuild, replay
from bringup.graph.builder import Rewrite
from bringup.kernel.form import Fold, Kernel, Sink, Stage, Store
from bringup.ops.table import lookup
from bringup.program.program import (
    ControlStep,
    KernelStep,
    OpStep,
    Program,
    Slot,
    Step,
)
from bringup_selftest.corpus import Inject, with_programs

KernelEdit = Callable[[Kernel], Kernel]
StepEdit = Callable[[KernelStep], KernelStep]


def fused(kernel: Kernel) -> bool:
    """Whether a kernel holds more than one instruction of the graph."""
    return len(kernel.source) > 1


def in_fused(edit: KernelEdit) -> Inject:
    """Edit the kernels that fusion made of several instructions."""

    def change(step: KernelStep) -> KernelStep:
        return replace(step, kernel=edit(step.kernel)) if fused(step.kernel) else step

    return in_launches(change)


def in_bodies(make: Callable[[Stage], Rewrite]) -> Inject:
    """Rewrite the bodies of fused kernels; ``make`` gives the rewrite of a stage."""
    return in_fused(lambda kernel: each_body(kernel, make))


def in_launches(edit: StepEdit) -> Inject:
    """Edit every launch, those of loops and branches among them.

    What makes counters and flags stays right: a loop without an end is no result of arithmetic.
    """

    def change(step: Step) -> Step:
        return edit(step) if isinstance(step, KernelStep) and not _steers(step.kernel) else step

    return with_programs(lambda program: each_step(program, change))


def _steers(kernel: Kernel) -> bool:
    """Whether a loop may depend on what a kernel writes."""
    return any(kernel.buffers[i].type in (i32[()], bool_[()]) for i in kernel.outputs)


def in_steps(edit: Callable[[Step], Step]) -> Inject:
    """Edit every step, those of loops and branches among them."""
    return with_programs(lambda program: each_step(program, edit))


def each_step(program: Program, edit: Callable[[Step], Step]) -> Program:
    """A program with every step edited, inside out."""

    def within(step: Step) -> Step:
        if isinstance(step, ControlStep):
            programs = tuple(each_step(inner, edit) for inner in step.programs)
            step = replace(step, programs=programs)
        return edit(step)

    return replace(program, steps=tuple(map(within, program.steps)))


def each_body(kernel: Kernel, make: Callable[[Stage], Rewrite]) -> Kernel:
    """A kernel with every stage's body rewritten."""
    stages = tuple(replace(s, body=rebuild(s.body, make(s))) for s in kernel.stages)
    return replace(kernel, stages=stages)


def each_sink(kernel: Kernel, edit: Callable[[int, Sink], Sink]) -> Kernel:
    """A kernel with its sinks edited; the number is that of the stage."""
    stages = tuple(
        replace(stage, sinks=tuple(edit(n, sink) for sink in stage.sinks))
        for n, stage in enumerate(kernel.stages)
    )
    return replace(kernel, stages=stages)


def each_store(kernel: Kernel, edit: Callable[[int, Store], Store]) -> Kernel:
    """As `each_sink`, for stores alone."""
    return each_sink(kernel, lambda n, s: edit(n, s) if isinstance(s, Store) else s)


def with_outputs(stage: Stage, edit: Callable[[int, Sink, list[Value]], Value]) -> Stage:
    """A stage whose sinks take other values: ``edit(number, sink, values)`` makes one in the body,
    ``values`` being all that the body gave before.
    """
    builder = Builder()
    outputs = list(replay(stage.body, builder=builder))
    with builder:
        made = [edit(n, sink, outputs) for n, sink in enumerate(stage.sinks)]
    return replace(stage, body=builder.build(made, stage.body.name))


def again(value: Value, table: Mapping[Value, Value]) -> Value:
    """A value computed once more in the active builder, with others in the place of some."""
    done: dict[Value, Value] = dict(table)
    for instr in cone(value):
        if all(result in done for result in instr.results):
            continue
        operands = [done.get(v, v) for v in instr.operands]
        if all(a is b for a, b in zip(operands, instr.operands, strict=True)):
            continue
        made = current_builder().emit(instr.op, operands, instr.attrs)
        done.update(zip(instr.results, made, strict=True))
    return done.get(value, value)


def cone(value: Value) -> list[Instr]:
    """The instructions that a value is made of, operands first."""
    found: dict[Instr, None] = {}
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        each, ready = stack.pop()
        made = each.producer
        if made is None or made in found:
            continue
        if ready:
            found[made] = None
            continue
        stack.append((each, True))
        stack.extend((operand, False) for operand in made.operands)
    return list(found)


def call(name: str, *operands: Value, **attrs: Any) -> Value:
    """One instruction of the table, in the active builder."""
    made: Value = lookup(name)(*operands, **attrs)
    return made


def number(value: object, like: Value) -> Value:
    """A constant of the type of a value."""
    return call("constant", value=Literal.splat(value, like.type))


def is_made_by(value: Value, *names: str) -> bool:
    """Whether an instruction of one of these ops made a value."""
    return value.producer is not None and value.producer.op.name in names


def is_number(value: Value) -> bool:
    """Whether a value is a constant."""
    return value.literal is not None


def in_order(stage: Stage) -> Iterator[tuple[Value, Sink]]:
    """Each output of a body with its sink."""
    return zip(stage.body.outputs, stage.sinks, strict=True)


def is_fold(sink: Sink) -> bool:
    """Whether a sink reduces."""
    return isinstance(sink, Fold)


def written(step: KernelStep) -> list[int]:
    """Positions among the slots of a launch that it writes."""
    declared = [b for b in step.kernel.buffers if b.role != "tile"]
    return [n for n, b in enumerate(declared) if b.role == "out"]


def reads_of(step: Step) -> tuple[Slot, ...]:
    """The slots that a step reads."""
    if isinstance(step, KernelStep):
        mine = written(step)
        return tuple(s for n, s in enumerate(step.slots) if n not in mine)
    return step.operands


def writes_of(step: Step) -> tuple[Slot, ...]:
    """The slots that a step writes, scratch aside."""
    if isinstance(step, KernelStep):
        return tuple(step.slots[n] for n in written(step))
    return step.results


__all__ = [
    "KernelEdit", "OpStep", "StepEdit", "again", "call", "cone", "each_body", "each_sink",
    "each_step", "each_store", "fused", "in_bodies", "in_fused", "in_launches", "in_order",
    "is_fold", "is_made_by", "is_number", "number", "reads_of", "with_outputs",
    "writes_of", "written",
]  # fmt: skip
