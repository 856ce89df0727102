"""Kernels of many transcendental instructions call a function for most of them, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.llvm import scalar

N = 1000 + 5  # full vectors and a tail


def chain(count: int) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for _ in range(count):
            x = bu.sin(x) * 1.5 + bu.cos(x)
            x = bu.log(bu.exp(x) + 1) + bu.atan2(x, bu.nn.erf(x))
            x = bu.pow(bu.abs(x), 0.7) - bu.pow(bu.abs(x), 1.5) + bu.pow(bu.abs(x) + 1, x)
        return x

    return run


@pytest.mark.parametrize("dtype", [bu.float32, bu.float64, bu.bfloat16, bu.float16], ids=str)
def test_functions_have_the_bits_of_what_is_written_out(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = bu.asarray(np.random.default_rng(0).normal(size=N) * 3, dtype=dtype)
    monkeypatch.setattr(scalar, "_WRITTEN_OUT", {})
    monkeypatch.setattr(scalar, "_WRITTEN_OUT_ELSE", 0)
    program = bu.jit(chain(2))
    assert "@bringup.sin" in program.lower(x).source
    called = np.asarray(program(x))
    monkeypatch.setattr(scalar, "_WRITTEN_OUT_ELSE", 1 << 30)
    bu.clear_caches()
    program = bu.jit(chain(2))
    assert "@bringup.sin" not in program.lower(x).source
    assert np.array_equal(np.asarray(program(x)).view(np.uint8), called.view(np.uint8))


def test_few_instructions_are_written_out_and_more_are_calls() -> None:
    def sines(count: int) -> Callable[[Any], Any]:
        return lambda x: sum(bu.sin(x + i) for i in range(count))

    short = bu.jit(sines(4)).lower(bu.float32[N]).source
    assert "@bringup.sin" not in short
    more = bu.jit(sines(60)).lower(bu.float32[N]).source
    assert len(re.findall(r"define internal .*@bringup\.sin", more)) <= 2, "vectors and a tail"
    assert more.count("@bringup.sin") >= 56
    assert len(more) < 4 * len(short)


def test_constant_exponents_keep_functions_of_their_own() -> None:
    def powers(x: Any) -> Any:
        return sum(bu.pow(x + i, p) for i in range(24) for p in (1.5, 2.7))

    x = np.linspace(0.1, 9, N)
    found = np.asarray(bu.jit(powers)(bu.asarray(x)))
    single = [bu.jit(lambda v, p=p: bu.pow(v, p)) for p in (1.5, 2.7)]
    wanted = bu.asarray(0.0)
    for i in range(24):
        for power in single:
            wanted = wanted + power(bu.asarray(x + i))
    assert np.array_equal(found, np.asarray(wanted))
