"""``BRINGUP_CHECK_NAN=1``: the operation, the line and the operands of a first NaN."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import NaNError


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK_NAN", "1")


def line_of(fn: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def steps(x: bu.Array) -> bu.Array:
    y = bu.where(x > 0, bu.log(x), 0.0)
    z = bu.sqrt(y - 1)
    return z * 2


@pytest.mark.parametrize("run", [steps, bu.jit(steps)], ids=["recorded", "compiled"])
def test_the_line_the_operation_and_the_operands_are_named(run: Callable[..., Any]) -> None:
    for _ in range(3):  # the third call of a compiled function is answered natively otherwise
        with pytest.raises(NaNError) as caught:
            np.asarray(run(bu.asarray([9.0, -1.0, 2.0])))
        error = caught.value
        assert error.what == "sqrt made a NaN of operands without any"
        assert error.location is not None
        assert (error.location.file, error.location.line) == (__file__, line_of(steps, "sqrt"))
        assert error.notes == ("operand 0[1] is -1.0",)
        assert "sqrt(%0)" in (error.instruction or "")
    assert np.isfinite(np.asarray(run(bu.asarray([9.0, 8.0])))).all()


def test_equal_code_elsewhere_keeps_its_own_line() -> None:
    def first(x: bu.Array) -> Any:
        return np.asarray(bu.log(x) * 3)

    def second(x: bu.Array) -> Any:
        return np.asarray(bu.log(x) * 3)

    for fn in (first, second):
        with pytest.raises(NaNError) as caught:
            fn(bu.asarray([-1.0]))
        assert caught.value.location is not None
        assert caught.value.location.line == line_of(fn, "bu.log")


def test_what_is_not_made_by_an_operation_raises_nothing() -> None:
    x = bu.asarray([1.0, np.nan])
    assert np.isnan(np.asarray(x * 2)[1])
    assert np.isnan(np.asarray(bu.asarray([1.0]) * bu.nan)).all()
    held = bu.jit(lambda x: bu.where(x > 0, bu.log(x), 0.0))(bu.asarray([-1.0, 1.0]))
    assert held.tolist() == [0.0, 0.0]
    assert bu.sum(bu.asarray([1, 2])).item() == 3


LOOPS: dict[str, Callable[[bu.Array], Any]] = {
    "scan": lambda x: bu.scan(lambda c, _: (c - 1, bu.sqrt(c)), x, None, length=4)[1],
    "while": lambda x: bu.while_loop(
        lambda s: s[0] < 4, lambda s: (s[0] + 1, bu.sqrt(s[1]) - 0.9), (0, x)
    )[1],
    "case": lambda x: bu.cond(x > 0, lambda: bu.sqrt(x - 5), lambda: x),
    "call": bu.checkpoint(lambda x: bu.sqrt(x - 5) * 2),
    "gradient": bu.grad(lambda x: bu.where(x > 0, bu.sqrt(x * 0), 0.0)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_nans_inside_loops_branches_calls_and_gradients(name: str) -> None:
    with pytest.raises(NaNError) as caught:
        np.asarray(bu.jit(LOOPS[name])(bu.asarray(1.0)))
    error = caught.value
    assert error.what.startswith("mul" if name == "gradient" else "sqrt")
    assert error.location is not None
    assert error.location.file == __file__


def test_what_the_device_alone_makes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = bu.asarray([1.0, 2.0])
    run = bu.jit(lambda x: x + 1)
    run(x)
    entry = next(iter(run._entries.values()))
    nan = np.full(2, np.nan)
    monkeypatch.setattr(
        "bringup.runtime.nans.transfer.execute", lambda *_: [bu.asarray(nan)._buffer]
    )
    assert entry.compiled is not None
    with pytest.raises(NaNError, match="the references of its ops give none"):
        run(x)
