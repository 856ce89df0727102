"""Products that ask for tf32 get its bound, those that do not get none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from planted import faulty, right, spoilt

from bringup.backend.capabilities import Numerics
from bringup.dtypes import f32
from bringup.graph import Builder, Graph
from bringup.ops.table import lookup
from bringup_conformance import run
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.span import Span, inside
from bringup_selftest.faults.dots import asked_bits

ROWS, COLUMNS, INNER = 12, 9, 33
ONLY = "ops/dot_general/f32,ops/convolution/f32,fusion/precisions/f32"


def product(*, precision: str) -> Graph:
    attrs = {"batch": ((), ()), "contract": ((1,), (0,)), "precision": precision}
    with Builder() as builder:
        x, y = builder.input(f32[ROWS, INNER]), builder.input(f32[INNER, COLUMNS])
        return builder.build([lookup("dot_general")(x, y, **attrs)], "product")


def allowed(x: Array, y: Array, precision: str = "tf32") -> Span:
    (span,) = analyse(product(precision=precision), [x, y], Numerics())
    return span


def factors(kind: str, seed: int = 1) -> tuple[Array, Array]:
    types = f32[ROWS, INNER], f32[INNER, COLUMNS]
    x, y = (Recipe(kind, seed + n).make(t) for n, t in enumerate(types))
    return x, y


def rounded(x: Array, bits: int, ties: str) -> Array:
    """Mantissas of so many bits, by way of frexp, which has no part in the oracle."""
    wide, exponent = np.frexp(x.astype(np.float64))
    # Below f32's normal numbers the last bit stays where it is.
    last = np.maximum(exponent, -125) - (bits + 1)
    steps = np.ldexp(wide, exponent - last)
    whole = {
        "even": np.rint,
        "away": lambda s: np.copysign(np.floor(np.abs(s) + 0.5), s),
        "cut": np.trunc,
    }[ties]
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(x), np.ldexp(whole(steps), last), x).astype(np.float32)


def device(x: Array, y: Array, bits: int = 10, ties: str = "away") -> Array:
    """Factors rounded, products and sums in f32 in order."""
    a, b = rounded(x, bits, ties), rounded(y, bits, ties)
    total = np.zeros((ROWS, COLUMNS), np.float32)
    with np.errstate(all="ignore"):
        for k in range(INNER):
            total = total + a[:, k, None] * b[None, k]
    return total


@pytest.mark.parametrize("ties", ["even", "away"])
@pytest.mark.parametrize("kind", ["signed", "wide", "small", "ramp", "special", "positive"])
def test_what_rounds_right_lies_within_the_bound(kind: str, ties: str) -> None:
    for seed in (1, 5, 9):
        x, y = factors(kind, seed)
        assert inside(device(x, y, ties=ties), allowed(x, y)).all()
        assert inside(device(x, y, bits=23, ties=ties), allowed(x, y)).all()
        assert inside(device(x, y, bits=11, ties=ties), allowed(x, y)).all()
        assert inside(device(x, y, bits=16, ties=ties), allowed(x, y)).all()


@pytest.mark.parametrize(("bits", "ties"), [(9, "away"), (7, "even"), (10, "cut")])
def test_what_rounds_worse_does_not(bits: int, ties: str) -> None:
    x, y = factors("positive")
    assert not inside(device(x, y, bits, ties), allowed(x, y)).all()


@pytest.mark.parametrize("bits", [10, 15])
def test_nothing_may_be_rounded_that_did_not_ask(bits: int) -> None:
    x, y = factors("positive")
    assert inside(device(x, y, 23), allowed(x, y, "highest")).all()
    assert not inside(device(x, y, bits), allowed(x, y, "highest")).all()


def test_the_bound_is_that_of_two_rounded_factors_and_little_more() -> None:
    x, y = factors("positive")
    sums, span = np.abs(x).astype(np.float64) @ np.abs(y), allowed(x, y)
    width = np.maximum(span.high - span.middle, span.middle - span.low).astype(np.float64)
    most = 2 * 2.0**-11 + 2.0**-22 + (INNER + 4) * 2.0**-24
    assert (width <= most * sums * (1 + 2.0**-10)).all()
    assert (width >= 0.25 * 2.0**-10 * sums).all()


def test_factors_that_tf32_has_are_multiplied_exactly() -> None:
    x, y = (np.round(v * 100).clip(-2047, 2047) for v in factors("signed"))
    span = allowed(x.astype(np.float32), y.astype(np.float32))
    assert span.exact
    assert span.low.tolist() == (x @ y).tolist()


def test_one_factor_more_than_tf32_has_is_uncertain_alone() -> None:
    x, y = (np.ones_like(v) for v in factors("signed"))
    x[3, 4] = 2049
    span = allowed(x, y)
    known = span.known()
    assert known[np.arange(ROWS) != 3].all()
    assert not known[3].any()
    totals = np.full((5, ROWS, COLUMNS), INNER, np.float32)
    totals[:, 3] += np.arange(2046, 2051, dtype=np.float32)[:, None]
    found = [inside(total, span).all() for total in totals]
    assert found == [False, True, True, True, False]


def test_sums_that_cancel_beside_uncertain_ones_are_zero() -> None:
    x, y = (np.ones_like(v) for v in factors("signed"))
    x[3, 4] = 2049
    y[::2], y[-1] = -1, 0
    zeros, span = np.zeros((ROWS, COLUMNS), np.float32), allowed(x, y)
    assert np.delete(span.middle, 3, axis=0).tolist() == zeros[1:].tolist()
    assert np.delete(inside(zeros, span), 3, axis=0).all()


def test_the_largest_numbers_may_become_infinite() -> None:
    x, y = (np.ones_like(v) for v in factors("signed"))
    x[0, 0] = np.finfo(np.float32).max
    assert inside(np.full((ROWS, COLUMNS), np.inf, np.float32), allowed(x, y))[0].all()
    assert not inside(np.full((ROWS, COLUMNS), np.inf, np.float32), allowed(x, y))[1:].any()


def test_a_nan_by_its_last_bits_may_be_an_infinity() -> None:
    x, y = (np.ones_like(v) for v in factors("signed"))
    x[:2, 0] = np.array([0x7F801000, 0x7FC00000], np.uint32).view(np.float32)
    span = allowed(x, y)
    infinite = np.full((ROWS, COLUMNS), np.inf, np.float32)
    assert inside(infinite, span).any(axis=1).tolist() == [True, *[False] * (ROWS - 1)]
    nothing = np.full_like(infinite, np.nan)
    assert inside(nothing, span).any(axis=1).tolist() == [True, True, *[False] * (ROWS - 2)]


# -- devices


def failing(target: Any, level: str = "ops") -> Sequence[str]:
    report = run(target, level, only=ONLY, shrink_seconds=0.5)
    return [failure.document["case"]["name"] for failure in report.failures]


@pytest.mark.parametrize("level", ["ops", "fusion"])
def test_a_device_that_rounds_where_it_is_asked_passes(level: str) -> None:
    assert failing(spoilt({"dot_general": asked_bits, "convolution": asked_bits}), level) == []


def test_a_device_that_never_rounds_passes() -> None:
    assert failing(right()) == []


@pytest.mark.parametrize(
    ("id", "asked"), [("DO03", False), ("DO03a", True)], ids=["unasked", "too much"]
)
def test_rounding_unasked_or_too_much_is_found(id: str, asked: bool) -> None:
    report = run(faulty(id), "ops", only="ops/dot_general/f32", shrink_seconds=2)
    smallest = [f.document["reduced"]["ir"] for f in report.failures if f.document.get("reduced")]
    assert smallest
    assert all(('"tf32"' in text) is asked for text in smallest)


def test_a_pass_that_asks_too_often_is_found() -> None:
    assert "fusion/programs/f32/precisions" in failing(faulty("DO03b"), "fusion")
