"""Promotion against the tables of the standard, and against numpy where the standard is silent."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api.promotion import promote
from bringup.dtypes import ALL, FLOATS, INTS, DType, bf16, bool_, f16, f32, u64
from bringup.errors import ConversionError, OpTypeError

NUMPY = [d for d in ALL if d is not bf16]
ARRAYS = {d: np.ones(2, d.numpy) for d in ALL}


def undefined(a: DType, b: DType) -> bool:
    return u64 in (a, b) and "int" in (a.kind, b.kind)


@pytest.mark.parametrize(("a", "b"), list(product(NUMPY, NUMPY)), ids=str)
def test_dtypes_meet_as_the_standard_says(a: DType, b: DType) -> None:
    if undefined(a, b):
        with pytest.raises(OpTypeError, match="no integer dtype holds both"):
            promote(a, b)
        return
    found = promote(a, b)
    assert promote(b, a) is found
    if a.is_float != b.is_float:
        assert found is (a if a.is_float else b)
    else:
        assert found.numpy == np.promote_types(a.numpy, b.numpy)
    x = bu.asarray(ARRAYS[a])
    y = bu.asarray(ARRAYS[b])
    assert bu.result_type(x, y) is bu.result_type(a, b) is found
    assert bu.equal(x, y).dtype is bu.bool
    if found is not bool_:
        assert (x + y).dtype is found
        assert (x + ARRAYS[b]).dtype is found
        assert (ARRAYS[a] + y).dtype is found


def test_bfloat16_meets_float16_in_the_next_that_holds_both() -> None:
    assert promote(f16, bf16) is f32
    assert promote(bf16, f32) is f32
    assert promote(bf16, bu.int64) is bf16


SCALARS: list[Any] = [True, 2, 0.5]


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_python_scalars_yield(dtype: DType, scalar: Any) -> None:
    x = bu.asarray(ARRAYS[dtype])
    expected = np.result_type(ARRAYS[dtype], scalar)
    for found in (bu.result_type(x, scalar), bu.result_type(scalar, dtype)):
        assert found.numpy == expected
    if expected != np.bool_:
        assert (x + scalar).dtype.numpy == expected
        assert (scalar * x).dtype.numpy == expected


def test_python_scalars_alone_have_the_default_dtypes() -> None:
    assert [bu.result_type(s) for s in SCALARS] == [bu.bool, bu.int64, bu.float64]
    assert [bu.asarray(s).dtype for s in SCALARS] == [bu.bool, bu.int64, bu.float64]
    assert bu.add(1, 2.5).item() == 3.5


def test_numpy_scalars_are_strong() -> None:
    x = bu.asarray([1, 2], dtype=bu.float32)
    assert (x + np.float64(1)).dtype is bu.float64
    assert (np.float64(1) + x).dtype is bu.float64
    assert (x + np.int8(1)).dtype is bu.float32


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_out_of_range_are_refused(dtype: DType) -> None:
    x = bu.asarray(ARRAYS[dtype])
    limits = bu.iinfo(dtype)
    assert (x * 0 + limits.max).tolist() == [limits.max] * 2
    assert (x * 0 + limits.min).tolist() == [limits.min] * 2
    for value in (limits.max + 1, limits.min - 1):
        with pytest.raises(ConversionError, match=f"{value} is out of range for {dtype}"):
            x + value


def test_scalars_keep_their_bits() -> None:
    x = bu.asarray([-0.0])
    assert np.signbit(np.asarray(x + -0.0)).all()
    assert not np.signbit(np.asarray(x + 0.0)).any()
    assert (bu.asarray([1]) + True).tolist() == [2]
    assert (bu.asarray([0.5]) == 1).tolist() == [False]
    assert np.isnan(np.asarray(x + float("nan"))).all()
    big = 2**53 + 1
    assert (bu.asarray([0]) + big).tolist() == [big]


def test_casts_are_allowed_where_promotion_is() -> None:
    assert bu.can_cast(bu.int8, bu.float16)
    assert not bu.can_cast(bu.float16, bu.int8)
    assert not bu.can_cast(bu.uint64, bu.int64)
    assert bu.can_cast(bu.asarray([True]), bu.int8)


def test_kinds() -> None:
    for dtype in ALL:
        kinds = ("bool", "signed integer", "unsigned integer", "real floating")
        assert sum(bu.isdtype(dtype, k) for k in kinds) == 1
        assert bu.isdtype(dtype, dtype)
        assert bu.isdtype(dtype, "numeric") == (dtype is not bool_)
        assert bu.isdtype(dtype, ("integral", "real floating")) == (dtype is not bool_)
        assert not bu.isdtype(dtype, "complex floating")
    with pytest.raises(OpTypeError, match="no kind is called 'float'"):
        bu.isdtype(bu.float32, "float")


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d is not bf16], ids=str)
def test_limits_of_floats(dtype: DType) -> None:
    info, expected = bu.finfo(dtype), np.finfo(dtype.numpy)
    for name in ("bits", "eps", "max", "min", "smallest_normal"):
        assert getattr(info, name) == getattr(expected, name)
    assert bu.finfo(bu.zeros(1, dtype=dtype)) == info


def test_limits_of_the_others() -> None:
    assert bu.finfo(bu.bfloat16).eps == 2**-7
    assert bu.iinfo(bu.uint16).max == 65535
    with pytest.raises(OpTypeError, match="use iinfo"):
        bu.finfo(bu.int8)
    with pytest.raises(OpTypeError, match="use finfo"):
        bu.iinfo(bu.float32)


def test_astype() -> None:
    x = bu.asarray([1.9, -1.9, float("nan"), 300.0])
    assert bu.astype(x, bu.int8).tolist() == [1, -1, 0, 127]
    assert bu.astype(x, "float64") is x
    assert bu.astype(x, np.float32).dtype is bu.float32
    with pytest.raises(OpTypeError, match="no dtype is meant by 'flot'"):
        bu.astype(x, "flot")
