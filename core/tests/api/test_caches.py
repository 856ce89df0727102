"""Letting go of compiled programs."""

from __future__ import annotations

import gc
import weakref

import bringup as bu
from bringup.runtime import devices

from .conftest import ReferenceDevice, opened


def deferred() -> list[float]:
    found: list[float] = ((bu.ones(2) + 1) * 2).tolist()
    return found


def test_programs_go_and_are_compiled_again(reference: ReferenceDevice) -> None:
    jitted, x, held = bu.jit(lambda x: x * 3), bu.asarray([1.0, 2.0]), bu.ones(2) + 5
    assert (jitted(x).tolist(), held.tolist(), deferred()) == ([3, 6], [6, 6], [4, 4])
    first = reference.compiled
    assert deferred() == [4, 4]
    assert reference.compiled == first
    bu.clear_caches()
    assert (jitted(x).tolist(), held.tolist()) == ([3, 6], [6, 6])
    assert reference.compiled == first
    assert deferred() == [4, 4]
    assert reference.compiled > first


def test_devices_go_with_their_programs() -> None:
    device = ReferenceDevice()
    gone = weakref.ref(device)
    with devices.use(opened(device)):
        assert (bu.ones(2) + 1).tolist() == [2, 2]
    del device
    bu.clear_caches()
    gc.collect()
    assert gone() is None
