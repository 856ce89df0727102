"""What several test files use: a kernel."""

from __future__ import annotations

import pytest

from bringup_simulator import LANE, Assembler, encode


@pytest.fixture
def double() -> bytes:
    """A kernel of one full vector: p1 = p0 + p0."""
    asm = Assembler("double")
    x, y = asm.param("f32", 128), asm.param("f32", 128, writable=True)
    value = asm.load(x, LANE)
    asm.store(y, LANE, asm.alu("add", value, value))
    return encode(asm.finish())
