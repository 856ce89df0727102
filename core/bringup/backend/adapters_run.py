"""Running a program step by step on a device: memory, order, errors."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bringup.backend.device import BufferView, Device, Handle
from bringup.backend.vendor_errors import (
    describe_error,
    error_class_for,
    is_vendor_error,
    vendor_call,
)
from bringup.errors import BringupError, Location
from bringup.graph import Literal
from bringup.graph.printer import format_attr
from bringup.program.program import KernelStep, OpStep, Program, Slot, Step
from bringup.records import record

_ATTRS_SHOWN = 200
Line = Callable[[Location | None], Location | None]


class _Submitting(threading.local):
    """What a thread is issuing.

    issue: the `locator` of the run, and the step.  line, record: what that one does with steps.
    """

    issue: tuple[Callable[[Step], Step], Step] | None = None
    line: Line | None = None
    record: list[object] | None = None


_submitting = _Submitting()

# The timeline stands above this layer, and hands its spans down.
Span = Callable[[Sequence[Step], bool], contextlib.AbstractContextManager[object] | None]
_spans: list[Span] = [lambda _steps, _first: None]


def observe_steps(span: Span) -> None:
    """Issue every launch inside ``span(steps, first)`` from now on, where that is not None.

    steps: what it runs, mostly one.  first: whether their program runs for the first time, in which
    some drivers compile.
    """
    _spans[0] = span


def current_step() -> Step | None:
    """The step being issued by this thread, None outside one.

    A device whose work fails after the call returned keeps it with the queued work.  The error at
    the wait gets it as `DeviceError.step`, by which core knows what is lost, and says
    ``location=step.location`` and ``step.name``.
    """
    return step_locator()()


def step_locator() -> Callable[[], Step | None]:
    """`current_step`, to be asked for at any later time, at a tenth of its price.

    For devices that need it only of work that fails.
    """
    if _submitting.issue is None:
        return _no_step
    locate, step = _submitting.issue
    return partial(locate, step)


def _no_step() -> None:
    return None


def located(step: Step) -> Step:
    """A step of the program being run, at this run's own line.

    One program runs for equal code at several lines: ``step.location`` is where it was seen first.
    For devices that take whole programs; `current_step` has it done.
    """
    return locator()(step)


def locator() -> Callable[[Step], Step]:
    """`located` for the run that this thread issues now, to be called at any later time.

    For devices that need it only of work that fails.
    """
    line, record = _submitting.line, _submitting.record

    def found(step: Step) -> Step:
        if line is not None or record is not None:
            # A new object even at the same line: it tells this run from others of the program.
            step = replace(step, location=step.location if line is None else line(step.location))
        if record is not None:
            record.append(step)
        return step

    return found


def recording_steps(record: list[object]) -> contextlib.AbstractContextManager[None]:
    """Append to ``record`` the steps that devices ask for in this thread meanwhile."""
    return _meanwhile("record", record)


def running_at(line: Line) -> contextlib.AbstractContextManager[None]:
    """Run programs of this thread at other lines: ``line`` maps those they were compiled with."""
    return _meanwhile("line", line)


@contextlib.contextmanager
def _meanwhile(name: str, value: object) -> Iterator[None]:
    around = getattr(_submitting, name)
    setattr(_submitting, name, value)
    try:
        yield
    finally:
        setattr(_submitting, name, around)


@record
class Call:
    """A launch or a call of a function, bound to what it takes.

    steps: those of the program that it runs, in order; mostly one, and a step may have several.
    run: takes a view of each slot; what is no slot of the program lies behind its arena.
    source: of a rendered kernel.  code: what has to last as long as the call.
    text: gives what is rendered for this call alone, in a program that launches some functions
    together, which the device's backend shows apart.
    """

    steps: Sequence[Step]
    run: Callable[[list[BufferView]], object]
    slots: Sequence[Slot]
    source: str = ""
    code: object = None
    text: Callable[[], str] | None = None

    def placed(self, place: Callable[[Slot], Slot]) -> Call:
        """The call in a run of a loop.  place: gives a slot of the program for one of the body."""
        return replace(self, slots=tuple(map(place, self.slots)))


class StepsExecutable:
    """A program as bound calls.  Safe to call from several threads if the device is.

    source: the rendered kernels, in the order of the program.
    """

    def __init__(self, device: Device, program: Program, calls: Sequence[Call]) -> None:
        self._device = device
        self._program = program
        self._aliases = dict(program.aliases)
        self._output_bytes = [type_.nbytes for type_ in program.outputs]
        self._constants = _upload_all(device, program.constants)
        # Exit handlers run last in, first out: before the one that closes the device.
        weakref.finalize(self, _release, device, self._constants)
        self.source = "\n\n".join(dict.fromkeys(c.source for c in calls if c.source))
        self._texts = {id(call.code): call.text for call in calls if call.text is not None}
        self._has_run = False
        # All that a launch needs but the handles of a run, and where those stand in its list.
        inputs, outputs = len(program.inputs), len(program.outputs)
        first = {"arena": 0, "input": 1, "output": 1 + inputs, "constant": 1 + inputs + outputs}
        calls = [c for c in calls if any(s.type.size for step in c.steps for s in step.results)]
        slots = dict.fromkeys(slot for call in calls for slot in call.slots)
        numbers = {slot: number for number, slot in enumerate(slots)}
        self._windows = [(first[s.space] + s.index, s.offset, s.type) for s in slots]
        self._calls = [(call, [numbers[slot] for slot in call.slots]) for call in calls]
        ends = (slot.offset + slot.type.nbytes for slot in slots if slot.space == "arena")
        self._arena_bytes = max(program.arena_bytes, *ends, 0)

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Issue every step; see `Executable`.

        On an error nothing stays allocated, donated inputs are gone, and the device stays usable.
        """
        program, device = self._program, self._device
        assert len(inputs) == len(program.inputs)
        donated = {i: inputs[i] for i in program.donated}
        arena: list[Handle] = []
        outputs: list[Handle] = []
        fresh: list[Handle] = []
        try:
            for i, nbytes in enumerate(self._output_bytes):
                if i not in self._aliases:
                    fresh.append(self._alloc(nbytes, i))
                outputs.append(inputs[self._aliases[i]] if i in self._aliases else fresh[-1])
            if self._arena_bytes:
                arena.append(self._alloc(self._arena_bytes))
            self._issue([*(arena or [None]), *inputs, *outputs, *self._constants])
        except BaseException:
            # The first error is the one to report; a lost device fails here once more.
            _release(device, [*arena, *fresh, *donated.values()])
            raise
        for i in self._aliases.values():
            donated.pop(i, None)
        try:
            if not device.refcounted_handles:
                with vendor_call(device, "free"):
                    for handle in (*arena, *donated.values()):
                        device.free(handle)
        except BaseException:
            _release(device, fresh)
            raise
        return outputs

    def launched(self) -> str:
        """What is rendered for each launch alone, equal code once; nothing where that is what the
        device's backend shows.
        """
        with vendor_call(self._device, "render"):
            return "\n\n".join(text() for text in self._texts.values())

    def _issue(self, handles: Sequence[Handle]) -> None:
        """Launch everything.

        handles: the arena, inputs, outputs and constants.  All else is known since the program was
        compiled, because what is done here is done for each launch.
        """
        span, locate, first = _spans[0], locator(), not self._has_run
        views = [BufferView(handles[n], offset, type_) for n, offset, type_ in self._windows]
        submitting, call = _submitting, None
        try:
            for call, numbers in self._calls:
                submitting.issue = (locate, call.steps[0])
                taken = [views[n] for n in numbers]
                observed = span(call.steps, first)
                if observed is None:
                    call.run(taken)
                else:
                    with observed:
                        call.run(taken)
            self._has_run = True
        except Exception as error:
            assert call is not None
            wrapped = device_error(error, *call.steps)
            if isinstance(wrapped, BringupError):
                wrapped.call = wrapped.call or ("launch" if call.source else "function")
            if wrapped is error:
                raise
            raise wrapped from error
        finally:
            _submitting.issue = None

    def _alloc(self, nbytes: int, output: int = -1) -> Handle:
        """output: its number; negative for the arena."""
        try:
            with vendor_call(self._device, "alloc"):
                return self._device.alloc(nbytes)
        except BringupError as error:
            purpose = "the arena"
            if output >= 0:
                purpose = f"output {output} of type {self._program.outputs[output]}"
            note = f"{nbytes} bytes for {purpose} of {self._program.name}"
            error.notes = (*error.notes, note)
            raise


def device_error(error: Exception, step: Step, *others: Step) -> Exception:
    """The error to raise for what a vendor's code raised while a step was issued.

    One of ours stays the same object and gains the user's line and the instruction.
    others: steps that were launched together with it.
    """
    instruction = step_text(step)
    if others:
        instruction += f" and {len(others)} more in one launch"
    if isinstance(error, BringupError):
        error.location = error.location or step.location
        error.instruction = error.instruction or instruction
    if not is_vendor_error(error):
        return error
    return error_class_for(error)(
        f"{step.name}: {describe_error(error)}", location=step.location, instruction=instruction
    )


def step_text(step: Step) -> str:
    """A step in one line: ``reduce(f32[4,8]) {kind="add", dims=(1,)} -> f32[4]``."""
    if isinstance(step, KernelStep):
        return f"kernel {step.name}({', '.join(str(s.type) for s in step.slots)})"
    operands = ", ".join(str(s.type) for s in step.operands)
    results = ", ".join(str(s.type) for s in step.results)
    held = step.attrs if isinstance(step, OpStep) else {}
    attrs = ", ".join(f"{name}={format_attr(value)}" for name, value in held.items())
    if len(attrs) > _ATTRS_SHOWN:
        attrs = attrs[:_ATTRS_SHOWN] + "…"
    return f"{step.name}({operands}){f' {{{attrs}}}' if attrs else ''} -> {results}"


def dense_bytes(literal: Literal) -> memoryview:
    """All elements of a literal, as bytes."""
    return np.ascontiguousarray(literal.array()).reshape(-1).view(np.uint8).data


def _upload_all(device: Device, literals: Iterable[Literal]) -> list[Handle]:
    handles: list[Handle] = []
    try:
        for literal in literals:
            with vendor_call(device, "alloc"):
                handles.append(device.alloc(literal.type.nbytes))
            with vendor_call(device, "upload"):
                device.upload(handles[-1], dense_bytes(literal))
    except BaseException:
        _release(device, handles)
        raise
    return handles


def _release(device: Device, handles: Iterable[Handle]) -> None:
    if device.refcounted_handles:
        return
    for handle in handles:
        with contextlib.suppress(Exception):
            device.free(handle)
