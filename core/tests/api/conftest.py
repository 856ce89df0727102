"""A device of numpy references with opaque handles, the default in these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import bringup.ops
from bringup.backend import Backend, BufferView, Capabilities, DeviceInfo, OpsDevice, claims
from bringup.dtypes import ALL
from bringup.errors import DeviceError
from bringup.ops.table import Kind, OpDef, all_ops
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice
from bringup.types import TensorType

# In the package keywords carry an underscore; ops that only kernels hold are not there.  Core runs
# what holds sub-graphs.
ROWS = [
    row
    for row in all_ops()
    if row.kind is not Kind.COMPOSITE
    and not row.holds_graphs
    and {row.name, f"{row.name}_"} & set(bringup.ops.__all__)
]


class Memory:
    """A handle."""

    def __init__(self, nbytes: int) -> None:
        self.data = np.full(nbytes, 0xA5, np.uint8)


def dense(view: BufferView) -> np.ndarray[Any, Any]:
    nbytes = view.type.nbytes
    data = view.handle.data[view.offset : view.offset + nbytes]
    return data.view(view.type.dtype.numpy).reshape(view.type.shape)


class ReferenceDevice(OpsDevice):
    """Counts what is alive, what was compiled and what ran; fails on demand."""

    capabilities = Capabilities(ops=claims([row.name for row in ROWS], ALL))

    def __init__(self) -> None:
        self.ops = {row.name: self._function(row) for row in ROWS}
        self.alive: set[int] = set()
        self.compiled = 0
        self.ran: list[str] = []
        self.fail_on = ""

    def _function(self, row: OpDef) -> Callable[..., None]:
        def call(*operands: BufferView, out: Any, **attrs: Any) -> None:
            if row.name == self.fail_on:
                raise DeviceError(f"{row.name} failed on demand")
            self.ran.append(row.name)
            with np.errstate(all="ignore"):
                made = row.reference(*map(dense, operands), **attrs)
            results, arrays = (out, made) if isinstance(out, tuple) else ((out,), (made,))
            for view, array in zip(results, arrays, strict=True):
                dense(view)[...] = array

        return call

    def alloc(self, nbytes: int) -> Memory:
        memory = Memory(nbytes)
        self.alive.add(id(memory))
        return memory

    def free(self, handle: Memory) -> None:
        self.alive.remove(id(handle))
        handle.data[...] = 0xDD

    def upload(self, handle: Memory, data: memoryview) -> None:
        handle.data[: len(data)] = np.frombuffer(data, np.uint8)

    def download(self, handle: Memory, out: memoryview) -> None:
        out[:] = handle.data[: len(out)].data

    def copy(self, target: Memory, source: Memory, nbytes: int) -> None:
        target.data[:nbytes] = source.data[:nbytes]

    def synchronize(self) -> None:
        pass

    def compile(self, program: Any) -> Any:
        self.compiled += 1
        return super().compile(program)


class SharedDevice(ReferenceDevice):
    """Handles count their own references, and the host sees the memory."""

    refcounted_handles = True

    def free(self, handle: Memory) -> None:
        raise AssertionError("core never frees handles that count their own references")

    def host_view(self, handle: Memory, type_: TensorType) -> np.ndarray[Any, Any]:
        return handle.data[: type_.nbytes].view(type_.dtype.numpy).reshape(type_.shape)


class ReferenceBackend(Backend):
    name = "reference"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "numpy")]

    def capabilities(self, target: str = "") -> Capabilities:
        return ReferenceDevice.capabilities

    def open(self, index: int) -> ReferenceDevice:
        return ReferenceDevice()


def opened(device: ReferenceDevice, index: int = 0) -> OpenDevice:
    return OpenDevice("reference", index, ReferenceBackend(), device, DeviceInfo(index, "numpy"))


@pytest.fixture(autouse=True)
def reference() -> Iterator[ReferenceDevice]:
    """The default device of the test."""
    device = ReferenceDevice()
    with devices.use(opened(device)):
        yield device


@pytest.fixture
def shared() -> Iterator[SharedDevice]:
    """A default device whose memory the host sees."""
    device = SharedDevice()
    with devices.use(opened(device, 1)):
        yield device


@pytest.fixture
def second() -> OpenDevice:
    """Another device."""
    return opened(ReferenceDevice(), 2)
