"""The plugin on any machine: a scripted driver stands in for NVIDIA's."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_driver
import pytest

from bringup.backend import DeviceInfo, NoHardware
from bringup.errors import BackendError, UnsupportedError
from bringup_cuda import backend as backend_module
from bringup_cuda import plugin
from bringup_cuda.backend import CudaBackend
from bringup_cuda.driver import extras as driver_extras
from bringup_cuda.driver.discovery import (
    LIBRARY,
    Gpu,
    driver_version,
    find_gpus,
    nearest,
    require_gpus,
)
from bringup_cuda.driver.extras import RELAXED, DriverExtras
from bringup_cuda.targets import BASELINE, TARGETS
from bringup_cuda_emulator import plugin as emulated_plugin

HOPPER = ("NVIDIA H100", 9, 0)


class FakeDriver:
    """Answers as libcuda does: results by pointer, a status returned."""

    def __init__(self, gpus: list[tuple[str, int, int]], init: int = 0, count: int = 0) -> None:
        self.gpus = gpus
        self.init = init
        self.count = count

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.init

    def cuDeviceGetCount(self, result: Any) -> int:
        result._obj.value = len(self.gpus)
        return self.count

    def cuDriverGetVersion(self, result: Any) -> int:
        result._obj.value = 12080
        return 0

    def cuDeviceGet(self, result: Any, index: int) -> int:
        result._obj.value = 40 + index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: int) -> int:
        text = self.gpus[device - 40][0].encode()
        assert len(text) < size
        name.value = text
        return 0

    def cuDeviceGetAttribute(self, result: Any, attribute: int, device: int) -> int:
        result._obj.value = self.gpus[device - 40][{75: 1, 76: 2}[attribute]]
        return 0


def loader(driver: FakeDriver) -> Any:
    def load(library: str) -> FakeDriver:
        assert library == LIBRARY
        return driver

    return load


def test_a_missing_driver_is_said_to_be_missing() -> None:
    def load(library: str) -> ctypes.CDLL:
        return ctypes.CDLL(f"no-such-{library}")

    with pytest.raises(NoHardware, match=r"driver is not installed \(no-such-libcuda\.so\.1"):
        find_gpus(load)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (FakeDriver([], init=100), "installed but finds no GPU"),
        (FakeDriver([HOPPER], init=803), "does not start (cuInit returned 803)"),
        (FakeDriver([]), "offers no GPU to this process"),
        (FakeDriver([HOPPER], count=999), "cannot describe its GPUs (error 999)"),
    ],
    ids=["no device", "init fails", "none visible", "a query fails"],
)
def test_each_way_to_have_no_gpu_has_its_own_reason(driver: FakeDriver, reason: str) -> None:
    with pytest.raises(NoHardware) as caught:
        find_gpus(loader(driver))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_driver_s_gpus_are_read_in_order() -> None:
    driver = FakeDriver([HOPPER, ("Tesla T4", 7, 5)])
    assert find_gpus(loader(driver)) == (Gpu("NVIDIA H100", "sm_90"), Gpu("Tesla T4", "sm_75"))


# -- pycuda and the driver's release ---------------------------------------------------------------

GPUS = (Gpu("NVIDIA H100", "sm_90"),)


def required(
    gpus: tuple[Gpu, ...] = GPUS, version: int = 12080, module: Any = lambda name: object()
) -> tuple[Gpu, ...]:
    return require_gpus(lambda: gpus, lambda: version, module)


def raising(error: Exception) -> Any:
    def load(name: str) -> Any:
        assert name == "pycuda.driver"
        raise error

    return load


def test_gpus_that_can_be_opened_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_extras, "DriverExtras", lambda driver: None)
    gpus = (*GPUS, Gpu("Tesla T4", "sm_75"))
    assert required(gpus) == gpus
    monkeypatch.setattr(backend_module, "require_gpus", lambda: gpus)
    infos = CudaBackend().devices()
    assert [(i.index, i.product) for i in infos] == [(0, "NVIDIA H100"), (1, "Tesla T4")]
    assert dict(infos[1].details) == {"architecture": "sm_75"}


@pytest.mark.parametrize(
    ("error", "what", "fix"),
    [
        (
            ModuleNotFoundError("No module named 'pycuda'", name="pycuda"),
            "NVIDIA H100 (sm_90) is present, and pycuda is not installed",
            "pip install pycuda",
        ),
        (
            ImportError("libcurand.so.10: cannot open shared object file\nmore"),
            "pycuda does not load: ImportError: libcurand.so.10: cannot open shared object file",
            "--no-binary pycuda",
        ),
        (
            ModuleNotFoundError("No module named 'pytools'", name="pytools"),
            "pycuda does not load: ModuleNotFoundError: No module named 'pytools'",
            "--no-binary pycuda",
        ),
        (
            ImportError("/site/pycuda/_driver.so: undefined symbol: cuCtxCreate_v4"),
            "pycuda does not load: ImportError: /site/pycuda/_driver.so: undefined symbol:",
            "not newer than the driver",
        ),
        (AttributeError("_driver"), "pycuda does not load: AttributeError: _driver", "pycuda"),
    ],
    ids=[
        "missing",
        "a library is missing",
        "what it needs is missing",
        "newer headers",
        "another build",
    ],
)
def test_pycuda_that_is_missing_or_broken_is_said_to_be(
    error: Exception, what: str, fix: str
) -> None:
    with pytest.raises(BackendError) as caught:
        required(module=raising(error))
    assert what in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.fix is not None
    assert fix in caught.value.fix


def test_a_driver_that_is_too_old_is_said_to_be_with_the_release_to_take() -> None:
    with pytest.raises(BackendError, match=r"speaks CUDA 12.4, older than 12.8") as caught:
        required(version=12040)
    assert caught.value.fix is not None
    assert "570" in caught.value.fix


def test_gpus_older_than_any_code_are_refused_by_name() -> None:
    with pytest.raises(BackendError, match=r"sm_61 is older than sm_75"):
        required((Gpu("GeForce GTX 1080", "sm_61"),))


@pytest.mark.parametrize(
    ("architecture", "code"),
    [("sm_75", "sm_75"), ("sm_80", "sm_80"), ("sm_103", "sm_100"), ("sm_121", "sm_120")],
)
def test_code_is_made_for_the_newest_architecture_a_gpu_runs(architecture: str, code: str) -> None:
    assert nearest(architecture) == code


def test_the_driver_s_release_is_asked_for() -> None:
    assert driver_version(loader(FakeDriver([HOPPER]))) == 12080


# -- what pycuda lacks -----------------------------------------------------------------------------


class FakeLibrary:
    """libcuda's graphs and copies; each function's arguments are kept."""

    def __init__(self, status: dict[str, int] | None = None) -> None:
        self.status = status or {}
        self.calls: list[tuple[str, list[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            found = [a.value if isinstance(a, ctypes._SimpleCData) else a for a in args]
            self.calls.append((name, found))
            if name == "cuGetErrorString":
                args[1]._obj.value = b"the stream is in no capture"
            if name == "cuStreamEndCapture":
                args[1]._obj.value = 77
            if name in ("cuGraphInstantiateWithFlags", "cuEventCreate"):
                args[0]._obj.value = 88
            return self.status.get(name, 0)

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def extras(library: FakeLibrary) -> DriverExtras:
    fake: Any = fake_driver.FakeDriver()
    return DriverExtras(fake, lambda name: library)


STREAM = SimpleNamespace(handle=0x501)


def test_capture_goes_by_the_c_library() -> None:
    library = FakeLibrary()
    made = extras(library)
    made.begin_capture(STREAM)
    graph = made.end_capture(STREAM)
    graph.launch(STREAM)
    graph.free()
    assert library.names() == [
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
        "cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy",
    ]  # fmt: skip
    calls = dict(library.calls)
    assert calls["cuStreamBeginCapture_v2"] == [0x501, RELAXED]
    assert calls["cuGraphDestroy"] == [77]
    assert calls["cuGraphLaunch"] == [88, 0x501]
    assert calls["cuGraphExecDestroy"] == [88]


@pytest.mark.parametrize("status", [0, 400])
def test_a_stream_of_others_waits_for_an_event_that_is_given_back(status: int) -> None:
    library = FakeLibrary({"cuStreamWaitEvent": status})
    wait = extras(library).make_wait
    if status:
        with pytest.raises(fake_driver.FakeDriver.LogicError, match="cuStreamWaitEvent failed"):
            wait(2, STREAM)
    else:
        wait(2, STREAM)
    order = [name for name in library.names() if name != "cuGetErrorString"]
    assert order == ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2"]
    calls = dict(library.calls)
    assert calls["cuEventCreate"][1] == 2, "it takes no times"
    event = calls["cuEventRecord"][0]
    assert calls["cuEventRecord"] == [event, 0x501]
    assert calls["cuStreamWaitEvent"] == [2, event, 0]
    assert calls["cuEventDestroy_v2"] == [event]


def test_copies_between_devices_name_both_contexts() -> None:
    library = FakeLibrary()
    first, second = SimpleNamespace(handle=0xC0), SimpleNamespace(handle=0xC1)
    extras(library).memcpy_peer_async(1 << 40, first, 1 << 41, second, 4096, STREAM)
    assert library.calls == [("cuMemcpyPeerAsync", [1 << 40, 0xC0, 1 << 41, 0xC1, 4096, 0x501])]


@pytest.mark.parametrize(("status", "kind"), [(2, "MemoryError"), (401, "LogicError")])
def test_its_errors_are_those_of_pycuda(status: int, kind: str) -> None:
    library = FakeLibrary({"cuStreamEndCapture": status})
    made = extras(library)
    with pytest.raises(getattr(fake_driver.FakeDriver, kind)) as caught:
        made.end_capture(STREAM)
    assert str(caught.value) == "cuStreamEndCapture failed: the stream is in no capture"


def test_the_captured_graph_goes_even_if_it_does_not_instantiate() -> None:
    library = FakeLibrary({"cuGraphInstantiateWithFlags": 1})
    with pytest.raises(fake_driver.FakeDriver.LogicError):
        extras(library).end_capture(STREAM)
    assert "cuGraphDestroy" in library.names()


def test_this_machine_has_a_gpu_or_gets_a_reason_of_one_line() -> None:
    gpus: list[DeviceInfo] = []
    reason = ""
    try:
        gpus = list(CudaBackend().devices())
    except NoHardware as absent:
        reason = str(absent)
    assert bool(gpus) != bool(reason)
    assert all(gpu.product for gpu in gpus)
    assert "\n" not in reason


def test_capabilities_need_no_hardware_and_differ_by_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = plugin.bringup_backend()
    for target, row in TARGETS.items():
        # What the kernels themselves need of it besides tiles is little.
        assert 0 <= row.shared_bytes - backend.capabilities(target).limits.tile_bytes <= 8 << 10
    monkeypatch.setattr(backend_module, "find_gpus", lambda: find_gpus(loader(FakeDriver([]))))
    assert backend.capabilities() == backend.capabilities(BASELINE)
    gpus = loader(FakeDriver([HOPPER]))
    monkeypatch.setattr(backend_module, "find_gpus", lambda: find_gpus(gpus))
    assert backend.capabilities() == backend.capabilities("sm_90a"), "what is opened declares"
    assert "reduce.add" in backend.capabilities().kernels


def test_an_unknown_architecture_is_refused_with_those_known() -> None:
    with pytest.raises(UnsupportedError, match=r"no architecture 'sm_1'(?s:.*)sm_90"):
        CudaBackend().capabilities("sm_1")


def test_the_plugin_needs_neither_pycuda_nor_a_compiler() -> None:
    code = (
        "import sys; sys.modules['pycuda'] = None; import bringup_cuda.plugin as p; "
        "p.bringup_handshake(); p.bringup_backend().capabilities('sm_90'); "
        "assert 'llvmlite' not in sys.modules; print(p.bringup_backend().name)"
    )
    folder = str(Path(plugin.__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    assert (done.stdout, done.stderr) == ("cuda\n", "")


def test_the_emulated_backend_is_the_same_but_simulated_and_always_there() -> None:
    backend = emulated_plugin.bringup_backend()
    emulated_plugin.bringup_handshake()
    assert backend.name == "cuda-emulated"
    assert [info.index for info in backend.devices()] == [0, 1]
    real, emulated = CudaBackend().capabilities("sm_90"), backend.capabilities()
    assert (real.simulated, emulated.simulated) == (False, True)
    assert real.kernels == emulated.kernels
    assert {"while", "scan", "case"} <= set(emulated.ops)
