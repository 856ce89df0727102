"""The op library: what its functions compute, by the interpreter of loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from library_cases import EXACT, Array, judge, loops_of, matrices, reference, run_loops

from bringup.loops import Func, evaluate_func, verify_func
from bringup.loops.library import LIBRARY


def interpret(func: Func, arrays: Sequence[Array]) -> None:
    verify_func(func)
    evaluate_func(func, arrays)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which long lines and long runs are cut, so that small ones are, too."""
    monkeypatch.setattr("bringup.loops.library.sorting._LEAST_BLOCK", 4)
    monkeypatch.setattr("bringup.loops.library.scans._LEAST_CHUNK", 3)
    monkeypatch.setattr("bringup.loops.library.scattering._RUN", 4)
    monkeypatch.setattr("bringup.loops.library.scattering._SHARED_RUN", 2)
    monkeypatch.setattr("bringup.loops.library.panels._COLUMNS", 2)
    monkeypatch.setattr("bringup.loops.library.tiles._ROWS", 2)
    monkeypatch.setattr("bringup.loops.library.tiles._USUAL_BITS", 64)


#: Units, and bits of vectors.
MACHINES = [
    *((name, units, 0) for name in EXACT for units in (1, 64)),
    ("cumulative", 1, 128),
    ("cumulative", 64, 256),
]


@pytest.mark.parametrize(("name", "units", "bits"), MACHINES)
def test_every_bit(name: str, units: int, bits: int) -> None:
    for arrays, attrs in EXACT[name](np.random.default_rng(7)):
        loops = loops_of(name, arrays, units, bits, **attrs)
        results = run_loops(loops, arrays, interpret)
        for got, want in zip(results, reference(name, arrays, **attrs), strict=True):
            assert got.tobytes() == want.tobytes(), (attrs, arrays, got, want)


@pytest.mark.parametrize("name", sorted(LIBRARY.keys() - EXACT.keys()))
def test_matrices(name: str) -> None:
    for arrays, attrs in matrices(name):
        results = run_loops(loops_of(name, arrays, 1, **attrs), arrays, interpret)
        assert not judge(name, arrays, results, attrs), (attrs, arrays, results)
