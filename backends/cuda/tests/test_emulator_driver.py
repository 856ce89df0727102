"""The emulated driver: real results, as late as a GPU's, and the errors that pycuda would give."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bringup_cuda_emulator import driver as cuda
from bringup_cuda_emulator import streams as contexts
from bringup_cuda_emulator.streams import Queues

KERNEL = """
target triple = "nvptx64-nvidia-cuda"
@small = internal addrspace(3) global [16 x float] undef, align 16
@rest = external addrspace(3) global [0 x float], align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @add(ptr addrspace(1) %x, ptr addrspace(1) %y, i32 %more) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %i = zext i32 %t to i64
  %from = getelementptr i32, ptr addrspace(1) %x, i64 %i
  %to = getelementptr i32, ptr addrspace(1) %y, i64 %i
  %v = load i32, ptr addrspace(1) %from, align 4
  %w = add i32 %v, %more
  store i32 %w, ptr addrspace(1) %to, align 4
  ret void
}
define ptx_kernel void @last(i64 %at, ptr addrspace(1) %y) {
  %p = getelementptr i8, ptr addrspace(3) @rest, i64 %at
  store i32 7, ptr addrspace(3) %p, align 4
  %first = getelementptr float, ptr addrspace(3) @small, i64 0
  store float 0.0, ptr addrspace(3) %first, align 4
  %v = load i32, ptr addrspace(3) %p, align 4
  store i32 %v, ptr addrspace(1) %y, align 4
  ret void
}
"""
COUNT = 32


@pytest.fixture(autouse=True)
def context() -> Iterator[Any]:
    """The first device's, current."""
    cuda.init()
    made = cuda.Device(0).retain_primary_context()
    made.push()
    yield made
    gc.collect()
    cuda.Context.pop()


@pytest.fixture
def add() -> Callable[..., None]:
    """Adds a number to a device array: ``add(from, to, number, stream)``."""
    function = cuda.module_from_buffer(KERNEL.encode() + b"\0").get_function("add").prepare("PPi")

    def launch(x: Any, y: Any, more: int, stream: Any = None) -> None:
        function.prepared_async_call((1,), (COUNT, 1, 1), stream, int(x), int(y), more)

    return launch


def on_device(values: Any) -> Any:
    data = np.asarray(values, np.int32)
    made = cuda.mem_alloc(data.nbytes)
    cuda.memcpy_htod_async(int(made), data)
    cuda.Context.synchronize()  # other streams do not wait for it
    return made


def used() -> int:
    """Bytes that are allocated on the current device."""
    return contexts.current("used").gpu.arena.used


def look(memory: Any, stream: Any = None) -> list[int]:
    seen = np.empty(COUNT, np.int32)
    cuda.memcpy_dtoh_async(seen, int(memory), stream)
    return [int(v) for v in seen]


NUMBERS = list(range(COUNT))


def test_a_launch_computes(add: Callable[..., None]) -> None:
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    add(x, y, 5)
    assert look(y) == [n + 5 for n in NUMBERS]


def test_work_runs_when_something_waits_for_it(add: Callable[..., None]) -> None:
    stream = cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    pinned = cuda.pagelocked_empty(COUNT, np.int32)
    pinned[:] = -1
    cuda.Context.synchronize()
    add(x, y, 1, stream)
    cuda.memcpy_dtoh_async(pinned, int(y), stream)
    assert pinned.tolist() == [-1] * COUNT
    stream.synchronize()
    assert pinned.tolist() == [n + 1 for n in NUMBERS]


def test_streams_do_not_wait_for_each_other(add: Callable[..., None]) -> None:
    one, two = cuda.Stream(1), cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    cuda.Context.synchronize()
    add(x, y, 1, one)
    assert look(y, two) == [0] * COUNT, "nothing orders the two"
    event = cuda.Event(cuda.event_flags.DISABLE_TIMING).record(one)
    two.wait_for_event(event)
    assert look(y, two) == [n + 1 for n in NUMBERS]


def test_an_event_marks_what_was_queued_before_it(add: Callable[..., None]) -> None:
    one, two = cuda.Stream(1), cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    cuda.Context.synchronize()
    add(x, y, 1, one)
    event = cuda.Event().record(one)
    add(x, y, 2, one)
    two.wait_for_event(event)
    assert look(y, two) == [n + 1 for n in NUMBERS]


def test_the_default_stream_and_blocking_streams_wait_for_each_other(
    add: Callable[..., None],
) -> None:
    stream = cuda.Stream()
    x, y, z = on_device(NUMBERS), on_device([0] * COUNT), on_device([0] * COUNT)
    add(x, y, 1, stream)
    add(y, z, 1)
    add(z, y, 1, stream)
    assert look(y, stream) == [n + 3 for n in NUMBERS]


def test_polling_ends(add: Callable[..., None]) -> None:
    stream = cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    add(x, y, 1, stream)
    event = cuda.Event().record(stream)
    assert cuda.Event().query()
    for _ in range(100):
        if event.query():
            break
    else:
        pytest.fail("never done")
    assert look(y, stream) == [n + 1 for n in NUMBERS]


def test_pinned_memory_is_read_late_and_other_memory_at_once() -> None:
    stream = cuda.Stream(1)
    y = on_device([0] * COUNT)
    plain = np.full(COUNT, 3, np.int32)
    pinned = cuda.pagelocked_empty(COUNT, np.int32)
    pinned[:] = 4
    cuda.memcpy_htod_async(int(y), plain, stream)
    plain[:] = 9
    assert look(y, stream) == [3] * COUNT
    cuda.memcpy_htod_async(int(y), pinned, stream)
    pinned[:] = 9
    assert look(y, stream) == [9] * COUNT
    pinned.base.free()
    with pytest.raises(cuda.LogicError):
        pinned.base.free()


def test_copies_and_settings_within_the_device() -> None:
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    cuda.memcpy_dtod_async(int(y), int(x) + 4, 4 * COUNT - 4)
    cuda.memset_d8_async(int(x), 1, 4)
    assert look(y) == [*NUMBERS[1:], 0]
    assert look(x)[0] == 0x01010101


def test_captured_work_is_launched_as_often_as_one_likes(add: Callable[..., None]) -> None:
    stream = cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    cuda.Context.synchronize()
    cuda.extras.begin_capture(stream)
    add(x, y, 1, stream)
    cuda.memcpy_dtod_async(int(x), int(y), 4 * COUNT, stream)
    graph = cuda.extras.end_capture(stream)
    assert look(x, stream) == NUMBERS
    for _ in range(3):
        graph.launch(stream)
    graph.free()
    assert look(x, stream) == [n + 3 for n in NUMBERS]
    with pytest.raises(cuda.LogicError):
        graph.launch(stream)


def test_memory_ends_and_comes_back() -> None:
    gc.collect()
    before, total = used(), cuda.Device(0).total_memory()
    made = cuda.mem_alloc(1 << 20)
    assert int(made) % 256 == 0
    assert used() == before + (1 << 20)
    with pytest.raises(cuda.MemoryError, match="out of memory"):
        cuda.mem_alloc(total)
    del made
    gc.collect()
    assert used() == before
    other = cuda.mem_alloc(8)
    other.free()
    with pytest.raises(cuda.LogicError):
        other.free()


def test_freeing_waits_for_the_device(add: Callable[..., None]) -> None:
    stream = cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    add(x, y, 1, stream)
    x.free()
    assert look(y) == [n + 1 for n in NUMBERS]


def test_memory_that_a_finaliser_keeps_from_the_garbage_collector_stays() -> None:
    kept: list[Any] = []

    class Owner:
        def __init__(self) -> None:
            self.memory, self.me = cuda.mem_alloc(64), self

        def __del__(self) -> None:
            kept.append(self.memory)

    Owner()
    gc.collect()
    (memory,) = kept
    given, seen = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    cuda.memcpy_htod_async(int(memory), given)
    cuda.memcpy_dtoh_async(seen, int(memory))
    assert np.array_equal(seen, given)
    before = used()
    kept.clear()
    del memory
    assert used() < before


def test_memory_dropped_while_work_is_done_waits_for_it(add: Callable[..., None]) -> None:
    """The garbage collector runs anywhere, inside a launch for one."""
    stream = cuda.Stream(1)
    x, y, held = on_device(NUMBERS), on_device([0] * COUNT), [cuda.mem_alloc(512)]
    cuda.Context.synchronize()
    before = used()
    stream.add(held.clear)
    add(x, y, 1, stream)
    stream.synchronize()
    assert look(y, stream) == [n + 1 for n in NUMBERS]
    assert used() == before
    other = cuda.mem_alloc(256)
    assert used() == before - 256
    other.free()


def test_a_fault_found_while_memory_is_dropped_is_raised_later(add: Callable[..., None]) -> None:
    stream = cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    add(x, int(y) + 4, 1, stream)
    del x
    gc.collect()
    with pytest.raises(cuda.LaunchError, match=r"cuMemFree failed: .*add: out of bounds"):
        stream.synchronize()
    stream.synchronize()


@pytest.mark.parametrize("late", [0, 4])
def test_copies_stay_inside_one_allocation(late: int) -> None:
    x = on_device(NUMBERS)
    data = np.zeros(COUNT + 1 - late // 4, np.int32)
    with pytest.raises(cuda.LogicError, match="invalid argument"):
        cuda.memcpy_htod_async(int(x) + late, data)
    with pytest.raises(cuda.LogicError, match="invalid argument"):
        cuda.memcpy_dtoh_async(data, int(x) + late)
    with pytest.raises(cuda.LogicError, match="invalid argument"):
        cuda.memset_d8_async(int(x) + late, 0, data.nbytes)


def test_faults_are_raised_at_the_wait_and_name_the_kernel(add: Callable[..., None]) -> None:
    stream = cuda.Stream(1)
    x, y = on_device(NUMBERS), on_device([0] * COUNT)
    add(x, int(y) + 4, 1, stream)
    with pytest.raises(cuda.LaunchError, match=r"cuStreamSynchronize failed: .*add: out of bounds"):
        stream.synchronize()
    add(x, y, 2, stream)
    assert look(y, stream) == [n + 2 for n in NUMBERS]


def test_arguments_must_be_what_the_kernel_takes() -> None:
    function = cuda.module_from_buffer(KERNEL.encode()).get_function("add")
    for letters in ("PP", "PPq", "PiP"):
        with pytest.raises(cuda.LogicError, match="add takes ptr, ptr, i32"):
            function.prepare(letters)
    function.prepare(["P", "P", "i"])
    y = on_device(NUMBERS)
    for grid, block in (((0,), (1, 1, 1)), ((1,), (1025, 1, 1)), ((1, 70000), (1, 1, 1))):
        with pytest.raises(cuda.LogicError, match="invalid argument"):
            function.prepared_async_call(grid, block, None, int(y), int(y), 1)


def test_shared_memory_must_be_asked_for() -> None:
    function = cuda.module_from_buffer(KERNEL.encode()).get_function("last").prepare("qP")
    size = 64 << 10
    y = on_device([0] * COUNT)

    def launch() -> None:
        function.prepared_async_call((1,), (1, 1, 1), None, size - 4, int(y), shared_size=size)

    with pytest.raises(cuda.LogicError, match="invalid argument"):
        launch()
    attribute = cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    with pytest.raises(cuda.LogicError, match="invalid argument"):
        function.set_attribute(attribute, 228 << 10)
    function.set_attribute(attribute, size)
    launch()
    assert look(y)[0] == 7
    assert function.get_attribute(cuda.function_attribute.SHARED_SIZE_BYTES) == 64


def test_code_that_llvm_refuses() -> None:
    logs: list[str] = []
    with pytest.raises(cuda.LogicError, match="cuModuleLoadDataEx failed"):
        cuda.module_from_buffer(
            b"define ptx_kernel void @k() { oops }\0",
            message_handler=lambda good, info, errors: logs.append(f"{good} {errors}"),
        )
    assert logs[0].startswith("False")
    assert "oops" in logs[0]
    with pytest.raises(cuda.LogicError, match="named symbol not found"):
        cuda.module_from_buffer(KERNEL.encode()).get_function("other")


def test_nothing_goes_without_a_context(context: Any) -> None:
    cuda.Context.pop()
    try:
        for call in (lambda: cuda.mem_alloc(4), lambda: cuda.Stream()):
            with pytest.raises(cuda.LogicError, match="invalid device context"):
                call()
        with pytest.raises(cuda.LogicError):
            cuda.Context.pop()
    finally:
        context.push()


def test_devices_have_memory_of_their_own() -> None:
    x = on_device(NUMBERS)
    cuda.Context.synchronize()
    first = cuda.Device(0).retain_primary_context()
    second = cuda.Device(1).retain_primary_context()
    with pytest.raises(cuda.LogicError):
        cuda.Device(2)
    second.push()
    try:
        y = cuda.mem_alloc(4 * COUNT)
        with pytest.raises(cuda.LogicError, match="invalid argument"):
            look(x)
        cuda.extras.memcpy_peer_async(int(y), second, int(x), first, 4 * COUNT, None)
        assert look(y) == NUMBERS
        del y
    finally:
        cuda.Context.pop()


def test_a_system_that_reserves_little_gets_gpus_with_little() -> None:
    """And memory that was freed holds zeros again, without leaving its pages taken."""
    limited = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from bringup_cuda_emulator.memory import Arena
made = Arena(4 << 30)
assert 64 << 20 <= made.size < 4 << 30, made.size
address = made.allocate(32 << 20)
import ctypes
ctypes.memset(address, 7, 32 << 20)
made.free(address)
assert made.allocate(32 << 20) == address
assert ctypes.string_at(address, 32 << 20).count(0) == 32 << 20
"""
    subprocess.run([sys.executable, "-c", limited], check=True, timeout=60)


# -- the order of work -----------------------------------------------------------------------------


def orders(seed: int) -> list[str]:
    """What runs when the second of two streams is waited for."""
    queues, ran = Queues(seed), list[str]()
    a = queues.add(lambda: ran.append("a"), [])
    queues.add(lambda: ran.append("b"), [a])
    c = queues.add(lambda: ran.append("c"), [])
    d = queues.add(lambda: ran.append("d"), [c])
    queues.wait(d)
    done = list(ran)
    queues.wait_all()
    assert sorted(ran) == ["a", "b", "c", "d"]
    assert ran.index("a") < ran.index("b")
    assert ran.index("c") < ran.index("d")
    return done


def test_without_a_seed_only_what_is_needed_runs() -> None:
    assert orders(0) == ["c", "d"]


def test_seeds_pick_other_orders_that_are_allowed() -> None:
    found = {tuple(orders(seed)) for seed in range(1, 40)}
    assert found == {tuple(orders(seed)) for seed in range(1, 40)}, "a seed is an order"
    assert len(found) > 5
    assert ("c", "d") in found
    assert any(order.index("d") == 3 for order in found if len(order) == 4)
