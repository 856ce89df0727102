"""The seam: what a vendor implements.

A `Backend` describes; a `Device` (opened) runs.  Every device moves bytes with six methods, and
takes work at one of three depths, each an adapter over the next:

1. `OpsDevice`: a table of functions, one per primitive, called on whole buffers;
2. `KernelsDevice`: ``render`` a kernel, ``load`` and ``launch`` it (op functions may be mixed in),
   or `LoopsDevice`: the same of a kernel's loops;
3. `Device` itself: ``compile`` a whole program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bringup.backend.capabilities import Capabilities, Handshake
from bringup.errors import UnsupportedError
from bringup.kernel.form import Kernel
from bringup.passes.base import Pass
from bringup.program.program import KernelStep, OpStep, Program
from bringup.records import record
from bringup.target import UNKNOWN, Target
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.backend.dispatch import ArrayLayout, Dispatcher
    from bringup.backend.link import Linked, LinkOptions, LinkUnit, Weights
    from bringup.loops.schedule import Scheduled

#: A target-dependent rewrite of one kernel; it may change loops, never values.
KernelPass = Callable[[Kernel], Kernel]

#: What a device hands out for memory; opaque to everyone else.
Handle = Any


@record
class DeviceInfo:
    """One device a backend can open.

    index: as in ``"name:index"``.
    product: its name for people.
    details: pairs such as the driver's version.
    """

    index: int
    product: str
    details: tuple[tuple[str, str], ...] = ()


class NoHardware(Exception):
    """Raised by `Backend.devices`: the plugin works, but there is nothing to open.

    The message is one line.
    """


@record
class BufferView:
    """A typed window on device memory: ``type`` at ``offset`` bytes into ``handle``.

    handle: as `Device.alloc` or an `Executable` gave it.
    offset: a multiple of `Capabilities.alignment`.
    type: its ``shape``, its ``dtype``, a `bringup.dtypes.DType`, and its ``nbytes``.
    """

    handle: Handle
    offset: int
    type: TensorType


class Executable(Protocol):
    """A compiled program."""

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Run on input buffers and return new output buffers, owned by the caller.

        Inputs stay as they are, except donated ones: those belong to the executable from now on,
        and an aliased output may be the very handle of its input.
        """
        ...


class Exchange(Protocol):
    """How other libraries of this process reach a device's memory, by DLPack.

    device: its type and number, as `__dlpack_device__` says them.
    """

    device: tuple[int, int]

    def to_dlpack(
        self,
        handle: Handle,
        type_: TensorType,
        owner: object,
        *,
        stream: Any,
        max_version: tuple[int, int] | None,
        copied: bool,
    ) -> Any:
        """A capsule of the memory itself; ``owner`` is kept until the consumer is done.

        stream: of the consumer, as the protocol has them for this type of device; it waits for what
        makes the values.  copied: whether the memory is the consumer's alone.
        Raises BufferError for a stream that is none.
        """
        ...

    def from_dlpack(self, x: Any) -> tuple[Handle, TensorType]:
        """New memory with the content of another library's array on this device.

        Raises ConversionError.
        """
        ...


class Device(ABC):
    """An opened device.  Methods raise bringup's `DeviceError` family and leave the device usable.

    Threads: core calls a method, and an `Executable`, on the thread of the user's code that needs
    it, so several may be called at once; a device guards what they share.  `free` is also called
    where an array is collected as garbage, which may be inside another call on the same thread:
    guard with a lock that a thread may take twice.
    Owners: a handle belongs to core from `alloc`, or from the executable that returned it, until
    `free`.  Host memory belongs to the caller and is not kept after the method returns.
    Order: work may be queued and go on after a method returns, if what is called later behaves as
    if it had ended; `download`, `host_view` and `synchronize` wait.
    Errors: a wait raises the first error of queued work that was not raised yet, whatever is waited
    for, and forgets it; ``error.step`` is the `current_step` of the work.  Core keeps it for all
    that depends on that work, and waits again for the rest.  Without a step it may be anybody's:
    what was not complete is lost, and whoever waited is told.

    refcounted_handles: handles are Python objects that give their memory back when the last
    reference goes; core then never calls `free`.
    """

    capabilities: Capabilities
    refcounted_handles: bool = False

    @abstractmethod
    def alloc(self, nbytes: int) -> Handle:
        """New uninitialised memory of ``nbytes >= 0`` bytes.  Raises OutOfMemoryError."""

    @abstractmethod
    def free(self, handle: Handle) -> None:
        """Give memory back; queued work that uses it still completes."""

    @abstractmethod
    def upload(self, handle: Handle, data: memoryview) -> None:
        """Copy host bytes to the start of ``handle``.

        ``data`` may be overwritten once this returns.
        """

    @abstractmethod
    def download(self, handle: Handle, out: memoryview) -> None:
        """Copy the first ``len(out)`` bytes of ``handle`` to the host, after all work before it."""

    @abstractmethod
    def copy(self, target: Handle, source: Handle, nbytes: int) -> None:
        """Copy within the device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work; raises the first pending error and forgets it."""

    @abstractmethod
    def compile(self, program: Program) -> Executable:
        """Turn a program into something callable.  Raises CompileError, UnsupportedError."""

    def host_view(self, handle: Handle, type_: TensorType) -> np.ndarray[Any, Any] | None:
        """The memory itself as an array of the host, after all work before it.

        None if the host cannot see it.  The array keeps the memory alive.
        """
        return None

    def borrow(self, data: memoryview) -> Handle | None:
        """Memory of the host as memory of the device, which only reads it: no copy is made.

        data: aligned to `Capabilities.alignment`.  It stays where and as it is for as long as
        something refers to it, which the handle must, until it is freed.
        None if the device has to have a copy.
        """
        return None

    def exchange(self) -> Exchange | None:
        """None if other libraries get arrays by way of the host."""
        return None

    def adopt(self, source: Device, handle: Handle, nbytes: int) -> Handle | None:
        """New memory here with what another device holds, after all work before it.

        None if that takes the host.
        """
        return None

    def dispatcher(self, layout: ArrayLayout, slow: Callable[..., Any]) -> Dispatcher | None:
        """A callable that answers known calls natively and passes others to ``slow``.

        None if there is no such way.  See `bringup.backend.dispatch`.
        """
        return None

    def close(self) -> None:
        """Release the device.  Called once, when the process ends.

        What is asked of it later is answered right, or raises an error of the `DeviceError` family.
        """
        return


class Backend(ABC):
    """What a plugin provides, without touching hardware until asked."""

    #: The name users select: ``jit(f, device="name")`` or ``"name:1"``.
    name: str

    @abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """The devices present.  Raises `NoHardware` with a one-line reason."""

    @abstractmethod
    def capabilities(self, target: str = "") -> Capabilities:
        """Capabilities of the default device, or of a target such as an architecture name.

        Needs no hardware.
        """

    def targets(self) -> Sequence[str]:
        """What `capabilities` and `lower` take as a target, such as names of architectures.

        They raise UnsupportedError for other names.  None by default.
        """
        return ()

    def target(self, name: str = "") -> Target:
        """The row of a target, or of the default device: the numbers that schedules are chosen by.

        Needs no hardware.  By default a machine of one thread whose compiler makes the vectors.
        """
        return UNKNOWN

    @abstractmethod
    def open(self, index: int) -> Device:
        """Open a device."""

    def passes_before_fusion(self) -> Sequence[Pass]:
        """Graph passes of the backend's own, run after core's on ops the device has."""
        return ()

    def passes_after_fusion(self) -> Sequence[KernelPass]:
        """Kernel passes of the backend's own, each run on every kernel in order."""
        return ()

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """How many iterations of its longest loop a chunk of a kernel that folds should have.

        Core then makes two kernels of it, one that folds each chunk at a grid point of its own and
        one that combines the results, so that a fold at few grid points still has work for the
        whole device.  The loop of the first one has a limit (`Stage.limits`), which the device must
        obey.  0, the default, keeps the kernel as it is.  `even_chunks` of `bringup.kernel.split`
        chooses lengths by a number of elements.

        kernel: its first stage folds, and no other one loops.  target: as in `Capabilities`.
        The answer must depend on these alone, never on how many workers there are: it decides the
        order of additions.
        """
        return 0

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled | None:
        """The loops of a kernel and the steps by which they run, for dumps and for `bringup tune`.

        None, the default, where the backend runs it in another way than by loops.  Else the steps
        are ``step.schedule``, if there is one, and the backend runs the kernel so.
        """
        return None

    def scheduled_step(
        self, step: OpStep, target: str = "", *, prefix: str = "", in_place: bool = False
    ) -> Sequence[Scheduled]:
        """The functions of the op library that run a step, each once, and their steps, for dumps.

        Empty, the default, where the backend runs it in another way.
        prefix: of their names.  in_place: as in `bringup.program.loops.step_loops`.
        """
        return ()

    def schedule_tables(self) -> Path | None:
        """The folder of the schedules that the backend ships, found by measuring; None by default.

        The table of a class of machines is the file ``NAME.txt``, where the name is that of
        `target`; a class without a file has none.  ``bringup tune … --ship`` writes it.  Programs
        use it without any setting, and the user's own table for a machine comes first.
        """
        return None

    def lower(self, program: Program, target: str = "") -> Lowered:
        """Source and assembly of a program for ``target``, without hardware.

        Raises UnsupportedError by default.
        """
        raise UnsupportedError(f"backend {self.name!r} does not lower without a device")

    def link_targets(self) -> Sequence[str]:
        """What `link` makes libraries for, besides what `targets` names.  None by default."""
        return ()

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """Machine code of programs, ahead of time and without hardware.

        The programs are made for ``capabilities(target)``.  Raises UnsupportedError by default.
        """
        raise UnsupportedError(
            f"backend {self.name!r} makes no libraries",
            fix="export with target='program', and load the file where the device is",
        )


@record
class Lowered:
    """Texts of a compiled program: the renderer's, and what the compiler made of it."""

    source: str
    asm: str


class Plugin(Protocol):
    """The two hooks of a plugin module; see `bringup.backend.plugin` for the markers."""

    def bringup_handshake(self) -> Handshake:
        """Version range, distribution and device names; must not load anything heavy."""

    def bringup_backend(self) -> Backend:
        """The backend; called when one of its devices is first used."""
