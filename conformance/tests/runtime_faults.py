"""Faults of devices that the checks of the runtime must find: one for each check, made of a right
device by replacing a method.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bringup.backend import Backend
from bringup.backend.device import Handle
from bringup.errors import CompileError, DeviceError
from bringup.runtime import timeline
from bringup.types import TensorType
from bringup_selftest.corpus import Inject, OpCall, with_method, with_ops
from bringup_selftest.memory import Block

Handles = list[Handle]


def calls(edit: Callable[..., Handles], **state: Any) -> Inject:
    """A fault of calls: ``edit(device, run, program, inputs, state)`` in the place of a call."""

    def compiled(device: Any, inner: Any, program: Any) -> Any:
        run, kept = inner(program), dict(state)
        return lambda inputs: edit(device, run, program, list(inputs), kept)

    return with_method("compile", compiled)


def later(device: Any, work: Callable[[], None]) -> None:
    device.submit(work)


def _write(device: Any, handle: Any, at: int, data: bytes) -> None:
    def run() -> None:
        start = handle.start + at
        device.heap.data[start : start + len(data)] = list(data)

    later(device, run)


# -- memory


def writes_an_input(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run(inputs)
    kept = [i for i in range(len(inputs)) if i not in program.donated]
    if kept and program.inputs[kept[0]].nbytes > 8:
        _write(device, inputs[kept[0]], 4, b"\x07\x07\x07")
    return results


def writes_behind(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run(inputs)
    for handle, type_ in zip(results, program.outputs, strict=True):
        _write(device, handle, type_.nbytes, b"\x01\x01\x01\x01")
    return results


def writes_far_behind(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run(inputs)
    for handle, type_ in zip(results, program.outputs, strict=True):
        _write(device, handle, -(-type_.nbytes // 64) * 64, b"\x01" * 64)
    return results


def overlapping(device: Any, inner: Any, nbytes: int) -> Any:
    made = inner(nbytes)
    device.count = getattr(device, "count", 0) + 1
    if device.count % 30 == 0 and made.start >= 64:
        return Block(made.start - 32, nbytes)
    return made


def empty_over_others(device: Any, inner: Any, nbytes: int) -> Any:
    """Empty memory lies over the last that was given out, which is free with it."""
    if nbytes or not hasattr(device, "last"):
        device.last = inner(nbytes)
        return device.last
    return Block(device.last.start, 0)


def three_quarters(_device: Any, inner: Any, handle: Any, data: memoryview) -> None:
    inner(handle, data[: len(data) // 4 * 4] if len(data) > 4 else data)


def borrows_words(device: Any, _inner: Any, data: memoryview) -> Any:
    made = device.alloc(len(data))
    device.upload(made, data[: len(data) - 1])
    return made


def unaligned_view(device: Any, _inner: Any, handle: Any, type_: TensorType) -> Any:
    device.drain()
    data = device.heap.data[handle.start + 1 : handle.start + 1 + type_.nbytes]
    return data.view(type_.dtype.numpy).reshape(type_.shape)


def snapshot_view(device: Any, _inner: Any, handle: Any, type_: TensorType) -> Any:
    device.drain()
    data = device.heap.bytes_of(handle, type_.nbytes).copy()
    return data.view(type_.dtype.numpy).reshape(type_.shape)


def fragile_view(device: Any, _inner: Any, handle: Any, type_: TensorType) -> Any:
    device.drain()
    data = device.heap.bytes_of(handle, type_.nbytes)
    return data.view(type_.dtype.numpy).reshape(type_.shape)


# -- aliasing


def gives_old_memory(device: Any, run: Any, program: Any, inputs: Handles, kept: Any) -> Handles:
    results: Handles = run(inputs)
    old: Any = kept.get("last")
    kept["last"] = results[0]
    if old is not None and not program.donated:
        device.copy(old, results[0], program.outputs[0].nbytes)
        return [Block(old.start, old.nbytes), *results[1:]]
    return results


def shares_results(_device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: list[Any] = run(inputs)
    if len(results) > 1 and program.outputs[0] is program.outputs[1] and not program.donated:
        results[1] = Block(results[0].start, results[0].nbytes)
    return results


def gives_inputs(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: list[Any] = run(inputs)
    if program.donated:
        return results
    device.drain()
    for n, (result, type_) in enumerate(zip(results, program.outputs, strict=True)):
        for given, other in zip(inputs, program.inputs, strict=True):
            heap, size = device.heap, type_.nbytes
            if size and other is type_:
                same = np.array_equal(heap.bytes_of(result, size), heap.bytes_of(given, size))
                results[n] = Block(given.start, given.nbytes) if same else results[n]
    return results


def wrong_for_twins(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run(inputs)
    if len({id(h) for h in inputs}) < len(inputs) and program.outputs[0].nbytes > 8:
        _write(device, results[0], 4, b"\x07\x07\x07")
    return results


def mirrored(call: OpCall) -> Any:
    """A transpose in place that meets what it has written."""
    if call.right.ndim == 2 and call.right.shape[0] == call.right.shape[1]:
        return np.triu(call.right) + np.tril(call.operands[0], -1)
    return None


# -- transfers


def clears_the_source(_device: Any, inner: Any, handle: Any, data: memoryview) -> None:
    inner(handle, data)
    source = np.frombuffer(data, np.uint8)
    if len(source) > 64:
        first = ctypes.c_ubyte.from_address(source.ctypes.data)
        first.value ^= 1


def clears_the_rest(device: Any, inner: Any, handle: Any, data: memoryview) -> None:
    inner(handle, data)
    rest = handle.nbytes - len(data)
    if len(data) and rest > 0:
        _write(device, handle, len(data), b"\0" * rest)


# -- streams


def at_once(device: Any, _inner: Any, handle: Any, data: memoryview) -> None:
    device.heap.bytes_of(handle, len(data))[...] = list(data)


def nothing(_device: Any, _inner: Any) -> None:
    pass


def raw_view(device: Any, _inner: Any, handle: Any, type_: TensorType) -> Any:
    data = device.heap.bytes_of(handle, type_.nbytes)
    return data.view(type_.dtype.numpy).reshape(type_.shape)


def out_of_order(device: Any, inner: Any, work: Callable[[], None]) -> None:
    inner(work)
    if len(device.queue) % 4 == 3:
        device.queue.insert(0, device.queue.pop())


def shared_arena(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    """Results of programs of one size lie in one place."""
    results: list[Any] = run(inputs)
    places = device.__dict__.setdefault("places", {})
    for n, type_ in enumerate(program.outputs):
        place = places.setdefault(type_, results[n])
        if place is not results[n] and not program.donated:
            device.copy(place, results[n], type_.nbytes)
            results[n] = Block(place.start, place.nbytes)
    return results


# -- threads


def races(device: Any, run: Any, _program: Any, inputs: Handles, _: Any) -> Handles:
    device.current = inputs
    time.sleep(0.001)
    results: Handles = run(device.current)
    return results


def compiles_in_turn(device: Any, inner: Any, program: Any) -> Any:
    device.program = program
    time.sleep(0.002)
    return inner(device.program)


def hands_out_twice(device: Any, inner: Any, nbytes: int) -> Any:
    """The allocation of a number is the same in every thread but the main one."""
    if threading.current_thread() is threading.main_thread():
        return inner(nbytes)
    places: dict[int, Any] = device.__dict__.setdefault("places", {})
    counts: dict[int, int] = device.__dict__.setdefault("counts", {})
    me = threading.get_ident()
    number = counts[me] = counts.get(me, 0) + 1
    time.sleep(0.0005)  # others come to the same number meanwhile
    place = places.setdefault(number, inner(4096))
    return Block(place.start, nbytes)


# -- lifetime


def keeps_an_object(_device: Any, run: Any, _program: Any, inputs: Handles, _: Any) -> Handles:
    _KEPT.append([inputs])
    results: Handles = run(inputs)
    return results


_KEPT: list[Any] = []


def keeps_programs(_device: Any, inner: Any, program: Any) -> Any:
    _KEPT.append([replace(program)])
    return inner(program)


def keeps_failures(device: Any, inner: Any, nbytes: int) -> Any:
    try:
        return inner(nbytes)
    except Exception:
        inner(1 << 20)
        raise


def frees_once_more(device: Any, inner: Any, handle: Any) -> None:
    inner(handle)
    device.frees = getattr(device, "frees", 0) + 1
    if device.frees % 8 == 0:
        inner(handle)


def uses_freed(device: Any, inner: Any, handle: Any) -> None:
    device.last = handle
    inner(handle)


def scratch_in_freed(device: Any, run: Any, _program: Any, inputs: Handles, _: Any) -> Handles:
    last: Any = getattr(device, "last", None)
    if last is not None and last.nbytes > 1000:
        _write(device, last, 8, b"\x99" * 16)
    results: Handles = run(inputs)
    return results


class _Owner:
    """A program whose end is the end of its results."""

    def __init__(self, device: Any, run: Any, program: Any) -> None:
        self.device, self.run, self.program = device, run, program
        self.made: Handles = []

    def __call__(self, inputs: Sequence[Handle]) -> Handles:
        results: Handles = self.run(inputs)
        self.made += results
        return results

    def __del__(self) -> None:
        for handle in self.made:
            self.device.heap.bytes_of(handle, handle.nbytes)[...] = 0


def results_end_with_it(device: Any, inner: Any, program: Any) -> Any:
    return _Owner(device, inner(program), program)


def never_frees(_device: Any, _inner: Any, _handle: Any) -> None:
    pass


def few_programs(device: Any, inner: Any, program: Any) -> Any:
    """The last sixteen programs; older numbers run newer ones."""
    loaded: list[Any] = device.__dict__.setdefault("loaded", [])
    number = len(loaded)
    loaded.append((program.inputs, program.outputs, inner(program)))

    def call(inputs: Sequence[Handle]) -> Handles:
        newest = len(loaded) - 1
        slot = number + (newest - number) // 16 * 16
        fits = loaded[slot][:2] == loaded[number][:2]
        results: Handles = loaded[slot if fits else number][2](inputs)
        return results

    return call


# -- errors


def foreign_error(_device: Any, inner: Any, nbytes: int) -> Any:
    if nbytes > 1 << 40:
        raise KeyError(nbytes)
    return inner(nbytes)


def zero_divisor(call: OpCall) -> Any:
    if call.dtype.kind in "iu":
        return np.where(call.operands[1] == 0, call.dtype.type(99), call.right)
    return None


def gives_up(_call: OpCall) -> Any:
    raise DeviceError("no such function")


def wrong_on_a_timeline(call: OpCall) -> Any:
    return call.reference(*[x + x for x in call.operands]) if timeline.enabled() else None


# -- limits


def eight_axes(_device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    if any(len(type_.shape) > 8 for type_ in program.inputs):
        raise DeviceError("more axes than a launch has")
    results: Handles = run(inputs)
    return results


def thirty_two(_device: Any, run: Any, _program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run([*inputs[:32], *[inputs[0]] * len(inputs[32:])])
    return results


def no_empty(_device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    if any(not type_.size for type_ in program.inputs):
        raise DeviceError("a grid of 0 blocks")
    results: Handles = run(inputs)
    return results


def no_rank(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run(inputs)
    scalars = [h for h, t in zip(inputs, program.inputs, strict=True) if not t.shape]
    for handle, type_ in zip(results, program.outputs, strict=True):
        if scalars and type_.shape:
            _write(device, handle, 0, b"\x07\x07\x07\x07")
    return results


def short_rows(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    results: Handles = run(inputs)
    for handle, type_ in zip(results, program.outputs, strict=True):
        if type_.shape and type_.shape[-1] > 1 << 16:
            _write(device, handle, (1 << 16) * 4, b"\x07\x07\x07\x07")
    return results


def small_programs(_device: Any, inner: Any, program: Any) -> Any:
    size = sum(len(s.body.instrs) for k in program.kernels for s in k.stages) + len(program.steps)
    if size > 150:
        raise CompileError("the program is too long")
    return inner(program)


# -- repeats


def drifts(device: Any, run: Any, program: Any, inputs: Handles, kept: Any) -> Handles:
    results: Handles = run(inputs)
    kept["calls"] = kept.get("calls", 0) + 1
    _low_bit(device, program, results, kept["calls"] % 2)
    return results


def _low_bit(device: Any, program: Any, results: Handles, flip: int) -> None:
    for handle, type_ in zip(results, program.outputs, strict=True):
        if flip and type_.dtype.is_float and type_.nbytes:

            def run(handle: Any = handle) -> None:
                device.heap.data[handle.start] ^= 1

            later(device, run)


def drifts_by_compilation(device: Any, inner: Any, program: Any) -> Any:
    run = inner(program)
    device.compilations = number = getattr(device, "compilations", 0) + 1

    def call(inputs: Sequence[Handle]) -> Handles:
        results: Handles = run(inputs)
        _low_bit(device, program, results, number % 2)
        return results

    return call


def stays_rough(device: Any, run: Any, program: Any, inputs: Handles, _: Any) -> Handles:
    """Once a NaN was seen, results are rounded otherwise."""
    results: Handles = run(inputs)
    device.drain()
    for handle, type_ in zip(inputs, program.inputs, strict=True):
        if type_.dtype.is_float and type_.dtype.bits == 32 and handle.alive:
            data = device.heap.bytes_of(handle, type_.nbytes).view(np.float32)
            device.rough = getattr(device, "rough", False) or bool(np.isnan(data).any())
    _low_bit(device, program, results, int(getattr(device, "rough", False)))
    return results


# -- declaration


def other_product(backend: Backend) -> Backend:
    """A list with a number twice."""

    class Listing(type(backend)):  # type: ignore[misc]
        def devices(self) -> Any:
            return [*super().devices(), super().devices()[0]]

    backend.__class__ = Listing
    return backend


# -- random numbers


def stuck(call: OpCall) -> Any:
    """All words are those of the first counter."""
    return np.full_like(call.right, call.right.reshape(-1)[0]) if call.right.size else None


def coarse(call: OpCall) -> Any:
    """Words of eight bits."""
    return call.right & 0xFF000000


WORDS = with_ops({"threefry2x32": stuck})
