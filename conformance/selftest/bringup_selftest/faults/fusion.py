"""Faults of fused regions: what several instructions become when they are one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from bringup.backend import Device
from bringup.backend.device import Executable, Handle
from bringup.graph import Value
from bringup.graph.index import Bound, Expr
from bringup.kernel import ops as kops
from bringup.kernel.form import BufferDecl, Fold, Kernel, Sink, Stage, Store
from bringup.program.program import KernelStep, Program
from bringup_selftest.corpus import Faults, Inject, method, with_programs
from bringup_selftest.editing import (
    KernelEdit,
    again,
    call,
    cone,
    each_store,
    fused,
    in_fused,
    in_launches,
    is_number,
    number,
    reads_of,
    with_outputs,
    writes_of,
    written,
)
from bringup_selftest.versions import Plan, Version, in_plans, spread

FAULTS = Faults("Fusion", "fus", depth=3)


# -- order, outputs --------------------------------------------------------------------------------


@FAULTS.by(with_programs, "FU01", "a consumer runs before its producer")
def consumer_first(program: Program) -> Program:
    """A launch that reads what the one before it makes runs first: last call's value is read."""
    steps = list(program.steps)
    for n in range(len(steps) - 1):
        one, other = steps[n], steps[n + 1]
        if not (isinstance(one, KernelStep) and isinstance(other, KernelStep)):
            continue
        if fused(one.kernel) and set(writes_of(one)) & set(reads_of(other)):
            steps[n], steps[n + 1] = other, one
            return replace(program, steps=tuple(steps))
    return program


@FAULTS.by(in_launches, "FU04", "two outputs of one type are swapped")
def outputs_swapped(step: KernelStep) -> KernelStep:
    outs = written(step)
    for i, n in enumerate(outs):
        for m in outs[i + 1 :]:
            if step.slots[n].type is step.slots[m].type and fused(step.kernel):
                slots = list(step.slots)
                slots[n], slots[m] = slots[m], slots[n]
                return replace(step, slots=tuple(slots))
    return step


@FAULTS.by(in_fused, "FU05", "every output has the first one's bounds")
def first_bounds(kernel: Kernel) -> Kernel:
    sizes = sorted(kernel.buffers[i].type.size for i in kernel.outputs)

    def short(_stage: int, store: Store) -> Store:
        if store.buffer not in kernel.outputs:
            return store
        return replace(store, mask=(*store.mask, Bound(store.index, 0, sizes[0])))

    return each_store(kernel, short) if sizes[0] < sizes[-1] else kernel


@FAULTS.by(method("compile"), "FU06", "two outputs share an allocation")
def one_allocation(
    device: Device, inner: Callable[[Program], Executable], program: Program
) -> Executable:
    """Two outputs of one launch have one allocation: the second is what both hold."""
    run = inner(program)
    pair = next(filter(None, map(_twins, program.steps)), None)
    if pair is None:
        return run
    first, second = pair

    def call_(inputs: Sequence[Handle]) -> list[Handle]:
        results = run(inputs)
        device.copy(results[first], results[second], program.outputs[first].nbytes)
        return results

    return call_


def _twins(step: object) -> tuple[int, int] | None:
    if not isinstance(step, KernelStep) or not fused(step.kernel):
        return None
    outs = [s for s in writes_of(step) if s.space == "output" and s.type.nbytes]
    for i, one in enumerate(outs):
        for other in outs[i + 1 :]:
            if one.type.nbytes == other.type.nbytes:
                return one.index, other.index
    return None


@FAULTS.by(in_fused, "FU31a", "an output that is read inside is not stored")
def not_stored(kernel: Kernel) -> Kernel:
    """A value that is an output and read inside is not stored: its readers have it."""
    for stage in kernel.stages:
        stores = [s for s in stage.stores if s.buffer in kernel.outputs]
        values = [v for v, s in zip(stage.body.outputs, stage.sinks, strict=True) if s in stores]
        inside = {v for i in stage.body.instrs for v in i.operands}
        for store, value in zip(stores, values, strict=True):
            if len(stores) > 1 and value in inside:
                return each_store(kernel, partial(_dropped, store))
    return kernel


def _dropped(gone: Store, _stage: int, store: Store) -> Store:
    return replace(store, mask=(Bound(Expr(), 1, 1),)) if store == gone else store


# -- memory inside a launch ------------------------------------------------------------------------


Clash = Callable[[KernelStep, Version, Version], bool]


def _in_place_of(clashes: Clash) -> Inject:
    """Inject results in place of operands where a launch clashes with that."""
    return in_plans(lambda plan: _in_place(plan, clashes))


def _in_place(plan: Plan, clashes: Clash) -> Program | None:
    """A result written over an operand that this launch reads last; the device works in blocks."""
    for at, step in enumerate(plan.program.steps):
        if not isinstance(step, KernelStep) or not fused(step.kernel):
            continue
        for source, result in product(plan.reads[at], plan.writes[at]):
            dies = source.slot.space == "arena" and source.read[-1] == source.last == at
            if dies and source.nbytes == result.nbytes and clashes(step, source, result):
                start = replace(source.slot, offset=0)
                shared = {source: start, result: start}
                if result.slot.space == "output":
                    shared = {source: result.slot}
                return _in_blocks(spread(plan, shared), at)
    return None


def _in_blocks(program: Program, at: int) -> Program:
    """A program with one of its launches in two halves."""
    step = program.steps[at]
    assert isinstance(step, KernelStep)

    def part(low: bool) -> KernelStep:
        def within(_stage: int, store: Store) -> Store:
            decl = step.kernel.buffers[store.buffer]
            if decl.role == "tile":
                return store
            half, end = decl.type.size // 2, decl.type.size
            bound = Bound(store.index, 0, half) if low else Bound(store.index, half, end)
            return replace(store, mask=(*store.mask, bound))

        return replace(step, kernel=each_store(step.kernel, within))

    steps = (*program.steps[:at], part(True), part(False), *program.steps[at + 1 :])
    return replace(program, steps=steps)


def _accesses(step: KernelStep, source: Version, result: Version) -> tuple[list[Expr], list[Expr]]:
    """The indices at which a launch reads one slot and writes another."""
    names = [n for n, b in enumerate(step.kernel.buffers) if b.role != "tile"]
    at = dict(zip(names, step.slots, strict=True))
    stages = step.kernel.stages
    loads = [i.attrs for s in stages for i in s.loads() if i.attrs["buffer"] in at]
    read = [a["index"] for a in loads if at[a["buffer"]] == source.slot]
    stored = [s.index for g in stages for s in g.stores if at.get(s.buffer) == result.slot]
    return read, stored


@FAULTS.by(_in_place_of, "FU07", "in place over a shifted slice of the operand")
def over_a_shift(step: KernelStep, source: Version, result: Version) -> bool:
    read, stored = _accesses(step, source, result)
    return any(r.terms == w.terms and r.const != w.const for r in read for w in stored)


@FAULTS.by(_in_place_of, "FU08", "in place over a transposed operand")
def over_another_order(step: KernelStep, source: Version, result: Version) -> bool:
    read, stored = _accesses(step, source, result)
    return any(r.terms != w.terms for r in read for w in stored)


@FAULTS.by(in_launches, "FU25a", "a sum goes on from its output's old content")
def reads_its_output(step: KernelStep) -> KernelStep:
    kernel = step.kernel
    sums = any(f.kind == "add" and not f.product for s in kernel.stages for f in s.folds)
    if not sums or len(kernel.outputs) != 1 or not fused(kernel):
        return step
    (out,) = kernel.outputs
    decl = kernel.buffers[out]
    old = BufferDecl(decl.type, "in")

    def added(n: int, sink: Sink, values: list[Value]) -> Value:
        if isinstance(sink, Fold) or sink.buffer != out or sink.mask:
            return values[n]
        before = kops.load(buffer=len(kernel.buffers), dtype=decl.type.dtype, index=sink.index)
        return call("add", values[n], before)

    stages = tuple(with_outputs(stage, added) for stage in kernel.stages)
    edited = replace(kernel, buffers=(*kernel.buffers, old), stages=stages)
    return replace(step, kernel=edited, slots=(*step.slots, step.slots[written(step)[0]]))


def overwritten_operand(stage: Stage) -> Stage:
    """A value used twice is computed again for its second use, from what the first one stored."""
    stores = [n for n, sink in enumerate(stage.sinks) if isinstance(sink, Store)]

    def late(n: int, _sink: Sink, values: list[Value]) -> Value:
        first = values[stores[0]] if stores else values[n]
        made = first.producer
        if made is None or n not in stores[1:]:
            return values[n]
        old = [v for v in made.operands if v.type is first.type and not is_number(v)]
        return again(values[n], {old[-1]: first}) if old else values[n]

    return with_outputs(stage, late)


def later_operand(stage: Stage) -> Stage:
    """A load is moved behind the store that has taken its buffer's place."""
    stores = [n for n, sink in enumerate(stage.sinks) if isinstance(sink, Store)]

    def late(n: int, sink: Sink, values: list[Value]) -> Value:
        if n not in stores[1:] or not isinstance(sink, Store):
            return values[n]
        first, target = values[stores[0]], stage.sinks[stores[0]]
        assert isinstance(target, Store)
        moved = {
            v: first
            for v in _loads_under(values[n])
            if v.type is first.type and v.producer and v.producer.attrs["index"] == target.index
        }
        return again(values[n], moved)

    return with_outputs(stage, late)


def _loads_under(value: Value) -> list[Value]:
    return [i.result for i in cone(value) if i.op.name == "load" and not i.operands]


# -- stages ----------------------------------------------------------------------------------------


@FAULTS.by(in_fused, "FU09", "a fold is spread before it is complete")
def partial_sums(kernel: Kernel) -> Kernel:
    """No barrier between a fold and what is spread from it: later points see it unfinished."""
    last = len(kernel.stages) - 1
    spreads = any(s.axes and s.stores for s in kernel.stages[1:])

    def unfinished(stage: Stage) -> Stage:
        if not stage.folds or not stage.axes or stage is kernel.stages[last]:
            return stage
        axis = stage.axes[-1]
        early = Bound(Expr.of(axis), 0, max(axis.size - 1, 1))

        def cut(n: int, sink: Sink, values: list[Value]) -> Value:
            if not isinstance(sink, Fold) or axis.size < 2:
                return values[n]
            seen: Value = kops.inside(mask=(early,))
            nothing = number(sink.monoid.empty(sink.dtype.numpy), values[n])
            return call("select", seen, values[n], nothing)

        return with_outputs(stage, cut)

    if not spreads:
        return kernel
    return replace(kernel, stages=tuple(map(unfinished, kernel.stages)))


@FAULTS.by(in_fused, "FU32a", "two folds end in one register")
def one_register(kernel: Kernel) -> Kernel:

    def merged(stage: Stage) -> Stage:
        first: dict[object, int] = {}
        folds = [(n, s) for n, s in enumerate(stage.sinks) if isinstance(s, Fold)]
        for n, fold in folds:
            first.setdefault(fold, n)
        if len(first) == len(folds):
            return stage

        def same(n: int, sink: Sink, values: list[Value]) -> Value:
            return values[first[sink]] if isinstance(sink, Fold) else values[n]

        return with_outputs(stage, same)

    return replace(kernel, stages=tuple(map(merged, kernel.stages)))


@FAULTS.by(in_fused, "FU33a", "the loop behind a fold drops its tail")
def whole_vectors(kernel: Kernel) -> Kernel:

    def short(number_: int, store: Store) -> Store:
        stage = kernel.stages[number_]
        if not number_ or not stage.axes or stage.axes[-1].size <= 8:
            return store
        axis = stage.axes[-1]
        return replace(store, mask=(*store.mask, Bound(Expr.of(axis), 0, axis.size // 8 * 8)))

    return each_store(kernel, short)


@FAULTS.by(in_fused, "FU26a", "a guard is lost in one of several outputs")
def unguarded(kernel: Kernel) -> Kernel:
    if len(kernel.outputs) < 2:
        return kernel

    def open_(stage: Stage) -> Stage:
        stores = [n for n, sink in enumerate(stage.sinks) if isinstance(sink, Store)]

        def late(n: int, _sink: Sink, values: list[Value]) -> Value:
            if n not in stores[1:]:
                return values[n]
            return again(values[n], {v: number(True, v) for v in _guards(values[n])})

        return with_outputs(stage, late)

    return replace(kernel, stages=tuple(map(open_, kernel.stages)))


def _guards(value: Value) -> list[Value]:
    return [i.result for i in cone(value) if i.op.name == "inside"]


def in_stages(edit: Callable[[Stage], Stage]) -> KernelEdit:
    """An edit of every stage."""
    return lambda kernel: replace(kernel, stages=tuple(map(edit, kernel.stages)))


# -- the corpus ------------------------------------------------------------------------------------


FAULTS.by(in_fused, "FU02", "a diamond's value is recomputed late")(in_stages(overwritten_operand))

FAULTS.by(in_fused, "FU17", "a load is moved behind a store over its buffer")(
    in_stages(later_operand)
)
