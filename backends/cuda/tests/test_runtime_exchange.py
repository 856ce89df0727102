"""Memory shared with other libraries, and copies between devices."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from fake_kernels import Interpreter, device_of, interpreter, opened

import bringup as bu
from bringup.errors import ConversionError, DeviceLostError
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice
from bringup_conformance.runtime.fixture import by_dlpack
from bringup_cuda.runtime.dlpack import _exported

__all__ = ["interpreter"]

X = np.arange(12, dtype=np.float32).reshape(3, 4)
CUDA = 2


@pytest.fixture
def driver(interpreter: Interpreter) -> FakeDriver:
    made = FakeDriver()
    made.kernel = interpreter.run
    return made


class Foreign:
    """An array of another library.

    version: of the protocol that it knows.  device: where it says that it is.
    """

    def __init__(
        self, array: bu.Array, version: Any = (1, 0), device: tuple[int, int] = (CUDA, 0)
    ) -> None:
        self.array, self.version, self.device = array, version, device
        self.asked: dict[str, Any] = {}

    def __dlpack__(self, **asked: Any) -> Any:
        if self.version is None and "max_version" in asked:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked = asked
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def known(open_: OpenDevice, monkeypatch: pytest.MonkeyPatch) -> OpenDevice:
    monkeypatch.setattr(devices, "opened", lambda: (open_,))
    return open_


# -- DLPack, over the fake driver ------------------------------------------------------------------


def test_arrays_say_on_which_gpu_they_are(driver: FakeDriver) -> None:
    for index in (0, 1):
        x = bu.asarray(X, device=opened(driver, index=index, dlpack=CUDA))
        assert x.__dlpack_device__() == (CUDA, index)
    assert bu.asarray(X, device=opened(driver)).__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("stream", [None, 1, 2, 0x7F0012345678])
def test_the_consumer_s_stream_waits_and_the_host_does_not(driver: FakeDriver, stream: Any) -> None:
    open_ = opened(driver, dlpack=CUDA)
    x = bu.jit(lambda x: x + 1, device=open_)(bu.asarray(X, device=open_))
    driver.calls.clear()
    capsule = x.__dlpack__(max_version=(1, 0), stream=stream)
    waiting = 1 if stream is None else stream
    assert [c for c in driver.calls if c[0] == "make_wait"] == [("make_wait", waiting, "compute")]
    assert driver.names("synchronize", "event_synchronize") == []
    made, upto = device_of(open_).context.outside[waiting]  # type: ignore[attr-defined]
    assert made.done < upto, "the program has not run"
    made.run(upto)  # what the consumer's stream does before it goes on
    seen = driver.bytes_at(x._buffer.handle.address, X.nbytes).view(np.float32)
    assert np.array_equal(seen, X.reshape(-1) + 1)
    del capsule


def test_nobody_waits_for_who_says_so(driver: FakeDriver) -> None:
    x = bu.asarray(X, device=opened(driver, dlpack=CUDA))
    driver.calls.clear()
    capsule = x.__dlpack__(max_version=(1, 0), stream=-1)
    assert driver.calls == []
    del capsule


@pytest.mark.parametrize("stream", [0, -2, 1.0, True, "1", object()])
def test_what_is_no_stream_is_refused(driver: FakeDriver, stream: Any) -> None:
    x = bu.asarray(X, device=opened(driver, dlpack=CUDA))
    before = len(_exported)
    with pytest.raises(BufferError, match="is no stream"):
        x.__dlpack__(max_version=(1, 0), stream=stream)
    assert len(_exported) == before


def test_host_memory_has_no_streams(driver: FakeDriver) -> None:
    x = bu.asarray(X, device=opened(driver, dlpack=CUDA))
    with pytest.raises(BufferError, match="host memory has no streams"):
        x.__dlpack__(dl_device=(1, 0), stream=1)
    with pytest.raises(BufferError, match="leave out copy=False"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    emulated = bu.asarray(X, device="cuda-emulated")
    with pytest.raises(BufferError, match="has no stream 1"):
        emulated.__dlpack__(max_version=(1, 0), stream=1)


def test_memory_says_whether_it_is_a_copy(driver: FakeDriver) -> None:
    x = bu.asarray(X, device=opened(driver, dlpack=CUDA))
    own, copied = (x.__dlpack__(max_version=(1, 0), copy=copy) for copy in (None, True))
    given = {id(held[1]): held[2] for held in _exported.values()}
    flags = {made.tensor.data: made.flags for made in given.values()}
    assert {(*m.tensor.shape[:2], *m.tensor.strides[:2]) for m in given.values()} == {(3, 4, 4, 1)}
    address = x._buffer.handle.address
    assert flags.pop(address) == 1, "read-only"
    assert list(flags.values()) == [2], "a copy, to be written to"
    with pytest.raises(BufferError, match=r"takes version 1\.0"):
        x.__dlpack__(copy=False)
    del own, copied


def test_memory_goes_there_and_back_without_the_host(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = known(opened(driver, dlpack=CUDA), monkeypatch)
    x = bu.asarray(X, device=open_)
    before = len(_exported)
    foreign = Foreign(x)
    driver.calls.clear()
    back = bu.from_dlpack(foreign)
    assert driver.names("htod", "dtoh") == []
    assert driver.names("dtod") == ["dtod"]
    assert back.device is open_
    assert driver.names("synchronize") == [], "programs go on"
    assert foreign.asked["stream"] == device_of(open_).streams.uploads.handle
    assert len(_exported) == before, "the other library heard that we are done"
    assert np.array_equal(np.asarray(back), X)
    assert back._buffer.handle.address != x._buffer.handle.address


@pytest.mark.parametrize("dtype", ["bool", "i8", "u16", "i32", "u64", "f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_every_dtype_and_both_forms_are_read_back(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, dtype: str, version: Any
) -> None:
    open_ = known(opened(driver, dlpack=CUDA), monkeypatch)
    for shape in ((), (5,), (2, 0, 3), (2, 3, 4)):
        host = np.ones(shape, bu.asarray([], dtype=dtype, device=open_).dtype.numpy)
        x = bu.asarray(host, device=open_)
        back = bu.from_dlpack(Foreign(x, version))
        assert back.type is x.type
        assert np.array_equal(np.asarray(back), host)


def test_what_nobody_took_goes_with_its_capsule(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver, dlpack=CUDA))
    x = bu.asarray(X, device=open_)
    live = gpu.pool.live_bytes
    before = len(_exported)
    capsule = x.__dlpack__(max_version=(1, 0))
    del x
    assert gpu.pool.live_bytes == live, "the capsule keeps the memory"
    del capsule
    assert len(_exported) == before
    assert gpu.pool.live_bytes == 0


def test_numpy_says_that_it_reaches_no_gpu_and_keeps_nothing(driver: FakeDriver) -> None:
    gpu = device_of(open_ := opened(driver, dlpack=CUDA))
    x = bu.asarray(X, device=open_)
    before = len(_exported)
    with pytest.raises((BufferError, RuntimeError), match="device"):
        np.from_dlpack(x)
    assert len(_exported) == before
    assert np.array_equal(by_dlpack(x), X)
    del x
    assert gpu.pool.live_bytes == 0


def test_donating_what_others_hold_leaves_it_alone(driver: FakeDriver) -> None:
    open_ = opened(driver, dlpack=CUDA)
    x = bu.asarray(X, device=open_)
    address = x._buffer.handle.address
    capsule = x.__dlpack__(max_version=(1, 0))
    result = bu.jit(lambda x: x * 2, device=open_, donate_argnums=0)(x)
    assert np.array_equal(np.asarray(result), X * 2)
    assert np.array_equal(driver.bytes_at(address, X.nbytes).view(np.float32), X.reshape(-1))
    del capsule


def test_memory_of_another_gpu_or_a_wrong_request_is_refused(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = known(opened(driver, dlpack=CUDA), monkeypatch)
    x = bu.asarray(X, device=open_)
    with pytest.raises(BufferError, match=r"in host memory or on \(2, 0\), not on device \(2, 1\)"):
        x.__dlpack__(dl_device=(CUDA, 1))
    with pytest.raises(ConversionError):
        bu.from_dlpack(Foreign(x, device=(CUDA, 3)))
    host = by_dlpack(x)
    assert np.array_equal(host, X), "the host gets a copy if it asks"


# -- between devices -------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [False, True])
def test_copies_between_devices_pass_no_host(interpreter: Interpreter, eager: bool) -> None:
    driver = FakeDriver(eager=eager)
    driver.kernel = interpreter.run
    first, second = opened(driver), opened(driver, index=1)
    x = bu.jit(lambda x: x * 2, device=first)(bu.asarray(X, device=first))
    driver.calls.clear()
    moved = x.to(second)
    assert driver.names("htod", "dtoh", "synchronize") == []
    assert [c for c in driver.calls if c[0] == "peer"] == [("peer", "compute", 1, 0, X.nbytes)]
    assert moved.device is second
    # The source's memory is used again at once, and must be read before.
    del x
    bu.asarray(np.full((3, 4), 9, np.float32), device=first)
    other = bu.jit(lambda x: x + 5, device=first)(bu.asarray(X, device=first))
    assert np.array_equal(np.asarray(moved), X * 2)
    assert np.array_equal(np.asarray(other), X + 5)


def test_access_between_two_devices_is_enabled_once(driver: FakeDriver) -> None:
    first, second = opened(driver), opened(driver, index=1)
    x = bu.asarray(X, device=first)
    for _ in range(3):
        assert np.array_equal(np.asarray(x.to(second)), X)
    assert driver.names("enable_peer_access") == ["enable_peer_access"]
    driver.refused["enable_peer_access"] = ["peer access is already enabled"]
    y = bu.asarray(X, device=second)
    assert np.array_equal(np.asarray(y.to(first)), X), "another library had enabled it"


def test_devices_of_other_kinds_are_reached_by_the_host(driver: FakeDriver) -> None:
    first, foreign = opened(driver), opened(FakeDriver(), index=1)
    x = bu.asarray(X, device=first)
    driver.calls.clear()
    assert np.array_equal(np.asarray(x.to(foreign)), X)
    assert "peer" not in driver.names()
    assert np.array_equal(np.asarray(x.to("cpu")), X)


def test_nothing_is_copied_from_a_lost_device(driver: FakeDriver) -> None:
    first, second = opened(driver), opened(driver, index=1)
    x = bu.asarray(X, device=first)
    device_of(first).lost = RuntimeError("misaligned address")
    live = device_of(second).pool.live_bytes
    with pytest.raises(DeviceLostError, match="cuda is lost"):
        x.to(second)
    assert device_of(second).pool.live_bytes == live


def test_the_device_that_fails_in_a_copy_is_the_one_that_is_lost(driver: FakeDriver) -> None:
    first, second = opened(driver), opened(driver, index=1)
    x = bu.asarray(X, device=first)
    live = device_of(second).pool.live_bytes
    driver.refused["record"] = ["an illegal memory access was encountered"]
    with pytest.raises(DeviceLostError, match="cuda: "):
        x.to(second)
    assert device_of(first).lost is not None
    assert device_of(second).lost is None
    assert device_of(second).pool.live_bytes == live
    assert np.array_equal(np.asarray(bu.asarray(X, device=second) + 1), X + 1)


# -- on the emulator, whose memory numpy reads -----------------------------------------------------


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy makes no capsules with versions"
)
def test_numpy_reads_emulated_memory_in_place() -> None:
    x = bu.asarray(X, device="cuda-emulated")
    doubled = x * 2
    seen, again = np.from_dlpack(doubled), np.from_dlpack(doubled)
    assert np.array_equal(seen, X * 2)
    assert np.shares_memory(seen, again)
    assert not seen.flags.writeable
    del doubled, again
    bu.asarray(np.zeros_like(X), device="cuda-emulated")
    assert np.array_equal(seen, X * 2), "the array keeps the memory"


def test_emulated_devices_copy_to_each_other() -> None:
    x = bu.asarray(X, device="cuda-emulated") + 1
    moved = x.to("cuda-emulated:1")
    assert np.array_equal(np.asarray(moved * 2), (X + 1) * 2)
    assert np.array_equal(np.asarray(moved.to("cuda-emulated")), X + 1)


def test_consumers_may_let_go_when_the_interpreter_ends() -> None:
    code = (
        "import numpy as np, bringup as bu\n"
        "x = bu.asarray(np.ones(8, np.float32), device='cuda-emulated')\n"
        "kept = [np.from_dlpack(x), np.from_dlpack(x * 2), x.__dlpack__(max_version=(1, 0))]\n"
        "class Ring: pass\n"
        "ring = Ring(); ring.kept, ring.me = kept, ring\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
