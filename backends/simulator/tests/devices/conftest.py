"""What several test files use: each of the three devices with a chip of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bringup.runtime.devices import OpenDevice
from bringup_simulator import Accelerator
from bringup_simulator.devices.plugins import kernels, ops, program

PLUGINS = {
    "simulator-ops": ops,
    "simulator-kernels": kernels,
    "simulator-program": program,
}


def fresh(name: str, index: int = 0) -> OpenDevice:
    """A device as `bringup.device` opens it, on a chip that nobody else uses."""
    backend = PLUGINS[name].bringup_backend()
    info = backend.devices()[index]
    return OpenDevice(name, index, backend, backend.open(index), info)


@pytest.fixture(params=PLUGINS)
def device(request: pytest.FixtureRequest) -> OpenDevice:
    """Each of the three devices."""
    return fresh(request.param)


@pytest.fixture
def chip(device: OpenDevice) -> Accelerator:
    """The hardware under `device`, where faults are ordered and counters read."""
    found: Accelerator = device.device.chip  # type: ignore[attr-defined]
    return found


@pytest.fixture
def another() -> Callable[[str, int], OpenDevice]:
    """Opens more devices."""
    return fresh
