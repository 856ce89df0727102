"""Depth 1: a function for each of the names that every device must have.

Core decomposes all else to them, plans memory, and calls them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bringup.backend import BufferView, Capabilities, Numerics, OpsDevice, claims, current_step
from bringup.dtypes import STORED
from bringup_simulator import Accelerator, Operand
from bringup_simulator.devices.driver import Chip, reported
from bringup_simulator.library import Array, compute, convert, fold, pad, pick, ramp, spread

_ALIKE = ("floor", "exp", "log", "sqrt", "sin", "add", "mul", "div", "max", "xor", "shl", "select")

# bringup's names and attributes on the left, the chip's library on the right.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: partial(compute, name) for name in _ALIKE},
    "and": partial(compute, "and_"),
    "or": partial(compute, "or_"),
    "shr.logical": partial(compute, "shr_l"),
    "shr.arithmetic": partial(compute, "shr_a"),
    "compare.eq": partial(compute, "eq"),
    "compare.lt": partial(compute, "lt"),
    "convert": lambda x, *, dtype: convert(x, dtype.name),
    "bitcast": lambda x, *, dtype: x.view(dtype.numpy),
    "iota": lambda *, type, dim: ramp(type.shape, dim, type.dtype.name),
    "reshape": lambda x, *, shape: x.reshape(shape),
    "transpose": lambda x, *, permutation: x.transpose(permutation),
    "broadcast_in_dim": lambda x, *, shape, dims: spread(x, shape, dims),
    "slice": lambda x, *, start, limit, stride: pick(x, start, limit, stride),
    "pad": lambda x, value, *, lo, hi, interior: pad(x, value, lo, hi, interior),
    "reduce.add": partial(fold, "add"),
    "reduce.max": partial(fold, "max"),
}

CAPABILITIES = Capabilities(
    ops=claims(["constant", *FUNCTIONS], STORED),  # core uploads constants itself
    numerics=Numerics(longest_chain=1),  # the library adds up as a balanced tree
    asynchronous=True,
    simulated=True,
)


class OpsSimulator(Chip, OpsDevice):
    """The chip as a device of functions."""

    capabilities = CAPABILITIES

    def __init__(self, chip: Accelerator) -> None:
        super().__init__(chip)
        self.ops = {name: partial(self._queue, name) for name in FUNCTIONS}

    @reported()
    def _queue(self, name: str, *views: BufferView, out: BufferView, **attrs: Any) -> None:
        def run(*arrays: Array) -> None:
            arrays[-1][...] = FUNCTIONS[name](*arrays[:-1], **attrs)

        operands = [*map(_operand, views), _operand(out, writable=True)]
        self.chip.call(name, run, operands, tag=current_step())


def _operand(view: BufferView, *, writable: bool = False) -> Operand:
    kind = view.type
    return Operand(view.handle, kind.dtype.name, kind.shape, view.offset, writable)
