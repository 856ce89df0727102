"""Programs over the fake driver: what is queued, in which order, and what comes out."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, FakeMemoryError
from fake_kernels import Interpreter, device_of, interpreter, opened

import bringup as bu
from bringup.errors import OpTypeError, OutOfMemoryError
from bringup.runtime.devices import OpenDevice
from bringup_cuda.codegen.compile import CompiledProgram
from bringup_cuda.runtime import device
from bringup_cuda.runtime.command_list import MAX_GRAPHS, MIN_SEEN_TO_REPLACE
from bringup_cuda.runtime.executable import CudaExecutable

__all__ = ["interpreter"]

N = 8
X = np.arange(N, dtype=np.float32)


@pytest.fixture(params=[False, True], ids=["late", "eager"])
def driver(request: pytest.FixtureRequest, interpreter: Interpreter) -> FakeDriver:
    made = FakeDriver(eager=request.param)
    made.kernel = interpreter.run
    return made


def chain(x: Any) -> Any:
    """Several launches: each reads all of what the one before wrote."""
    for _ in range(3):
        x = bu.sum(x, axis=1, keepdims=True, dtype=x.dtype) + bu.permute_dims(x, (1, 0))
    return x


def chained(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for _ in range(3):
        x = np.sum(x, axis=1, keepdims=True, dtype=x.dtype) + x.T
    return x


SQUARE = np.arange(16, dtype=np.float32).reshape(4, 4)


def executable(fn: Any, open_: OpenDevice, *arrays: Any) -> CudaExecutable:
    made = fn.lower(*arrays).executable
    assert isinstance(made, CudaExecutable)
    return made


def test_the_assembly_shown_is_that_of_the_devices_own_architecture(driver: FakeDriver) -> None:
    """The backend alone would show that of the machine's first GPU, or of the oldest."""
    fn = bu.jit(lambda x: x * 2, device=opened(driver))
    assert "\n.target sm_90\n" in fn.lower(X).asm


def test_a_program_waits_for_its_uploads_and_a_download_for_the_program(
    driver: FakeDriver,
) -> None:
    open_ = opened(driver)
    fn = bu.jit(lambda x, y: x * y + 1, device=open_)
    assert np.array_equal(np.asarray(fn(X, X)), X * X + 1)
    order = driver.names("htod", "wait_for_event", "launch", "dtoh", "event_synchronize")
    upload = ["htod", "wait_for_event"]
    assert order == [*upload, *upload, "launch", "dtoh", "event_synchronize"]
    assert {c[1] for c in driver.calls if c[0] in ("launch", "dtoh")} == {"compute"}
    assert {c[1] for c in driver.calls if c[0] == "htod"} == {"uploads"}


def test_calls_return_before_anything_has_run(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(lambda x: x + 1, device=open_)
    x = bu.asarray(X, device=open_)
    np.asarray(fn(x))
    ran: list[str] = []
    kernel = driver.kernel

    def run(*args: Any) -> None:
        ran.append(args[2])
        kernel(*args)

    driver.kernel = run
    results = [fn(x) for _ in range(4)]
    assert ran == []
    assert [np.array_equal(np.asarray(r), X + 1) for r in results] == [True] * 4
    assert len(ran) == 4


def test_an_upload_waits_for_work_that_uses_the_memory(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    x = bu.asarray(X, device=open_)
    fn = bu.jit(lambda x: x + 1, device=open_)
    compiled = executable(fn, open_, x)
    (result,) = compiled([handle := x._buffer.handle])
    gpu.upload(handle, np.full(N, 9, np.float32).view(np.uint8).data)
    out = np.empty(N, np.float32)
    gpu.download(result, out.view(np.uint8).data)
    assert np.array_equal(out, X + 1), "the program read what was uploaded after it"


def test_memory_freed_behind_a_program_is_not_uploaded_into_before_it_ran(
    driver: FakeDriver,
) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(lambda x: x + 1, device=open_)
    compiled = executable(fn, open_, X)
    first = gpu.alloc(X.nbytes)
    gpu.upload(first, X.view(np.uint8).data)
    (result,) = compiled([first])
    gpu.free(first)
    second = gpu.alloc(X.nbytes)
    assert second.address == first.address
    gpu.upload(second, np.full(N, 9, np.float32).view(np.uint8).data)
    out = np.empty(N, np.float32)
    gpu.download(result, out.view(np.uint8).data)
    assert np.array_equal(out, X + 1)


def test_an_upload_into_idle_memory_waits_for_nothing(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(lambda x: x + 1, device=open_)
    fn(X)
    fresh = gpu.alloc(5000)
    driver.calls.clear()
    gpu.upload(fresh, np.zeros(5000, np.uint8).data)
    assert ("wait_for_event", "uploads") not in driver.calls
    again = gpu.alloc(X.nbytes)
    gpu.synchronize()
    driver.calls.clear()
    gpu.upload(again, X.view(np.uint8).data)
    assert ("wait_for_event", "uploads") not in driver.calls, "all work was done"


def test_copies_are_queued_like_programs(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    x = bu.asarray(X, device=open_)
    target = gpu.alloc(X.nbytes)
    gpu.copy(target, x._buffer.handle, X.nbytes)
    gpu.upload(x._buffer.handle, np.zeros(X.nbytes, np.uint8).data)
    out = np.empty(N, np.float32)
    gpu.download(target, out.view(np.uint8).data)
    assert np.array_equal(out, X)


# -- graphs ----------------------------------------------------------------------------------------


def test_a_program_of_several_launches_becomes_one_launch_when_its_addresses_repeat(
    driver: FakeDriver,
) -> None:
    open_ = opened(driver)
    fn = bu.jit(chain, device=open_)
    x = bu.asarray(SQUARE, device=open_)
    seen = []
    for _ in range(4):
        driver.calls.clear()
        result = fn(x)
        seen.append(driver.names("launch", "begin_capture", "end_capture", "graph_launch"))
        assert np.array_equal(np.asarray(result), chained(SQUARE))
        del result
    count = len(seen[0])
    assert seen[0] == ["launch"] * count
    assert count > 1
    assert seen[1] == ["begin_capture", *["launch"] * count, "end_capture", "graph_launch"]
    assert seen[2] == seen[3] == ["graph_launch"]
    captured = [c for c in driver.calls if c[0] == "graph_launch"]
    assert captured == [("graph_launch", "compute", count)]


def test_nothing_is_captured_into_the_stream_that_others_use(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(chain, device=open_)
    x = bu.asarray(SQUARE, device=open_)
    for _ in range(3):
        fn(x)
    assert {c[1] for c in driver.calls if c[0].endswith("capture")} == {"capture"}


def test_a_loop_over_two_buffers_needs_two_graphs(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(chain, device=open_)
    start = SQUARE.astype(np.int32)
    x, right = bu.asarray(start, device=open_), start
    for _ in range(6):
        x, right = fn(x), chained(right)
    driver.calls.clear()
    for _ in range(6):
        x, right = fn(x), chained(right)
    assert driver.names("launch", "graph_launch", "begin_capture") == ["graph_launch"] * 6
    assert np.array_equal(np.asarray(x), right)


def test_graphs_are_bounded_and_given_back(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(chain, device=open_)
    arrays = [bu.asarray(SQUARE + n, device=open_) for n in range(MAX_GRAPHS + 3)]
    for _ in range(3):
        for n, x in enumerate(arrays):
            assert np.array_equal(np.asarray(fn(x)), chained(SQUARE + n))
    freed = len(driver.names("graph_free"))
    made = len(driver.names("end_capture"))
    assert made - freed == MAX_GRAPHS
    del fn, x, arrays
    bu.clear_caches()
    gc.collect()
    assert len(driver.names("graph_free")) == made
    assert not driver.stack


def test_graphs_are_not_made_over_and_over_when_there_are_too_many(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(chain, device=open_)
    arrays = [bu.asarray(SQUARE + n, device=open_) for n in range(MAX_GRAPHS + 3)]
    for _ in range(MIN_SEEN_TO_REPLACE):
        for x in arrays:
            fn(x)
    assert len(driver.names("begin_capture")) == MAX_GRAPHS
    for _ in range(3):
        fn(arrays[-1])
    assert len(driver.names("begin_capture")) == MAX_GRAPHS + 1
    driver.calls.clear()
    assert np.array_equal(np.asarray(fn(arrays[-1])), chained(SQUARE + MAX_GRAPHS + 2))
    assert driver.names("launch", "graph_launch") == ["graph_launch"]


def test_two_threads_do_not_capture_into_one_graph(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fns = [bu.jit(chain, device=open_), bu.jit(lambda x: chain(x + 1), device=open_)]
    x = bu.asarray(SQUARE, device=open_)
    for fn in fns:
        fn(x)

    def again() -> None:
        for _ in range(3):
            fns[1](x)

    note, other = driver.note, threading.Thread(target=again)

    def in_the_middle(*call: Any) -> None:
        note(*call)
        if call[:2] == ("launch", "capture") and other.ident is None:
            other.start()
            other.join(0.2)

    driver.note = in_the_middle  # type: ignore[method-assign]
    fns[0](x)
    other.join()
    driver.note = note  # type: ignore[method-assign]
    order = [c[0] for c in driver.calls if c[0].endswith("capture")]
    assert len(order) >= 4
    assert order == ["begin_capture", "end_capture"] * (len(order) // 2)
    for fn, right in zip(fns, (chained(SQUARE), chained(SQUARE + 1)), strict=True):
        for _ in range(2):
            assert np.array_equal(np.asarray(fn(x)), right)


def test_a_call_of_a_program_is_three_calls_of_the_driver(driver: FakeDriver) -> None:
    open_ = opened(driver)
    small = bu.jit(lambda x: bu.sqrt(bu.exp(x * 2 + 1) - 3) * x - bu.abs(x) + 5, device=open_)
    several = bu.jit(chain, device=open_)
    x = bu.asarray(SQUARE, device=open_)
    for fn in (small, several):
        for _ in range(4):
            fn(x)
    driver.calls.clear()
    small(x)
    assert driver.names() == ["push", "launch", "pop"]
    driver.calls.clear()
    several(x)
    assert driver.names() == ["push", "graph_launch", "pop"]


def test_nobody_waits_for_what_another_thread_compiles(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = opened(driver)
    x, compile_program = bu.asarray(X, device=open_), device.compile_program
    begun, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> CompiledProgram:
        begun.set()
        assert go_on.wait(60)
        return compile_program(*args)

    monkeypatch.setattr(device, "compile_program", slow)
    made: list[Any] = []
    worker = threading.Thread(target=lambda: made.append(bu.jit(lambda x: x - 7, device=open_)(x)))
    worker.start()
    assert begun.wait(60)
    assert np.array_equal(np.asarray(bu.asarray(X, device=open_)), X)
    assert not made
    go_on.set()
    worker.join()
    assert np.array_equal(np.asarray(made[0]), X - 7)


def test_code_goes_when_nothing_runs_it_any_more(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(lambda x: x * 2, device=open_)
    x = bu.asarray(X, device=open_)
    result = fn(x)
    driver.calls.clear()
    del fn
    bu.clear_caches()
    gc.collect()
    assert driver.names("synchronize") == ["synchronize"], "it is queued still"
    assert np.array_equal(np.asarray(result), X * 2)
    fn = bu.jit(lambda x: x * 3, device=open_)
    assert np.array_equal(np.asarray(fn(x)), X * 3)
    driver.calls.clear()
    del fn
    bu.clear_caches()
    gc.collect()
    assert driver.names("synchronize") == []


def test_one_launch_is_not_captured(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(lambda x: x + 1, device=open_)
    x = bu.asarray(X, device=open_)
    for _ in range(4):
        fn(x)
    assert driver.names("begin_capture", "graph_launch") == []


def test_without_graphs_every_launch_is_queued(driver: FakeDriver) -> None:
    open_ = opened(driver, graphs=False)
    fn = bu.jit(chain, device=open_)
    x = bu.asarray(SQUARE, device=open_)
    for _ in range(3):
        assert np.array_equal(np.asarray(fn(x)), chained(SQUARE))
    assert driver.names("begin_capture", "graph_launch") == []


# -- calls that repeat -----------------------------------------------------------------------------


def test_repeated_calls_are_answered_without_a_signature(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = opened(driver)
    y = bu.asarray(X + 3, device=open_)
    call = bu.jit(lambda x: (x + y, x * y), device=open_)
    x = bu.asarray(X, device=open_)
    for _ in range(3):
        call(x)
    np.asarray(call(x)[0])

    def slow(*args: Any) -> Any:
        pytest.fail("the slow way is taken")

    with monkeypatch.context() as patched:
        patched.setattr("bringup.api.jit.Jitted._call", slow)
        driver.calls.clear()
        first, second = call(x)
    assert driver.names() == ["push", "launch", "pop"], "all that a call asks the driver for"
    assert first.device is open_
    assert np.array_equal(np.asarray(first), X + X + 3)
    assert np.array_equal(np.asarray(second * 1), X * (X + 3))
    assert np.array_equal(np.asarray(call(X)[0]), X + X + 3), "arrays of the host go the slow way"
    with pytest.raises(OpTypeError):
        call(bu.asarray(X[:3], device=open_))


def test_an_error_of_a_repeated_call_points_at_the_call(driver: FakeDriver) -> None:
    open_ = opened(driver)
    call = bu.jit(lambda x: x + 1, device=open_)
    x = bu.asarray(X, device=open_)
    for _ in range(3):
        call(x)
    driver.refused["mem_alloc"] = [(FakeMemoryError, "out of memory")] * 9
    device_of(open_).trim()
    with pytest.raises(OutOfMemoryError) as caught:
        call(x)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


# -- memory of programs ----------------------------------------------------------------------------


def test_the_arena_goes_back_when_the_call_returns(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(chain, device=open_)
    x = bu.asarray(SQUARE, device=open_)
    first = fn(x)
    live, reserved = gpu.pool.live_bytes, gpu.pool.reserved
    for _ in range(5):
        fn(x)
        assert (gpu.pool.live_bytes, gpu.pool.reserved) == (live, reserved + 256) or (
            gpu.pool.live_bytes == live
        )
    assert np.array_equal(np.asarray(first), chained(SQUARE))


def test_a_donated_input_is_written_over_or_given_back(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    fn = bu.jit(lambda x: x * 2, device=open_, donate_argnums=0)
    x = bu.asarray(X, device=open_)
    address = x._buffer.handle.address
    live = gpu.pool.live_bytes
    result = fn(x)
    assert result._buffer.handle.address == address
    assert gpu.pool.live_bytes == live
    assert np.array_equal(np.asarray(result), X * 2)
    other = bu.jit(lambda x: bu.sum(x), device=open_, donate_argnums=0)
    y = bu.asarray(X, device=open_)
    total = other(y)
    assert float(total) == X.sum()
    assert gpu.pool.live_bytes == live + 256, "the input is gone, the sum is there"


def test_constants_are_uploaded_once_and_given_back_with_the_program(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver))
    table = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    fn = bu.jit(lambda x: x + bu.asarray(table), device=open_)
    x = bu.asarray(np.ones(4096, np.float32), device=open_)
    fn(x)
    uploads = len(driver.names("htod"))
    for _ in range(3):
        assert np.array_equal(np.asarray(fn(x)), table + 1)
    assert len(driver.names("htod")) == uploads
    del fn
    bu.clear_caches()
    gc.collect()
    assert gpu.pool.live_bytes == x._buffer.handle.size


def test_programs_of_equal_code_share_a_module(driver: FakeDriver) -> None:
    open_ = opened(driver)
    first = bu.jit(lambda x: x + 1, device=open_)
    second = bu.jit(lambda y, z: y + 1, device=open_)
    first(X)
    second(X, X)
    assert driver.names("module_from_buffer") == ["module_from_buffer"]
    del first, second
    bu.clear_caches()
    gc.collect()
    bu.jit(lambda x: x + 1, device=open_)(X)
    assert len(driver.names("module_from_buffer")) == 2, "its module went with the programs"


# -- loops and branches ----------------------------------------------------------------------------


def test_a_loop_of_known_length_is_queued_without_a_look(driver: FakeDriver) -> None:
    open_ = opened(driver)
    fn = bu.jit(lambda x: bu.fori_loop(0, 5, lambda i, y: y * 2 + 1, x), device=open_)
    x = bu.asarray(X, device=open_)
    result = fn(x)
    driver.calls.clear()
    fn(x)
    assert driver.names("dtoh", "synchronize") == []
    right = X
    for _ in range(5):
        right = right * 2 + 1
    assert np.array_equal(np.asarray(result), right)


def test_a_loop_that_depends_on_data_looks_once_a_round(driver: FakeDriver) -> None:
    open_ = opened(driver)

    def fn(x: Any) -> Any:
        return bu.while_loop(lambda y: bu.sum(y) < 1000, lambda y: y * 2 + 1, x)

    call = bu.jit(fn, device=open_)
    x = bu.asarray(X, device=open_)
    driver.calls.clear()
    result = call(x)
    right, rounds = X, 0
    while right.sum() < 1000:
        right, rounds = right * 2 + 1, rounds + 1
    assert driver.names("dtoh") == ["dtoh"] * (rounds + 1)
    assert np.array_equal(np.asarray(result), right)
    assert np.array_equal(np.asarray(x), X)


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 7])
def test_a_branch_is_chosen_by_a_look(driver: FakeDriver, number: int) -> None:
    open_ = opened(driver)
    branches = (lambda y: y + 1, lambda y: y * 3, lambda y: -y)
    call = bu.jit(lambda n, x: bu.switch(n, branches, x), device=open_)
    result = call(np.int32(number), X)
    # A number that is none selects the last one.
    right = (X + 1, X * 3, -X)[number if number in (0, 1) else 2]
    assert np.array_equal(np.asarray(result), right)


def test_a_scan_walks_the_rows_without_a_look(driver: FakeDriver) -> None:
    open_ = opened(driver)
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)

    def fn(start: Any, rows: Any) -> Any:
        return bu.scan(lambda c, r: (c + r, c * 2), start, rows)

    call = bu.jit(fn, device=open_)
    start = bu.asarray(np.ones(4, np.float32), device=open_)
    stack = bu.asarray(rows, device=open_)
    call(start, stack)
    driver.calls.clear()
    last, doubled = call(start, stack)
    assert driver.names("dtoh", "synchronize") == []
    carry, right = np.ones(4, np.float32), []
    for row in rows:
        right.append(carry * 2)
        carry = carry + row
    assert np.array_equal(np.asarray(last), carry)
    assert np.array_equal(np.asarray(doubled), np.stack(right))
