"""What a device does to its own memory reaches the suite."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planted import case, opened

from bringup_conformance import DeviceTarget, run
from bringup_conformance.execution import targets
from bringup_conformance.rules.carried import INPUTS
from bringup_selftest.corpus import with_method
from bringup_selftest.device import Reference


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


def test_what_a_driver_compiles_at_the_first_launch_is_no_time_of_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, launched = [0.0], set[str]()

    def launch(_device: Any, inner: Callable[..., None], code: Any, *rest: Any) -> None:
        clock[0] += 1.0 if str(rest[0]) in launched else 10.0
        launched.add(str(rest[0]))
        inner(code, *rest)

    target = opened(with_method("launch", launch)(Reference(2)))
    monkeypatch.setattr(targets, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    run = target.compile(
        case("graph g(%0: f32[4]) {\n  %1: f32[4] = exp(%0)\n  return %1\n}").graph
    )
    for _ in range(3):
        run([np.zeros(4, np.float32)])
    assert (target.cost.first_calls, target.cost.running, target.cost.kernels) == (10.0, 2.0, 3)
