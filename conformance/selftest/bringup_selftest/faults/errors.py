"""Faults of errors, limits and lifetimes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Executable, Handle, Lowered
from bringup.errors import OutOfMemoryError
from bringup.graph.index import Bound
from bringup.kernel.form import Store
from bringup.program.program import KernelStep, Program, Step
from bringup_selftest.corpus import (
    Faults,
    FaultyBackend,
    method,
    with_device,
    with_programs,
)
from bringup_selftest.editing import each_step, each_store

FAULTS = Faults("Errors, limits, lifetime", "rt", depth=3)


@FAULTS.by(method("alloc"), "ER06", "for lack of memory a null handle")
def null_for_lack(_device: Any, inner: Any, nbytes: int) -> Handle | None:
    try:
        return inner(nbytes)
    except OutOfMemoryError:
        return None


@FAULTS.by(method("alloc"), "ER06b", "for lack of memory a smaller block")
def small_for_lack(_device: Any, inner: Any, nbytes: int) -> Handle:
    try:
        return inner(nbytes)
    except OutOfMemoryError:
        return inner(64)


@FAULTS.by(method("alloc"), "ER06c", "after one failure all allocations fail")
def unusable_after(device: Any, inner: Any, nbytes: int) -> Handle:
    if getattr(device, "failed", False):
        raise OutOfMemoryError("the device has failed")
    try:
        return inner(nbytes)
    except OutOfMemoryError:
        device.failed = True
        raise


@FAULTS.by(method("alloc"), "ER06d", "lack of memory is no OutOfMemoryError")
def other_error(_device: Any, inner: Any, nbytes: int) -> Handle:
    try:
        return inner(nbytes)
    except OutOfMemoryError as error:
        raise ValueError(str(error)) from None


@FAULTS.by(method("compile"), "ER08", "every call keeps a buffer")
def leaks_a_call(device: Any, inner: Any, program: Program) -> Executable:
    run = inner(program)

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        for type_ in program.outputs[:1]:
            device.alloc(type_.nbytes)
        return results

    return call


@FAULTS.by(method("compile"), "ER08b", "programs that are gone keep buffers")
def leaks_a_program(device: Any, inner: Any, program: Program) -> Executable:
    for literal in program.constants:
        device.alloc(literal.type.nbytes)
    made: Executable = inner(program)
    return made


@FAULTS.by(method("compile"), "ER08c", "every call that fails keeps a buffer")
def leaks_an_error(device: Any, inner: Any, program: Program) -> Executable:
    run = inner(program)

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        try:
            results: list[Handle] = run(inputs)
        except Exception:
            for type_ in program.outputs[:1]:
                device.alloc(type_.nbytes)
            raise
        return results

    return call


@FAULTS.by(method("free"), "ER08d", "some blocks are never freed")
def never_freed(device: Any, inner: Any, handle: Handle) -> None:
    device.frees = getattr(device, "frees", 0) + 1
    if device.frees % 3:
        inner(handle)


@FAULTS.by(with_programs, "ER09", "more scratch is taken than planned")
def more_scratch(program: Program) -> Program:
    return replace(program, arena_bytes=4 * program.arena_bytes + 65536)


def _short(step: Step) -> Step:
    """A launch without the last element of its results."""
    if not isinstance(step, KernelStep):
        return step
    kernel = step.kernel

    def but_last(_stage: int, store: Store) -> Store:
        decl = kernel.buffers[store.buffer]
        if decl.role == "tile" or decl.type.size < 2:
            return store
        return replace(store, mask=(*store.mask, Bound(store.index, 0, decl.type.size - 1)))

    return replace(step, kernel=each_store(kernel, but_last))


@FAULTS.by(method("compile"), "ER12", "the second call differs from the first")
def other_when_cached(_device: Any, inner: Any, program: Program) -> Executable:
    first, later = inner(program), inner(each_step(program, _short))
    calls: list[int] = []

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        calls.append(1)
        results: list[Handle] = (first if len(calls) == 1 else later)(inputs)
        return results

    return call


@FAULTS.by(method("compile"), "ER12b", "other threads get other results")
def other_in_threads(_device: Any, inner: Any, program: Program) -> Executable:
    """In other threads than the first the last element is not written."""
    main, others = inner(program), inner(each_step(program, _short))

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        first = threading.current_thread() is threading.main_thread()
        results: list[Handle] = (main if first else others)(inputs)
        return results

    return call


@FAULTS.by(method("compile"), "ER13a", "results of two calls share memory")
def scratch_shared(device: Any, inner: Any, program: Program) -> Executable:
    run = inner(program)
    kept: list[list[Handle]] = []

    def call(inputs: Sequence[Handle]) -> list[Handle]:
        results: list[Handle] = run(inputs)
        for old in kept[-1:]:
            for mine, before, type_ in zip(results, old, program.outputs, strict=True):
                if before.alive:
                    device.copy(before, mine, type_.nbytes)
        kept.append(results)
        return results

    return call


def scratch_of_one_call(*, by_types: bool) -> Any:
    """Scratch memory of a program, or of all with equal types, that serves one call at a time."""
    inside: Counter[object] = Counter()

    def wrapper(device: Any, inner: Any, program: Program) -> Executable:
        run = inner(program)
        if not program.arena_bytes:
            return run  # type: ignore[no-any-return]
        owner = (program.inputs, program.outputs) if by_types else program.key

        def call(inputs: Sequence[Handle]) -> list[Handle]:
            inside[owner] += 1
            time.sleep(0.001)
            results: list[Handle] = run(inputs)
            others = inside[owner] > 1
            inside[owner] -= 1
            if others and program.outputs[0].nbytes:
                device.upload(results[0], memoryview(b"\x5a"))
            return results

        return call

    return wrapper


@FAULTS.by(method("close"), "ER15a", "a closed device gives zeros")
def emptied(device: Any, _inner: Any) -> None:
    """A device that is closed goes on, with zeros in its memory."""
    device.heap.data[...] = 0


@FAULTS.by(with_device, "ER15b", "programs of a closed device do nothing")
def idle_when_closed(device: Any) -> Any:
    """Programs of a device that is closed do nothing, and give memory as it is (bringup-cuda)."""
    inner, closed = device.compile, list[bool]()

    def compile_(program: Program) -> Executable:
        run = inner(program)

        def call(inputs: Sequence[Handle]) -> list[Handle]:
            if not closed:
                return run(inputs)  # type: ignore[no-any-return]
            return [device.alloc(type_.nbytes) for type_ in program.outputs]

        return call

    device.compile, device.close = compile_, lambda: closed.append(True)
    return device


class _AnyTarget(FaultyBackend):
    """Names that it does not know stand for its own target."""

    def capabilities(self, target: str = "") -> Capabilities:
        """The other's."""
        return super().capabilities(target if target in self.targets() else "")

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The other's."""
        return super().lower(program, target if target in self.targets() else "")


class _OneTarget(FaultyBackend):
    """Programs for another target than the first have no text."""

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The other's, or none."""
        first = target in ("", self.targets()[0])
        return super().lower(program, target) if first else Lowered("", "")


@FAULTS.by(with_programs, "ER17", "code made in little time lacks a step", kind="op")
def unfinished(program: Program) -> Program:
    """What is compiled in little time lacks its last step."""
    return program if program.optimize else replace(program, steps=program.steps[:-1])


FAULTS.by(method("compile"), "ER14a", "calls at once share a program's scratch")(
    scratch_of_one_call(by_types=False)
)
FAULTS.by(method("compile"), "ER14b", "programs of equal types share scratch")(
    scratch_of_one_call(by_types=True)
)


FAULTS.add("ER16a", "a target that it does not know is its own", partial(_AnyTarget, ops=None))
FAULTS.add("ER16b", "the second target has no texts", partial(_OneTarget, ops=None))
