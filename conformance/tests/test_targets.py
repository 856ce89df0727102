"""What a device does to its own memory reaches the suite."""

from __future__ import annotations

from typing import Any

import pytest

from bringup_conformance import DeviceTarget, run
from bringup_conformance.execution import targets
from bringup_conformance.rules.carried import INPUTS


def test_an_input_written_over_on_the_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's array is another one than the device's, so the device's has to be looked at."""
    right = targets.transfer.execute

    def scribbling(device: Any, executable: Any, buffers: Any, *rest: Any) -> Any:
        results = right(device, executable, buffers, *rest)
        device.upload(targets.transfer.handle_of(buffers[0]), memoryview(b"\x2a"))
        return results

    target = DeviceTarget.named("cpu")
    only = "smoke/mul/f32"
    assert run(target, "smoke", only=only).ok
    monkeypatch.setattr(targets.transfer, "execute", scribbling)
    report = run(target, "smoke", only=only, shrink_seconds=0)
    assert {failure.problem["kind"] for failure in report.failures} == {"input"}
    assert report.rules[INPUTS].failed == report.failed > 0
    assert report.rules["numerics.elementwise"].failed == 0
