"""Scheduled functions, compiled as C, against the loops that they were before."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toolchain import Compiled

from bringup.c import OPENCL, render_c
from bringup.loops import parse_func
from bringup.loops.schedule import Schedule, apply

sys.path.append(str(Path(__file__).parents[1] / "loops"))
from schedules import results, small_inputs
from test_schedule_scripts import CASES as ALL_CASES
from test_schedule_scripts import SCRIPTS, lowered

#: Threads that meet are for dialects that have them.
CASES = [(name, types) for name, types in ALL_CASES if "threads" not in name]

IDS = [f"{name}_{number}" for number, (name, _) in enumerate(CASES)]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """Every script at every size, in one source."""
    funcs = []
    for name, (script, types) in zip(IDS, ((SCRIPTS[c[0]], c[1]) for c in CASES), strict=True):
        text, function, _ = script
        func = apply(lowered(function, types), Schedule.parse(text))
        funcs.append(replace(func, name=name))
    return Compiled(funcs)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_values(compiled: Compiled, number: int, parts: int) -> None:
    name, types = CASES[number]
    before = lowered(SCRIPTS[name][1], types)
    inputs = small_inputs(before)
    outputs = [np.empty(b.size, b.dtype.numpy) for b in before.outputs]
    arrays = {**inputs, **{b.name: y for b, y in zip(before.outputs, outputs, strict=True)}}
    compiled.run(IDS[number], [arrays[p.buffer.name] for p in before.params], parts)
    for got, want in zip(outputs, results(before, inputs), strict=True):
        if name == "softmax":
            # Exponentials are 2 ULP off, sums of n and a quotient round: on both sides.
            bound = 2 * (2 * 2 + types[0].shape[-1] + 1) * 2.0**-24
            np.testing.assert_allclose(got, want, rtol=bound)
        else:
            np.testing.assert_array_equal(got, want)


def test_products_have_vectors(compiled: Compiled) -> None:
    number = [name for name, _ in CASES].index("product")
    text = compiled.source.partition(f"void {IDS[number]}(")[2].partition("\nvoid ")[0]
    assert "bu_f32x8 r0_11 = {0};" in text
    assert "bu_muladd_f32(" in text


def test_what_is_known_of_lanes_is_not_asked() -> None:
    func = parse_func(
        """
        func f(x: in f32[17], y: out f32[17]) {
          alloc r: register f32[32]
          for i in 2 unroll {
            for l in 16 until -16*i + 17 vector {
              %0: f32 = x[16*i + l]
              r[16*i + l] = %0
            }
          }
          for n in 17 {
            %1: f32 = r[n]
            y[n] = %1
          }
        }
        """
    )
    text = render_c(func, OPENCL)
    assert text.count("l = 0; l < 1; l++") == 2
    assert "if (-l" not in text
