"""The steps of a program as functions of the loop level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bringup.loops import Func
from bringup.loops.library import StepLoops, library_loops
from bringup.program.in_place import is_one_memory
from bringup.program.program import ControlStep, KernelStep, OpStep, Program
from bringup.target import UNKNOWN, Target


def step_loops(
    step: OpStep, prefix: str, target: Target, *, in_place: bool = False
) -> StepLoops | None:
    """The functions of a step that the op library has, else None; see `library_loops`.

    prefix: of their names.
    in_place: the first result has the memory of the first operand, so that it is not copied.
    """
    operands, results = (tuple(s.type for s in slots) for slots in (step.operands, step.results))
    loops = library_loops(step.op.name, operands, results, step.attrs, target)
    if loops is None:
        return None
    skipped = int(loops.copies and in_place)
    funcs = loops.funcs[skipped:]
    named = {func: replace(func, name=prefix + func.name) for func in dict.fromkeys(funcs)}
    funcs = tuple(named[func] for func in funcs)
    return replace(loops, funcs=funcs, given=loops.arguments[skipped:])


def numbered_loops(program: Program, number: int, target: Target = UNKNOWN) -> StepLoops | None:
    """Those of a step of a program, None if it is no step of the op library.

    No two functions of a program have one name.
    """
    step = program.steps[number]
    if not isinstance(step, OpStep):
        return None
    in_place = is_in_place(program, step)
    return step_loops(step, f"o{number}_", target, in_place=in_place)


def is_in_place(program: Program, step: OpStep) -> bool:
    """Whether the first result of a step has the memory of the first operand."""
    return is_one_memory(step.operands[0], step.results[0], dict(program.aliases))


def program_loops(
    program: Program,
    kernels: Iterator[Func],
    target: Target = UNKNOWN,
    scheduled: Callable[[Func], Func] = lambda func: func,
) -> Iterator[Func]:
    """The functions of all steps in order: the next of ``kernels`` for each kernel, and those of
    steps that the op library has.

    scheduled: changes each of the library's.
    """
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelStep):
            yield next(kernels)
        elif isinstance(step, ControlStep):
            for inner in step.programs:
                yield from program_loops(inner, kernels, target, scheduled)
        elif loops := numbered_loops(program, number, target):
            yield from map(scheduled, loops.funcs)


__all__ = ["is_in_place", "numbered_loops", "program_loops", "step_loops"]
