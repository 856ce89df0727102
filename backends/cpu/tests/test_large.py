"""Arrays of more than 2³¹ elements: machine code for them, and runs that keep none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bringup as bu

MANY = (1 << 31) + 11
LARGE = bu.float32[(1 << 17) + 1, (1 << 16) + 3]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: bu.exp(x) + 1,
    "moved": lambda x: bu.flip(x.T)[::3, 1:] * 2,
    "flat": lambda x: bu.reshape(x, (-1,))[5::7] + 1,
    "sums of columns": lambda x: bu.sum(x, axis=0),
    "softmax": bu.nn.softmax,
    "product": lambda x: x @ x.T,
    "taken": lambda x: bu.take(x, bu.arange(9) * 7, axis=1),
    "sorted": lambda x: bu.sort(x, axis=0),
    "running": lambda x: bu.cumulative_sum(x, axis=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_machine_code_is_made(name: str) -> None:
    made = bu.jit(FUNCTIONS[name]).lower(LARGE, target="cpu:x86-64-v3")
    assert made.asm


def test_counting_past_two_thousand_million() -> None:
    found = bu.jit(lambda k: bu.argmax(bu.astype(bu.arange(MANY) == k, bu.int32)))
    assert found(bu.asarray(MANY - 2)).item() == MANY - 2


def test_adding_past_two_thousand_million() -> None:
    rows, columns = (1 << 16) + 1, (1 << 15) + 3
    x = np.arange(columns, dtype=np.int8)

    @bu.jit
    def total(x: bu.Array, y: bu.Array) -> bu.Array:
        return bu.sum(bu.broadcast_to(x, (rows, columns)).T * bu.astype(y[:, None], bu.int64))

    wanted = int((x.astype(np.int64) ** 2).sum()) * rows
    assert total(bu.asarray(x), bu.asarray(x)).item() == wanted


sizes = st.sampled_from((3, 7, (1 << 15) - 1, 1 << 16, (1 << 16) + 1, (1 << 22) + 3))
places = st.floats(0, 1)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, places, places, st.sampled_from((1, 2, -1, -3)), st.sampled_from((1, 5, 97)))
def test_windows_of_what_is_never_there(
    rows: int, columns: int, down: float, along: float, step: int, by: int
) -> None:
    """Indices beyond 2³¹, on both sides of it, of lanes that lie far apart."""
    height, width = min(rows, 5), min(columns, 37)
    top, left = int(down * (rows - height)), int(along * (columns - width))

    @bu.jit
    def window() -> bu.Array:
        whole = bu.reshape(bu.arange(rows * columns), (rows, columns)).T
        return whole[left : left + width, top : top + height][::step] // by % 1009

    i = np.arange(left, left + width)[::step, None]
    wanted = (np.arange(top, top + height)[None] * columns + i) // by % 1009
    assert np.array_equal(np.asarray(window()), wanted)
