"""Views of device memory for Python callables: numpy arrays that end with their command."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup_simulator.errors import LimitError, ViewEscapedError
from bringup_simulator.isa import DTYPES
from bringup_simulator.limits import Limits
from bringup_simulator.memory import Allocation, Handle

__all__ = ["Operand", "call_on_views", "check_operand"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A typed window of a buffer for ``call``: C order, ``offset`` in bytes."""

    handle: Handle
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    writable: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes the window covers."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def check_operand(name: str, operand: Operand, found: Allocation, limits: Limits) -> None:
    """LimitError or OutOfBoundsError unless ``found`` holds the window and the chip can view it."""
    limits.require(name, "axes", len(operand.shape), limits.rank)
    limits.require(name, "elements", math.prod(operand.shape), limits.elements)
    if operand.offset % DTYPES[operand.dtype].itemsize:
        raise LimitError(f"{name}: offset {operand.offset} is not aligned for {operand.dtype}")
    found.span(operand.offset, operand.nbytes)


def call_on_views(
    function: Callable[..., object], operands: Sequence[Operand], found: Sequence[Allocation]
) -> None:
    """Call on views and see to it that none survives: ViewEscapedError if one was kept."""
    roots = [_root(o, allocation) for o, allocation in zip(operands, found, strict=True)]
    alive = [weakref.ref(root) for root in roots]
    views = [root.reshape(o.shape) for root, o in zip(roots, operands, strict=True)]
    del roots
    try:
        function(*views)
    except Exception:
        # Anything the exception carries may hold views: cut them all off.
        for allocation in found:
            allocation.detach()
        raise
    del views
    kept = [n for n, reference in enumerate(alive) if reference() is not None]
    if kept:
        for allocation in found:
            allocation.detach()
        raise ViewEscapedError(f"operand {kept[0]} was kept beyond the command")


def _root(operand: Operand, allocation: Allocation) -> npt.NDArray[Any]:
    """A typed 1-d view whose base is a memoryview, so that every later view keeps it alive."""
    window = allocation.span(operand.offset, operand.nbytes).data
    return np.frombuffer(window if operand.writable else window.toreadonly(), DTYPES[operand.dtype])
