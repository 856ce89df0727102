"""Stands in for the memory of Template: bytes of this process.

Every use of this module in another one is a place to fill in with your driver, and
``bringup doctor template`` lists those that are left.  Delete the file when there are none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bringup.backend import BufferView
from bringup.errors import BackendError


class DriverError(Exception):
    """The driver's error, or one of yours for the status that its functions return."""


class OutOfMemory(DriverError):
    """There is no room for an allocation."""


class Block:
    """A piece of memory, and what the driver knows it by."""

    def __init__(self, nbytes: int) -> None:
        self.data = np.full(nbytes, 0xFF, np.uint8)  # NaN: nobody may rely on what it holds


def devices() -> list[str]:
    """A name for people of each device that is present."""
    return ["simulated Template"]


def alloc(nbytes: int) -> Block:
    """Allocate memory on the device."""
    try:
        return Block(nbytes)
    except MemoryError:
        raise OutOfMemory(f"{nbytes} bytes asked for") from None


def free(block: Block) -> None:
    """Give memory back."""
    block.data = block.data[:0]


def upload(block: Block, data: memoryview) -> None:
    """Copy bytes of the host to the start of memory."""
    block.data[: len(data)] = data


def download(block: Block, out: memoryview) -> None:
    """Wait, and copy the first bytes of memory to the host."""
    out[:] = block.data[: len(out)].data


def copy(target: Block, source: Block, nbytes: int) -> None:
    """Copy from memory to memory of the device."""
    target.data[:nbytes] = source.data[:nbytes]


def wait() -> None:
    """Wait until the device has done all that was asked of it."""


def array(view: BufferView) -> np.ndarray[Any, Any]:
    """What a view shows, flat; for what stands in for the chip."""
    if not isinstance(view.handle, Block):
        what = "memory is the driver's, and what should run on it is still simulated"
        raise BackendError(what, fix="fill in the places that are left: bringup doctor template")
    data = view.handle.data[view.offset : view.offset + view.type.nbytes]
    elements: np.ndarray[Any, Any] = data.view(view.type.dtype.numpy)
    return elements
