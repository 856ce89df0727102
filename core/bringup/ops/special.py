"""The vocabulary of special-value cells: text to numpy array, and whether a result is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from bringup.dtypes import BY_NAME, DType, bool_
from bringup.ops._numeric import Array, round_to, unsigned

WORDS = (
    "nan", "+nan", "-nan", "inf", "-inf", "INT_MIN", "INT_MAX", "BITS", "MAX", "-MAX", "TINY",
    "-TINY", "SUBNORMAL", "-SUBNORMAL", "true", "false",
)  # fmt: skip
UNSPECIFIED = "unspecified"


def special_value(text: str, dtype: DType) -> Array:
    """The array meant by the text of a cell.

    Numbers; ``nan``; ``inf``; ``MAX`` the largest finite float, ``TINY`` the smallest normal one,
    ``SUBNORMAL`` the smallest above 0; ``INT_MIN`` and ``INT_MAX`` of the integer dtype (0 and the
    largest if unsigned); ``BITS`` its width; ``true`` and ``false``, whatever the dtype.  All of
    them 0-d; ``[a, b]`` is a vector, ``[[a, b]]`` a matrix.  ``i32:[0, 1]`` has a dtype of its own.

    >>> from bringup.dtypes import f32, i8
    >>> special_value("[1, -0.0]", f32), special_value("INT_MIN", i8)
    (array([ 1., -0.], dtype=float32), array(-128, dtype=int8))
    """
    own, colon, rest = text.strip().rpartition(":")
    text, dtype = rest, BY_NAME[own] if colon else dtype
    if text.startswith("["):
        kind = np.bool_ if "true" in text or "false" in text else dtype.numpy
        return np.array([special_value(p, dtype) for p in _parts(text[1:-1])], dtype=kind)
    if text in ("true", "false"):
        return np.array(text == "true")
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        words = {"INT_MIN": int(info.min), "INT_MAX": int(info.max), "BITS": dtype.bits}
        return np.array(words[text] if text in words else int(text), dtype=dtype.numpy)
    if dtype is bool_:
        return np.array(bool(float(text)))
    return _float(text, dtype).copy()


def _parts(text: str) -> list[str]:
    """What commas outside of brackets part."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


@cache
def _float(text: str, dtype: DType) -> Array:
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    words: dict[str, Any] = {
        "MAX": info.max,
        "TINY": info.smallest_normal,
        "SUBNORMAL": info.smallest_subnormal,
    }
    sign, word = (-1, text[1:]) if text.startswith("-") else (1, text)
    if word in words:
        value = np.asarray(words[word], dtype=dtype.numpy)
        return -value if sign < 0 else value
    if word in ("nan", "+nan"):
        quiet = np.asarray(np.nan, np.float64).astype(dtype.numpy)
        return np.asarray(np.copysign(quiet, dtype.numpy.type(sign)))
    return round_to(np.asarray(float(text)), dtype.numpy)


def agrees(actual: Array, text: str, dtype: DType) -> bool:
    """Whether a result is what one text of a cell allows: equal in bits, any NaN for ``nan``."""
    wanted = special_value(text, dtype)
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return False
    same = unsigned(actual) == unsigned(wanted)
    if dtype.is_float and text not in ("+nan", "-nan") and actual.dtype == dtype.numpy:
        with np.errstate(invalid="ignore"):  # signalling NaN
            same = same | (np.isnan(actual) & np.isnan(wanted))
    return bool(np.all(same))


def allowed(actual: Array, result: str | Sequence[str], dtype: DType) -> bool:
    """Whether a result satisfies a cell's ``result``: a text, several, or ``unspecified``."""
    texts = (result,) if isinstance(result, str) else result
    return any(text == UNSPECIFIED or agrees(actual, text, dtype) for text in texts)
