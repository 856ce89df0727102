"""What the driver reports, at once and late, as errors of bringup's with kernel and line."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, FakeLaunchError, FakeLogicError, FakeMemoryError
from fake_kernels import Interpreter, device_of, interpreter, opened

import bringup as bu
from bringup.errors import (
    CompileError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from bringup_cuda.driver.errors import STICKY, TIMED_OUT, device_error, is_sticky
from bringup_cuda.runtime.transfers import PART

__all__ = ["interpreter"]

ILLEGAL = "an illegal memory access was encountered"
X = np.arange(8, dtype=np.float32)


@pytest.fixture
def driver(interpreter: Interpreter) -> FakeDriver:
    made = FakeDriver()
    made.kernel = interpreter.run
    return made


def kernel_of(driver: FakeDriver) -> str:
    """The last kernel launched."""
    name: str = [c for c in driver.calls if c[0] == "launch"][-1][2]
    return name


def test_an_error_of_queued_work_names_kernel_and_line_at_the_wait(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(lambda x: bu.exp(x) + 1, device=open_)  # the line
    np.asarray(fn(X))
    driver.poisoned[kernel_of(driver)] = ILLEGAL
    result = fn(X)
    with pytest.raises(DeviceLostError) as caught:
        np.asarray(result)
    error = caught.value
    assert "exp" in error.what
    assert ILLEGAL in error.what
    assert error.location is not None
    assert error.location.file == __file__
    assert "the line" in open_line(error.location.line)
    assert error.instruction is not None
    assert error.fix is not None
    assert "new process" in error.fix
    assert "cuda is lost" in str(error)


def open_line(number: int) -> str:
    with open(__file__, encoding="utf-8") as file:
        return file.readlines()[number - 1]


def test_everything_says_that_a_lost_device_is_lost_and_by_what(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(lambda x: x + 1, device=open_)
    x = bu.asarray(X, device=open_)
    good = fn(x)
    np.asarray(good)
    driver.poisoned[kernel_of(driver)] = "misaligned address"
    fn(x)
    with pytest.raises(DeviceLostError):
        gpu.synchronize()
    handle = x._buffer.handle
    buffer = memoryview(bytearray(8))
    for ask in (
        lambda: gpu.alloc(100),
        lambda: gpu.upload(handle, buffer),
        lambda: gpu.download(handle, buffer),
        lambda: gpu.copy(handle, handle, 8),
        gpu.synchronize,
        gpu.trim,
        lambda: fn(x),
        lambda: bu.jit(lambda x: x * 3, device=open_)(x),
        lambda: np.asarray(good + 1),
    ):
        with pytest.raises(DeviceLostError) as caught:
            ask()
        assert "is lost" in caught.value.what
        assert "misaligned address" in str(caught.value)
    assert not driver.stack
    gpu.free(gpu.pool.alloc(0, gpu.activated))
    gpu.close()


def test_the_other_device_goes_on(driver: FakeDriver) -> None:
    first, second = opened(driver), opened(driver, index=1)
    fns = [bu.jit(lambda x: x + 1, device=each) for each in (first, second)]
    for fn in fns:
        np.asarray(fn(X))
    driver.poisoned[kernel_of(driver)] = ILLEGAL
    lost = fns[0](X)
    with pytest.raises(DeviceLostError, match="cuda: "):
        np.asarray(lost)
    driver.poisoned.clear()
    assert np.array_equal(np.asarray(fns[1](X)), X + 1)


def test_of_many_launches_the_error_lists_them_and_says_how_to_learn_which(
    driver: FakeDriver,
) -> None:
    open_ = opened(driver)
    fns = [bu.jit(f, device=open_) for f in (bu.exp, bu.sin, lambda x: x * x, bu.floor)]
    x = bu.asarray(X, device=open_)
    names = []
    for fn in fns:
        np.asarray(fn(x))
        names.append(kernel_of(driver))
    driver.poisoned[names[1]] = "unspecified launch failure"
    results = [fn(x) for fn in fns]
    with pytest.raises(DeviceLostError) as caught:
        np.asarray(results[3])
    text = str(caught.value)
    assert "one of 4 launches failed" in text
    assert text.count("k0_") >= 4
    assert "BRINGUP_CHECK=1" in text
    assert caught.value.location is not None
    # None of the four can be trusted, nor looked at.
    for result in results:
        with pytest.raises(DeviceLostError):
            np.asarray(result)


def test_with_checks_each_launch_is_waited_for_and_the_one_is_named(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "1")
    open_ = opened(driver)
    x = bu.asarray(X, device=open_)
    first, second = bu.jit(bu.exp, device=open_), bu.jit(bu.sin, device=open_)
    second(x)
    driver.calls.clear()
    first(x)
    assert driver.names("launch", "synchronize") == ["launch", "synchronize"]
    driver.poisoned[kernel_of(driver)] = ILLEGAL
    with pytest.raises(DeviceLostError, match="exp") as caught:
        first(x)
    assert "launches failed" not in str(caught.value)


def test_work_that_was_waited_for_is_not_suspected(driver: FakeDriver) -> None:
    open_ = opened(driver)
    x = bu.asarray(X, device=open_)
    good, bad = bu.jit(bu.exp, device=open_), bu.jit(bu.sin, device=open_)
    np.asarray(bad(x))
    driver.poisoned[kernel_of(driver)] = ILLEGAL
    np.asarray(good(x))
    result = bad(x)
    with pytest.raises(DeviceLostError, match="sin") as caught:
        np.asarray(result)
    assert "exp" not in str(caught.value)


def test_a_launch_that_is_refused_names_its_kernel_and_leaves_the_device_usable(
    driver: FakeDriver,
) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(lambda x: x + 1, device=open_)
    x = bu.asarray(X, device=open_)
    np.asarray(fn(x))
    live = gpu.pool.live_bytes
    driver.refused["launch"] = [(FakeLaunchError, "too many resources requested for launch")]
    with pytest.raises(DeviceError, match="too many resources") as caught:
        fn(x)
    assert type(caught.value) is DeviceError
    assert "k0_add" in caught.value.what
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    gc.collect()
    assert gpu.pool.live_bytes == live, "its memory went back"
    assert np.array_equal(np.asarray(fn(x)), X + 1)


def test_a_call_without_memory_gives_back_what_it_got(driver: FakeDriver) -> None:
    driver.memory = 1 << 20
    gpu = device_of(open_ := opened(driver))
    wide = bu.jit(lambda x: (x + 1, bu.broadcast_to(x, (40_000, 8)) + 1), device=open_)
    x = bu.asarray(X, device=open_)
    live = gpu.pool.live_bytes
    for _ in range(3):
        with pytest.raises(OutOfMemoryError) as caught:
            wide(x)
        assert caught.value.location is not None
    gc.collect()
    assert gpu.pool.live_bytes == live
    assert np.array_equal(np.asarray(bu.jit(lambda x: x + 1, device=open_)(x)), X + 1)


def test_code_that_does_not_load_is_a_compile_error_with_log_and_source(
    driver: FakeDriver,
) -> None:
    open_ = opened(driver)
    driver.refused["module_from_buffer"] = ["a PTX JIT compilation failed"]
    fn = bu.jit(lambda x: x + 1, device=open_)
    with pytest.raises(CompileError) as caught:
        fn(X)
    assert "ptxas error" in caught.value.log
    assert "\0" not in caught.value.log
    assert "k0_add" in caught.value.source
    assert np.array_equal(np.asarray(fn(X)), X + 1), "the next try"


def test_a_time_limit_is_told_as_one_and_the_device_is_lost(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(lambda x: x + 1, device=open_)
    np.asarray(fn(X))
    driver.poisoned[kernel_of(driver)] = TIMED_OUT
    fn(X)
    with pytest.raises(DeviceTimeoutError):
        gpu.synchronize()
    with pytest.raises(DeviceLostError, match="is lost"):
        gpu.synchronize()


SQUARE = np.arange(9, dtype=np.float32).reshape(3, 3)


def chain(x: Any) -> Any:
    """Several launches."""
    for _ in range(2):
        x = bu.sum(x, axis=1, keepdims=True) + bu.permute_dims(x, (1, 0))
    return x


def test_an_error_while_a_graph_is_captured_leaves_no_stream_capturing(
    driver: FakeDriver,
) -> None:
    open_ = opened(driver)
    fn, x = bu.jit(chain, device=open_), bu.asarray(SQUARE, device=open_)
    right = np.asarray(fn(x))
    driver.refused["launch"] = [(FakeMemoryError, "out of memory"), "invalid argument"]
    with pytest.raises(DeviceError, match="invalid argument") as caught:
        fn(x)
    assert caught.value.step is not None, "told of the launch, which was tried by itself"
    assert driver.names("begin_capture", "end_capture") == ["begin_capture", "end_capture"]
    for _ in range(3):
        assert np.array_equal(np.asarray(fn(x)), right)
    assert driver.names()[-1] == "pop"
    assert driver.names("begin_capture") == ["begin_capture"], "it is not tried again"


@pytest.mark.parametrize("call", ["begin_capture", "launch", "end_capture", "graph_launch"])
def test_what_no_graph_can_be_made_of_is_launched_by_itself(driver: FakeDriver, call: str) -> None:
    open_ = opened(driver)
    fn, x = bu.jit(chain, device=open_), bu.asarray(SQUARE, device=open_)
    right = np.asarray(fn(x))
    driver.refused[call] = [(FakeMemoryError, "out of memory")]
    for _ in range(4):
        assert np.array_equal(np.asarray(fn(x)), right)
    assert not driver.refused[call], "it was tried"
    assert not driver.stack
    streams = device_of(open_).streams
    assert streams.capture.captured is None


def test_a_device_that_is_lost_while_a_graph_is_launched_is_lost(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn, x = bu.jit(chain, device=open_), bu.asarray(SQUARE, device=open_)
    for _ in range(3):
        fn(x)
    driver.refused["graph_launch"] = [ILLEGAL]
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        fn(x)
    with pytest.raises(DeviceLostError, match="it was lost by"):
        fn(x)
    assert not driver.stack


def test_what_the_host_has_stays_when_the_device_is_lost(driver: FakeDriver) -> None:
    open_ = opened(driver)
    x = bu.asarray(X, device=open_)
    kept = np.asarray(x)
    device_of(open_).lost = RuntimeError("misaligned address")
    assert np.array_equal(kept, X)
    with pytest.raises(DeviceLostError, match="cuda is lost"):
        np.asarray(x)
    with pytest.raises(DeviceLostError, match="cuda is lost"):
        np.asarray(x + 1)
    with pytest.raises(DeviceLostError, match="misaligned address"):
        bu.asarray(X, device=open_)
    assert open_.name == "cuda"
    assert np.array_equal(np.asarray(bu.asarray(X, device="cpu") + 1), X + 1)
    del x
    gc.collect()


# -- forks -----------------------------------------------------------------------------------------


def test_a_child_of_fork_is_told_so() -> None:
    code = """
import os, sys
import numpy as np, bringup as bu
from bringup.errors import DeviceLostError
x = bu.asarray(np.ones(3, np.float32), device="cuda-emulated")
fn = bu.jit(lambda x: x + 1, device="cuda-emulated")
assert np.asarray(fn(x))[0] == 2
child = os.fork()
if child == 0:
    for use in (lambda: fn(x), lambda: np.asarray(x), lambda: bu.zeros(3, device="cuda-emulated")):
        try:
            np.asarray(use())
        except DeviceLostError as error:
            assert "before this process was forked" in str(error) and "spawn" in error.fix
        else:
            os._exit(1)
    assert np.asarray(bu.asarray([1.0], device="cpu") + 1)[0] == 2
    del fn, x
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert np.asarray(fn(x))[0] == 2
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 5 * PART])
def test_an_interrupt_in_a_download_leaves_all_as_it_was(driver: FakeDriver, size: int) -> None:
    gpu = device_of(opened(driver))
    block, data = gpu.alloc(size), np.arange(size, dtype=np.uint8)
    gpu.upload(block, data.data)
    gpu.synchronize()
    driver.refused["event_synchronize"] = [(KeyboardInterrupt, "")]
    out = np.zeros(size, np.uint8)
    with pytest.raises(KeyboardInterrupt):
        gpu.download(block, out.data)
    assert not driver.stack
    for _ in range(3):
        gpu.download(block, out.data)
        assert np.array_equal(out, data)
    given = sum(pinned.size for kept in gpu.host._unused.values() for pinned in kept)
    assert given == gpu.host.bytes, "no pinned memory is lost"


def test_an_interrupted_upload_does_not_write_into_the_next_owner_s_memory(
    driver: FakeDriver,
) -> None:
    gpu = device_of(opened(driver))
    block, ones = gpu.alloc(3 * PART), np.ones(3 * PART, np.uint8)
    driver.refused["pagelocked_empty"] = [None, None, (KeyboardInterrupt, "")]
    with pytest.raises(KeyboardInterrupt):
        gpu.upload(block, ones.data)
    assert not driver.stack
    address = block.address
    gpu.free(block)
    source, again = gpu.alloc(256), gpu.alloc(3 * PART)
    assert again.address == address
    gpu.upload(source, np.full(256, 7, np.uint8).data)
    gpu.copy(again, source, 256)
    out = np.zeros(256, np.uint8)
    gpu.download(again, out.data)
    gpu.synchronize()
    gpu.download(again, out.data)
    assert (out == 7).all()


@pytest.mark.parametrize("text", STICKY)
def test_every_sticky_text_loses_the_device(text: str) -> None:
    error = FakeLogicError(f"cuStreamSynchronize failed: {text}")
    assert is_sticky(error)
    made = device_error(error, "cuda:1")
    assert isinstance(made, DeviceLostError | DeviceTimeoutError)
    assert "cuda:1 is lost" in str(made)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FakeMemoryError("cuMemAlloc failed: out of memory"), OutOfMemoryError),
        (FakeLaunchError("cuLaunchKernel failed: too many resources requested"), DeviceError),
        (FakeLogicError("cuEventRecord failed: invalid resource handle"), DeviceError),
    ],
)
def test_other_errors_lose_nothing(error: Exception, kind: type[DeviceError]) -> None:
    assert not is_sticky(error)
    assert type(device_error(error, "cuda")) is kind
