"""The special-value tables of rows: their text, its vocabulary, and whether a result is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, overload

import ml_dtypes
import numpy as np

from bringup.dtypes import BY_NAME, DType, bool_
from bringup.ops._numeric import Array, round_to, unsigned
from bringup.records import record

WORDS = (
    "nan", "+nan", "-nan", "inf", "-inf", "INT_MIN", "INT_MAX", "BITS", "MAX", "-MAX", "TINY",
    "-TINY", "SUBNORMAL", "-SUBNORMAL", "true", "false",
)  # fmt: skip
UNSPECIFIED = "unspecified"


@record
class Special:
    """One cell of the special-value table: operands and the result, as text.

    operands: such as ``nan``, ``-0.0``, ``inf``, ``INT_MIN``, ``2.5``; see `special_value`.
    result: text of the same kind, a tuple of allowed ones, or ``unspecified``; of several results
    it tells the first.
    kinds: the dtype kinds, or names of dtypes, of the leading operand it holds for; floats to store
    are meant by their names alone.
    """

    operands: tuple[str, ...]
    result: str | tuple[str, ...]
    kinds: tuple[str, ...] = ("float",)
    attrs: tuple[tuple[str, Any], ...] = ()

    def holds_for(self, dtype: DType) -> bool:
        """Whether the cell is about operands of `dtype`."""
        general = dtype.kind in self.kinds and not dtype.is_storage
        return general or dtype.name in self.kinds


class Cells(Sequence[Special]):
    """Cells in the form of one text, which is read when somebody looks at them."""

    __slots__ = ("_attrs", "_cells", "_text")

    def __init__(self, text: str, attrs: tuple[tuple[str, Any], ...]) -> None:
        self._text, self._attrs = text, attrs
        self._cells: tuple[Special, ...] | None = None

    def _read(self) -> tuple[Special, ...]:
        if self._cells is None:
            self._cells = tuple(_cell(line, self._attrs) for line in self._text.split(";"))
        return self._cells

    def __iter__(self) -> Iterator[Special]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, index: int) -> Special: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Special]: ...
    def __getitem__(self, index: int | slice) -> Special | Sequence[Special]:
        return self._read()[index]


def cells(text: str, **attrs: Any) -> Cells:
    """The cells that a text lists, of instructions with the same attributes.

    Cells are parted by semicolons, operands by commas, and allowed results by ``or``.  In brackets
    stand the kinds or names of dtypes that a cell holds for, if these are not all floats.

    >>> for cell in cells("0.0, -1 -> -0.0; INT_MIN, 0 -> -1 (int)"):
    ...     print(cell.operands, cell.result, cell.kinds)
    ('0.0', '-1') -0.0 ('float',)
    ('INT_MIN', '0') -1 ('int',)
    """
    return Cells(text, tuple(attrs.items()))


def _cell(text: str, attrs: tuple[tuple[str, Any], ...]) -> Special:
    left, _, right = text.partition("->")
    right, _, kinds = right.strip().rstrip(")").partition(" (")
    results = tuple(right.split(" or "))
    return Special(
        tuple(part.strip() for part in _parts(left)),
        results if len(results) > 1 else right,
        tuple(kinds.split()) or ("float",),
        attrs,
    )


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
