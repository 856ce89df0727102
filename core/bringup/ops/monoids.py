"""The monoids: what reduce, cumulative, reduce_window, scatter and the folds of kernels combine by.

A row that folds takes one by its name, in the attribute ``kind``.  A new one is a record here; the
elementwise row of its name combines two elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from bringup.dtypes import INTS, NUMERIC, DType, bool_
from bringup.ops._numeric import Array, NpDType, is_float
from bringup.ops.table import OpDef, Trait, lookup
from bringup.records import record


class Derivative(Enum):
    """How a fold of floats follows one of its elements: what vjps of rows that fold dispatch on."""

    LINEAR = "linear"  # by one
    PRODUCT = "product"  # by the fold of all others
    SELECTION = "selection"  # by one if the fold is that element, else not at all


@record(eq=False, kw_only=True)
class Monoid:
    """An associative and commutative op with a neutral element.

    name: as in attributes, and that of the elementwise row.
    ufunc: the op of numpy, which may leave the sign of a zero to chance.
    dtypes: those it folds.
    empty: what a fold of nothing gives, by numpy dtype, as a numpy scalar.
    neutral: what leaves every element as it is, bit for bit.
    derivative: None if it folds no floats.
    on_bool: the monoid that does the same with bools, where false < true.
    opposite: the monoid that does the same in the opposite order, if devices rather have that.

    >>> MONOIDS["add"].empty(np.dtype("f4")), MONOIDS["add"].start(np.dtype("f4"), 3)
    (np.float32(0.0), np.float32(-0.0))
    """

    name: str
    ufunc: np.ufunc
    dtypes: tuple[DType, ...]
    empty: Callable[[NpDType], Any]
    neutral: Callable[[NpDType], Any]
    derivative: Derivative | None = None
    on_bool: str | None = None
    opposite: str | None = None

    @property
    def row(self) -> OpDef:
        """The elementwise row, which combines two values, or two numpy arrays by its reference."""
        return lookup(self.name)

    @property
    def is_idempotent(self) -> bool:
        """Whether an element combined with itself is that element."""
        return Trait.IDEMPOTENT in self.row.traits

    def is_exact(self, dtype: DType) -> bool:
        """Whether every order of a fold gives the same bits."""
        return self.name not in ROUNDING or not dtype.is_float

    def of(self, dtype: DType) -> str:
        """The name of the monoid for elements of this dtype."""
        return self.on_bool or self.name if dtype is bool_ else self.name

    def start(self, dtype: NpDType, count: int) -> Any:
        """What a fold of so many elements begins with."""
        return self.neutral(dtype) if count else self.empty(dtype)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The fold of whole axes, in the dtype of ``x``."""
        start = self.start(x.dtype, math.prod(x.shape[d] for d in axes))
        result = self.ufunc.reduce(x, axis=axes, dtype=x.dtype, initial=start)
        return self._with_right_zeros(x, result, "reduce", axes)

    def accumulate(self, x: Array, axis: int) -> Array:
        """The folds of each element and all before it, in the dtype of ``x``."""
        result = self.ufunc.accumulate(x, axis=axis, dtype=x.dtype)
        return self._with_right_zeros(x, result, "accumulate", axis)

    def _with_right_zeros(self, x: Array, result: Array, method: str, axis: Any) -> Array:
        if self.derivative is not Derivative.SELECTION or not is_float(x.dtype):
            return np.asarray(result)
        # numpy leaves the sign of a zero to the order of the fold: the zero that wins over
        # the other decides if it occurs.
        plus, minus = x.dtype.type(0.0), x.dtype.type(-0.0)
        decisive, other = (plus, minus) if self.empty(x.dtype) < plus else (minus, plus)
        occurs = (x == 0) & (np.signbit(x) == np.signbit(decisive))
        found = getattr(np.logical_or, method)(occurs, axis=axis)
        return np.where(result == 0, np.where(found, decisive, other), result)


def _number(value: float) -> Callable[[NpDType], Any]:
    return lambda dtype: dtype.type(value)


def _least(dtype: NpDType) -> Any:
    return dtype.type(-np.inf if is_float(dtype) else np.iinfo(dtype).min)


def _largest(dtype: NpDType) -> Any:
    return dtype.type(np.inf if is_float(dtype) else np.iinfo(dtype).max)


def _negative_zero(dtype: NpDType) -> Any:
    return dtype.type(-0.0 if is_float(dtype) else 0)


def _all_bits(dtype: NpDType) -> Any:
    return np.invert(dtype.type(0))


_BITS = (bool_, *INTS)
_ALL = (
    Monoid(
        name="add",
        ufunc=np.add,
        dtypes=NUMERIC,
        empty=_number(0),
        neutral=_negative_zero,
        derivative=Derivative.LINEAR,
    ),
    Monoid(
        name="mul",
        ufunc=np.multiply,
        dtypes=NUMERIC,
        empty=_number(1),
        neutral=_number(1),
        derivative=Derivative.PRODUCT,
    ),
    Monoid(
        name="max",
        ufunc=np.maximum,
        dtypes=NUMERIC,
        empty=_least,
        neutral=_least,
        derivative=Derivative.SELECTION,
        on_bool="or",
    ),
    Monoid(
        name="min",
        ufunc=np.minimum,
        dtypes=NUMERIC,
        empty=_largest,
        neutral=_largest,
        derivative=Derivative.SELECTION,
        on_bool="and",
        opposite="max",
    ),
    Monoid(name="and", ufunc=np.bitwise_and, dtypes=_BITS, empty=_all_bits, neutral=_all_bits),
    Monoid(name="or", ufunc=np.bitwise_or, dtypes=_BITS, empty=_number(0), neutral=_number(0)),
)

#: Every monoid by its name.
MONOIDS: dict[str, Monoid] = {monoid.name: monoid for monoid in _ALL}
#: Names of those that round: a sum or a product of floats depends on the order.
ROUNDING = frozenset(
    m.name for m in _ALL if m.derivative in (Derivative.LINEAR, Derivative.PRODUCT)
)
#: Names of those that fold numbers of any dtype.
NUMERIC_KINDS: tuple[str, ...] = tuple(m.name for m in _ALL if m.dtypes is NUMERIC)

__all__ = ["MONOIDS", "NUMERIC_KINDS", "ROUNDING", "Derivative", "Monoid"]
