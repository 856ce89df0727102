"""Conversions of the 16-bit floats, against ml_dtypes and numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jit_helper import Array, elementwise

from bringup.llvm import math as inline
from bringup.llvm.text import Val, bf16, f16, f32

BF16 = ml_dtypes.bfloat16


def _check(got: Array, want: Array) -> None:
    """Equal bits, but for NaN, which must stay NaN and be quiet."""
    a, b = got.view(np.uint16), want.view(np.uint16)
    quiet = 0x40 if got.dtype == BF16 else 0x200
    with np.errstate(invalid="ignore"):
        is_nan = np.isnan(want)
        assert np.array_equal(np.isnan(got), is_nan)
    assert (a[is_nan] & quiet).all()
    differ = np.flatnonzero((a != b) & ~is_nan)
    assert differ.size == 0, (got[differ[:4]], want[differ[:4]])


def _f32_patterns() -> Array:
    """All 65536 high halves, each with low halves around the rounding points."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x0FFF, 0x1001], np.uint32)
    return ((np.arange(65536, dtype=np.uint32) << 16)[:, None] | low).ravel().view(np.float32)


def _f64_patterns() -> Array:
    """Every f32 pattern above, exactly, and a little to either side: where rounding twice shows."""
    with np.errstate(invalid="ignore"):
        x = _f32_patterns().astype(np.float64)
        return np.concatenate(
            [
                x,
                x * (1 + 2.0**-40),
                x * (1 - 2.0**-40),
                [1e300, -1e300, 1e-300, -1e-300, np.inf, np.nan],
            ]
        )


@pytest.mark.parametrize(
    ("emit", "source", "out"),
    [
        (inline.f32_to_bf16, np.float32, (bf16, BF16)),
        (inline.f64_to_f16, np.float64, (f16, np.float16)),
    ],
    ids=["f32_to_bf16", "f64_to_f16"],
)
def test_narrowing(emit: Callable[..., Val], source: Any, out: tuple[Any, Any]) -> None:
    x = _f32_patterns() if source is np.float32 else _f64_patterns()
    with np.errstate(all="ignore"):
        want = x.astype(out[1])
    _check(elementwise(emit, source, 16, out=out)(x), want)


def test_f64_to_bf16_rounds_once() -> None:
    """Against exact arithmetic on the integer grid of bf16, as ml_dtypes goes through f32."""
    x = _f64_patterns()
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 8, -133)
        on_grid = np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)
        want = np.where(np.isfinite(x), on_grid, x).astype(np.float32).astype(BF16)
    _check(elementwise(inline.f64_to_bf16, np.float64, 8, out=(bf16, BF16))(x), want)


@pytest.mark.parametrize(
    ("emit", "source", "type"),
    [(inline.bf16_to_f32, BF16, bf16)],
)
def test_widening_is_exact(emit: Callable[..., Val], source: Any, type: Any) -> None:
    x = np.arange(65536, dtype=np.uint16).view(source)
    got = elementwise(emit, source, 16, out=(f32, np.float32), in_type=type)(x)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(got, x.astype(np.float32), equal_nan=True)
