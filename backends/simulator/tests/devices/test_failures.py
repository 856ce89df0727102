"""What goes wrong on the chip reaches the user as an error of bringup; nothing leaks by it."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

import bringup as bu
import bringup_simulator as sim
from bringup import errors
from bringup.dtypes import f32, i32
from bringup.graph import Builder, Graph, Literal
from bringup.graph.index import Dyn, Expr
from bringup.kernel import ops as kernel_ops
from bringup.kernel.form import BufferDecl, Kernel, Stage, Store
from bringup.ops.table import lookup
from bringup.runtime import async_errors, transfer
from bringup.runtime.compiler import compile_graph
from bringup.runtime.devices import OpenDevice
from bringup_simulator import FaultKind
from bringup_simulator.devices.render import render

X = np.arange(1, 301, dtype=np.float32)


def work(device: OpenDevice) -> FaultKind:
    """What a step of a program is to the chip."""
    return "call" if device.backend_name == "simulator-ops" else "launch"


def here(lines: int = 0) -> str:
    """``file:line`` of the caller's line, or ``lines`` after it, as errors write it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{frame.f_code.co_filename}:{frame.f_back.f_lineno + lines} "


def right(device: OpenDevice) -> None:
    """The device computes, and a wait finds nothing left over."""
    device.device.synchronize()
    result = np.asarray(bu.jit(lambda x: x * 2 + 1, device=device)(X))
    np.testing.assert_array_equal(result, X * 2 + 1)


def test_an_error_of_queued_work_comes_at_the_wait_with_its_line(
    device: OpenDevice, chip: sim.Accelerator
) -> None:
    def function(x: Any) -> Any:
        return bu.sqrt(x)

    line = here(-2)
    compiled = bu.jit(function, device=device)
    chip.fail_next(work(device))
    result = compiled(X)
    with pytest.raises(errors.DeviceError, match="injected failure") as caught:
        np.asarray(result)
    assert line in str(caught.value)
    assert "sqrt" in str(caught.value)
    right(device)


def test_equal_code_elsewhere_keeps_its_own_line(device: OpenDevice, chip: sim.Accelerator) -> None:
    x = bu.asarray(X, device=device)
    np.asarray(bu.tanh(x * 3))
    again = bu.tanh(x * 3)
    line = here(-1)
    chip.fail_next(work(device), after=0)
    with pytest.raises(errors.DeviceError) as caught:
        np.asarray(again)
    assert line in str(caught.value)


def test_only_the_command_that_failed_is_reported(
    device: OpenDevice, chip: sim.Accelerator
) -> None:
    function = bu.jit(lambda x: bu.exp(-x), device=device)
    before, after = function(X), None
    np.asarray(before)
    chip.fail_next(work(device))
    lost = function(X)
    after = function(X)
    with pytest.raises(errors.DeviceError):
        np.asarray(lost)
    np.testing.assert_allclose(np.asarray(after), np.exp(-X), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(before), np.exp(-X), rtol=1e-6)


@pytest.mark.parametrize("after", [0, 1])
def test_out_of_memory(device: OpenDevice, chip: sim.Accelerator, after: int) -> None:
    function = bu.jit(lambda x: bu.sum(x) + bu.cos(x), device=device)
    np.asarray(function(X))
    gc.collect()
    live = chip.counters.live_allocations
    # Once, and again when the programs that only caches hold are gone.
    chip.fail_next("alloc", after=after, times=2)
    with pytest.raises(errors.OutOfMemoryError, match="injected failure of alloc"):
        function(X)
    gc.collect()
    chip.synchronize()
    assert chip.counters.live_allocations == live
    right(device)


@pytest.mark.parametrize("after", [0, 1])
def test_an_allocation_that_fails_is_tried_again(
    device: OpenDevice, chip: sim.Accelerator, after: int
) -> None:
    function = bu.jit(lambda x: bu.sum(x) + bu.cos(x), device=device)
    expected = np.asarray(function(X))
    chip.fail_next("alloc", after=after)
    np.testing.assert_array_equal(np.asarray(function(X)), expected)
    right(device)


def test_memory_that_is_really_full(device: OpenDevice, chip: sim.Accelerator) -> None:
    chip._memory.capacity = 100_000
    zeros = np.zeros(12_000, np.float32)
    kept = [bu.asarray(zeros, device=device) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(errors.OutOfMemoryError, match="48000 bytes asked for"):
            np.asarray(kept[0] + kept[0])
    del kept[1]
    gc.collect()
    np.testing.assert_array_equal(np.asarray(kept[0] + kept[0]), zeros)


@pytest.mark.parametrize("kind", ["upload", "download"])
def test_failed_transfers(device: OpenDevice, chip: sim.Accelerator, kind: FaultKind) -> None:
    function = bu.jit(lambda x: x + 1, device=device)
    np.asarray(function(X))
    chip.fail_next(kind)
    with pytest.raises(errors.DeviceError, match=f"injected failure of {kind}"):
        np.asarray(function(X))
    right(device)


@pytest.mark.parametrize("device", ["simulator-kernels", "simulator-program"], indirect=True)
def test_a_kernel_the_chip_refuses(device: OpenDevice, chip: sim.Accelerator) -> None:
    def function(x: Any) -> Any:
        return bu.floor(x) - x

    line = here(-2)
    chip.fail_next("load", error=sim.BadKernelError("not today"))
    with pytest.raises(errors.CompileError, match="not today") as caught:
        bu.jit(function, device=device)(X)
    assert line in str(caught.value)
    right(device)


@pytest.mark.parametrize(
    ("raised", "reported"),
    [
        (sim.OutOfDeviceMemoryError("full"), errors.OutOfMemoryError),
        (sim.CommandTimeoutError("too slow"), errors.DeviceTimeoutError),
        (sim.InjectedError("broken"), errors.DeviceError),
        (sim.DeviceLostError("gone"), errors.DeviceLostError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_of_the_chip_has_a_meaning(
    device: OpenDevice, chip: sim.Accelerator, raised: Exception, reported: type[Exception]
) -> None:
    result = bu.jit(lambda x: x - 1, device=device)(X)
    chip.synchronize()
    chip.fail_next(work(device), error=raised)
    result = bu.jit(lambda x: x - 1, device=device)(X)
    with pytest.raises(errors.DeviceError, match=str(raised)) as caught:
        np.asarray(result)
    assert type(caught.value) is reported


def test_a_lost_device_says_so_until_it_is_opened_anew(
    device: OpenDevice, chip: sim.Accelerator, another: Callable[[str, int], OpenDevice]
) -> None:
    function = bu.jit(lambda x: x * x, device=device)
    x = bu.asarray(X, device=device)
    chip.lose("power went")
    for _ in range(2):
        with pytest.raises(errors.DeviceLostError, match="power went"):
            function(x)
    with pytest.raises(errors.DeviceLostError, match="power went"):
        bu.asarray(X, device=device)
    del x
    gc.collect()
    right(another(device.backend_name, 0))


def graph() -> Graph:
    """Two outputs, an intermediate in the arena, a constant too large for a kernel."""
    builder = Builder()
    table = Literal.of(np.linspace(0, 1, 300), f32)
    with builder:
        x = builder.input(f32[300])
        y = lookup("add")(x, lookup("constant")(value=table))
        total = lookup("reduce")(lookup("mul")(y, y), kind="add", dims=(0,))
        spread = lookup("broadcast_in_dim")(total, shape=(300,), dims=())
        scaled = lookup("div")(y, spread)
    return builder.build([scaled, total], "graph")


# A buffer whose free fails is the chip's own loss.
@pytest.mark.parametrize("fault", [None, *(k for k in get_args(FaultKind) if k != "free")])
def test_no_handle_is_left_after_all_arrays_are_gone(
    device: OpenDevice, chip: sim.Accelerator, fault: FaultKind | None
) -> None:
    executable = device.device.compile(compile_graph(graph(), device).program)
    bu.clear_caches()  # as memory that is full does
    live = chip.counters.live_allocations
    for after in range(4):
        if fault is not None:
            chip.fail_next(fault, after=after)
        with contextlib.suppress(errors.DeviceError):
            _run(device, executable)
        with contextlib.suppress(errors.DeviceError):
            device.device.synchronize()
        gc.collect()
        chip.forget_faults()
        device.device.synchronize()
        assert chip.counters.live_allocations == live
    _run(device, executable)


def _run(device: OpenDevice, executable: Any) -> None:
    """Upload, call, download and compare."""
    made = transfer.execute(device.device, executable, [transfer.upload(device.device, X)], 2)
    types = [value.type for value in graph().outputs]
    scaled, total = (
        transfer.download(device.device, *pair) for pair in zip(made, types, strict=True)
    )
    y = X + np.linspace(0, 1, 300, dtype=np.float32)
    np.testing.assert_allclose(total, (y * y).sum(), rtol=1e-5)
    np.testing.assert_allclose(scaled, y / (y * y).sum(), rtol=1e-5)


def test_constants_go_with_their_program(device: OpenDevice, chip: sim.Accelerator) -> None:
    program = compile_graph(graph(), device).program
    without = chip.counters.live_allocations
    executable = device.device.compile(program)
    assert chip.counters.live_allocations > without
    del executable
    gc.collect()
    assert chip.counters.live_allocations == without


def test_the_host_cannot_look_into_device_memory(device: OpenDevice) -> None:
    x = bu.asarray(X, device=device)
    np.asarray(x)
    handle = transfer.handle_of(x._buffer)
    assert device.device.host_view(handle, x._type) is None
    for read in (memoryview, np.frombuffer, len):
        with pytest.raises((TypeError, AttributeError)):
            read(handle)
    for forged in (handle + 1, handle + 64, 0, None):
        with pytest.raises(errors.DeviceError, match="no handle of this device"):
            device.device.download(forged, memoryview(bytearray(4)))
    copied = np.asarray(x)
    copied = copied.copy() if not copied.flags.writeable else copied
    copied[:] = 0
    np.testing.assert_array_equal(np.asarray(x), X)


def test_another_devices_handle_is_refused(
    device: OpenDevice, another: Callable[[str, int], OpenDevice]
) -> None:
    other = another(device.backend_name, 1)
    theirs = [other.device.alloc(4) for _ in range(3)]
    for _ in range(3):
        device.device.alloc(4)
    for handle in theirs:
        with pytest.raises(errors.DeviceError, match="no handle of this device"):
            device.device.free(handle)


def test_reading_freed_memory_is_an_error(device: OpenDevice) -> None:
    handle = device.device.alloc(4)
    device.device.free(handle)
    with pytest.raises(errors.DeviceError, match="was freed"):
        device.device.download(handle, memoryview(bytearray(4)))


@pytest.mark.parametrize("device", ["simulator-ops"], indirect=True)
def test_a_function_that_writes_its_operand_fails(
    device: OpenDevice, chip: sim.Accelerator
) -> None:
    def meddle(x: Any, out: Any) -> None:
        x[...] = 0

    handle = chip.alloc(8)
    operand = sim.Operand(handle, "f32", (2,))
    chip.call("meddle", meddle, [operand, operand])
    with pytest.raises(errors.DeviceError, match="read-only"):
        device.device.synchronize()


def test_an_index_that_is_loaded_is_refused() -> None:
    body = Builder()
    with body:
        loaded = kernel_ops.load(buffer=0, dtype=i32, index=Expr())
        value = kernel_ops.load(loaded, buffer=1, dtype=f32, index=Expr.of(Dyn(0, 0, 3)))
    stage = Stage((), body.build([value], "body"), (Store(2, Expr()),))
    places = (BufferDecl(i32[1], "in"), BufferDecl(f32[4], "in"), BufferDecl(f32[1], "out"))
    with pytest.raises(errors.UnsupportedError, match="an index that is loaded"):
        render(Kernel("gather", (), places, (stage,)))


def test_what_failed_stays_failed_and_nothing_else(
    device: OpenDevice, chip: sim.Accelerator
) -> None:
    x = bu.asarray(X, device=device)
    double, half = bu.jit(lambda x: x * 2), bu.jit(lambda x: x / 2)
    before = double(x)
    chip.fail_next(work(device), after=1)
    failed = half(x)
    after = double(failed)
    beside = double(x)
    np.testing.assert_array_equal(np.asarray(beside), X * 2)  # the first wait of all
    np.testing.assert_array_equal(np.asarray(before), X * 2)
    for array in (failed, after, failed):
        with pytest.raises(errors.DeviceError, match="injected failure"):
            np.asarray(array)
    with pytest.raises(errors.DeviceError, match="injected failure"):
        double(failed)
    np.testing.assert_array_equal(np.asarray(half(x)), X / 2)
    right(device)


def test_every_run_that_failed_before_a_wait_stays_failed(
    device: OpenDevice, chip: sim.Accelerator
) -> None:
    x = bu.asarray(X, device=device)
    double, half = bu.jit(lambda x: x * 2), bu.jit(lambda x: x / 2)
    np.asarray(double(x))
    np.asarray(half(x))
    chip.fail_next(work(device), times=2)
    lost = double(x), half(x)
    for array in (*lost, *lost):
        with pytest.raises(errors.DeviceError, match="injected failure"):
            np.asarray(array)
    right(device)


def test_the_second_failure_of_a_run_concerns_no_other(
    device: OpenDevice, chip: sim.Accelerator
) -> None:
    x = bu.asarray(X, device=device)
    two_steps, half = bu.jit(lambda x: (bu.sum(x * x), bu.sum(x[::2]))), bu.jit(lambda x: x / 2)
    np.asarray(two_steps(x)[0])
    np.asarray(half(x))
    chip.fail_next(work(device), times=2)
    failed, other = two_steps(x), half(x)
    with pytest.raises(errors.DeviceError, match="injected failure"):
        np.asarray(failed[1])
    np.testing.assert_array_equal(np.asarray(other), X / 2)
    right(device)


def test_an_error_without_a_step_condemns_what_was_not_proved(
    device: OpenDevice, chip: sim.Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = bu.asarray(X, device=device)
    double = bu.jit(lambda x: x * 2)
    proved, pending = double(x), double(x + 1)
    np.asarray(proved)
    pending = double(x + 1)
    kind = type(device.device)
    download = kind.download

    def fail(*_args: Any) -> None:
        raise errors.DeviceError("something went wrong")

    monkeypatch.setattr(kind, "download", fail)
    with pytest.raises(errors.DeviceError, match="went wrong"):
        np.asarray(x)
    monkeypatch.setattr(kind, "download", download)
    np.testing.assert_array_equal(np.asarray(x), X)
    np.testing.assert_array_equal(np.asarray(proved), X * 2)
    with pytest.raises(errors.DeviceError, match="went wrong"):
        np.asarray(pending)


def test_runs_without_a_wait_do_not_pile_up(
    device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_errors, "MOST_PENDING", 5)
    x = bu.asarray(X, device=device)
    add = bu.jit(lambda x: x + 1)
    for _ in range(23):
        x = add(x)
    assert len(async_errors._ledger(device.device).pending) <= 5
    np.testing.assert_array_equal(np.asarray(x), X + 23)
    assert async_errors._ledger(device.device).pending == []
