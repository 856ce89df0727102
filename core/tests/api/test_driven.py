"""Loops and branches on devices that claim none: core runs them, everything else stays there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup import float64 as f64
from bringup.backend import Capabilities, claims
from bringup.dtypes import ALL
from bringup.errors import DeviceError, UnsupportedError
from bringup.runtime import devices
from bringup.runtime.devices import OpenDevice

from .conftest import ROWS, ReferenceDevice, SharedDevice, opened


class LimitedDevice(ReferenceDevice):
    capabilities = Capabilities(ops=claims([r.name for r in ROWS if r.name != "exp"], ALL))


@pytest.fixture
def limited() -> Iterator[LimitedDevice]:
    device = LimitedDevice()
    with devices.use(opened(device, 3)):
        yield device


def halve(x: Any) -> Any:
    """A loop between other work, whose state has a part that nothing changes."""
    start = x + 1

    def body(state: Any) -> Any:
        value, count, held = state
        return value * held, count + 1, held

    return bu.while_loop(lambda s: bu.sum(s[0]) > 1, body, (start, 0, x * 0 + 0.5)), start - 1


def test_what_is_run_for_the_device_is_freed(reference: ReferenceDevice) -> None:
    run = bu.jit(halve)
    x = bu.asarray(np.ones(4))
    run(x)
    kept = len(reference.alive)  # constants of the compiled parts
    (value, count, held), rest = run(x)
    assert (value.tolist(), count.item(), held.tolist()) == ([0.25] * 4, 3, [0.5] * 4)
    assert rest.tolist() == [1.0] * 4
    assert len(reference.alive) == kept + 4
    del value, count, held, rest
    gc.collect()
    assert len(reference.alive) == kept


def test_handles_that_count_themselves(shared: SharedDevice) -> None:
    (value, _, held), _ = bu.jit(halve)(bu.asarray(np.ones(4)))
    assert (value.tolist(), held.tolist()) == ([0.25] * 4, [0.5] * 4)


def test_a_loop_that_does_not_run_gives_copies(reference: ReferenceDevice) -> None:
    run = bu.jit(lambda x: bu.while_loop(lambda v: bu.sum(v) > 99, lambda v: v * 2, x))
    x = bu.asarray(np.ones(4))
    y = run(x)
    del x
    gc.collect()
    assert y.tolist() == [1.0] * 4


def test_placement_says_who_runs_what(reference: ReferenceDevice) -> None:
    lowered = bu.jit(halve).lower(f64[4])
    reasons = {row.node.split(" = ")[1].split("(")[0]: row.reason for row in lowered.placement()}
    assert any(row.node.startswith("body: ") and "mul(" in row.node for row in lowered.placement())
    assert reasons["while"] == "run by core, its parts on the device"
    assert reasons["add"] == "claimed as an op"
    assert len(lowered.programs) == 3, "what stands round it, condition, body"
    with pytest.raises(UnsupportedError, match="is 3 programs"):
        _ = lowered.program
    assert lowered.cost().kernels >= 7


def test_costs_count_the_runs_that_are_known(reference: ReferenceDevice) -> None:
    def cost(trips: int) -> Any:
        return bu.jit(lambda x: bu.fori_loop(0, trips, lambda _, v: bu.sin(v), x)).lower(f64[9])

    assert cost(2).cost().flops == 18
    assert cost(40).cost().flops == 360
    branches = bu.jit(lambda p, x: bu.cond(p, lambda v: bu.sin(v) + v, bu.sin, x))
    assert branches.lower(bu.bool, f64[9]).cost().flops == 18


def test_a_loop_of_known_length_is_not_asked_whether_it_goes_on(
    reference: ReferenceDevice,
) -> None:
    run = bu.jit(lambda x: bu.fori_loop(0, 3, lambda _, v: bu.sin(v), x))
    x = bu.asarray(np.ones(4))
    expected = np.sin(np.sin(np.sin(np.ones(4))))
    assert np.allclose(run(x), expected)
    reference.ran.clear()
    result = run(x)
    ran = list(reference.ran)
    assert ran.count("sin") == 3
    assert "compare" not in ran
    assert np.allclose(result, expected)
    lowered = run.lower(x)
    assert len(lowered.programs) == 2, "what stands round it, and the body"
    assert lowered.cost().kernels == len(ran)


def test_a_condition_that_prints_is_asked(
    reference: ReferenceDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    def goes_on(state: Any) -> Any:
        bu.debug.print("at {}", state[0])
        return state[0] < 2

    bu.jit(lambda x: bu.while_loop(goes_on, lambda s: (s[0] + 1, s[1] * 2), (0, x)))(np.ones(2))
    assert capsys.readouterr().out == "at 0\nat 1\nat 2\n"


def test_only_the_branch_taken_runs(reference: ReferenceDevice) -> None:
    run = bu.jit(lambda k, x: bu.switch(k, [bu.sin, bu.exp, bu.tanh], x))
    x = bu.asarray(np.ones(3))
    run(bu.asarray(0), x)
    reference.ran.clear()
    assert np.allclose(run(bu.asarray(1), x), np.e)
    assert "exp" in reference.ran
    assert not {"sin", "tanh"} & set(reference.ran)


def test_a_fallback_helps_inside_a_loop(limited: LimitedDevice, second: OpenDevice) -> None:
    def run(x: Any) -> Any:
        return bu.while_loop(lambda v: bu.sum(v) < 20, lambda v: bu.exp(v) * 0.5 + 1, x)

    x = np.zeros(3)
    with pytest.raises(UnsupportedError, match="exp on f64: not available"):
        bu.jit(run)(bu.asarray(x))
    found = bu.jit(run, fallback=second)(bu.asarray(x))
    while x.sum() < 20:
        x = np.exp(x) * 0.5 + 1
    assert np.allclose(found, x)
    rows = bu.jit(run, fallback=second).lower(f64[3]).placement()
    (row,) = [row for row in rows if "exp(" in row.node]
    assert (row.device, row.bytes_moved) == (second.name, 24)
    helper: Any = second.device
    assert set(helper.ran) == {"exp"}
    assert "exp" not in limited.ran
    assert helper.alive == set()


def test_an_error_inside_a_loop_points_at_its_line(reference: ReferenceDevice) -> None:
    @bu.jit
    def run(x: Any) -> Any:
        return bu.fori_loop(0, 3, lambda _, v: bu.tanh(v), x)  # here

    x = bu.asarray(np.ones(3))
    run(x)
    kept = len(reference.alive)
    reference.fail_on = "tanh"
    with pytest.raises(DeviceError, match="tanh failed on demand") as caught:
        run(x)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    reference.fail_on = ""
    del caught
    gc.collect()
    assert len(reference.alive) == kept
    assert np.allclose(run(x), np.tanh(np.tanh(np.tanh(1))))


def test_scans_become_loops(reference: ReferenceDevice) -> None:
    carry, ys = bu.scan(lambda c, x: (c + x, c * x), bu.zeros(2), bu.ones((3, 2)), reverse=True)
    assert carry.tolist() == [3.0, 3.0]
    assert ys.tolist() == [[2.0, 2.0], [1.0, 1.0], [0.0, 0.0]]
