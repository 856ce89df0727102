"""DTypes beside numpy's dtypes and their names, and what Python's protocols make of arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import COMPLEX, STORED, DType, as_dtype
from bringup.errors import OpTypeError


@pytest.mark.parametrize("dtype", [*STORED, *COMPLEX], ids=str)
def test_a_dtype_equals_its_names_and_numpys(dtype: DType) -> None:
    for same in (str(dtype), dtype.long_name, dtype.numpy, dtype.numpy.type):
        assert dtype == same
        assert same == dtype
    assert hash(dtype) == hash(dtype.numpy)
    assert {dtype: 1}[dtype.numpy] == 1
    assert np.zeros(3, dtype).dtype == dtype.numpy
    assert np.dtype(dtype) == dtype.numpy
    assert np.zeros(1).astype(dtype).dtype == dtype.numpy
    assert np.issubdtype(dtype, np.floating) == np.issubdtype(dtype.numpy, np.floating)
    others = [d for d in (*STORED, *COMPLEX) if d is not dtype]
    assert not any(dtype == same for d in others for same in (str(d), d.long_name, d.numpy, d))


def test_what_names_no_dtype_equals_none() -> None:
    for other in ("floats", "f33", "", "list", list, object, None, 1, [], np.zeros(2)):
        assert bu.float32 != other
    own: tuple[Any, ...] = (float, int, bool, complex)
    assert [bu.float64, bu.int64, bu.bool, bu.complex128] == list(own)
    for wrong in (None, [], {}, 3, np.zeros(2), bu.zeros(2), object(), (), "(", "3,", {"a": 1}):
        with pytest.raises(OpTypeError, match="no dtype is meant by"):
            as_dtype(wrong)
    assert as_dtype(ml_dtypes.bfloat16) is bu.bfloat16


def test_arrays_of_no_dimensions_are_no_iterables() -> None:
    x = bu.asarray(1.0)
    assert not np.iterable(x)
    for use in (iter, len):
        with pytest.raises(TypeError, match=r"(?s)f64\[\] is 0-d .*test_dtypes.py.*fix: use x"):
            use(x)  # type: ignore[operator]


def test_arrays_are_no_keys() -> None:
    for x in (bu.ones(2), bu.asarray([1j])):
        with pytest.raises(OpTypeError, match="not hashable"):
            hash(x)
        with pytest.raises(OpTypeError, match=r"fix: use id\(x\) as the key"):
            dict.fromkeys([x])


NUMBERS = np.array([0.5, 1.5, 2.345, -7.25, 123.456, -0.0, np.inf, np.nan, 1e30, 0.15])


@pytest.mark.parametrize("digits", [0, 1, 2, 7, -1, -2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_rounding_to_digits_is_numpys(dtype: str, digits: int) -> None:
    x = NUMBERS.astype(dtype) if dtype != "complex128" else NUMBERS[:6] * (1 - 2j)
    wanted = np.round(x, digits)
    for found in (bu.round(bu.asarray(x), digits), round(bu.asarray(x), digits)):
        np.testing.assert_array_equal(np.asarray(found), wanted)
    assert round(bu.asarray(2.5)).tolist() == 2.0


def test_rounding_of_integers_and_beyond_the_dtype() -> None:
    x = np.array([-128, -15, -5, 4, 5, 15, 25, 26, 120, 123], np.int8)
    wanted = [int(v) for v in (round(int(n), -1) for n in x)]
    found = bu.round(bu.asarray(x.astype(np.int32)), -1)
    assert found.tolist() == wanted
    assert bu.round(bu.asarray(x), 3).tolist() == x.tolist()
    assert bu.round(bu.asarray(np.uint8([14, 15, 25, 250])), -1).tolist() == [10, 20, 20, 250]
    for wrong, digits in ((x, -3), (np.float32([1.0]), 39), (np.float16([1.0]), -400)):
        with pytest.raises(OpTypeError, match=r"round: .* has no 10\*\*"):
            bu.round(bu.asarray(wrong), digits)
    loose: Any = 1.5
    with pytest.raises(OpTypeError, match=r"decimals 1\.5 is no integer"):
        bu.round(bu.asarray(x), loose)
