"""Errors in units in the last place, and references wider than what they judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def erf(x: Array) -> Array:
    """The error function in the precision of ``x``; a series whose terms are all positive."""
    size = np.minimum(np.abs(x), 7)
    square = size * size
    term = size.copy()
    total = term.copy()
    for k in range(1, 200):
        term = term * (2 * square / (2 * k + 1))
        total += term
    two_over_root_pi = 2 / np.sqrt(_pi(x.dtype))
    return np.asarray(np.copysign(two_over_root_pi * np.exp(-square) * total, x))


def _pi(dtype: np.dtype[Any]) -> Any:
    # The rest of pi after its first 53 bits, for dtypes that can hold it.
    return dtype.type(math.pi) + dtype.type(1.2246467991473532e-16)


def _erf(x: Array) -> Array:
    if x.dtype == np.float64:
        return np.fromiter(map(math.erf, x.tolist()), np.float64, x.size)
    return erf(x)


def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


#: Functions of two operands.
BINARY = {"atan2", "pow"}

REFERENCE: dict[str, Callable[..., Array]] = {
    "atan": np.arctan,
    "atan2": np.arctan2,
    "cos": np.cos,
    "erf": _erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": _logistic,
    "pow": np.power,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
