"""Running a program step by step on a device: memory, order, errors."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bringup.backend.device import BufferView, Device, Handle
from bringup.backend.vendor_errors import (
    describe_error,
    error_class_for,
    is_vendor_error,
    vendor_call,
)
from bringup.dtypes import u8
from bringup.errors import BringupError, Location
from bringup.graph import Literal
from bringup.graph.printer import format_attr
from bringup.integers import round_up
from bringup.program.program import KernelStep, OpStep, Program, Step
from bringup.records import record
from bringup.types import TensorType

_ATTRS_SHOWN = 200
_submitting = threading.local()
Line = Callable[[Location | None], Location | None]

# The timeline stands above this layer, and hands its spans down.
Span = Callable[[Step, bool], contextlib.AbstractContextManager[object]]
_nothing: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
_spans: list[Span] = [lambda _step, _first: _nothing]


def observe_steps(span: Span) -> None:
    """Issue every step inside ``span(step, first)`` from now on.

    first: whether its program runs for the first time, in which some drivers compile.
    """
    _spans[0] = span


def current_step() -> Step | None:
    """The step being issued by this thread, None outside one.

    A device whose work fails after the call returned keeps it with the queued work.  The error at
    the wait gets it as `DeviceError.step`, by which core knows what is lost, and says
    ``location=step.location`` and ``step.name``.
    """
    step: Step | None = getattr(_submitting, "step", None)
    return None if step is None else located(step)


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
    line: Line | None = getattr(_submitting, "line", None)
    record: list[object] | None = getattr(_submitting, "record", None)

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
    around = getattr(_submitting, name, None)
    setattr(_submitting, name, value)
    try:
        yield
    finally:
        setattr(_submitting, name, around)


@record
class Call:
    """A step bound to what runs it on the views of its slots.

    source: of a rendered kernel.  scratch: bytes of a last view beside those of the slots.
    """

    step: Step
    run: Callable[[list[BufferView]], None]
    source: str = ""
    scratch: int = 0


class StepsExecutable:
    """A program as bound calls.  Safe to call from several threads if the device is.

    source: the rendered kernels, in the order of the program.
    """

    def __init__(self, device: Device, program: Program, calls: Sequence[Call]) -> None:
        self._device = device
        self._program = program
        self._calls = [c for c in calls if any(s.type.size for s in c.step.results)]
        self._aliases = dict(program.aliases)
        # Steps run one after the other, so their scratch is one piece behind the planned slots.
        scratch = max((c.scratch for c in self._calls), default=0)
        self._scratch_offset = round_up(program.arena_bytes, device.capabilities.alignment)
        self._arena_bytes = self._scratch_offset + scratch if scratch else program.arena_bytes
        self._constants = _upload_all(device, program.constants)
        # Exit handlers run last in, first out: before the one that closes the device.
        weakref.finalize(self, _release, device, self._constants)
        self.source = "\n\n".join(dict.fromkeys(c.source for c in calls if c.source))
        self._has_run = False

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
            for i, type_ in enumerate(program.outputs):
                if i not in self._aliases:
                    fresh.append(self._alloc(type_.nbytes, f"output {i} of type {type_}"))
                outputs.append(inputs[self._aliases[i]] if i in self._aliases else fresh[-1])
            if self._arena_bytes:
                arena.append(self._alloc(self._arena_bytes, "the arena"))
            self._issue(inputs, outputs, arena)
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

    def _issue(self, inputs: Sequence[Handle], outputs: list[Handle], arena: list[Handle]) -> None:
        spaces: dict[str, Sequence[Handle]] = {
            "input": inputs,
            "output": outputs,
            "constant": self._constants,
        }
        span, first = _spans[0], not self._has_run
        try:
            for call in self._calls:
                _submitting.step = call.step
                views = [
                    BufferView(
                        arena[0] if slot.space == "arena" else spaces[slot.space][slot.index],
                        slot.offset,
                        slot.type,
                    )
                    for slot in call.step.slots
                ]
                if call.scratch:
                    scratch = TensorType((call.scratch,), u8)
                    views.append(BufferView(arena[0], self._scratch_offset, scratch))
                with span(call.step, first):
                    call.run(views)
            self._has_run = True
        except Exception as error:
            wrapped = device_error(error, call.step)
            if isinstance(wrapped, BringupError):
                wrapped.call = wrapped.call or ("launch" if call.source else "function")
            if wrapped is error:
                raise
            raise wrapped from error
        finally:
            _submitting.step = None

    def _alloc(self, nbytes: int, purpose: str) -> Handle:
        try:
            with vendor_call(self._device, "alloc"):
                return self._device.alloc(nbytes)
        except BringupError as error:
            error.notes = (*error.notes, f"{nbytes} bytes for {purpose} of {self._program.name}")
            raise


def device_error(error: Exception, step: Step) -> Exception:
    """The error to raise for what a vendor's code raised while a step was issued.

    One of ours stays the same object and gains the user's line and the instruction.
    """
    if isinstance(error, BringupError):
        error.location = error.location or step.location
        error.instruction = error.instruction or step_text(step)
    if not is_vendor_error(error):
        return error
    return error_class_for(error)(
        f"{step.name}: {describe_error(error)}", location=step.location, instruction=step_text(step)
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
