"""The steps of a program as functions of the loop level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bringup.loops import Func
from bringup.loops.library import StepLoops, library_loops
from bringup.program.program import ControlStep, KernelStep, OpStep, Program


def step_loops(program: Program, step: OpStep, *, units: int = 1) -> StepLoops | None:
    """The functions of a step that the op library has, else None; see `library_loops`.

    Their names begin with the number of the step, so that no two of a program are the same.  What
    is changed where it stands is not copied.
    """
    operands, results = (tuple(s.type for s in slots) for slots in (step.operands, step.results))
    loops = library_loops(step.op.name, operands, results, step.attrs, units=units)
    if loops is None:
        return None
    funcs = loops.funcs[1:] if loops.copies and is_in_place(program, step) else loops.funcs
    number = next(n for n, other in enumerate(program.steps) if other is step)
    return replace(loops, funcs=tuple(replace(f, name=f"o{number}_{f.name}") for f in funcs))


def is_in_place(program: Program, step: OpStep) -> bool:
    """Whether the first result of a step has the memory of the first operand."""
    source, target = step.operands[0], step.results[0]
    if (source.space, target.space) == ("input", "output"):
        return (target.index, source.index) in program.aliases
    return source == target


def program_loops(program: Program, kernels: Iterator[Func]) -> Iterator[Func]:
    """The functions of all steps in order: the next of ``kernels`` for each kernel, and those of
    steps that the op library has.
    """
    for step in program.steps:
        if isinstance(step, KernelStep):
            yield next(kernels)
        elif isinstance(step, ControlStep):
            for inner in step.programs:
                yield from program_loops(inner, kernels)
        elif loops := step_loops(program, step):
            yield from loops.funcs


__all__ = ["is_in_place", "program_loops", "step_loops"]
