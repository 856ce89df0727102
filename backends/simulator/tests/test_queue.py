"""Late execution, snapshots, error attribution, views that end, faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bringup_simulator import (
    Accelerator,
    Binding,
    CommandFailedError,
    DeviceLostError,
    Handle,
    InjectedError,
    InvalidHandleError,
    LimitError,
    Limits,
    Operand,
    OutOfBoundsError,
    OutOfDeviceMemoryError,
    UseAfterFreeError,
)


def f32(handle: Handle, *shape: int, offset: int = 0, writable: bool = False) -> Operand:
    return Operand(handle, "f32", shape, offset, writable)


def read(chip: Accelerator, handle: Handle) -> np.ndarray:
    out = np.empty(chip.nbytes(handle) // 4, np.float32)
    chip.download(handle, out)
    return out


@pytest.fixture
def chip() -> Accelerator:
    return Accelerator()


@pytest.fixture
def four(chip: Accelerator) -> Handle:
    handle = chip.alloc(16)
    chip.upload(handle, np.arange(4, dtype=np.float32))
    chip.synchronize()
    return handle


def failing(*_views: np.ndarray) -> None:
    raise ArithmeticError("no result")


def test_nothing_runs_before_a_wait(chip: Accelerator) -> None:
    ran: list[str] = []
    chip.call("first", lambda: ran.append("first"), [])
    chip.call("second", lambda: ran.append("second"), [])
    assert ran == []
    chip.synchronize()
    assert ran == ["first", "second"]


def test_a_blocking_download_waits_for_what_came_before(chip: Accelerator, four: Handle) -> None:
    def increment(view: np.ndarray) -> None:
        view += 1

    chip.call("increment", increment, [f32(four, 4, writable=True)])
    assert read(chip, four).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("wrap", [np.asarray, memoryview], ids=["array", "memoryview"])
def test_an_upload_takes_its_bytes_when_submitted(
    chip: Accelerator, four: Handle, wrap: Callable[[np.ndarray], Any]
) -> None:
    host = np.arange(4, 8, dtype=np.float32)
    chip.upload(four, wrap(host))
    host[:] = -1
    assert read(chip, four).tolist() == [4, 5, 6, 7]


def test_an_upload_stores_any_layout_in_c_order(chip: Accelerator, four: Handle) -> None:
    chip.upload(four, np.arange(4, dtype=np.float32).reshape(2, 2).T)
    assert read(chip, four).tolist() == [0, 2, 1, 3]


def test_a_download_needs_memory_it_can_fill_in_order(chip: Accelerator, four: Handle) -> None:
    frozen = np.empty(4, np.float32)
    frozen.flags.writeable = False
    for into in (np.empty((4, 2), np.float32)[:, 0], frozen):
        with pytest.raises(ValueError, match="C-contiguous"):
            chip.download(four, into)


def test_copies(chip: Accelerator, four: Handle) -> None:
    target = chip.alloc(16)
    chip.copy(target, four, 12)
    chip.copy(four, four, 16)
    assert read(chip, target)[:3].tolist() == [0, 1, 2]
    assert np.isnan(read(chip, target)[3])
    assert read(chip, four).tolist() == [0, 1, 2, 3]


def test_a_failure_surfaces_at_the_wait_once_and_spares_later_commands(
    chip: Accelerator, four: Handle
) -> None:
    chip.call("bad", failing, [f32(four, 4)])
    chip.upload(four, np.full(4, 5, np.float32))
    with pytest.raises(CommandFailedError, match="bad: ArithmeticError: no result") as caught:
        chip.synchronize()
    assert caught.value.command == "bad"
    assert isinstance(caught.value.__cause__, ArithmeticError)
    chip.synchronize()
    assert read(chip, four).tolist() == [5, 5, 5, 5]


def test_each_wait_raises_one_failure_and_none_is_lost(chip: Accelerator, four: Handle) -> None:
    chip.call("first", failing, [], tag=1)
    chip.call("second", failing, [], tag=2)
    for name, tag in (("first", 1), ("second", 2)):
        with pytest.raises(CommandFailedError) as caught:
            chip.synchronize()
        assert (caught.value.command, caught.value.tag) == (name, tag)
    chip.synchronize()
    chip.call("third", failing, [])
    with pytest.raises(CommandFailedError, match="third"):
        read(chip, four)
    assert read(chip, four).tolist() == [0, 1, 2, 3]


def test_queued_commands_may_use_a_buffer_freed_after_them(chip: Accelerator, four: Handle) -> None:
    target = chip.alloc(16)
    chip.copy(target, four, 16)
    chip.free(four)
    with pytest.raises(UseAfterFreeError):
        chip.copy(target, four, 16)
    assert read(chip, target).tolist() == [0, 1, 2, 3]


def test_views_are_typed_windows(chip: Accelerator, four: Handle) -> None:
    seen: list[Any] = []

    def look(a: np.ndarray, b: np.ndarray, empty: np.ndarray) -> None:
        seen.extend([a.tolist(), b.dtype.name, b.tolist(), empty.shape, a.flags.writeable])

    operands = [f32(four, 2, 1, offset=8), Operand(four, "bf16", (1,), 14), f32(four, 0, 3)]
    chip.call("look", look, operands)
    chip.synchronize()
    assert seen == [[[2.0], [3.0]], "bfloat16", [3.0], (0, 3), False]


def test_writing_through_an_input_fails(chip: Accelerator, four: Handle) -> None:
    chip.call("scribble", lambda view: view.fill(0), [f32(four, 4)])
    with pytest.raises(CommandFailedError, match="scribble: ValueError"):
        chip.synchronize()
    assert read(chip, four).tolist() == [0, 1, 2, 3]


def test_limits_of_calls(four: Handle) -> None:
    chip = Accelerator(limits=Limits(rank=2, elements=4, buffers=1))
    handle = chip.alloc(64)
    for operands, what in (
        ([f32(handle, 1, 1, 1)], "3 axes"),
        ([f32(handle, 5)], "5 elements"),
        ([f32(handle, 1)] * 2, "2 buffers"),
        ([f32(handle, 1, offset=2)], "not aligned"),
    ):
        with pytest.raises(LimitError, match=what):
            chip.call("big", failing, operands)
    with pytest.raises(OutOfBoundsError):
        chip.call("long", failing, [f32(handle, 4, offset=52)])
    chip.synchronize()


def actions(chip: Accelerator, handle: Handle, double: str) -> dict[str, Callable[[], object]]:
    kernel = chip.load(double, "double")
    return {
        "alloc": lambda: chip.alloc(1),
        "free": lambda: chip.free(chip.alloc(1)),
        "upload": lambda: chip.upload(handle, b"x"),
        "download": lambda: chip.download(handle, np.empty(1)),
        "copy": lambda: chip.copy(handle, handle, 1),
        "call": lambda: chip.call("work", lambda: None, []),
        "launch": lambda: chip.launch(kernel, [Binding(handle)] * 2),
        "load": lambda: chip.load(double, "double"),
        "synchronize": chip.synchronize,
    }


IMMEDIATE = {"alloc", "free", "load", "synchronize"}
KINDS = [*sorted(IMMEDIATE), "upload", "download", "copy", "call", "launch"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_planned_fault_strikes_when_and_as_often_as_told(double: str, kind: Any) -> None:
    chip = Accelerator()
    act = actions(chip, chip.alloc(512), double)[kind]
    error = OutOfDeviceMemoryError if kind == "alloc" else InjectedError
    outcomes: list[type | None] = []
    chip.fail_next(kind, after=1, times=2)
    for _ in range(4):
        try:
            act()
            if kind not in IMMEDIATE:
                chip.synchronize()
        except error:
            outcomes.append(error)
        except CommandFailedError as failure:
            outcomes.append(type(failure.__cause__))
        else:
            outcomes.append(None)
    assert outcomes == [None, error, error, None]


def test_a_fault_can_be_any_error(chip: Accelerator, four: Handle) -> None:
    chip.fail_next("copy", error=TimeoutError("stuck"))
    chip.copy(four, four, 4)
    with pytest.raises(CommandFailedError, match="copy: TimeoutError: stuck"):
        chip.synchronize()


def test_plans_of_one_kind_queue_up(chip: Accelerator) -> None:
    chip.fail_next("alloc", error=KeyError("one"))
    chip.fail_next("alloc", error=KeyError("two"))
    for which in ("one", "two"):
        with pytest.raises(KeyError, match=which):
            chip.alloc(1)
    chip.alloc(1)
    with pytest.raises(ValueError, match="no fault kind"):
        chip.fail_next("fly")  # type: ignore[arg-type]


def test_a_lost_device_says_so(double: str) -> None:
    chip = Accelerator()
    acts = actions(chip, chip.alloc(512), double)
    chip.fail_next("upload", error=DeviceLostError("bus error"))
    chip.upload(chip.alloc(1), b"x")
    ran: list[int] = []
    chip.call("later", lambda: ran.append(1), [])
    with pytest.raises(DeviceLostError, match="during upload: bus error"):
        chip.synchronize()
    for act in acts.values():
        with pytest.raises(DeviceLostError, match="bus error"):
            act()
    assert ran == []


def test_faults_can_be_forgotten(chip: Accelerator) -> None:
    chip.fail_next("alloc")
    chip.forget_faults()
    chip.alloc(1)


def test_a_kernel_belongs_to_its_chip(chip: Accelerator, double: str) -> None:
    elsewhere = Accelerator(index=1).load(double, "double")
    buffer = Binding(chip.alloc(512))
    with pytest.raises(InvalidHandleError, match="double is not loaded on this device"):
        chip.launch(elsewhere, [buffer, buffer])


def test_a_kernel_that_is_forgotten_runs_where_it_is_queued(chip: Accelerator, double: str) -> None:
    x, y = chip.alloc(512), chip.alloc(512)
    chip.upload(x, np.arange(128, dtype=np.float32))
    chip.launch(chip.load(double, "double"), [Binding(x), Binding(y)])
    assert read(chip, y).tolist() == [2.0 * n for n in range(128)]


def test_threads_do_not_mix(chip: Accelerator) -> None:
    def work(seed: int, out: list[bool]) -> None:
        for n in range(50):
            handle = chip.alloc(400)
            data = np.full(100, seed * 100 + n, np.float32)
            chip.upload(handle, data)
            out.append(bool((read(chip, handle) == data).all()))
            chip.free(handle)

    results: list[bool] = []
    threads = [threading.Thread(target=work, args=(n, results)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 200
    assert chip.counters.live_allocations == 0
