"""Faults of transfers, queues and the allocator.

Those of queues are injected into a device that does nothing before somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bringup.backend import Backend
from bringup.backend.device import Executable, Handle
from bringup.errors import DeviceError, OutOfMemoryError
from bringup.kernel.form import Kernel
from bringup.program.program import KernelStep, Program
from bringup_selftest.corpus import Faults, Inject, method, with_method
from bringup_selftest.editing import in_launches, written

FAULTS = Faults("Transfers, streams, synchronisation", "mem", depth=3)
# Of faults of queues: the device does nothing before somebody waits.
_LATE: dict[str, Any] = {"kind": "str", "asynchronous": True}
#: Bytes that a transfer moves at once.
CHUNK = 256 * 1024
#: Bytes from which one takes another way.
LONG = 1024 * 1024


def both(*injections: Inject) -> Inject:
    """Several injections that make one fault."""

    def inject(backend: Backend) -> Backend:
        for each in injections:
            backend = each(backend)
        return backend

    return inject


def _read(device: Any, handle: Handle, out: memoryview) -> None:
    """What is in memory now."""
    out[:] = device.heap.bytes_of(handle, len(out)).data


# -- waiting ---------------------------------------------------------------------------------------


def too_soon(device: Any, _inner: Any, handle: Handle, out: memoryview) -> None:
    """A download that waits for nothing."""
    _read(device, handle, out)


def _marked(device: Any, inner: Any, program: Program) -> Executable:
    """Remember where in the queue the work of the last call begins."""
    run = inner(program)

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        device.mark = len(device.queue)
        results: list[Handle] = run(inputs)
        return results

    return call


def before_the_last_call(device: Any, _inner: Any, handle: Handle, out: memoryview) -> None:
    """A download that waits for the event of the call before."""
    _drained(device, getattr(device, "mark", len(device.queue)))
    _read(device, handle, out)


@FAULTS.by(
    method("download"),
    "TS05",
    "an event is recorded before its launch",
    kind="str",
    depth=2,
    asynchronous=True,
)
def but_the_last_launch(device: Any, _inner: Any, handle: Handle, out: memoryview) -> None:
    """A download that waits for an event recorded before the last piece of work."""
    _drained(device, len(device.queue) - 1)
    _read(device, handle, out)


def _drained(device: Any, count: int) -> None:
    """Do the first so many pieces of work."""
    count = max(min(count, len(device.queue)), 0)
    later = device.queue[count:]
    del device.queue[count:]
    device.drain()
    device.queue = later
    device.mark = 0


def lazily(device: Any, _inner: Any, handle: Handle, data: memoryview) -> None:
    """An upload that looks at the host's memory when its turn comes (rustnn#167)."""

    def run() -> None:
        device.heap.bytes_of(handle, len(data))[...] = list(data)

    device.submit(run)


def _two_streams(device: Any, inner: Any, program: Program) -> Executable:
    """Calls alternate between streams; a dependency between numbers equal modulo 2 is dropped."""
    run = inner(program)

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        made = getattr(device, "made", None)
        if made is None:
            made = device.made = {}
        number = device.number = getattr(device, "number", 0) + 1
        before = {made.get(id(handle), (-1, 0)) for handle in inputs}
        start = len(device.queue)
        results: list[Handle] = run(inputs)
        made.update({id(handle): (number, start) for handle in results})
        for other, place in before:
            if other > 0 and other % 2 == number % 2 and place < start:
                mine = device.queue[start:]
                del device.queue[start:]
                device.queue[place:place] = mine
                break
        return results

    return call


def forgotten(device: Any, inner: Any) -> None:
    """What was made before a wait is of no queue any more."""
    inner()
    device.made = {}


def at_once(device: Any, _inner: Any, handle: Handle) -> None:
    """Memory goes back to the pool while queued work still uses it."""
    device.heap.free(handle)


def past_the_queue(device: Any, inner: Any, nbytes: int) -> Handle:
    """New memory is filled by another stream, which owes the queue nothing."""
    handle = inner(nbytes)
    device.fresh = getattr(device, "fresh", set()) | {id(handle)}
    return handle


def filled_at_once(device: Any, inner: Any, handle: Handle, data: memoryview) -> None:
    """The first upload to new memory."""
    fresh: set[int] = getattr(device, "fresh", set())
    if id(handle) not in fresh:
        inner(handle, data)
        return
    fresh.discard(id(handle))
    device.heap.bytes_of(handle, len(data))[...] = list(data)


@FAULTS.by(method("submit"), "TS13a", "a full queue loses its oldest entry", **_LATE)
def overrun(device: Any, inner: Any, work: Callable[[], None]) -> None:
    if len(device.queue) >= 64:
        del device.queue[0]
    inner(work)


@FAULTS.by(method("alloc"), "TS11", "an error is told by the next call")
def errors_wait(device: Any, inner: Any, nbytes: int) -> Handle:
    """An allocation that fails is reported by the next call, and forgotten."""
    pending, device.pending = getattr(device, "pending", None), None
    if pending is not None:
        raise pending
    try:
        return inner(nbytes)
    except OutOfMemoryError as error:
        device.pending = error
        return inner(64)


# -- bytes -----------------------------------------------------------------------------------------


def _eights(device: Any, inner: Any, program: Program) -> Executable:
    """Remember which results are of dtypes of eight bytes."""
    run = inner(program)
    wide = [n for n, type_ in enumerate(program.outputs) if type_.dtype.itemsize == 8]

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        known = device.wide = getattr(device, "wide", {})
        known.update({id(results[n]): results[n] for n in wide})
        return results

    return call


def in_elements(device: Any, inner: Any, handle: Handle, out: memoryview) -> None:
    """A download of eight-byte elements moves as many bytes as there are elements."""
    wide = id(handle) in getattr(device, "wide", {})
    inner(handle, out[: len(out) // 8] if wide else out)


@FAULTS.by(method("download"), "TS08c", "a download stops at a chunk")
def first_chunk(_device: Any, inner: Any, handle: Handle, out: memoryview) -> None:
    inner(handle, out[:CHUNK])


@FAULTS.by(method("upload"), "TS08d", "an upload stops at a chunk")
def first_chunk_up(_device: Any, inner: Any, handle: Handle, data: memoryview) -> None:
    inner(handle, data[:CHUNK])


@FAULTS.by(method("copy"), "TS08b", "a copy moves whole words")
def whole_words(_device: Any, inner: Any, target: Handle, source: Handle, nbytes: int) -> None:
    inner(target, source, nbytes // 4 * 4)


def copied_at_once(device: Any, _inner: Any, target: Handle, source: Handle, nbytes: int) -> None:
    """A copy waits for no queued work."""
    device.heap.bytes_of(target, nbytes)[...] = device.heap.bytes_of(source, nbytes)


@FAULTS.by(method("copy"), "TS08e", "a large copy goes the other way")
def other_way(_device: Any, inner: Any, target: Handle, source: Handle, nbytes: int) -> None:
    if nbytes > CHUNK:
        inner(source, target, nbytes)
    else:
        inner(target, source, nbytes)


@FAULTS.by(in_launches, "TS09", "a copy ignores the target's offset")
def from_the_start(step: KernelStep) -> KernelStep:
    """A launch that only copies writes at the start of scratch, whatever its offset."""
    if not _copies(step.kernel):
        return step
    (out,) = written(step)
    slot = step.slots[out]
    if slot.space != "arena":
        return step
    moved = replace(slot, offset=0)
    return replace(step, slots=tuple(moved if s == slot else s for s in step.slots))


def _copies(kernel: Kernel) -> bool:
    bodies = [stage.body.instrs for stage in kernel.stages]
    plain = len(bodies) == 1 and all(i.op.name == "load" for i in bodies[0])
    return plain and len(kernel.outputs) == 1


def _long(n: int) -> bool:
    """Whether a transfer is so long that a driver may take another way."""
    return n >= LONG


@FAULTS.by(method("download"), "TS16a", "a long download does not wait", **_LATE)
def long_not_waited_for(device: Any, inner: Any, handle: Handle, out: memoryview) -> None:
    """A long download goes by another engine, which waits for nothing."""
    (too_soon(device, inner, handle, out) if _long(len(out)) else inner(handle, out))


@FAULTS.by(method("upload"), "TS17a", "a long upload reads the host late", **_LATE)
def long_lazily(device: Any, inner: Any, handle: Handle, data: memoryview) -> None:
    (lazily(device, inner, handle, data) if _long(len(data)) else inner(handle, data))


@FAULTS.by(method("copy"), "TS18a", "a long copy does not wait", **_LATE)
def long_at_once(device: Any, inner: Any, target: Handle, source: Handle, nbytes: int) -> None:
    """A long copy goes by another engine, which waits for nothing."""
    if _long(nbytes):
        copied_at_once(device, inner, target, source, nbytes)
    else:
        inner(target, source, nbytes)


@FAULTS.by(method("upload"), "TS19a", "a long upload loses its end")
def pieces_but_the_last(_device: Any, inner: Any, handle: Handle, data: memoryview) -> None:
    """A long upload goes in pieces of 64 KiB, of which the last, which is no whole one, is lost."""
    inner(handle, data[: len(data) // 65536 * 65536] if _long(len(data)) else data)


# -- nothing ---------------------------------------------------------------------------------------


@FAULTS.by(method("alloc"), "TS12", "no bytes cannot be allocated")
def no_empty_memory(_device: Any, inner: Any, nbytes: int) -> Handle:
    if not nbytes:
        raise DeviceError("0 bytes cannot be allocated")
    return inner(nbytes)


@FAULTS.by(method("alloc"), "TS12b", "empty memory is shared")
def one_empty_block(device: Any, inner: Any, nbytes: int) -> Handle:
    """All allocations of no bytes are the same block, which later ones get too."""
    if nbytes:
        return inner(nbytes)
    shared = getattr(device, "empty", None)
    if shared is None or not shared.alive:
        shared = device.empty = inner(0)
    return shared


@FAULTS.by(method("upload"), "TS12c", "no bytes cannot be moved")
def no_empty_transfer(_device: Any, inner: Any, handle: Handle, data: memoryview) -> None:
    if not len(data):
        raise DeviceError("0 bytes cannot be moved")
    inner(handle, data)


@FAULTS.by(
    method("adopt"),
    "TS20a",
    "another device's work is not waited for",
    **_LATE,
)
def adopted_early(device: Any, _inner: Any, source: Any, handle: Handle, nbytes: int) -> Handle:
    """What another device holds is read before its queued work has written it."""
    made = device.alloc(nbytes)
    device.drain()
    device.heap.bytes_of(made, nbytes)[...] = source.heap.bytes_of(handle, nbytes)
    return made


@FAULTS.by(method("adopt"), "TS20b", "whole words come from another device")
def adopted_in_words(device: Any, _inner: Any, source: Any, handle: Handle, nbytes: int) -> Handle:
    made, whole = device.alloc(nbytes), nbytes // 8 * 8
    for each in (source, device):
        each.drain()
    device.heap.bytes_of(made, whole)[...] = source.heap.bytes_of(handle, whole)
    return made


_AFTER_CALLS = with_method("compile", _marked)
_FRESH = both(with_method("alloc", past_the_queue), with_method("upload", filled_at_once))


FAULTS.by(method("download"), "TS01", "a download does not wait", **_LATE)(too_soon)
FAULTS.by(
    method("upload"),
    "TS03",
    "an upload reads the host late (rustnn#167)",
    **_LATE,
)(lazily)
FAULTS.add(
    "TS04",
    "a download waits for the call before",
    both(_AFTER_CALLS, with_method("download", before_the_last_call)),
    **_LATE,
)

FAULTS.add(
    "TS06",
    "a dependency between streams is dropped (ROCm/pytorch#3194)",
    both(with_method("compile", _two_streams), with_method("drain", forgotten)),
    **_LATE,
)
FAULTS.add(
    "TS07",
    "memory is freed under queued work",
    both(_FRESH, with_method("free", at_once)),
    **_LATE,
)
FAULTS.add(
    "TS08",
    "a length counts elements of eight bytes",
    both(with_method("compile", _eights), with_method("download", in_elements)),
)


FAULTS.by(method("copy"), "TS15a", "a copy does not wait for queued work", **_LATE)(copied_at_once)
