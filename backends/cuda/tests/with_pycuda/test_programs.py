"""Programs by the real pycuda: values, order, errors, and how a process ends."""

from __future__ import annotations

import ctypes
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin import ILLEGAL_ADDRESS, OUT_OF_MEMORY, StandIn

import bringup as bu
from bringup.errors import CompileError, DeviceError, OutOfMemoryError
from bringup_conformance.runtime.fixture import by_dlpack

X = np.linspace(-2, 2, 3 * 40, dtype=np.float32).reshape(3, 40)
OUT_OF_RESOURCES = 701
INVALID_PTX = 218


def jit(fn: Any) -> Any:
    return bu.jit(fn, device="cuda")


def there(x: Any, device: str = "cuda") -> bu.Array:
    return bu.asarray(x, device=device)


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, which may lose its device."""
    file = folder / "script.py"
    file.write_text(_BEGIN + text)
    return subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=120
    )


_BEGIN = """
import gc, os, sys
import numpy as np
import bringup as bu
from standin import ILLEGAL_ADDRESS, StandIn

driver = StandIn()
plus = bu.jit(lambda x: x + 1, device="cuda")
x = bu.asarray(np.arange(10), device="cuda")
assert np.asarray(plus(x)).sum() == 55
"""


# -- values ----------------------------------------------------------------------------------------


def test_results_are_those_of_the_kernels_in_the_ptx_that_was_loaded(driver: StandIn) -> None:
    launches = driver.count("cuLaunchKernel")
    result = jit(lambda x: bu.flip(x) * 2 + 1)(there(X))
    assert np.array_equal(np.asarray(result), X[::-1, ::-1] * 2 + 1)
    assert driver.count("cuLaunchKernel") > launches
    assert driver.last().bytes == 16


def test_what_comes_again_on_the_same_memory_is_launched_as_a_graph(driver: StandIn) -> None:
    def fn(x: Any) -> Any:
        for _ in range(3):
            x = bu.sum(x, axis=0, keepdims=True, dtype=x.dtype) - bu.flip(x)
        return x

    call, x, right = jit(fn), there(X.astype(np.int32)), X.astype(np.int32)
    made, launched = driver.count("cuStreamBeginCapture_v2"), driver.count("cuGraphLaunch")
    for _ in range(8):
        x = call(x)
        for _ in range(3):
            right = np.sum(right, axis=0, keepdims=True, dtype=np.int32) - np.flip(right)
    assert np.array_equal(np.asarray(x), right)
    assert driver.count("cuStreamBeginCapture_v2") > made
    assert driver.count("cuGraphLaunch") - launched >= 4


def test_a_large_transfer_goes_in_parts_through_pinned_memory(driver: StandIn) -> None:
    x = np.arange(3 << 20, dtype=np.int32)
    copies = driver.count("cuMemcpyHtoDAsync_v2")
    assert np.array_equal(np.asarray(there(x)), x)
    assert driver.count("cuMemcpyHtoDAsync_v2") - copies == 3


def test_threads_share_the_device(driver: StandIn) -> None:
    call, found, failed = jit(lambda x: bu.cumulative_sum(x, axis=0) * 2), {}, []

    def run(number: int) -> None:
        try:
            for turn in range(20):
                x = np.full(50 + number, turn + number)
                found[number, turn] = np.array_equal(np.asarray(call(there(x))), x.cumsum() * 2)
            assert driver.depth() == 0
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert list(found.values()) == [True] * 80


def test_the_second_gpu_gets_arrays_of_the_first_directly(driver: StandIn) -> None:
    first = there(X)
    second = there(first, "cuda:1")
    assert np.array_equal(np.asarray(second), X)
    assert np.array_equal(np.asarray(bu.jit(lambda x: -x, device="cuda:1")(second)), -X)
    assert driver.count("cuMemcpyPeerAsync")


# -- errors that lose nothing ----------------------------------------------------------------------


def test_code_and_graphs_go_with_their_program_in_whatever_thread(driver: StandIn) -> None:
    def fn(x: Any) -> Any:
        for _ in range(3):
            x = bu.sum(bu.exp(x), axis=0, keepdims=True) - bu.flip(x)
        return x

    held, x = [jit(fn)], there(X)
    for _ in range(4):
        np.asarray(held[0](x))
    unloaded, destroyed = driver.count("cuModuleUnload"), driver.count("cuGraphExecDestroy")

    def drop() -> None:
        held.clear()
        bu.clear_caches()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert driver.count("cuModuleUnload") > unloaded
    assert driver.count("cuGraphExecDestroy") > destroyed


def test_no_memory_is_told_as_that_and_nothing_is_lost(driver: StandIn) -> None:
    with driver.memory(1 << 20), pytest.raises(OutOfMemoryError, match="out of memory"):
        there(np.zeros(3 << 20))
    driver.fail("cuMemHostAlloc", OUT_OF_MEMORY)
    with pytest.raises(OutOfMemoryError, match="cuMemHostAlloc failed"):
        there(np.zeros(1 << 17))
    assert np.array_equal(np.asarray(there(X)), X)


def test_a_refused_launch_names_its_kernel(driver: StandIn) -> None:
    call, x = jit(lambda x: bu.sin(x) / 3), there(X)
    driver.fail("cuLaunchKernel", OUT_OF_RESOURCES)
    with pytest.raises(DeviceError, match=r"k0_sin.*too many resources requested for launch"):
        call(x)
    np.testing.assert_allclose(np.asarray(call(x)), np.sin(X) / 3, rtol=1e-6)


@pytest.mark.parametrize("status", [OUT_OF_MEMORY, INVALID_PTX])
def test_code_refused_without_a_log_is_a_compile_error(driver: StandIn, status: int) -> None:
    """pycuda then makes text of whatever its buffers held, and mostly fails."""
    call, x = jit(lambda x: x * (status + 1)), there(X)
    driver.fail("cuModuleLoadDataEx", status)
    with pytest.raises((CompileError, OutOfMemoryError)) as caught:
        call(x)
    assert "UnicodeDecodeError" not in str(caught.value)
    assert np.array_equal(np.asarray(call(x)), X * (status + 1))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python raises KeyboardInterrupt, whatever the shell told the process to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(
    "call",
    [
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuEventRecord",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuEventSynchronize",
    ],
)
def test_an_interrupt_leaves_no_context_pushed(driver: StandIn, call: str, nth: int) -> None:
    """pycuda ends a process that ends with one."""
    program = jit(lambda x: bu.cumulative_sum(bu.exp(x), axis=1) + 1)
    right = np.asarray(program(there(X)))
    driver.interrupt(call, nth)
    try:
        for _ in range(3):
            assert np.array_equal(np.asarray(program(there(X))), right)
        raise AssertionError("nothing was interrupted")
    except KeyboardInterrupt:
        assert driver.depth() == 0
    finally:
        driver.interrupt(call, 0)
    assert np.array_equal(np.asarray(program(there(X))), right)


# -- devices that are lost, and ends of processes --------------------------------------------------


def test_a_process_ends_quietly(tmp_path: Path) -> None:
    done = script(tmp_path, "kept = plus, plus(x)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_closing_gives_back_all_memory_and_the_context(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        "import atexit\n"
        "@atexit.register\n"
        "def last():\n    pass\n"
        "from bringup.runtime import devices\n"
        "device = devices.get('cuda').device\n"
        "device.close()\n"
        "print(driver.used(), driver.pinned(), driver.count('cuDevicePrimaryCtxRelease_v2'))\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n",
    )
    assert done.stdout == "0 0 1\n", done.stderr


@pytest.mark.parametrize("opened_in", ["main", "thread"])
def test_a_device_opened_by_a_thread_that_ended_is_as_good(tmp_path: Path, opened_in: str) -> None:
    done = script(
        tmp_path,
        "import threading\n"
        "def work(device, out):\n"
        "    fn = bu.jit(lambda x: x * 2, device=device)\n"
        "    y = bu.asarray(np.arange(5), device=device)\n"
        "    out += fn, y, np.asarray(fn(y))\n"
        "out = []\n"
        f"device = {'cuda' if opened_in == 'main' else 'cuda:1'!r}\n"
        "thread = threading.Thread(target=work, args=(device, out))\n"
        "thread.start(); thread.join()\n"
        "fn, y, _ = out\n"
        "print(np.asarray(fn(y)))\n"
        "del fn, y, out\n"
        "gc.collect()\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0 2 4 6 8]\n", "")


LOSE = """
name = driver.last().kernel
driver.library.standin_fault(name.encode(), ILLEGAL_ADDRESS)
late = plus(x)
try:
    np.asarray(late)
except bu.errors.DeviceLostError as error:
    print("lost", "illegal memory access" in str(error), "<lambda>" in str(error))
"""


@pytest.mark.parametrize("push_fails", [False, True])
def test_after_an_illegal_access_the_device_is_lost_and_the_process_ends_quietly(
    tmp_path: Path, push_fails: bool
) -> None:
    """cuda.h allows cuCtxPushCurrent to report it as well; pycuda's destructors would end the
    process then.
    """
    done = script(
        tmp_path,
        f"driver.library.standin_push_fails({int(push_fails)})\n"
        + LOSE
        + "try:\n    plus(x)\nexcept bu.errors.DeviceLostError:\n    print('still')\n"
        "del late, x, plus\ngc.collect()\n"
        "other = bu.asarray(np.arange(3), device='cuda:1')\n"
        "print(np.asarray(bu.jit(lambda x: x * 3, device='cuda:1')(other)))\n",
    )
    assert done.stdout == "lost True True\nstill\n[0 3 6]\n", done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lost_device_refuses_new_code_as_lost(tmp_path: Path) -> None:
    """The first to hear of it is the load, which pycuda cannot tell."""
    done = script(
        tmp_path,
        f"driver.fail('cuModuleLoadDataEx', {ILLEGAL_ADDRESS})\n"
        "try:\n    bu.jit(lambda x: x * 9, device='cuda')(x)\n"
        "except bu.errors.DeviceLostError as error:\n    print('lost')\n",
    )
    assert done.stdout == "lost\n", done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_of_fork_is_told_and_ends_quietly(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
child = os.fork()
if not child:
    try:
        plus(x)
    except bu.errors.DeviceError as error:
        print("fork" in str(error), flush=True)
    del plus
    gc.collect()
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(status, np.asarray(plus(x)).sum())
""",
    )
    assert done.stdout == "True\n0 55\n", done.stderr
    assert (done.returncode, done.stderr) == (0, "")


# -- with other libraries --------------------------------------------------------------------------


def test_a_context_that_another_library_made_current_stays() -> None:
    library = ctypes.CDLL("libcuda.so.1")

    def current() -> int | None:
        found = ctypes.c_int(-1)
        return None if library.cuCtxGetDevice(ctypes.byref(found)) else found.value

    call, x, far = jit(lambda x: x + 1), there(X), there(X, "cuda:1")
    assert current() is None
    for device in (1, 0):
        other = ctypes.c_void_p()
        assert library.cuDevicePrimaryCtxRetain(ctypes.byref(other), device) == 0
        assert library.cuCtxPushCurrent_v2(other) == 0
        for _ in range(3):
            assert np.array_equal(np.asarray(call(x)), X + 1)
            assert np.array_equal(np.asarray(far.to("cuda")), X)
            assert current() == device
        assert library.cuCtxPopCurrent_v2(ctypes.byref(other)) == 0


class Foreign:
    """An array of another library on the same GPU."""

    def __init__(self, array: bu.Array) -> None:
        self.array = array

    def __dlpack__(self, **asked: Any) -> Any:
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_arrays_are_handed_out_and_taken_by_streams(driver: StandIn) -> None:
    doubled = jit(lambda x: x * 2)(there(X))
    waits, whole = driver.count("cuStreamWaitEvent"), driver.count("cuCtxSynchronize")
    capsules = [doubled.__dlpack__(max_version=(1, 0), stream=s) for s in (None, 1, 2, -1)]
    assert driver.count("cuStreamWaitEvent") == waits + 3
    assert driver.count("cuCtxSynchronize") == whole
    del capsules
    assert np.array_equal(np.asarray(bu.from_dlpack(Foreign(doubled))), X * 2)


def test_numpy_is_told_why_it_gets_no_memory_of_a_gpu() -> None:
    x = there(X)
    with pytest.raises((BufferError, RuntimeError), match="device"):
        np.from_dlpack(x)
    assert np.array_equal(by_dlpack(x), X)
