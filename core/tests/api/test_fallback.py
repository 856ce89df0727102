"""A device that cannot run everything, and another that takes over only where it is named."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.backend import Capabilities, claims
from bringup.dtypes import ALL
from bringup.errors import DeviceError, UnsupportedError
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice

from .conftest import ROWS, ReferenceDevice, opened


class LimitedDevice(ReferenceDevice):
    capabilities = Capabilities(ops=claims([r.name for r in ROWS if r.name != "exp"], ALL))


@pytest.fixture
def limited() -> Iterator[LimitedDevice]:
    device = LimitedDevice()
    with devices.use(opened(device, 3)):
        yield device


def f(x: bu.Array, y: bu.Array) -> tuple[bu.Array, bu.Array]:
    z = bu.exp(x * 2) + y
    return bu.sum(bu.exp(z)), z - 1


X = np.linspace(-1, 1, 6)
Y = np.arange(6.0)


def test_without_a_fallback_the_error_names_the_op_the_claim_and_the_line(limited: Any) -> None:
    with pytest.raises(UnsupportedError, match="exp on f64: not available") as caught:
        bu.jit(f)(bu.asarray(X), bu.asarray(Y))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert "fallback=" in str(caught.value)
    with pytest.raises(UnsupportedError, match="exp on f64: not available"):
        bu.exp(bu.asarray(X)).tolist()


def test_a_fallback_runs_what_is_missing(limited: LimitedDevice, second: OpenDevice) -> None:
    g = bu.jit(f, fallback=second)
    g(bu.asarray(X), bu.asarray(Y))
    kept = len(limited.alive)  # constants of the compiled parts
    total, z = g(bu.asarray(X), bu.asarray(Y))
    expected = np.exp(X * 2) + Y
    assert z.device.device is limited
    np.testing.assert_allclose(z, expected - 1, rtol=1e-15)
    np.testing.assert_allclose(total, np.exp(expected).sum(), rtol=1e-14)
    helper: Any = second.device
    assert set(helper.ran) == {"exp"}
    assert "exp" not in limited.ran
    del total, z
    assert helper.alive == set()
    assert len(limited.alive) == kept


def test_placement_lists_device_reason_and_bytes(limited: Any, second: OpenDevice) -> None:
    x = bu.float64[6]
    lowered = bu.jit(f, fallback=second).lower(x, x)
    rows = lowered.placement()
    moved = {str(r.node).split(" = ")[1].split("(")[0]: r for r in rows if " = " in r.node}
    assert {n for n, r in moved.items() if r.device == second.name} == {"exp"}
    assert "does not claim 'exp'" in moved["exp"].reason
    assert sum(r.bytes_moved for r in rows) == 4 * 6 * 8
    assert len(lowered.programs) == 5
    assert lowered.cost().kernels == 6
    with pytest.raises(UnsupportedError, match="is 5 programs"):
        _ = lowered.program


def test_a_fallback_with_nothing_to_do_changes_nothing(second: OpenDevice) -> None:
    lowered = bu.jit(f, fallback=second).lower(bu.float64[6], bu.float64[6])
    assert len(lowered.programs) == 1
    assert {row.device for row in lowered.placement()} == {"reference"}


def test_an_error_on_the_fallback_leaves_both_usable(
    limited: LimitedDevice, second: OpenDevice
) -> None:
    g = bu.jit(f, fallback=second)
    helper: Any = second.device
    helper.fail_on = "exp"
    x, y = bu.asarray(X), bu.asarray(Y)
    with pytest.raises(DeviceError, match="exp failed on demand"):
        g(x, y)
    helper.fail_on = ""
    np.testing.assert_allclose(g(x, y)[1], np.exp(X * 2) + Y - 1, rtol=1e-15)
    gc.collect()  # the error's traceback
    assert helper.alive == set()


def test_donated_arguments_survive_where_two_devices_share_the_work(
    limited: Any, second: OpenDevice
) -> None:
    x, y = bu.asarray(X), bu.asarray(Y)
    bu.jit(f, fallback=second, donate_argnums=0)(x, y)
    assert x.is_deleted
    assert not y.is_deleted


def test_limits_of_rank_are_told(reference: ReferenceDevice) -> None:
    reference.capabilities = Capabilities(
        ops=reference.capabilities.ops, limits=bu.backend.Limits(rank=2)
    )
    with pytest.raises(UnsupportedError, match="its limit is rank=2"):
        bu.jit(lambda x: x + 1)(bu.zeros((2, 2, 2)))
