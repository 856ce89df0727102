"""That what `bringup_cuda.driver.protocol` says of pycuda is so."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pycuda.driver as cuda
import pytest
import standin_hooks
from standin import StandIn

from bringup_cuda.driver import protocol
from bringup_cuda.driver.discovery import require_gpus
from bringup_cuda_emulator import driver as emulated

KERNEL = b"""
.version 8.7
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 rest[];
.visible .entry nothing(
  .param .u64 .ptr .global .align 16 nothing_param_0,
  .param .u64 .ptr .global .align 16 nothing_param_1
) .maxntid 256
{
  ret;
}
\0"""

#: The same for the emulator.
TEXT = """
target triple = "nvptx64-nvidia-cuda"
@rest = external addrspace(3) global [0 x i8], align 16

define ptx_kernel void @nothing(ptr addrspace(1) %x, ptr addrspace(1) %y) {
  ret void
}
"""

#: Protocols, and the classes of pycuda's that they describe.
CLASSES = {
    protocol.DeviceAllocation: cuda.DeviceAllocation,
    protocol.Stream: cuda.Stream,
    protocol.Event: cuda.Event,
    protocol.Context: cuda.Context,
    protocol.Device: cuda.Device,
    protocol.Function: cuda.Function,
    protocol.Module: cuda.Module,
}


def public(protocol: type) -> list[str]:
    own = {**protocol.__annotations__, **vars(protocol)}
    return [name for name in own if not name.startswith("_") or name == "__int__"]


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda p: p.__name__)
def test_every_method_of_the_surface_is_one_of_pycuda_s_class(protocol: type) -> None:
    named = public(protocol)
    assert named
    for name in named:
        assert hasattr(CLASSES[protocol], name), name


def test_every_name_of_the_surface_is_one_of_the_module_s() -> None:
    for name in public(protocol.Driver):
        assert hasattr(cuda, name), name


@pytest.mark.parametrize("table", ["device_attribute", "function_attribute", "event_flags"])
def test_constants_have_the_values_that_the_emulated_driver_gives_them(table: str) -> None:
    names = [n for n in vars(getattr(emulated, table)) if n[0].isupper()]
    assert names
    for name in names:
        here, there = getattr(getattr(cuda, table), name), getattr(getattr(emulated, table), name)
        assert int(here) == there, name


@pytest.mark.parametrize("name", ["MemoryError", "LogicError", "LaunchError", "RuntimeError"])
def test_errors_derive_as_those_of_the_emulated_driver(name: str) -> None:
    made, stand_in = getattr(cuda, name), getattr(emulated, name)
    assert made.__bases__ == (cuda.Error,)
    assert stand_in.__bases__ == (emulated.Error,)


def test_defaults_and_order_of_arguments_are_those_of_the_surface(driver: StandIn) -> None:
    """By calls: functions of Boost.Python have no signature to look at."""
    cuda.init()
    assert cuda.Device.count() == 2
    gpu = cuda.Device(0)
    assert (gpu.name(), gpu.compute_capability()) == ("stand-in GPU 0", (9, 0))
    assert gpu.total_memory() == 1 << 30
    assert gpu.get_attribute(cuda.device_attribute.MULTIPROCESSOR_COUNT) == 4
    assert gpu.can_access_peer(cuda.Device(1)) == 1
    with pytest.raises(cuda.LogicError, match="cuDeviceGet failed: invalid device ordinal"):
        cuda.Device(7)
    context = gpu.retain_primary_context()
    assert driver.depth() == 0
    context.push()
    try:
        _streams_and_copies()
        _launches(driver)
        assert cuda.mem_get_info() == ((1 << 30) - driver.used(), 1 << 30)
        assert isinstance(context.handle, int)
    finally:
        context.detach()
    # pycuda takes it off its own stack, not off the driver's.
    driver.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _streams_and_copies() -> None:
    stream, event = cuda.Stream(1), cuda.Event(cuda.event_flags.DISABLE_TIMING)
    assert isinstance(stream.handle, int)
    memory = cuda.mem_alloc(64)
    assert int(memory) % 256 == 0
    pinned = cuda.pagelocked_empty(64, np.uint8)
    pinned[...] = np.arange(64)
    cuda.memset_d8_async(int(memory) + 32, 7, 32, stream)
    cuda.memcpy_htod_async(int(memory), pinned[:16], stream)
    cuda.memcpy_dtod_async(int(memory) + 16, int(memory), 16, stream)
    assert event.query()
    assert event.record(stream) is not None
    assert not event.query()
    # From pinned memory it is read when the copy runs.
    pinned[0] = 99
    got = np.zeros(64, np.uint8)
    assert event.synchronize() is not None
    cuda.memcpy_dtoh_async(got, int(memory), stream)
    stream.synchronize()
    assert stream.is_done()
    np.testing.assert_array_equal(got[:32], [99, *range(1, 16)] * 2)
    np.testing.assert_array_equal(got[32:], [7] * 32)
    pinned.base.free()
    memory.free()


def _launches(driver: StandIn) -> None:
    standin_hooks.emulation.texts[KERNEL.rstrip(b"\0").decode()] = TEXT
    said: list[Any] = []
    module = cuda.module_from_buffer(KERNEL, [], lambda *words: said.append(words))
    assert said == [(True, "", "")]
    with pytest.raises(cuda.LogicError, match="named symbol not found"):
        module.get_function("nothin")
    function = module.get_function("nothing")
    del module
    assert function.prepare("PP") is function
    attributes = cuda.function_attribute
    assert function.get_attribute(attributes.MAX_THREADS_PER_BLOCK) == 256
    function.set_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES, 100_000)
    stream, memory = cuda.Stream(1), cuda.mem_alloc(16)
    function.prepared_async_call((3, 1), (64, 1, 1), stream, int(memory), 0, shared_size=90_000)
    stream.synchronize()
    last = driver.last()
    assert (last.kernel, list(last.grid), list(last.block)) == ("nothing", [3, 1, 1], [64, 1, 1])
    assert (last.shared, last.bytes) == (90_000, 16)
    with pytest.raises(cuda.LogicError, match="cuLaunchKernel failed: invalid argument"):
        function.prepared_async_call((3, 1), (64, 1, 1), stream, 0, 0, shared_size=100_001)
    function.prepare("P")
    with pytest.raises(cuda.LogicError, match="cuLaunchKernel failed: invalid argument"):
        function.prepared_async_call((3, 1), (64, 1, 1), stream, 0)
    memory.free()


def test_the_call_below_prepared_ones_has_the_arguments_that_bodies_gives_it() -> None:
    """`bringup_cuda.runtime.executable` calls it directly."""
    source = inspect.getsource(cuda.Function.prepared_async_call)
    assert "func._launch_kernel(grid, block, arg_buf, shared_size, stream)" in source


def test_pycuda_loads_and_both_gpus_are_found() -> None:
    assert [gpu.architecture for gpu in require_gpus()] == ["sm_90", "sm_90"]


@pytest.mark.parametrize(
    ("variable", "value", "state", "reason"),
    [
        ("STANDIN_DEVICES", "2", "ready", ""),
        ("STANDIN_DEVICES", "0", "no hardware", "installed but finds no GPU"),
        ("STANDIN_VERSION", "12040", "broken", "speaks CUDA 12.4, older than 12.8"),
    ],
)
def test_devices_are_listed_with_what_is_missing(
    variable: str, value: str, state: str, reason: str
) -> None:
    listing = (
        "import sys; from bringup.cli import main; sys.argv[1:] = ['devices', '--json']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing],
        env={**os.environ, variable: value}, capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    found = {row["name"]: row for row in json.loads(done.stdout)["devices"]}
    assert found["cuda"]["state"] == state
    assert reason in found["cuda"]["reason"]


def test_nothing_works_without_a_current_context() -> None:
    with pytest.raises(cuda.LogicError, match="invalid device context"):
        cuda.mem_alloc(16)
    with pytest.raises(cuda.LogicError, match="invalid device context"):
        cuda.Stream()
