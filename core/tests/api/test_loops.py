"""Ordinary Python loops: the programs of deferred evaluation stay few, however many the steps."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api import deferred
from bringup.errors import DeviceError
from bringup.tracing.lazy import MAX_PENDING

_FILE = Path(__file__).parents[3] / "benchmarks" / "loops.py"
_SHOWN: dict[str, Any] = runpy.run_path(str(_FILE)) if _FILE.exists() else {}
LOOPS: dict[str, Callable[[int], float]] = _SHOWN.get("LOOPS", {})

STEPS = (10, 100, 300)
#: Programs compiled in so many steps.  A loop that is looked at in every step has as many
#: for any number of steps, and is not run for the most; one that is not has one for the part up to
#: its first cut, one or two from a cut to the next, and one for what is left at the end.
PROGRAMS: dict[str, tuple[int, ...]] = {
    "train_by_hand": (2, 2),
    "train_printing": (4, 5, 5),
    "train_silently": (4, 4, 4),
    "momentum": (4, 4, 8),
    "running_total": (2, 2, 4),
    "moving_average": (1, 4, 4),
    "split_keys": (1, 1),
    "many_keys": (1, 1),
    "generator": (1, 5, 5),
    "losses": (1, 3, 5),
    "while_loop": (3, 3),
    "updates": (1, 4, 4),
    "closures": (1, 4, 4),
    "newton": (2, 2),
    "jitted_step": (5, 8, 8),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No program and no place of a cut that an earlier test left."""
    bu.clear_caches()


@pytest.mark.parametrize("name", LOOPS)
def test_loops_compile_few_programs(name: str, reference: Any) -> None:
    """And a loop that ran twice compiles nothing when it runs again."""
    found = []
    for steps in STEPS[: len(PROGRAMS[name])]:
        bu.clear_caches()
        reference.compiled = 0
        LOOPS[name](steps)
        found.append(reference.compiled)
        if steps == STEPS[1]:
            LOOPS[name](steps)  # what varies from run to run becomes an input at the second
            before = reference.compiled
            LOOPS[name](steps)
            assert reference.compiled == before
    assert tuple(found) == PROGRAMS[name]


def test_every_loop_is_in_the_table() -> None:
    assert PROGRAMS.keys() == LOOPS.keys()


def test_the_loops_give_what_numpy_gives() -> None:
    x = _SHOWN["_X"]
    average = np.zeros(8, np.float32)
    for step in range(200):
        average = np.float32(0.99) * average + np.float32(0.01) * x[step % 64]
    assert LOOPS["moving_average"](200) == pytest.approx(float(average.sum()), rel=1e-5)
    batches = [2 * x[s % 15 * 4 :][:8] for s in range(100)]
    wanted = sum(float((b * b).sum()) for b in batches)
    assert LOOPS["generator"](100) == pytest.approx(wanted, rel=1e-5)
    held = np.zeros(64, np.float32)
    for step in range(200):
        held[step % 64] = held[(step + 1) % 64] * np.float32(0.5) + np.float32(step)
    assert LOOPS["updates"](200) == pytest.approx(float(held.sum()), rel=1e-6)


def test_an_array_that_grows_compiles_a_program_for_each_size_looked_at(reference: Any) -> None:
    x = bu.ones(1)
    for _ in range(20):
        x = bu.concat([x, x[-1:]])
        float(bu.sum(x))
    assert reference.compiled == 20


def test_the_other_half_of_a_split_is_computed_with_the_first(reference: Any) -> None:
    key = bu.jit(lambda seed: bu.random.key(seed))(bu.asarray(7))
    compiled = []
    for _ in range(12):
        key, sub = bu.random.split(key)
        bu.random.bits(sub, 3).tolist()
        compiled.append(reference.compiled)
    assert compiled[3:] == compiled[3:4] * 9


def test_an_intermediate_is_never_computed_twice(reference: Any) -> None:
    def parts(x: bu.Array) -> tuple[bu.Array, bu.Array]:
        y = bu.exp(x)
        return bu.sum(y), bu.max(y)

    total, largest = parts(bu.asarray([1.0, 2.0]))
    float(total)
    float(largest)
    assert reference.ran.count("exp") == 1
    assert reference.compiled == 1


def test_temporaries_are_not_computed(reference: Any) -> None:
    a = bu.asarray([1.0, 2.0])
    y = a * 2 + 1
    z = bu.exp(a)
    assert y.tolist() == [3.0, 5.0]
    assert "exp" not in reference.ran
    del z


def test_what_nobody_asked_for_does_not_fail_what_was_asked_for(reference: Any) -> None:
    def parts(x: bu.Array) -> tuple[bu.Array, bu.Array]:
        y = x * 2
        return y + 1, bu.exp(y)

    fine, failing = parts(bu.asarray([1.0, 2.0]))
    reference.fail_on = "exp"
    assert fine.tolist() == [3.0, 5.0]
    with pytest.raises(DeviceError, match="exp failed"):
        failing.tolist()
    reference.fail_on = ""
    assert failing.tolist() == pytest.approx([np.exp(2), np.exp(4)])


def test_scalars_that_stay_remain_constants(reference: Any) -> None:
    x = bu.asarray([1.0, 2.0])
    for i in range(20):
        assert (x**2 * (i + 0.5)).tolist() == [i + 0.5, 4 * (i + 0.5)]
    assert reference.compiled == deferred.VARIANTS + 1
    assert "pow" not in reference.ran


def test_places_of_slices_that_change_are_no_new_program(reference: Any) -> None:
    host = np.arange(60.0).reshape(20, 3)
    x = bu.asarray(host)
    for i in range(16):
        assert np.array_equal(x[i : i + 4], host[i : i + 4])
        assert np.array_equal(x[i + 4 : i : -2, 1], host[i + 4 : i : -2, 1])
        wanted = host.copy()
        wanted[i, 1:] += 5.0
        assert np.array_equal(x.at[i, 1:].add(5.0), wanted)
    assert reference.compiled <= 3 * (deferred.VARIANTS + 1)


def test_a_value_that_waits_for_much_is_computed_as_it_is_recorded(reference: Any) -> None:
    x = bu.asarray(0.0)
    parts = [x + float(i) for i in range(3 * MAX_PENDING)]
    assert reference.compiled == 0
    total = bu.sum(bu.stack(parts))
    assert float(total) == sum(range(3 * MAX_PENDING))
