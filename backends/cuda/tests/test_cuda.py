"""The plugin on any machine: a scripted driver stands in for NVIDIA's."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bringup.backend import NoHardware
from bringup.errors import UnsupportedError
from bringup_cuda import backend as backend_module
from bringup_cuda import plugin
from bringup_cuda.backend import CudaBackend
from bringup_cuda.driver import LIBRARY, Gpu, find_gpus
from bringup_cuda.targets import BASELINE, SHARED_KIB

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


def test_a_gpu_that_is_there_is_named_and_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "find_gpus", lambda: (Gpu("NVIDIA H100", "sm_90"),))
    for ask in (CudaBackend().devices, lambda: CudaBackend().open(0)):
        with pytest.raises(NoHardware, match=r"NVIDIA H100 \(sm_90\) is present, but this version"):
            ask()


def test_this_machine_gets_a_reason_of_one_line() -> None:
    with pytest.raises(NoHardware) as caught:
        CudaBackend().devices()
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_capabilities_need_no_hardware_and_differ_by_architecture() -> None:
    backend = plugin.bringup_backend()
    for target, kib in SHARED_KIB.items():
        assert backend.capabilities(target).limits.tile_bytes == kib * 1024
    assert backend.capabilities() == backend.capabilities(BASELINE)
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
