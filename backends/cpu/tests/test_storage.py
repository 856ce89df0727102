"""Floats of 8 bits: moved, converted and multiplied into wider ones, but not computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import STORAGE, DType
from bringup.errors import ConversionError, OpTypeError

X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)


def every(dtype: DType) -> Any:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def nearest(x: Any, dtype: DType) -> Any:
    """The nearest value in wide arithmetic, ties to the even pattern."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = x.astype(np.float64)
    patterns = np.arange(128, dtype=np.uint8)
    values = patterns.view(dtype.numpy).astype(np.float64)
    finite = np.isfinite(values)
    values, patterns = values[finite], patterns[finite]
    size = np.abs(x)
    above = np.clip(np.searchsorted(values, size), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    middle = (low + high) / 2
    up = (size > middle) | ((size == middle) & (patterns[above] % 2 == 0))
    found = patterns[np.where(up, above, above - 1)]
    # One more step of the grid decides what is beyond the last value.
    step = values[-1] - values[-2]
    beyond = values[-1] + step / 2
    tie_up = patterns[-1] % 2 == 1
    over = (size > beyond) | ((size == beyond) & tie_up)
    infinite = 0x7F if dtype is bu.float8_e4m3fn else 0x7C
    quiet = 0x7F if dtype is bu.float8_e4m3fn else 0x7E
    found = np.where(over, infinite, found)
    found = np.where(np.isnan(x), quiet, found)
    return (found | (np.signbit(x) * 128)).astype(np.uint8).view(dtype.numpy)


def same(found: Any, wanted: Any) -> None:
    found = np.asarray(found)
    assert found.dtype == wanted.dtype
    word = np.dtype(f"u{found.dtype.itemsize}")
    equal = found.view(word) == wanted.view(word)
    if found.dtype.kind in "fV":
        equal = equal | (np.isnan(found) & np.isnan(wanted))
    assert equal.all(), (found[~equal][:5], wanted[~equal][:5])


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("wide", [bu.float16, bu.bfloat16, bu.float32, bu.float64], ids=str)
def test_every_value_comes_back(dtype: DType, wide: DType) -> None:
    x = bu.asarray(every(dtype))
    assert x.dtype is dtype
    widened = bu.astype(x, wide)
    same(widened, every(dtype).astype(np.float32).astype(wide.numpy))
    same(bu.astype(widened, dtype), every(dtype))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("wide", [bu.float16, bu.bfloat16], ids=str)
def test_every_half_is_rounded_to_the_nearest(dtype: DType, wide: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(wide.numpy)
    same(bu.astype(bu.asarray(x), dtype), nearest(x, dtype))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_beside_every_boundary(dtype: DType, kind: Any) -> None:
    """Rounded once: a step of f64 beside the middle of two values decides."""
    values = np.sort(every(dtype).astype(np.float64))
    values = values[np.isfinite(values)]
    ends = [464.0, 480.0, 61440.0, 65536.0, 1e30, np.inf, np.nan]
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, ends]).astype(kind)
    x = np.concatenate([points, *(np.nextafter(points, kind(e)) for e in (np.inf, -np.inf))])
    same(bu.astype(bu.asarray(x), dtype), nearest(x, dtype))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_integers(dtype: DType) -> None:
    x = np.arange(-70000, 70000, 7)
    same(bu.astype(bu.asarray(x), dtype), nearest(x.astype(np.float64), dtype))
    back = every(dtype)
    finite = back[np.isfinite(back.astype(np.float32))]
    wanted = np.clip(np.trunc(finite.astype(np.float64)), -128, 127).astype(np.int8)
    same(bu.astype(bu.asarray(finite), bu.int8), wanted)


MOVED: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: bu.reshape(x, (4, 12)),
    "T": lambda x: x.T,
    "slice": lambda x: x[1::2, ::-1],
    "stack": lambda x: bu.stack([x, x]),
    "roll": lambda x: bu.roll(x, 3),
    "tile": lambda x: bu.tile(x, (2, 1)),
    "where": lambda x: bu.where(bu.asarray(X) > 0, x, 0.0),
    "at": lambda x: x.at[1].set(2.0),
    "broadcast": lambda x: bu.broadcast_to(x[0], (3, 8)),
}


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("name", MOVED)
def test_moves(name: str, dtype: DType) -> None:
    """As the same values move in f32."""
    held = bu.astype(bu.asarray(X), dtype)
    moved, wide = MOVED[name](held), MOVED[name](bu.astype(held, bu.float32))
    assert moved.dtype is dtype
    same(bu.astype(moved, bu.float32), np.asarray(wide))
    same(bu.jit(MOVED[name])(held), np.asarray(moved))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + x,
        lambda x: x * 2.0,
        lambda x: x == x,
        lambda x: -x,
        lambda x: bu.exp(x),
        lambda x: bu.sum(x),
        lambda x: bu.max(x),
        lambda x: bu.nn.relu(x),
        lambda x: bu.nn.softmax(x),
    ],
)
def test_arithmetic_is_refused(call: Callable[[Any], Any], dtype: DType) -> None:
    with pytest.raises(OpTypeError, match=f"does not take {dtype}") as caught:
        call(bu.zeros((2, 3), dtype=dtype))
    assert "f32, f64" in str(caught.value.fix)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_products_accumulate_in_f32(dtype: DType) -> None:
    held = bu.astype(bu.asarray(X), dtype)
    wide = np.asarray(held).astype(np.float64)
    product = held @ held.mT
    assert product.dtype is bu.float32
    np.testing.assert_allclose(np.asarray(product), wide @ wide.T, rtol=1e-5, atol=1e-5)
    assert bu.matmul(held, held.mT, dtype=bu.float16).dtype is bu.float16
    assert (held @ bu.asarray(X).mT).dtype is bu.float32
    other = next(d for d in STORAGE if d is not dtype)
    assert (held @ bu.astype(held, other).mT).dtype is bu.float32
    lowered = bu.jit(lambda a, b: bu.nn.relu(a @ b)).lower(dtype[32, 32], dtype[32, 32])
    assert len(lowered.kernels) == 1
    with pytest.raises(OpTypeError, match="does not hold products"):
        bu.matmul(held, held.mT, dtype=dtype)
    slope = bu.grad(lambda w: bu.sum(bu.astype(w, dtype) @ held.mT))(bu.asarray(X))
    np.testing.assert_allclose(np.asarray(slope)[0], wide.sum(0), rtol=0.13, atol=0.1)


def test_products_of_bytes_into_wider_integers() -> None:
    rng = np.random.default_rng(1)
    for kind, result in ((np.int8, bu.int32), (np.uint8, bu.uint32), (np.int8, bu.int64)):
        info = np.iinfo(kind)
        a = rng.integers(info.min, info.max, (33, 300), endpoint=True).astype(kind)
        b = rng.integers(info.min, info.max, (300, 20), endpoint=True).astype(kind)
        wanted = a.astype(np.int64) @ b.astype(np.int64)
        x, y = bu.asarray(a), bu.asarray(b)
        same(bu.matmul(x, y, dtype=result), wanted.astype(result.numpy))
        same(bu.tensordot(x, y, axes=1, dtype=result), wanted.astype(result.numpy))
        same(bu.vecdot(x[0], y[:, 0], dtype=result), wanted[0, 0].astype(result.numpy))
        same(x @ y, (wanted % 256).astype(np.uint8).view(kind))
    with pytest.raises(OpTypeError, match="does not hold products"):
        bu.matmul(
            bu.asarray(np.ones((2, 2), np.int32)), bu.ones((2, 2), dtype=bu.int32), dtype="i8"
        )


def test_text_and_inquiries() -> None:
    for dtype, most in ((bu.float8_e4m3fn, 448.0), (bu.float8_e5m2, 57344.0)):
        x = bu.asarray([1.0, 0.3], dtype=dtype)
        assert str(x).startswith("[1. ")
        assert f"dtype={dtype.long_name}" in repr(x)
        assert bu.finfo(dtype).max == most
        assert bu.isdtype(dtype, "real floating")
        assert bu.result_type(dtype, bu.float16) is bu.float16
        assert bu.result_type(*STORAGE) is bu.float32
        assert dtype.long_name in bu.__array_namespace_info__().dtypes()
        assert np.asarray(x).dtype == getattr(ml_dtypes, dtype.long_name)
        assert bu.asarray(np.asarray(x)).dtype is dtype
        assert x.tolist()[0] == 1.0
    with pytest.raises(ConversionError):
        bu.full(2, 10**400, dtype=bu.float8_e5m2)
