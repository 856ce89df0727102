"""Faults of donated inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bringup.backend.device import Executable, Handle
from bringup.errors import DeviceError
from bringup.program.program import Program
from bringup_selftest.corpus import Faults, method, with_programs
from bringup_selftest.versions import Plan, in_plans, rewritten

FAULTS = Faults("Donation and aliasing", "plan", depth=3)


@FAULTS.by(method("compile"), "DN01", "donated memory goes to the wrong output")
def wrong_output(device: Any, inner: Any, program: Program) -> Executable:
    run = inner(program)
    pair = _pair(program)
    if pair is None:
        made: Executable = run
        return made
    first, second = pair

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        results[first], results[second] = results[second], results[first]
        return results

    return call


def _pair(program: Program) -> tuple[int, int] | None:
    """An output in donated memory, and another one of its size."""
    sizes = [type_.nbytes for type_ in program.outputs]
    for aliased, _ in program.aliases:
        for other, nbytes in enumerate(sizes):
            if other != aliased and nbytes == sizes[aliased]:
                return aliased, other
    return None


@FAULTS.by(in_plans, "DN02", "donated memory is taken though read later")
def read_later(plan: Plan) -> Program | None:
    """An output takes donated memory that a later launch still reads, or this one elsewhere."""
    program = plan.program
    taken, given = dict(program.aliases), {i for _, i in program.aliases}
    for source in plan.taken:
        place = source.slot.index
        if place not in program.donated or place in given:
            continue
        for result in plan.returned:
            late = result.made < source.last
            if late and result.slot.index not in taken and result.nbytes == source.nbytes:
                return replace(program, aliases=(*program.aliases, (result.slot.index, place)))
    return None


@FAULTS.by(in_plans, "DN02b", "the first output of its size takes it")
def moved_alias(plan: Plan) -> Program | None:
    """Donated memory is taken by the first output of its size, read later or not."""
    program = plan.program
    for source in plan.taken:
        place = source.slot.index
        if place not in program.donated:
            continue
        for result in sorted(plan.returned, key=lambda v: v.made):
            if result.nbytes == source.nbytes and result.made < source.last:
                others = tuple((o, i) for o, i in program.aliases if i != place)
                if result.slot.index not in dict(others):
                    return replace(program, aliases=(*others, (result.slot.index, place)))
    return None


@FAULTS.by(method("compile"), "DN04", "a second donation fails (xla#22604)", kind="rt")
def once(device: Any, inner: Any, program: Program) -> Executable:
    """A program takes donated memory on its first call alone (xla#22604)."""
    run = inner(program)
    calls: list[int] = []

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        calls.append(1)
        if program.donated and len(calls) > 1:
            raise DeviceError("the buffer was donated before")
        results: list[Handle] = run(inputs)
        return results

    return call


@FAULTS.by(method("compile"), "DN04b", "a second donation gives the first one's results", kind="rt")
def recomputed(device: Any, inner: Any, program: Program) -> Executable:
    run = inner(program)
    kept: list[bytes] = []

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        if not program.donated:
            return results
        first = not kept
        for handle, type_ in zip(results, program.outputs, strict=True):
            held = bytearray(type_.nbytes)
            if first:
                device.download(handle, memoryview(held))
                kept.append(bytes(held))
        if not first:
            for handle, content in zip(results, kept, strict=True):
                device.upload(handle, memoryview(content))
        return results

    return call


@FAULTS.by(method("compile"), "DN05", "an input beside a donated one changes too", kind="rt")
def twins_change(device: Any, inner: Any, program: Program) -> Executable:
    """An input of the donated one's type that was not given away changes with it."""
    run = inner(program)

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        for output, place in program.aliases:
            for other, type_ in enumerate(program.inputs):
                if other not in program.donated and type_ is program.inputs[place]:
                    device.copy(inputs[other], results[output], type_.nbytes)
        return results

    return call


@FAULTS.by(method("compile"), "DN06a", "a donated buffer is freed twice", kind="rt")
def freed_twice(device: Any, inner: Any, program: Program) -> Executable:
    """What was donated and is no output is freed once more after the call."""
    run = inner(program)
    kept = {i for _, i in program.aliases}

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        for place in sorted(program.donated - kept):
            device.free(inputs[place])
        return results

    return call


@FAULTS.by(with_programs, "DN07a", "a donated buffer is never freed", kind="rt")
def not_freed(program: Program) -> Program:
    """What was donated is neither taken nor given back."""
    return replace(program, donated=frozenset(), aliases=())


@FAULTS.by(with_programs, "DN08a", "with one input all are taken", kind="rt")
def all_donated(program: Program) -> Program:
    """If one input is donated, all are."""
    if not program.donated:
        return program
    return replace(program, donated=frozenset(range(len(program.inputs))))


@FAULTS.by(in_plans, "DN09a", "a result is also written over an input")
def taken_anyway(plan: Plan) -> Program | None:
    program = plan.program
    taken = dict(program.aliases)
    for source in plan.taken:
        for result in plan.returned:
            place, number = source.slot.index, result.slot.index
            last = source.last <= result.made and source.slot.type is result.slot.type
            if last and place not in program.donated and number not in taken:
                scratch = replace(result.slot, space="input", index=place)
                return _copied(plan, number, scratch)
    return None


def _copied(plan: Plan, output: int, place: Any) -> Program:
    """The program with an output's last write done to another place as well."""
    program = plan.program
    version = next(v for v in plan.returned if v.slot.index == output)
    twice = rewritten(plan, {version: place}).steps[version.made]
    return replace(program, steps=(*program.steps, twice))
