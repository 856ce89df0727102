"""What the page of everyday questions says of optax holds where it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu

optax = pytest.importorskip("optax", reason="needs optax, and with it JAX")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "everyday.md"


def test_its_schedules_are_tables_and_its_optimisers_take_our_gradients() -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    of_optax = [block for block in blocks if "optax" in block]
    assert len(of_optax) == 2
    names: dict[str, Any] = {"bu": bu, "np": np}
    for block in of_optax:
        exec(block, names)
    optimizer, schedule = names["optimizer"], names["schedule"]

    @bu.jit
    def step(params: bu.Array, state: Any) -> Any:
        return optimizer.update(bu.ones_like(params), state, params)

    # Adam's first steps by equal gradients are of the size of the rate.
    params = bu.zeros(1, dtype=bu.float32)
    state = optimizer.init(params)
    for made in range(120):
        before, (params, state) = float(params[0]), step(params, state)
        rate = float(schedule(min(made, 100)))
        # Of the move: roundings of a few steps at the size of the parameter.
        assert before - float(params[0]) == pytest.approx(rate, abs=2.0**-20 * max(1, abs(before)))
    assert repr(step) == "<jit step: 1 signatures>"


def test_its_optimisers_compute_on_arrays_of_jax_alone() -> None:
    adam, params = optax.adam(0.1), bu.ones(2, dtype=bu.float32)
    with pytest.raises(TypeError):
        adam.update(params, adam.init(params), params)
    with pytest.raises(bu.errors.TraceError):
        bu.jit(adam.init)(params)
