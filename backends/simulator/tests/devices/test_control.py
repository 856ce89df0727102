"""Loops and branches on each of the three devices, which know nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import DeviceError
from bringup.runtime.devices import OpenDevice
from bringup_simulator import Accelerator


def until(x: Any) -> Any:
    return bu.while_loop(lambda s: bu.sum(s[0]) < 50, lambda s: (s[0] * 1.5, s[1] + 1), (x, 0))


def recurrent(w: Any, xs: Any) -> Any:
    carry, ys = bu.scan(
        lambda c, x: (bu.tanh(c * w + x), c), bu.zeros(3, dtype=bu.float32), xs, reverse=True
    )
    return bu.sum(carry) + bu.sum(ys * ys)


def chosen(k: Any, x: Any) -> Any:
    return bu.switch(k, [lambda v: v, lambda v: v * 3, lambda v: bu.sum(v) + v], x)


def test_a_loop_that_ends_by_its_values(device: OpenDevice) -> None:
    with bu.device(device):
        value, count = bu.jit(until)(bu.ones(4, dtype=bu.float32))
        assert np.allclose(value, 1.5**7)
        assert count.item() == 7


@pytest.mark.parametrize(("index", "wanted"), [(0, [1, 2]), (1, [3, 6]), (2, [4, 5]), (5, [4, 5])])
def test_branches(device: OpenDevice, index: int, wanted: list[float]) -> None:
    with bu.device(device):
        assert bu.jit(chosen)(bu.asarray(index), bu.asarray([1.0, 2.0])).tolist() == wanted


def test_scans_and_their_gradients(device: OpenDevice) -> None:
    w, xs = np.float32([0.5, -0.25, 1]), np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    wanted = bu.jit(bu.value_and_grad(recurrent), device="cpu")(w, xs)
    with bu.device(device):
        found = bu.jit(bu.value_and_grad(recurrent))(bu.asarray(w), bu.asarray(xs))
        for one, other in zip(found, wanted, strict=True):
            assert np.allclose(one, np.asarray(other), rtol=1e-5)


def test_deferred_arrays(device: OpenDevice) -> None:
    with bu.device(device):
        x = bu.fori_loop(0, 4, lambda i, v: v * 2 + i, bu.asarray(1))
        assert x.item() == 27


def test_late_errors_inside_a_loop_are_reported(device: OpenDevice, chip: Accelerator) -> None:
    with bu.device(device):
        run = bu.jit(until)
        x = bu.ones(4, dtype=bu.float32)
        assert run(x)[1].item() == 7
        chip.fail_next("call" if device.backend_name == "simulator-ops" else "launch", after=4)
        with pytest.raises(DeviceError, match="injected failure"):
            run(x)[0].tolist()
        assert run(x)[1].item() == 7
