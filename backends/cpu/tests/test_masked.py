"""Loads under a mask stay near their buffer, and have the values they should."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import bringup as bu

Function = Callable[..., bu.Array]

#: Loads whose lanes are off at more than a page from those that are on: of rows by an outer axis,
#: and along one axis.
FAR: dict[str, tuple[Function, Function, tuple[int, ...]]] = {
    "roll of rows": (
        lambda x: bu.roll(x, 1, axis=0) + 1,
        lambda x: np.roll(x, 1, axis=0) + 1,
        (70, 1030),
    ),
    "roll of a line": (lambda x: bu.roll(x, 3000) + 1, lambda x: np.roll(x, 3000) + 1, (9001,)),
    "joined lines": (
        lambda x: bu.concat([x, x + 1, x]) * 2,
        lambda x: np.concatenate([x, x + 1, x]) * 2,
        (5003,),
    ),
    "a wide border": (
        lambda x: bu.concat([bu.zeros(2000, dtype="f4"), x, bu.ones(3000, dtype="f4")]) + 1,
        lambda x: np.concatenate([np.zeros(2000, "f4"), x, np.ones(3000, "f4")]) + 1,
        (4001,),
    ),
}
NEAR = (lambda x: bu.roll(x, 1, axis=1) + 1, (70, 1000))


def addresses(function: Function, shape: tuple[int, ...]) -> list[str]:
    """The definitions of the indices at which masked loads begin."""
    text = str(bu.jit(function).lower(bu.float32[shape], target="cpu:x86-64-v3").source)
    made = dict(re.findall(r"^\s*(%\S+) = (.*)$", text, re.MULTILINE))
    loads = re.findall(r"@llvm\.masked\.load\S*\(ptr[^%]*(%[^\s,]+)", text)
    return [made[made[pointer].rpartition(" ")[2]] for pointer in loads]


@pytest.mark.parametrize("name", FAR)
def test_what_is_masked_out_reads_no_page_that_is_not_there(name: str) -> None:
    function, _, shape = FAR[name]
    found = addresses(function, shape)
    assert found
    assert all(definition.startswith("select") for definition in found)


def test_what_is_near_goes_without_a_choice() -> None:
    found = addresses(*NEAR)
    assert found
    assert not [definition for definition in found if definition.startswith("select")]


@pytest.mark.parametrize("name", FAR)
def test_values(name: str) -> None:
    function, by_numpy, shape = FAR[name]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(np.asarray(bu.jit(function)(x)), by_numpy(x))
