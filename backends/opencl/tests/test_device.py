"""Programs on the devices that are there, by whatever driver this machine has."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.backend import DeviceInfo, NoHardware
from bringup.errors import CompileError, DeviceError, OutOfMemoryError
from bringup.runtime.devices import OpenDevice

cl = pytest.importorskip("pyopencl", reason="no pyopencl")
from bringup_opencl import backend as backends  # noqa: E402
from bringup_opencl import programs, quirks  # noqa: E402
from bringup_opencl.device import OpenCLDevice  # noqa: E402
from bringup_opencl.discovery import devices  # noqa: E402
from bringup_opencl.machine import Machine  # noqa: E402
from bringup_opencl.quirks import QUIRKS, quirks_of  # noqa: E402


def opened(machine: Machine | None = None) -> OpenDevice:
    """The first device, or another view of it."""
    try:
        device, own = devices()[0]
    except NoHardware as error:
        pytest.skip(str(error))
    machine = machine or own
    made = OpenCLDevice(device, machine)
    return OpenDevice("opencl", 0, backends.OpenCLBackend(), made, DeviceInfo(0, machine.name))


@pytest.fixture(scope="module")
def device() -> OpenDevice:
    return opened()


@pytest.fixture(scope="module")
def as_gpu() -> OpenDevice:
    """The same device, whose loops are blocks and threads with local memory, as on a GPU."""
    own = opened().device
    assert isinstance(own, OpenCLDevice)
    fields = {name: getattr(own.machine, name) for name in Machine.__dataclass_fields__}
    return opened(Machine(**fields | {"kind": "gpu", "group": 256, "local_bytes": 32 << 10}))


def network(x: Any, w: Any) -> Any:
    return bu.nn.softmax(bu.tanh(x) @ w, axis=-1)


@pytest.mark.parametrize("kind", ["device", "as_gpu"])
def test_a_network(kind: str, request: pytest.FixtureRequest) -> None:
    where: OpenDevice = request.getfixturevalue(kind)
    random = np.random.default_rng(7)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((5, 40), (40, 700)))
    result = np.asarray(bu.jit(network, device=where)(x, w))
    terms = np.tanh(x.astype("f8"))
    logits = terms @ w
    exact = np.exp(logits - logits.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    # As for the C device: units of a logit, its distance from the largest, exp, a sum, a division.
    sizes = np.abs(terms) @ np.abs(w)
    logit_error = (4 + 41 / 2) * sizes.max() + np.abs(logits).max()
    bound = (2 * logit_error + 2 * 2 + 700 / 2 + 1 / 2) * 2.0**-23
    assert np.abs(result / exact - 1).max() < 1.01 * bound < 0.01


@pytest.mark.parametrize("kind", ["device", "as_gpu"])
def test_a_sort_and_a_running_sum(kind: str, request: pytest.FixtureRequest) -> None:
    where: OpenDevice = request.getfixturevalue(kind)
    x = np.random.default_rng(3).permutation(5000).astype(np.int32)
    assert np.array_equal(bu.jit(bu.sort, device=where)(x), np.sort(x))
    assert np.array_equal(bu.jit(lambda x: bu.cumulative_sum(x), device=where)(x), x.cumsum())


def test_arrays_are_seen_where_they_are(device: OpenDevice) -> None:
    x = bu.asarray(np.arange(6, dtype=np.int32).reshape(2, 3), device=device)
    doubled = x + x
    one, other = np.asarray(doubled), np.from_dlpack(doubled)
    assert np.shares_memory(one, other)
    assert one.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert not one.flags.writeable


def test_a_view_of_the_host_keeps_its_buffer(device: OpenDevice) -> None:
    view = np.asarray(bu.asarray(np.arange(1000), device=device) + 1)
    gc.collect()
    later = [bu.asarray(np.full(1000, n), device=device) + 0 for n in range(20)]
    assert view.tolist() == list(range(1, 1001))
    assert [int(each[7]) for each in later] == list(range(20))


def test_memory_of_the_host_is_lent(device: OpenDevice) -> None:
    lent = np.zeros(1024 + 128, np.uint8)
    start = -lent.ctypes.data % device.capabilities.alignment
    part = lent[start : start + 1024]
    handle = device.device.borrow(part.data)
    assert handle is not None
    part[3] = 7
    out = np.empty(4, np.uint8)
    device.device.download(handle, out.data)
    assert out.tolist() == [0, 0, 0, 7]


def test_buffers_may_be_empty_and_are_never_too_large(device: OpenDevice) -> None:
    handle = device.device.alloc(0)
    device.device.upload(handle, memoryview(b""))
    device.device.download(handle, memoryview(bytearray()))
    with pytest.raises(OutOfMemoryError, match="has no buffer of 1152921504606846976 bytes"):
        device.device.alloc(1 << 60)


def test_a_program_is_built_once(
    device: OpenDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(quirks, "UNKEPT", ())
    sources: list[str] = []
    compile_ = programs._compile

    def counted(context: Any, source: str, flags: Any) -> Any:
        sources.append(source)
        return compile_(context, source, flags)

    monkeypatch.setattr(programs, "_compile", counted)
    x = np.arange(5, dtype=np.float32)
    for _ in range(2):  # a device has what it loaded; another one has it from disk
        where = opened()
        assert np.array_equal(bu.jit(lambda x: x * 3 + 7, device=where)(x), x * 3 + 7)
    assert len(sources) == 1
    assert re.search(r"__kernel .*void k0_mul_add\(", sources[0])


def test_what_does_not_compile_is_an_error_with_source_and_log(device: OpenDevice) -> None:
    own = device.device
    assert isinstance(own, OpenCLDevice)
    source = "__kernel void five(__global int *x) { x[0] = fife; }\n"
    with pytest.raises(CompileError, match="the OpenCL compiler refuses the source") as caught:
        programs.build(own.context, own.machine, source)
    assert "fife" in caught.value.log
    assert caught.value.source == source


def test_late_errors_say_which_launches_they_were_one_at_each_wait(device: OpenDevice) -> None:
    own = opened().device
    assert isinstance(own, OpenCLDevice)
    steps = [SimpleNamespace(name=name, location=None) for name in ("k0_add", "k1_mul")]
    failed = SimpleNamespace(command_execution_status=cl.status_code.OUT_OF_RESOURCES)
    ended = SimpleNamespace(command_execution_status=cl.command_execution_status.COMPLETE)
    going_on = SimpleNamespace(command_execution_status=cl.command_execution_status.RUNNING)
    launches = [(ended, None), (failed, steps[0]), (failed, steps[1]), (going_on, None)]
    for event, step in launches:
        own._launched.append((event, lambda step=step: step))  # type: ignore[misc]
    for step in steps:
        with pytest.raises(DeviceError, match=f"{step.name}: ") as caught:
            own.synchronize()
        assert caught.value.step is step
    own.synchronize()
    assert [event for event, _ in own._launched] == [going_on]


def test_a_launch_is_four_calls_of_python() -> None:
    """`launch`, the step for a late error, the question whether somebody observes the launch, and
    the list of its views, which is a call before Python 3.12.
    """
    where = opened()

    def chain(length: int) -> Callable[[], object]:
        def body(x: Any) -> Any:
            for _ in range(length):
                x = bu.sin(x)
            return x

        x = bu.asarray(np.ones(5, np.float32), device=where)
        call = bu.jit(body, device=where, fuse=False)
        call(x)  # compiles
        assert len(call.lower(x).kernels) == length
        return lambda: call(x)

    def calls(run: Callable[[], object]) -> int:
        count = 0

        def seen(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event == "call"

        run()  # by now everything is made that lasts
        sys.setprofile(seen)
        try:
            run()
        finally:
            sys.setprofile(None)
        return count

    assert calls(chain(12)) - calls(chain(2)) <= 4 * 10


def test_devices_are_counted_over_all_platforms_and_tell_their_faults() -> None:
    opened()  # or there is none
    infos = backends.OpenCLBackend().devices()
    assert [info.index for info in infos] == list(range(len(infos)))
    for info, (_, machine) in zip(infos, devices(), strict=True):
        details = dict(info.details)
        assert details["platform"] == machine.platform
        faults = [q for q in quirks_of(machine.platform, machine.version) if q.expression]
        assert {details[f"fault of {quirk.op}"] for quirk in faults} == {q.why for q in faults}


FAULTS = [quirk for quirk in QUIRKS if quirk.expression]


@pytest.mark.parametrize(
    "quirk", [quirk for quirk in FAULTS if hasattr(bu, quirk.op)], ids=lambda quirk: quirk.op
)
def test_what_has_a_fault_is_computed_in_another_way(quirk: Any, device: OpenDevice) -> None:
    result = bu.jit(getattr(bu, quirk.op), device=device)(np.float32([quirk.argument]))
    assert np.asarray(result).tobytes() == np.float32([quirk.right]).tobytes()


def test_a_vector_of_which_one_lane_is_left(device: OpenDevice) -> None:
    """PoCL 3.1 stored nothing where lanes were copied under a mask; see `QUIRKS`."""

    def largest(x: Any) -> Any:
        return bu.broadcast_to(bu.max(x.T, axis=1)[:, None], (577, 2))

    x = np.arange(1, 1155, dtype=np.int32).reshape(2, 577)
    compiled = bu.jit(largest, device=device)
    assert np.asarray(compiled(x)).tolist() == np.stack([x.max(0)] * 2, 1).tolist()
    assert "_v++) if (" not in compiled.lower(x).source


@pytest.mark.parametrize("quirk", FAULTS, ids=lambda quirk: quirk.op)
def test_a_fault_is_still_there(quirk: Any) -> None:
    """A row whose program is right on a driver that it names is to be removed."""
    own = opened().device
    assert isinstance(own, OpenCLDevice)
    machine = own.machine
    if quirk not in quirks_of(machine.platform, machine.version):
        pytest.skip("another driver")
    source = "__kernel void f(__global float *x) { const float x_ = x[0]; x[0] = %s; }"
    program = cl.Program(own.context, source % quirk.expression.replace("x", "x_")).build()
    memory = np.float32([quirk.argument])
    handle = own.alloc(4)
    own.upload(handle, memory.data.cast("B"))
    cl.Kernel(program, "f")(own.queue, (1,), (1,), handle)
    own.download(handle, memory.data.cast("B"))
    assert memory.view(np.int32)[0] != np.float32([quirk.right]).view(np.int32)[0]
