"""Axes, counts and ramps as numpy users write them, and what is said of wrong ones."""

from __future__ import annotations

import warnings
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


def test_axes_of_the_wrong_size_are_errors_of_the_standards_classes() -> None:
    x = bu.asarray(A)
    for use, meant in (
        (lambda: bu.expand_dims(x, 5), IndexError),
        (lambda: bu.expand_dims(x, -6), IndexError),
        (lambda: bu.squeeze(x, 0), ValueError),
        (lambda: bu.squeeze(x, 7), ValueError),
    ):
        with pytest.raises(meant) as caught:
            use()
        assert isinstance(caught.value, OpTypeError)
        assert caught.value.location is not None


def test_a_device_equals_its_name() -> None:
    x = bu.ones(2)
    assert x.device == x.device.name
    assert x.device != "elsewhere"
    assert x.device in [x.device.name]
    assert {x.device: 1}[x.device.name] == 1  # type: ignore[index]
    assert isinstance(bu.devices(), list)


def test_a_masked_array_is_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    for use in (
        bu.asarray,
        bu.sin,
        bu.jit(lambda v: v + 1),
        lambda v: bu.ones(2) + v,
        lambda v: bu.ones(2).at[0].set(v),
        lambda v: bu.ones(2)[v],
        bu.from_dlpack,
        lambda v: bu.asarray([v, v]),
    ):
        with pytest.raises(BringupError, match=r"(?s)masked array.*fix: give x\.filled"):
            use(masked)


class Foreign:
    """An object of another library that speaks DLPack, badly."""

    def __init__(self, capsule: Any, where: Any = (1, 0)) -> None:
        self.capsule, self.where = capsule, where

    def __dlpack__(self, **_options: Any) -> Any:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return self.where


def used() -> Any:
    capsule = np.arange(3).__dlpack__()
    np.from_dlpack(Foreign(capsule))
    return capsule


@pytest.mark.parametrize(
    "given",
    [
        1,
        None,
        Foreign(None),
        Foreign("capsule"),
        Foreign(used()),
        Foreign(ValueError("no")),
        Foreign(KeyError("no")),
        Foreign(np.arange(3).__dlpack__(), (2, 0)),
        Foreign(np.arange(3).__dlpack__(), "cpu"),
        Foreign(np.arange(3).__dlpack__(), None),
    ],
    ids=lambda given: str(getattr(given, "capsule", given))[:20],
)
def test_bad_capsules_are_errors_of_ours(given: Any) -> None:
    with pytest.raises(ConversionError) as caught:
        bu.from_dlpack(given)
    assert caught.value.fix
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_dtypes_that_dlpack_of_numpy_lacks_come_by_array() -> None:
    class Bits:
        """As jax: a capsule that numpy refuses, and ``__array__``."""

        def __init__(self, host: Any) -> None:
            self.host = host

        def __dlpack__(self, **_options: Any) -> Any:
            raise BufferError("Unsupported dtype in DLTensor.")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self.host

    for dtype in (bu.bfloat16, bu.float8_e4m3fn, bu.float8_e5m2):
        found = bu.from_dlpack(Bits(np.array([1.5, -2.0], dtype.numpy)))
        assert found.dtype is dtype
        assert np.asarray(found).astype(np.float32).tolist() == [1.5, -2.0]
    with pytest.raises(ConversionError, match="Unsupported dtype"):
        bu.from_dlpack(Bits(np.array(["a"])))


def test_repeats_of_known_numbers_are_one_gather(reference: Any) -> None:
    counts = np.random.default_rng(0).integers(0, 4, 3000)
    x = np.arange(3000.0)
    program = bu.jit(lambda v: bu.repeat(v, counts)).lower(bu.float64[3000])
    assert len(program.graph.instrs) < 10
    assert np.array_equal(bu.repeat(bu.asarray(x), counts), np.repeat(x, counts))
    pulled = bu.grad(lambda v: bu.sum(bu.repeat(v, counts)))(bu.asarray(x))
    assert np.array_equal(pulled, counts)
    assert bu.repeat(bu.zeros((0, 2)), (), axis=0).shape == (0, 2)
    assert bu.repeat(bu.ones((2, 3)), (0, 0), axis=0).shape == (0, 3)
    whole = bu.repeat(bu.asarray([1 + 2j, 3j]), (2, 1))
    assert whole.tolist() == [1 + 2j, 1 + 2j, 3j]


def test_entries_looked_at_one_by_one_are_few_programs(reference: Any) -> None:
    x = np.arange(600.0).reshape(300, 2)
    rows = bu.unstack(bu.asarray(x) * 1)
    assert all(np.array_equal(row, wanted) for row, wanted in zip(rows, x, strict=True))
    assert reference.compiled <= 6


def test_a_fill_value_may_be_an_array_of_numpy() -> None:
    assert bu.full((2,), np.array(3)).tolist() == [3, 3]
    assert bu.full((2,), np.array(1.5, np.float32)).dtype is bu.float32
    assert bu.full((2, 2), np.array([1, 2])).tolist() == [[1, 2], [1, 2]]
    assert bu.full_like(bu.ones(2), np.array(3)).dtype is bu.float64
    assert bu.full_like(bu.ones(2, dtype=bu.int8), np.array(3)).tolist() == [3, 3]
    with pytest.raises(OpTypeError, match="does not broadcast"):
        bu.full((2,), np.arange(3))


def test_a_list_that_holds_itself_is_no_array() -> None:
    itself: list[Any] = [1.0]
    itself.append(itself)
    for use in (bu.asarray, lambda v: bu.jit(lambda t: t)(v), lambda v: bu.grad(bu.sum)(v)):
        with pytest.raises(ConversionError, match="itself"):
            use(itself)


@pytest.mark.parametrize(
    "number",
    [
        lambda x: x * 1e300,
        lambda x: bu.full(3, 1e300, dtype=bu.float16),
        lambda x: bu.asarray([1e300] * 3, dtype=bu.float16),
        lambda x: bu.maximum(x, 1e300),
        lambda x: bu.where(x > 0, 1e300, x),
    ],
)
def test_numbers_too_large_for_a_dtype_are_infinite_without_a_warning(number: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = number(bu.ones(3, dtype=bu.float16))
        assert found.dtype is bu.float16
        assert found.tolist() == [np.inf] * 3
