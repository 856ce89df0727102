"""Faults of buffer plans: values share memory that they may not share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from bringup.backend import Backend
from bringup.graph import Value
from bringup.kernel import ops as kops
from bringup.kernel.form import Fold, Kernel, Sink
from bringup.program.program import (
    ControlStep,
    KernelStep,
    LoopStep,
    Program,
    Slot,
    Step,
)
from bringup_selftest.corpus import Faults, with_method, with_programs
from bringup_selftest.editing import (
    call,
    in_steps,
    reads_of,
    with_outputs,
    writes_of,
)
from bringup_selftest.versions import (
    Plan,
    Version,
    in_plans,
    pairs,
    planned,
    rewritten,
    spread,
)

FAULTS = Faults("Buffer plan and liveness", "plan", depth=3)


def _over(plan: Plan, first: Version, second: Version) -> Program:
    """Both at one place, all else apart."""
    start = replace(first.slot, offset=0)
    return spread(plan, {first: start, second: start})


@FAULTS.by(in_plans, "BF01", "a value's interval ends one step early")
def ends_early(plan: Plan) -> Program | None:
    for first, second in pairs(plan.scratch):
        if first.made < second.made == first.last - 1:
            return _over(plan, first, second)
    return None


@FAULTS.by(in_plans, "BF02", "a returned value is reused as scratch")
def output_as_scratch(plan: Plan) -> Program | None:
    for first in plan.returned:
        for second in plan.scratch:
            if first.made < second.made and second.nbytes <= first.nbytes:
                return rewritten(plan, {second: replace(first.slot, type=second.slot.type)})
    return None


@FAULTS.by(in_plans, "BF03", "an input is scratch after its last use")
def input_as_scratch(plan: Plan) -> Program | None:
    for first in plan.taken:
        if first.slot.index in plan.program.donated:
            continue
        for second in plan.scratch:
            if first.last < second.made and second.nbytes <= first.nbytes:
                return rewritten(plan, {second: replace(first.slot, type=second.slot.type)})
    return None


@FAULTS.by(in_plans, "BF03b", "a kernel works in place on an input")
def input_in_place(plan: Plan) -> Program | None:
    """A kernel writes over an input that it reads last, though nobody gave it away."""
    for first in plan.taken:
        if first.slot.index in plan.program.donated:
            continue
        for second in plan.scratch:
            if first.last == second.made and second.slot.type is first.slot.type:
                return rewritten(plan, {second: first.slot})
    return None


@FAULTS.by(in_plans, "BF05", "a block is reused by count of elements, not bytes")
def counted_in_elements(plan: Plan) -> Program | None:
    """A block is taken for a larger value of as many elements; the neighbour loses its start."""
    for gone, larger in pairs(plan.scratch):
        alike = gone.last < larger.made and gone.count == larger.count
        if not alike or gone.nbytes >= larger.nbytes:
            continue
        behind = replace(larger.slot, offset=-(-gone.nbytes // 64) * 64)
        for other in plan.scratch:
            lives = other.made < larger.made <= other.last and other is not gone
            if lives and behind.offset < larger.nbytes:
                place = replace(larger.slot, offset=0)
                return spread(plan, {larger: place, other: replace(behind, type=other.slot.type)})
    return None


@FAULTS.by(in_plans, "BF06", "padding is forgotten: neighbours overlap")
def padding_forgotten(plan: Plan) -> Program | None:
    """Sizes are rounded down to the alignment, and neighbours overlap by less than that."""
    for first, second in pairs(plan.scratch):
        together = second.made <= first.last
        room = first.nbytes // 64 * 64
        if together and first.nbytes % 64:
            start, behind = replace(first.slot, offset=0), replace(second.slot, offset=room)
            return spread(plan, {first: start, second: behind})
    return None


@FAULTS.by(in_plans, "BF08", "in place though the operand is read again later")
def in_place_too_soon(plan: Plan) -> Program | None:
    for first, second in pairs(plan.scratch):
        again = [n for n in first.read if n > second.made]
        if second.made in first.read and again and first.nbytes == second.nbytes:
            return _over(plan, first, second)
    return None


@FAULTS.by(in_plans, "BF09a", "values that live at once share a place")
def first_tenant_stays(plan: Plan) -> Program | None:
    """Two values that live at once get one place because their types are equal."""
    for first, second in pairs(plan.scratch):
        if second.made < first.last and first.slot.type is second.slot.type:
            return _over(plan, first, second)
    return None


@FAULTS.by(in_plans, "BF09b", "two results of one launch share a place")
def results_of_one_launch(plan: Plan) -> Program | None:
    """Two results of one launch get one place, as neither is read when it is written."""
    for first, second in pairs(plan.scratch):
        if first.made == second.made and first is not second:
            return _over(plan, first, second)
    return None


@FAULTS.by(in_plans, "BF08b", "the first reader of several counts as the last")
def dead_at_branch(plan: Plan) -> Program | None:
    for first, second in pairs(plan.scratch):
        if first.read and min(first.read) < second.made < first.last:
            return _over(plan, first, second)
    return None


# -- loops -----------------------------------------------------------------------------------------


@FAULTS.by(in_steps, "BF04", "a carried value lies where the body's temporaries do")
def carried_in_scratch(step: Step) -> Step:
    if isinstance(step, LoopStep) and step.scratch.type.size:
        return replace(step, spare=_one_at(step.spare, step.scratch.offset))
    return step


def _one_at(slots: tuple[Slot, ...], offset: int) -> tuple[Slot, ...]:
    """The first array among places moved; counters stay, so that loops end."""
    arrays = [n for n, slot in enumerate(slots) if slot.type.shape and slot.type.nbytes]
    return tuple(
        replace(slot, offset=offset) if n in arrays[:1] else slot for n, slot in enumerate(slots)
    )


@FAULTS.by(in_steps, "BF04b", "a loop's temporaries lie over what it only reads")
def invariant_in_scratch(step: Step) -> Step:
    if not isinstance(step, LoopStep) or not step.scratch.type.size:
        return step
    moving = {*step.carried, *step.updated}
    for n, slot in enumerate(step.operands):
        held = slot.space == "arena" and slot.type.nbytes and n not in moving
        if held and slot.offset < step.scratch.offset:
            return replace(step, scratch=replace(step.scratch, offset=slot.offset))
    return step


@FAULTS.by(with_programs, "BF11a", "a loop's temporaries lie over what is read behind it")
def over_what_waits(program: Program) -> Program:
    """The temporaries of a loop or branch lie over a value that is read behind it."""
    for number, step in enumerate(program.steps):
        if not isinstance(step, ControlStep) or not step.scratch.type.size:
            continue
        made = {s for before in program.steps[:number] for s in writes_of(before)}
        read = {s for later in program.steps[number + 1 :] for s in reads_of(later)}
        own = {*reads_of(step), *writes_of(step)}
        for slot in program_order(made & read - own):
            if slot.space == "arena" and slot.type.nbytes and slot.offset < step.scratch.offset:
                scratch = replace(step.scratch, offset=slot.offset)
                steps = list(program.steps)
                steps[number] = replace(step, scratch=scratch)
                return replace(program, steps=tuple(steps))
    return program


def program_order(slots: Iterable[Slot]) -> list[Slot]:
    """Slots by their places."""
    return sorted(slots, key=lambda slot: (slot.space, slot.index, slot.offset))


@FAULTS.by(in_steps, "BF04c", "a loop's flag lies in a carried value")
def flag_in_state(step: Step) -> Step:
    """The flag of a loop's condition lies in the memory of a carried value."""
    if isinstance(step, LoopStep) and step.flag is not None:
        return replace(step, spare=_one_at(step.spare, step.flag.offset))
    return step


@FAULTS.by(in_steps, "BF04d", "carried values have one place where they need two")
def one_side(step: Step) -> Step:
    if isinstance(step, LoopStep) and len(step.carried) > 1:
        pairs = zip(step.spare, step.results, strict=False)
        spare = tuple(result if slot.type.shape else slot for slot, result in pairs)
        return replace(step, spare=spare)
    return step


# -- content ---------------------------------------------------------------------------------------


@FAULTS.by(in_steps, "BF07", "scratch is assumed to be zero")
def adds_to_scratch(step: Step) -> Step:
    """Sums are added to what is in scratch memory, which was zero when it was new."""
    if not isinstance(step, KernelStep) or not any(s.space == "arena" for s in writes_of(step)):
        return step
    return replace(step, kernel=_accumulating(step.kernel))


def _accumulating(kernel: Kernel) -> Kernel:
    kinds = {f.kind for stage in kernel.stages for f in stage.folds}
    if kinds != {"add"} or len(kernel.outputs) != 1:
        return kernel
    (out,) = kernel.outputs

    def added(n: int, sink: Sink, values: list[Value]) -> Value:
        value = values[n]
        if isinstance(sink, Fold) or sink.buffer != out or sink.mask:
            return value
        old = kops.load(buffer=out, dtype=kernel.buffers[out].type.dtype, index=sink.index)
        return call("add", value, old)

    stages = tuple(with_outputs(stage, added) for stage in kernel.stages)
    return replace(kernel, stages=stages)


def _plans_by_structure(backend: Backend) -> Backend:
    """Plans are kept by what a program does, whatever the sizes."""
    kept: dict[object, list[int]] = {}

    def compile_(_device: object, inner: Callable[[Program], object], program: Program) -> object:
        plan = planned(program)
        if plan is None or len(plan.scratch) < 2:
            return inner(program)
        key = tuple((s.name.partition("_")[2], len(s.slots)) for s in program.steps)
        offsets = kept.setdefault(key, [v.slot.offset for v in plan.scratch])
        if len(offsets) != len(plan.scratch):
            return inner(program)
        places = {
            v: replace(v.slot, offset=offset)
            for v, offset in zip(plan.scratch, offsets, strict=True)
        }
        return inner(rewritten(plan, places))

    return with_method("compile", compile_)(backend)


FAULTS.add("BF10", "plans are kept by structure, sizes or not", _plans_by_structure)
