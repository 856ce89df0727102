"""Errors in units in the last place, and references wider than what they judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bringup.ops import _elementary as elementary

Array = NDArray[Any]


def ulp_error(got: Array, reference: Array) -> Array:
    """The error of each element in ULPs of the reference, rounded to ``got``'s precision.

    reference: of a wider dtype.  Infinite where one is NaN, infinite or a zero of the other sign
    and the other is not the same.
    """
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = reference.astype(got.dtype)
        lowest = int(np.log2(info.smallest_subnormal))
        exponent = np.maximum(np.frexp(np.abs(reference))[1] - info.nmant - 1, lowest)
        error = np.abs(got.astype(reference.dtype) - reference)
        error = np.ldexp(error, -exponent).astype(np.float64)
        both_nan = np.isnan(got) & np.isnan(rounded)
        identical = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | both_nan
    error[identical & ~np.isfinite(rounded)] = 0.0
    error[np.isnan(error)] = np.inf
    error[(got == 0) & (rounded == 0) & ~identical] = np.inf
    return np.asarray(error)


def _logistic(x: Array) -> Array:
    e = elementary.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


#: Functions of two operands.
BINARY = {"atan2", "pow"}

REFERENCE: dict[str, Callable[..., Array]] = {
    "atan": elementary.atan,
    "atan2": elementary.atan2,
    "cos": elementary.cos,
    "erf": elementary.erf,
    "exp": elementary.exp,
    "exp2": lambda x: elementary.power(np.full_like(x, 2), x),
    "expm1": elementary.expm1,
    "log": elementary.log,
    "log1p": elementary.log1p,
    "logistic": _logistic,
    "pow": elementary.power,
    "sin": elementary.sin,
    "tan": elementary.tan,
    "tanh": elementary.tanh,
}
