"""Devices round the device under test, made through the public seam: to look at what passes, and to
let things go wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from bringup.backend import BufferView, OpsDevice, RenderingDevice, current_step
from bringup.backend.adapters import OpFunction
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Device, Executable, Handle
from bringup.errors import CompileError, DeviceError
from bringup.program.program import KernelStep, Program
from bringup.types import TensorType
from bringup_conformance.generate.choices import Choices
from bringup_conformance.oracle.numbers import Array


class ProxyDevice(Device):
    """A device that does what another one does."""

    def __init__(self, inner: Device, capabilities: Capabilities | None = None) -> None:
        self.inner = inner
        self.capabilities = capabilities or inner.capabilities
        self.refcounted_handles = inner.refcounted_handles

    def alloc(self, nbytes: int) -> Handle:
        """As the inner device."""
        return self.inner.alloc(nbytes)

    def free(self, handle: Handle) -> None:
        """As the inner device."""
        self.inner.free(handle)

    def upload(self, handle: Handle, data: memoryview) -> None:
        """As the inner device."""
        self.inner.upload(handle, data)

    def download(self, handle: Handle, out: memoryview) -> None:
        """As the inner device."""
        self.inner.download(handle, out)

    def copy(self, target: Handle, source: Handle, nbytes: int) -> None:
        """As the inner device."""
        self.inner.copy(target, source, nbytes)

    def synchronize(self) -> None:
        """As the inner device."""
        self.inner.synchronize()

    def compile(self, program: Program) -> Executable:
        """As the inner device."""
        return self.inner.compile(program)

    def host_view(self, handle: Handle, type_: TensorType) -> Array | None:
        """As the inner device."""
        return self.inner.host_view(handle, type_)


class CountingDevice(ProxyDevice):
    """Counts the programs it is given to compile."""

    def __init__(self, inner: Device) -> None:
        super().__init__(inner)
        self.compiled = 0

    def compile(self, program: Program) -> Executable:
        """Counted."""
        self.compiled += 1
        return super().compile(program)


class RefusingDevice(ProxyDevice):
    """Refuses to compile as long as it is told to, after the inner device has done it."""

    def __init__(self, inner: Device) -> None:
        super().__init__(inner)
        self.refuses = False

    def compile(self, program: Program) -> Executable:
        """Raises CompileError."""
        executable = super().compile(program)
        if self.refuses:
            raise CompileError("refused on demand", log="line 1: no")
        return executable


class FailingDevice(ProxyDevice):
    """Runs programs and then fails, as long as it is told to: at once, or, on demand, late: at the
    next wait.
    """

    def __init__(self, inner: Device, *, late: bool) -> None:
        super().__init__(inner, replace(inner.capabilities, asynchronous=late))
        self.late = late
        self.fails = False
        self.pending: list[DeviceError] = []

    def compile(self, program: Program) -> Executable:
        """An executable that fails if it is called when it shall."""
        executable = super().compile(program)

        def call(inputs: Sequence[Handle]) -> list[Handle]:
            # The inner device may leave the step to the caller's thread alone.
            results = executable(inputs)
            if not self.fails:
                return results
            error = DeviceError("failed on demand")
            if self.late:
                error.step = _step_of(program)
                self.pending.append(error)
                return results
            for handle in results:
                if not self.refcounted_handles:
                    self.inner.free(handle)
            raise error

        return call

    def download(self, handle: Handle, out: memoryview) -> None:
        """Raises the first pending error."""
        self._wait()
        super().download(handle, out)

    def synchronize(self) -> None:
        """Raises the first pending error."""
        self._wait()
        super().synchronize()

    def host_view(self, handle: Handle, type_: TensorType) -> None:
        """None: looking waits, and waiting is what is tried here."""

    def _wait(self) -> None:
        if self.pending:
            raise self.pending.pop(0)


def _step_of(program: Program) -> object:
    """The step that a late error names, known to the run that is being issued."""
    from bringup.backend import located

    return located(program.steps[0]) if program.steps else current_step()


def is_stepwise(device: Device) -> bool:
    """Whether core runs programs for a device step by step, so that all its memory is asked for
    through the seam.
    """
    if not isinstance(device, OpsDevice | RenderingDevice):
        return False
    return type(device).compile is OpsDevice.compile


class StepwiseProxy(RenderingDevice[Any]):
    """Another device of functions or of what it renders, which asks this one for memory.

    Subclasses say what handles are; ``inside`` gives the inner device's view.
    """

    inner: Device

    def __init__(self, inner: Device) -> None:
        assert isinstance(inner, OpsDevice | RenderingDevice)
        self.inner = inner
        self.capabilities = inner.capabilities
        self.ops = {name: self._wrapped(function) for name, function in inner.ops.items()}

    def _wrapped(self, function: OpFunction) -> Callable[..., object]:
        def call(*operands: BufferView, out: Any, **attrs: Any) -> object:
            inside = self.inside
            results = tuple(map(inside, out)) if isinstance(out, tuple) else inside(out)
            return function(*map(inside, operands), out=results, **attrs)

        return call

    def inside(self, view: BufferView) -> BufferView:
        """The same window in words of the inner device."""
        raise NotImplementedError

    def lower_step(self, step: KernelStep) -> Any:
        """As the inner device."""
        return self._rendering.lower_step(step)

    def render(self, code: Any, /) -> str | bytes:
        """As the inner device."""
        return self._rendering.render(code)

    def build(self, codes: Sequence[Any]) -> Iterable[tuple[str | bytes, object]]:
        """As the inner device."""
        return self._rendering.build(codes)

    def build_quickly(self, codes: Sequence[Any]) -> Iterable[tuple[str | bytes, object]]:
        """As the inner device."""
        return self._rendering.build_quickly(codes)

    def scratch_bytes(self, code: Any, /) -> int:
        """As the inner device."""
        return self._rendering.scratch_bytes(code)

    def launch(self, loaded: Any, code: Any, views: list[BufferView], /) -> None:
        """As the inner device."""
        self._rendering.launch(loaded, code, [self.inside(view) for view in views])

    @property
    def _rendering(self) -> RenderingDevice[Any]:
        assert isinstance(self.inner, RenderingDevice)
        return self.inner


class DelayingDevice(ProxyDevice):
    """Lets a moment pass before what it passes on, now and then."""

    def __init__(self, inner: Device, choices: Choices) -> None:
        super().__init__(inner)
        self._choices = choices
        for name in ("alloc", "free", "upload", "download", "copy"):
            setattr(self, name, self._delayed(getattr(self, name)))

    def _delayed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def delayed_call(*args: Any) -> Any:
            milliseconds = self._choices.integer(-5, 2)
            if milliseconds > 0:
                time.sleep(milliseconds / 1000)
            return call(*args)

        return delayed_call

    def compile(self, program: Program) -> Executable:
        """An executable that runs later."""
        executable: Executable = self._delayed(super().compile(program))
        return executable
