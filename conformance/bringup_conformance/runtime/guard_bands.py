"""Memory with bands: every allocation lies between bytes that nobody may write, and comes full of
bytes that nobody may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bringup.backend import BufferView
from bringup.backend.device import Device, Executable, Handle
from bringup.integers import round_up
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.proxy_devices import ProxyDevice, StepwiseProxy, is_stepwise

#: Bytes of a band, more than the widest vector and a few elements besides.
BAND = 256
_PATTERN = (np.arange(BAND) * 37 % 251 + 3).astype(np.uint8)


@dataclass(eq=False, slots=True)
class Block:
    """A handle: memory of the inner device with bands round ``nbytes``.

    front, back: lengths of the bands.
    """

    inner: Handle
    nbytes: int
    front: int
    back: int
    freed: bool = False


@dataclass(slots=True)
class Ledger:
    """What is known of all memory that was asked for.

    live: of blocks.  allocated: how many there were.  faults: what was wrong, in order.
    """

    live: dict[int, Block] = field(default_factory=dict)
    allocated: int = 0
    bytes: int = 0
    peak: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, block: Block) -> Block:
        """A new block."""
        self.live[id(block)] = block
        self.allocated += 1
        self.bytes += block.nbytes
        self.peak = max(self.peak, self.bytes)
        return block

    def remove(self, block: Block) -> bool:
        """Whether a block was there to be given back."""
        if block.freed:
            self.faults.append(f"memory of {block.nbytes} bytes was freed twice")
            return False
        block.freed = True
        del self.live[id(block)]
        self.bytes -= block.nbytes
        return True


class _Bands:
    """What both kinds of with_guard_bands devices share."""

    inner: Device
    ledger: Ledger
    poison: int
    _front: int

    def _new(self, nbytes: int) -> Block:
        inner = self.inner.alloc(self._front + nbytes + BAND)
        block = Block(inner, nbytes, self._front, BAND)
        body = np.full(nbytes, self.poison, np.uint8)
        self.inner.upload(inner, np.concatenate([_band(self._front), body, _band(BAND)]).data)
        return self.ledger.add(block)

    def alloc(self, nbytes: int) -> Block:
        """Memory between bands, full of poison."""
        return self._new(nbytes)

    def free(self, handle: Block) -> None:
        """Looks at the bands before the memory goes."""
        self.check(handle)
        if not self.ledger.remove(handle) or self.inner.refcounted_handles:
            return
        try:
            self.inner.free(handle.inner)
        except Exception as error:
            # Whoever lets go of an array has nobody to tell.
            self.ledger.faults.append(f"freeing {handle.nbytes} bytes failed: {error}")
            raise

    def upload(self, handle: Block, data: memoryview) -> None:
        """Between the bands."""
        self._owns(handle)
        source = np.frombuffer(data, np.uint8)
        self.inner.upload(handle.inner, np.concatenate([_band(handle.front), source]).data)

    def download(self, handle: Block, out: memoryview) -> None:
        """Between the bands."""
        self._owns(handle)
        whole = np.empty(handle.front + len(out), np.uint8)
        self.inner.download(handle.inner, whole.data)
        out[:] = whole[handle.front :].data

    def copy(self, target: Block, source: Block, nbytes: int) -> None:
        """The bands before both are equal, and go with the bytes."""
        self._owns(target)
        self._owns(source)
        assert target.front == source.front
        self.inner.copy(target.inner, source.inner, source.front + nbytes)

    def synchronize(self) -> None:
        """As the inner device."""
        self.inner.synchronize()

    def check(self, block: Block) -> None:
        """Take down what is wrong with the bands of a block."""
        whole = np.empty(block.front + block.nbytes + block.back, np.uint8)
        if not whole.size or block.freed:
            return
        self.inner.download(block.inner, whole.data)
        for where, band in (
            ("before", whole[: block.front]),
            ("behind", whole[block.front + block.nbytes :]),
        ):
            wrong = np.flatnonzero(band != _band(band.size))
            if wrong.size:
                offset = block.front - int(wrong[-1]) if where == "before" else int(wrong[0])
                self.ledger.faults.append(
                    f"{wrong.size} bytes {where} memory of {block.nbytes} bytes were written,"
                    f" the nearest {offset} bytes off"
                )

    def check_all(self) -> None:
        """Look at the bands of all that is live."""
        for block in list(self.ledger.live.values()):
            self.check(block)

    def _owns(self, block: Block) -> None:
        if block.freed:
            self.ledger.faults.append(f"freed memory of {block.nbytes} bytes was used")


class GuardedSteps(_Bands, StepwiseProxy):
    """Bands before and behind everything: operands, results, scratch and constants."""

    def __init__(self, inner: Device, poison: int) -> None:
        StepwiseProxy.__init__(self, inner)
        self.ledger, self.poison = Ledger(), poison
        step = self.capabilities.alignment
        self._front = round_up(BAND, step)

    def inside(self, view: BufferView) -> BufferView:
        """Behind the front band."""
        block: Block = view.handle
        self._owns(block)
        return BufferView(block.inner, block.front + view.offset, view.type)


class GuardedPrograms(_Bands, ProxyDevice):
    """Bands behind what is uploaded; a device that takes whole programs makes the rest itself."""

    def __init__(self, inner: Device, poison: int) -> None:
        ProxyDevice.__init__(self, inner)
        self.refcounted_handles = False
        self.ledger, self.poison, self._front = Ledger(), poison, 0

    def compile(self, program: Program) -> Executable:
        """Results of the inner device are blocks without bands, but for donated memory."""
        executable = self.inner.compile(program)
        sizes = [type_.nbytes for type_ in program.outputs]

        def call(inputs: Sequence[Block]) -> list[Any]:
            for block in inputs:
                self._owns(block)
            donated = [inputs[i] for i in sorted(program.donated)]
            by_handle = {id(block.inner): block for block in donated}
            results = executable([block.inner for block in inputs])
            for block in donated:
                self.ledger.remove(block)
            problems = []
            for inner, nbytes in zip(results, sizes, strict=True):
                old = by_handle.get(id(inner))
                back = 0 if old is None else old.back + old.nbytes - nbytes
                problems.append(self.ledger.add(Block(inner, nbytes, 0, back)))
            return problems

        return call

    def host_view(self, handle: Block, type_: TensorType) -> Array | None:
        """None: a view would outlive the look at the bands."""
        return None


def with_guard_bands(device: Device, poison: int = 0xFF) -> GuardedSteps | GuardedPrograms:
    """A device with bands round the memory of another one.

    poison: the byte that fresh memory is full of; 0xFF makes NaN of every float.
    """
    return (GuardedSteps if is_stepwise(device) else GuardedPrograms)(device, poison)


def _band(length: int) -> Array:
    return np.resize(_PATTERN, length)
