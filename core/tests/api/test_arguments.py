"""Axes, counts and ramps as numpy users write them, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import ArrayIndexError, BringupError, ConversionError, OpTypeError

from .conftest import ReferenceDevice

A = np.arange(24).reshape(2, 3, 4)
ONE: Any = np.int64(1)
#: The module as a user without a type checker sees it.
loose: Any = bu


def test_axes_and_counts_of_numpy_integers() -> None:
    x = bu.asarray(A)
    assert bu.expand_dims(x, axis=ONE).shape == (2, 1, 3, 4)
    assert bu.stack([x, x], axis=ONE).shape == (2, 2, 3, 4)
    assert bu.roll(x, ONE, axis=ONE).tolist() == np.roll(A, 1, axis=1).tolist()
    assert loose.linspace(0, 1, np.int64(3)).tolist() == [0, 0.5, 1]
    assert loose.tensordot(bu.ones((2, 3)), bu.ones((3, 4)), axes=ONE).shape == (2, 4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: loose.expand_dims(x, axis=None), "expand_dims: axis None is no integer"),
        (lambda x: loose.expand_dims(x, axis=1.0), "expand_dims: axis 1.0 is no integer"),
        (lambda x: loose.stack([x, x], axis=None), "expand_dims: axis None is no integer"),
        (lambda x: loose.permute_dims(x, 0), "permute_dims: axes 0 are no sequence"),
        (lambda x: loose.permute_dims(x, None), "permute_dims: axes None are no sequence"),
        (lambda x: loose.roll(x, 1.5, axis=0), "roll: shift 1.5 is no integer"),
        (lambda x: loose.tensordot(x, x, axes=1.5), "tensordot: axes 1.5 are neither"),
        (lambda x: loose.linspace(0, 1, 2.5), "linspace: num 2.5 is no integer"),
        (lambda x: loose.linspace(0, 1, -1), "linspace: shape .* negative size"),
        (lambda x: loose.meshgrid(x, x), "meshgrid: .* is not 1-d"),
    ],
)
def test_wrong_axes_and_counts(call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(OpTypeError, match=said) as caught:
        call(bu.asarray(A))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert caught.value.fix


@pytest.mark.parametrize("bounds", [(float("nan"),), (0, float("inf")), (0.0, 1.0, float("nan"))])
def test_a_ramp_without_an_end_is_refused(bounds: Any) -> None:
    with pytest.raises(ConversionError, match=r"arange: .* is no number of elements"):
        bu.arange(*bounds)


def test_counts_of_repeats_may_be_an_array() -> None:
    counts = bu.asarray([1, 0, 2])
    expected = np.repeat(A, [1, 0, 2], axis=1)
    assert bu.repeat(bu.asarray(A), counts, axis=1).tolist() == expected.tolist()
    host: Any = np.asarray([1, 0, 2])
    assert bu.repeat(bu.asarray(A), host, axis=1).tolist() == expected.tolist()


def test_deleting_an_element_is_refused_like_setting_one() -> None:
    x: Any = bu.asarray([1, 2])
    with pytest.raises(ConversionError, match=r"arrays are immutable: del x\[0\]"):
        del x[0]


@pytest.mark.parametrize("key", [slice(None, None, 0), slice(1.5, None), slice("a", None)])
def test_slices_python_refuses_are_index_errors(key: Any, reference: ReferenceDevice) -> None:
    with pytest.raises(ArrayIndexError) as caught:
        bu.asarray([1, 2, 3])[key]
    assert caught.value.location is not None


def test_from_dlpack_heeds_copy_for_arrays_of_ours(second: Any) -> None:
    x = bu.asarray([1.0])
    assert bu.from_dlpack(x) is x
    assert bu.from_dlpack(x, copy=True) is not x
    with pytest.raises(BringupError, match="copy"):
        bu.from_dlpack(x, device=second, copy=False)


def test_a_real_number_becomes_complex_as_the_standard_says() -> None:
    assert complex(bu.asarray(1.5)) == 1.5 + 0j
    assert complex(bu.asarray(True)) == 1 + 0j
    with pytest.raises(ConversionError, match="ambiguous"):
        complex(bu.asarray([1.0, 2.0]))
