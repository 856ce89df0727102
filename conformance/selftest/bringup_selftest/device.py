"""A right device of numpy: the reference column behind the seam, at each of the three depths.

Slow per element and quick per program; its boundaries are small, so that they are met soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any

import numpy as np

from bringup.backend import (
    Backend,
    BufferView,
    Capabilities,
    Device,
    DeviceInfo,
    KernelsDevice,
    Limits,
    Lowered,
    Numerics,
    OpsDevice,
    Shapes,
    claims,
)
from bringup.backend.adapters import OpFunction
from bringup.dtypes import STORED
from bringup.errors import DeviceError, OutOfMemoryError, UnsupportedError
from bringup.kernel.evaluate import run_kernel
from bringup.kernel.form import Kernel
from bringup.kernel.parser import parse_kernel
from bringup.ops.table import Kind, OpDef, Trait, all_ops
from bringup.program.program import Program
from bringup_selftest.memory import ALIGNMENT, CAPACITY, Array, Block, Heap, HeapLaunch
from bringup_selftest.programs import ProgramExecutable

VECTOR, BLOCK = 8, 64
#: Composites that a device of kernels leaves to core, so that what is made of them is fused.
_TAKEN_APART = (
    "softmax", "log_softmax", "layer_norm", "rms_norm", "batch_norm", "group_norm", "mean", "var",
    "one_hot", "resize", "attention",
)  # fmt: skip


_TARGETS = ("numpy-1", "numpy-2")
#: Pointwise, but of several results: no kernel holds them.
_NO_KERNEL = ("threefry2x32", "philox4x32")


def _fits_kernels(row: OpDef) -> bool:
    if row.name in _NO_KERNEL:
        return False
    folds = row.kind in (Kind.REDUCTION, Kind.CONTRACTION)
    return folds or row.kind is Kind.ELEMENTWISE or Trait.POINTWISE in row.traits


def _rows(depth: int) -> list[OpDef]:
    """What the device has functions for."""
    rows = [row for row in all_ops() if not row.holds_graphs]
    if depth == 1:
        return rows
    return [r for r in rows if not _fits_kernels(r) and r.name not in _TAKEN_APART]


def capabilities(
    depth: int, *, asynchronous: bool = False, simulated: bool = False
) -> Capabilities:
    """The declaration of a device of that depth."""
    both = (row.name for row in all_ops() if _fits_kernels(row) or row.index_map is not None)
    fused = list(both) if depth > 1 else []
    control = ["while", "scan", "case"] if depth == 3 else []
    return Capabilities(
        ops=claims([*(row.name for row in _rows(depth)), *control], STORED),
        kernels=claims(fused, STORED),
        limits=Limits(memory_bytes=CAPACITY),
        numerics=Numerics(),
        shapes=Shapes(vector=VECTOR, block=BLOCK),
        alignment=ALIGNMENT,
        asynchronous=asynchronous,
        simulated=simulated,
    )


class HeapDevice(Device):
    """The six byte methods over a heap, in order.

    An asynchronous one keeps work in `queue` until somebody waits.
    at_once: grid points that a launch does together, 0 for all.
    """

    def __init__(self, declared: Capabilities, at_once: int = 0) -> None:
        self.capabilities = declared
        self.at_once = at_once
        self.heap = Heap()
        self.queue: list[Callable[[], None]] = []
        self._queue_lock = RLock()
        self._draining = False

    def submit(self, work: Callable[[], None]) -> None:
        """Do work now, or later on an asynchronous device."""
        if not self.capabilities.asynchronous:
            work()
            return
        with self._queue_lock:  # another thread's work waits behind what is done now
            if self._draining:
                work()
            else:
                self.queue.append(work)

    def drain(self) -> None:
        """Do what waits.  Raises its first error, and forgets what was behind it."""
        with self._queue_lock:
            waiting, self.queue = self.queue, []
            self._draining = True
            try:
                for work in waiting:
                    work()
            finally:
                self._draining = False

    def alloc(self, nbytes: int) -> Block:
        """Memory with whatever is in it; what is freed in the queue is had by waiting."""
        try:
            return self.heap.alloc(nbytes)
        except OutOfMemoryError:
            if not self.queue or self._draining:
                raise
            self.drain()
            return self.heap.alloc(nbytes)

    def free(self, handle: Block) -> None:
        """Give memory back after the work before."""
        self.submit(lambda: self.heap.free(handle))

    def upload(self, handle: Block, data: memoryview) -> None:
        """Take the bytes at once."""
        taken = np.frombuffer(bytes(data), np.uint8)

        def run() -> None:
            self.heap.bytes_of(handle, len(taken))[...] = taken

        self.submit(run)

    def download(self, handle: Block, out: memoryview) -> None:
        """Wait for all work, then copy."""
        self.drain()
        out[:] = self.heap.bytes_of(handle, len(out)).data

    def copy(self, target: Block, source: Block, nbytes: int) -> None:
        """Copy in turn."""

        def run() -> None:
            self.heap.bytes_of(target, nbytes)[...] = self.heap.bytes_of(source, nbytes)

        self.submit(run)

    def synchronize(self) -> None:
        """Wait for all work."""
        self.drain()

    def close(self) -> None:
        """Let go of the memory."""
        self.queue = []
        self.heap.close()

    def functions(self, rows: Sequence[OpDef]) -> dict[str, OpFunction]:
        """A function for each row: its reference on the heap."""
        return {row.name: self._function(row) for row in rows}

    def _function(self, row: OpDef) -> OpFunction:
        def call(*operands: BufferView, out: Any, **attrs: Any) -> None:
            self.submit(lambda: self._run(row, operands, out, attrs))

        return call

    def _run(
        self, row: OpDef, operands: Sequence[BufferView], out: Any, attrs: Mapping[str, Any]
    ) -> None:
        with np.errstate(all="ignore"):
            made = row.reference(*map(self.heap.dense, operands), **attrs)
        results, arrays = (out, made) if isinstance(out, tuple) else ((out,), (made,))
        for view, array in zip(results, arrays, strict=True):
            self.heap.dense(view)[...] = array

    def dense(self, view: BufferView) -> Array:
        """The memory of a view as an array."""
        return self.heap.dense(view)


class OpsReference(HeapDevice, OpsDevice):
    """Depth 1: a function for every row but those of sub-graphs."""

    def __init__(self, declared: Capabilities, at_once: int = 0) -> None:
        super().__init__(declared, at_once)
        self.ops = self.functions(_rows(1))


class KernelsReference(HeapDevice, KernelsDevice):
    """Depth 2: kernels of everything elementwise and of folds; functions for the rest."""

    def __init__(self, declared: Capabilities, at_once: int = 0) -> None:
        super().__init__(declared, at_once)
        self.ops = self.functions(_rows(2))
        self._texts: dict[str, Kernel] = {}

    def render(self, kernel: Kernel) -> str:
        """The kernel form's own text."""
        text = str(kernel)
        self._texts[text] = kernel
        return text

    def load(self, source: str | bytes, name: str) -> Kernel:
        """What the text says, whatever it was rendered from."""
        assert isinstance(source, str)
        found = self._texts.pop(source, None)
        return parse_kernel(source) if found is None else found

    def launch(self, loaded: Kernel, kernel: Kernel, views: list[BufferView]) -> None:
        """Run what was loaded."""
        self.submit(lambda: self.launched(loaded, views))

    def launched(self, kernel: Kernel, views: Sequence[BufferView]) -> None:
        """Run a kernel on the heap now."""
        with np.errstate(all="ignore"):
            memory = HeapLaunch(self.heap, kernel, views)
            run_kernel(kernel, memory, points_at_once=self.at_once)


class ProgramsReference(KernelsReference):
    """Depth 3: whole programs, loops and branches among them."""

    def compile(self, program: Program) -> ProgramExecutable:  # type: ignore[override]
        """Bind everything now."""
        return ProgramExecutable(self, program)


_DEPTHS: Mapping[int, Callable[[Capabilities, int], Device]] = {
    1: OpsReference,
    2: KernelsReference,
    3: ProgramsReference,
}


@dataclass(slots=True, eq=False)
class Reference(Backend):
    """The right backend; devices 0 and 1 are alike and share nothing.

    depth: of its devices.  asynchronous: whether they work late.  at_once: grid points that a
    launch does together, 0 for all; few show what launches in place read too late.  simulated: as
    in `Capabilities`: whether the suite runs little.
    """

    depth: int = 1
    asynchronous: bool = False
    at_once: int = 0
    simulated: bool = False
    name: str = "reference"

    def devices(self) -> Sequence[DeviceInfo]:
        """Two."""
        return (DeviceInfo(0, "numpy"), DeviceInfo(1, "numpy"))

    def targets(self) -> Sequence[str]:
        """Two, which are alike too."""
        return _TARGETS

    def capabilities(self, target: str = "") -> Capabilities:
        """The same for both.  Raises UnsupportedError for a target of another name."""
        if target and target not in _TARGETS:
            raise UnsupportedError(f"no target {target!r}", fix=f"use one of {_TARGETS}")
        return _declared(self.depth, self.asynchronous, self.simulated)

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The program's own text."""
        self.capabilities(target)
        return Lowered(str(program), program.key)

    def open(self, index: int) -> Device:
        """A device with memory of its own."""
        if index not in (0, 1):
            raise DeviceError(f"no device {index}")
        return _DEPTHS[self.depth](self.capabilities(), self.at_once)


@cache
def _declared(depth: int, asynchronous: bool, simulated: bool) -> Capabilities:
    return capabilities(depth, asynchronous=asynchronous, simulated=simulated)
