"""Schedules as data: a step is a primitive and its arguments, with text that can be edited."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache

from bringup.errors import ParseError, ScheduleError
from bringup.lazy import LazyTable
from bringup.loops.form import Func
from bringup.records import record

Primitive = Callable[..., Func]
Argument = str | int

#: The modules of the primitives.  A schedule takes few of them, so the others are not imported.
_NAMES = {
    "folds": "overwrite rfactor",
    "iteration": "fuse parallelize peel segment serialize specialize split unroll vectorize",
    "keep": "keep",
    "order": "distribute hoist reorder sink",
    "padding": "pad",
    "pipeline": "double_buffer",
    "precompute": "narrow precompute widen",
    "replicate": "replicate",
    "tensors": "tensorize",
    "threads": "add_loop bind set_space share",
}
#: Every primitive by the name that steps have.
PRIMITIVES: LazyTable[Primitive] = LazyTable(
    {
        name: (f"bringup.loops.schedule.{module}", name)
        for name, module in sorted(
            (name, module) for module, names in _NAMES.items() for name in names.split()
        )
    }
)


@record
class Step:
    """One primitive with its arguments after the function.

    >>> step = Step.parse("split g0 g0.o g0.i 8 tail=peel")
    >>> step.name, step.args, step.options
    ('split', ('g0', 'g0.o', 'g0.i', 8), (('tail', 'peel'),))
    >>> print(step)
    split g0 g0.o g0.i 8 tail=peel
    """

    name: str
    args: tuple[Argument, ...] = ()
    options: tuple[tuple[str, Argument], ...] = ()

    @staticmethod
    def parse(text: str) -> Step:
        """The step whose ``str`` is ``text``.

        Raises ParseError for an unknown primitive and for arguments that it does not take.
        """
        name, *words = text.split()
        if name not in PRIMITIVES:
            raise ParseError(
                f"there is no primitive {name}", notes=(text,), fix=f"use {', '.join(PRIMITIVES)}"
            )
        args = tuple(_argument(word) for word in words if "=" not in word)
        pairs = (word.partition("=") for word in words if "=" in word)
        options = tuple((key, _argument(value)) for key, _, value in pairs)
        try:
            _signature(name).bind(None, *args, **dict(options))
        except TypeError as error:
            raise ParseError(
                f"{name}: {error}", notes=(text,), fix=f"write {_usage(name)}"
            ) from None
        return Step(name, args, options)

    def __str__(self) -> str:
        words = [self.name, *map(str, self.args), *(f"{k}={v}" for k, v in self.options)]
        return " ".join(words)

    def __call__(self, func: Func) -> Func:
        """The function after this step; a ScheduleError then names the step."""
        try:
            return PRIMITIVES[self.name](func, *self.args, **dict(self.options))
        except ScheduleError as error:
            error.instruction = str(self)
            raise


def _argument(word: str) -> Argument:
    return int(word) if word.removeprefix("-").isdecimal() else word


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(PRIMITIVES[name])


def _usage(name: str) -> str:
    """How a step of a primitive is written: ``split loop outer inner size [tail=guard]``."""
    words = [name]
    for parameter in list(_signature(name).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            words.append(f"{parameter.name}…")
        elif parameter.default is not inspect.Parameter.empty:
            words.append(f"[{parameter.name}={parameter.default}]")
        else:
            words.append(parameter.name)
    return " ".join(words)


@record
class Schedule:
    """Steps in order.  The text has one step a line, and may have blank lines and ``#`` comments.

    >>> schedule = Schedule.parse('''
    ... split i i.o i.i 8   # one vector
    ... vectorize i.i
    ... ''')
    >>> print(schedule)
    split i i.o i.i 8
    vectorize i.i
    """

    steps: tuple[Step, ...] = ()

    @staticmethod
    def parse(text: str) -> Schedule:
        """The schedule that a text says.

        Raises ParseError naming the line.
        """
        steps: list[Step] = []
        for number, line in enumerate(text.split("\n"), 1):
            words = line.partition("#")[0].strip()
            if not words:
                continue
            try:
                steps.append(Step.parse(words))
            except ParseError as error:
                raise ParseError(
                    f"line {number}: {error.what}", notes=error.notes, fix=error.fix
                ) from None
        return Schedule(tuple(steps))

    def __add__(self, other: Schedule) -> Schedule:
        return Schedule(self.steps + other.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def apply(func: Func, schedule: Schedule | Iterable[Step]) -> Func:
    r"""The function after every step.

    Raises ScheduleError naming the step that failed, the loops there are, and the fix.

    >>> from bringup.loops.text import parse_func
    >>> func = parse_func('''func f(y: out f32[16]) {
    ...   for i in 16 {
    ...     %0: f32 = 2.0
    ...     y[i] = %0
    ...   }
    ... }''')
    >>> print(apply(func, Schedule.parse("split i i.o i.i 8\nvectorize i.i")))
    func f(y: out f32[16]) {
      for i.o in 2 {
        for i.i in 8 vector {
          %0: f32 = 2.0
          y[i.i + 8*i.o] = %0
        }
      }
    }
    """
    for step in schedule.steps if isinstance(schedule, Schedule) else schedule:
        func = step(func)
    return func


@record
class Scheduled:
    """A function and the steps by which a machine runs it.

    before: the loops that the steps are about.  steps: what is done to them.
    after: the loops that are rendered.
    """

    before: Func
    steps: Schedule
    after: Func

    @staticmethod
    def of(func: Func, steps: Schedule) -> Scheduled:
        """A function and what the steps make of it.  Raises ScheduleError."""
        return Scheduled(func, steps, apply(func, steps))

    def __str__(self) -> str:
        """The steps, then the loops that they make."""
        return "\n\n".join(filter(None, [str(self.steps), str(self.after)]))


__all__ = ["PRIMITIVES", "Schedule", "Scheduled", "Step", "apply"]
