"""Devices that work late: who is told an error that a wait raises, and who is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.backend import (
    Capabilities,
    DeviceInfo,
    OpsDevice,
    SimpleBackend,
    claims,
    current_step,
    step_locator,
)
from bringup.dtypes import f32
from bringup.errors import DeviceError, DeviceLostError
from bringup.runtime import async_errors
from bringup.runtime.devices import OpenDevice
from bringup.runtime.timing import Timer

X = np.float32([1, 4, 9, 16])


class Queue(OpsDevice):
    """A queue that runs at the next wait.

    names: whether errors name their steps.  fails: ops that fail with an error of this class.
    later: whether it asks for the step of what fails alone.
    """

    capabilities = Capabilities(
        ops=claims(["add", "mul", "exp", "sqrt"], ["f32"]), asynchronous=True
    )

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.names, self.later = True, False
        self.fails: dict[str, type[DeviceError]] = {}
        self.ops = {
            "add": self.late("add", np.add),
            "mul": self.late("mul", np.multiply),
            "exp": self.late("exp", np.exp),
            "sqrt": self.late("sqrt", np.sqrt),
        }

    def late(self, name: str, function: Any) -> Callable[..., None]:
        def issue(*views: Any, out: Any) -> None:
            locate, kind = step_locator(), self.fails.get(name)
            step = None if self.later else current_step()

            def work() -> None:
                if kind is not None:
                    error = kind(f"{name} failed late")
                    found = locate() if self.later else step
                    error.step = found if self.names else None
                    raise error
                host(out)[...] = function(*map(host, views))

            self.queue.append(work)

        return issue

    def synchronize(self) -> None:
        errors: list[DeviceError] = []
        while self.queue:
            work = self.queue.pop(0)
            try:
                work()
            except DeviceError as error:
                if not errors:
                    errors.append(error)
                else:  # told at the next wait
                    self.queue.insert(0, work)
                    break
        if errors:
            raise errors[0]

    def alloc(self, nbytes: int) -> bytearray:
        return bytearray(nbytes)

    def free(self, handle: bytearray) -> None:
        pass

    def upload(self, handle: bytearray, data: memoryview) -> None:
        handle[: len(data)] = data

    def download(self, handle: bytearray, out: memoryview) -> None:
        self.synchronize()
        out[:] = handle[: len(out)]

    def copy(self, target: bytearray, source: bytearray, nbytes: int) -> None:
        self.queue.append(lambda: target.__setitem__(slice(nbytes), source[:nbytes]))


def host(view: Any) -> Any:
    data = np.frombuffer(view.handle, view.type.dtype.numpy, view.type.size, view.offset)
    return data.reshape(view.type.shape)


@pytest.fixture(params=["at once", "later"])
def queue(request: pytest.FixtureRequest) -> Queue:
    made = Queue()
    made.later = request.param == "later"
    return made


@pytest.fixture
def device(queue: Queue) -> OpenDevice:
    backend = SimpleBackend("queue", lambda index: queue, Queue.capabilities)
    return OpenDevice("queue", 0, backend, queue, DeviceInfo(0, "Queue"))


def lost_and_good(queue: Queue, device: OpenDevice) -> tuple[bu.Array, bu.Array, bu.Array]:
    """An array, a result that fails late, and one that does not depend on it."""
    x = bu.asarray(X, device=device)
    lost, good = bu.jit(bu.exp, device=device), bu.jit(bu.sqrt, device=device)
    queue.fails["exp"] = DeviceError
    results = x, lost(x), good(x)
    queue.fails.clear()
    return results


LOOKS = {
    "numpy": lambda x: np.asarray(x),
    "list": lambda x: x.tolist(),
    "ready": lambda x: x.block_until_ready(),
    "no elements": lambda x: np.asarray(bu.asarray(np.float32([]), device=x.device)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_an_independent_look_is_not_hit_and_the_error_is_kept(
    look: str, queue: Queue, device: OpenDevice
) -> None:
    x, lost, good = lost_and_good(queue, device)
    for array in (good, x):
        LOOKS[look](array)
    assert good.tolist() == [1, 2, 3, 4]
    assert x.tolist() == X.tolist()
    for _ in range(2):
        with pytest.raises(DeviceError, match="exp failed late"):
            lost.tolist()
    with pytest.raises(DeviceError, match="exp failed late"):
        lost.block_until_ready()
    with pytest.raises(DeviceError, match="exp failed late"):
        (lost + good).tolist()
    assert (good + x).tolist() == [2, 6, 12, 20]


def test_each_result_has_its_own_error(queue: Queue, device: OpenDevice) -> None:
    x = bu.asarray(X, device=device)
    queue.fails = {"exp": DeviceError, "mul": DeviceError}
    first = bu.jit(bu.exp, device=device)(x)
    second = bu.jit(lambda x: x * x, device=device)(x)
    with pytest.raises(DeviceError, match="mul failed late"):
        second.tolist()
    with pytest.raises(DeviceError, match="exp failed late"):
        first.tolist()


def test_one_wait_hears_of_all_that_failed_before_it(queue: Queue, device: OpenDevice) -> None:
    x = bu.asarray(X, device=device)
    queue.fails["exp"] = DeviceError
    lost = [bu.jit(lambda x, n=n: bu.exp(x) + n, device=device)(x) for n in range(4)]
    queue.fails.clear()
    for number, each in enumerate(lost):
        if number:
            queue.synchronize()  # has nothing left to tell
        with pytest.raises(DeviceError, match="exp failed late"):
            each.tolist()


def test_an_error_without_a_step_is_told_at_the_wait(queue: Queue, device: OpenDevice) -> None:
    """Nobody knows whose it is: all that was not complete is lost."""
    queue.names = False
    x, lost, good = lost_and_good(queue, device)
    with pytest.raises(DeviceError, match="exp failed late"):
        x.tolist()
    assert x.tolist() == X.tolist()
    for array in (lost, good):
        with pytest.raises(DeviceError, match="exp failed late"):
            array.tolist()


def test_a_lost_device_tells_everybody(queue: Queue, device: OpenDevice) -> None:
    x = bu.asarray(X, device=device)
    queue.fails["exp"] = DeviceLostError
    bu.jit(bu.exp, device=device)(x)
    good = bu.jit(bu.sqrt, device=device)(x)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            good.tolist()


def test_many_pending_runs_hit_no_independent_one(
    queue: Queue, device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_errors, "MOST_PENDING", 2)
    x, lost, good = lost_and_good(queue, device)
    assert bu.jit(lambda x: x + x, device=device)(x).tolist() == [2, 8, 18, 32]
    assert good.tolist() == [1, 2, 3, 4]
    with pytest.raises(DeviceError, match="exp failed late"):
        lost.tolist()


def test_who_measures_is_not_hit(queue: Queue, device: OpenDevice) -> None:
    _x, lost, _good = lost_and_good(queue, device)
    add = bu.jit(lambda x: x + x, device=device).lower(f32[4])
    assert add.executable is not None
    assert Timer(device, [f32[4]], [f32[4]]).seconds(add.executable) >= 0
    with pytest.raises(DeviceError, match="exp failed late"):
        lost.tolist()
