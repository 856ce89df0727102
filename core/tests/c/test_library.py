"""The op library as plain C: the same calls as those that the interpreter runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from library_cases import EXACT, Array, judge, judged, loops_of, reference, run_loops
from toolchain import Compiled

from bringup.c import DIALECTS, Dialect, render_c
from bringup.loops import Func
from bringup.loops.library import LIBRARY, StepLoops

#: Every so many calls of an op: each takes a compiler as long as an interpreter.
STEP = 7


def run_c(calls: Sequence[tuple[StepLoops, Sequence[Array]]]) -> list[list[Array]]:
    """The results of calls whose functions are one source; units run in parts."""
    named = {
        func: replace(func, name=f"{func.name}_{n}")
        for n, func in enumerate(func for loops, _ in calls for func in loops.funcs)
    }
    compiled = Compiled([*named.values()], flags=["-O1"])

    def run(func: Func, arrays: Sequence[Array]) -> None:
        compiled.run(named[func].name, [*arrays], parts=3)

    return [run_loops(loops, arrays, run) for loops, arrays in calls]


@pytest.mark.parametrize("name", EXACT)
def test_every_bit(name: str) -> None:
    drawn = [*EXACT[name](np.random.default_rng(11))][::STEP]
    calls = [
        (loops_of(name, arrays, units, **attrs), arrays)
        for units in (1, 1 << 20)
        for arrays, attrs in drawn
    ]
    for (arrays, attrs), results in zip(2 * drawn, run_c(calls), strict=True):
        for got, want in zip(results, reference(name, arrays, **attrs), strict=True):
            assert got.tobytes() == want.tobytes(), (attrs, arrays, got, want)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_every_dialect_renders_it(dialect: Dialect) -> None:
    """In f32, which all have; a function of threads goes over its units in strides."""
    x = np.zeros((4, 300), np.float32)
    for name, attrs in (("sort", {"dim": 1}), ("qr", {"complete": False}), ("cumulative", SCAN)):
        for func in loops_of(name, [x], 1 << 20, **attrs).funcs:
            source = render_c(func, dialect)
            strides = f"+= {dialect.ids['units']})" if dialect.has_threads else "< end"
            assert strides in source, (func.name, source)


SCAN = {"kind": "add", "dim": 1, "reverse": False, "exclusive": False}


@pytest.mark.parametrize("name", sorted(LIBRARY.keys() - EXACT.keys()))
def test_within_bounds(name: str) -> None:
    drawn: list[tuple[list[Array], dict[str, Any]]] = [*judged(name)][:: STEP // 2]
    calls = [(loops_of(name, arrays, 1, **attrs), arrays) for arrays, attrs in drawn]
    for (arrays, attrs), results in zip(drawn, run_c(calls), strict=True):
        assert not judge(name, arrays, results, attrs), (attrs, arrays, results)
