"""What Template has to do, by its driver or by what stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import bringup as bu
import numpy as np
import pytest
from bringup.backend import Device, NoHardware, load
from bringup.errors import OutOfMemoryError
from bringup_conformance import run

NAME = "template"
X = np.linspace(-3, 3, 300, dtype=np.float32).reshape(20, 15)
W = np.linspace(-1, 1, 60, dtype=np.float32).reshape(15, 4)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """One opened device; the tests that need it are skipped where there is none."""
    backend = load(NAME)
    try:
        backend.devices()
    except NoHardware as reason:
        pytest.skip(str(reason))
    device = backend.open(0)
    yield device
    device.close()


def test_the_suite_at_its_first_level(device: Device) -> None:
    """The command ``conformance run --level smoke`` runs the same, and tells more of a failure."""
    report = run(NAME, "smoke")
    assert [(each.name, str(each.problem)) for each in report.results if each.problem] == []
    assert report.passed > 40


@pytest.mark.parametrize("nbytes", [0, 1, 3, 64, 65, 4096, 1_000_003])
def test_bytes_come_back_as_they_went(device: Device, nbytes: int) -> None:
    sent = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    first, second = device.alloc(nbytes), device.alloc(nbytes)
    data = bytearray(sent)
    device.upload(first, memoryview(data))
    data[:] = bytes(nbytes)  # the device has taken them
    device.copy(second, first, nbytes)
    device.free(first)
    received = bytearray(nbytes)
    device.download(second, memoryview(received))
    device.synchronize()
    assert bytes(received) == sent.tobytes()
    device.free(second)


def test_memory_that_is_not_there_is_an_error_of_its_own_kind(device: Device) -> None:
    with pytest.raises(OutOfMemoryError):
        device.alloc(1 << 60)
    device.free(device.alloc(64))  # and the device goes on


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (lambda x: x * 2 + 1, lambda x: x * 2 + 1),
        (lambda x: bu.nn.relu(x @ W), lambda x: np.maximum(x @ W, 0)),
        (lambda x: bu.nn.softmax(x, axis=-1), lambda x: np.exp(x) / np.exp(x).sum(-1)[:, None]),
        (lambda x: bu.sort(-x, axis=0), lambda x: np.sort(-x, axis=0)),
        (lambda x: bu.cumulative_sum(x, axis=1), lambda x: np.cumsum(x, axis=1)),
    ],
    ids=["arithmetic", "product", "softmax", "sort", "running_sum"],
)
def test_programs(device: Device, ours: Callable[[Any], Any], numpys: Callable[[Any], Any]) -> None:
    result = bu.jit(ours, device=NAME)(X)
    assert str(result.device).startswith(NAME)
    np.testing.assert_allclose(np.asarray(result), numpys(X), rtol=1e-5, atol=1e-6)
