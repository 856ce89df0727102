"""What several test files use: a kernel."""

from __future__ import annotations

import pytest


@pytest.fixture
def double() -> str:
    """A kernel of one full vector: the second parameter is twice the first."""
    return (
        "x = input(f32, 128)\n"
        "y = output(f32, 128)\n"
        "i = grid(lanes(128))\n"
        "v = load(x, i)\n"
        "store(y, i, add(v, v))\n"
    )
