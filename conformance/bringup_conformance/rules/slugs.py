"""Slugs of special cells: a slug depends on its cell alone, not on where it stands in a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.dtypes import DType, i64
from bringup.ops.monoids import MONOIDS
from bringup.ops.special_values import Special, special_value
from bringup.ops.table import Kind, OpDef, Trait
from bringup.records import record
from bringup_conformance.oracle.numbers import Array

#: Slugs that several cells share, and the rule that they state.
SHARED = {
    "nan-propagates": "A NaN operand gives NaN.",
    "nan-bits-kept": "What is moved keeps the bits of a NaN, including its sign.",
    "invalid-operation": "An invalid operation on operands of which none is NaN gives NaN.",
    "overflows": "Finite operands whose result is too large for the dtype give an infinity.",
    "subnormal-kept": "Subnormal values are neither read as 0 nor flushed to 0, unless declared.",
    "by-zero": "Division by 0 has this value, and does not trap.",
    "wraps": "Integers wrap.",
    "amount-past-width": "A shift by the width or more, as an unsigned number, moves all bits out.",
    "unordered": "NaN is neither equal to nor less or greater than anything, not even itself.",
    "zeros": "The zeros of both signs are equal.",
    "nans-last": "NaNs come after everything else.",
    "nans-first": "NaNs come before everything else.",
    "zeros-keep-their-order": "The zeros of both signs are equal, so they keep their order.",
    "branch-out-of-range": "An index that names no branch takes the last one.",
    "to-the-zero": "Anything to the power of a zero is 1, even NaN.",
    "1-to-anything": "1 to any power is 1, even NaN.",
}

# The word between the operands of an op; of other ops it is "and".
_JOINED = {
    "div": "by", "rem": "by", "shl": "by", "shr": "by", "pow": "to", "sub": "less",
    "atan2": "over", "pad": "with",
}  # fmt: skip
_WORDS = {
    "0.0": "zero", "0": "zero", "-0.0": "minus-zero", "inf": "inf", "-inf": "minus-inf",
    "nan": "nan", "+nan": "plus-nan", "-nan": "minus-nan", "MAX": "max", "-MAX": "minus-max",
    "TINY": "tiny", "-TINY": "minus-tiny", "SUBNORMAL": "subnormal", "[]": "empty",
    "-SUBNORMAL": "minus-subnormal", "INT_MIN": "int-min", "INT_MAX": "int-max", "BITS": "width",
}  # fmt: skip


@record
class Slug:
    """The last part of a rule's id.  shared: the key of `SHARED` that the cell is an instance of,
    or nothing.
    """

    text: str
    shared: str = ""


def slug(row: OpDef, dtype: DType, cell: Special) -> Slug:
    """The slug of a cell.

    >>> from bringup.dtypes import f32, i32
    >>> from bringup.ops.table import lookup
    >>> slug(lookup("sqrt"), f32, Special(("-0.0",), "-0.0"))
    Slug(text='of-minus-zero', shared='')
    >>> slug(lookup("div"), i32, Special(("5", "0"), "-1", ("int",)))
    Slug(text='by-zero', shared='by-zero')
    """
    values = [special_value(text, dtype) for text in cell.operands]
    shared = _shared(row, dtype, cell, values)
    variant = "" if row.variant is None else str(dict(cell.attrs).get(row.variant, ""))
    if shared:
        return Slug(_hyphens(variant, shared), shared)
    return Slug(_operands(row, cell, variant, packed=all(v.ndim == 0 for v in values)))


def _operands(row: OpDef, cell: Special, variant: str, *, packed: bool) -> str:
    """The operands in words.  packed: all of them are single elements."""
    compares = row.variant == "direction"
    if row.domain.indices is not None and row.kind is Kind.INDEXED:
        return _hyphens(variant, _index(row, cell))
    if row.kind is Kind.MOVEMENT and "dtype" not in dict(cell.attrs) and _is_plain(cell):
        return told(cell.attrs)
    words = [_word(text) for text in cell.operands]
    if "branches" in dict(cell.attrs):
        return f"branch-{words[0]}"
    if packed and Trait.COMMUTATIVE in row.traits:
        words.sort()
    if len(words) > 2 and len(set(words)) == 1:
        return _hyphens(variant, "all", words[0])
    if len(words) == 1:
        return _hyphens(variant, *_converted(row, cell, words[0]))
    joint = variant if compares else _JOINED.get(row.name, "and")
    first = f"{words[0]}-{joint}-{words[1]}"
    return _hyphens("" if compares else variant, "-and-".join((first, *words[2:])))


def _is_plain(cell: Special) -> bool:
    """Whether the operands are plain numbers, which only show where elements are moved to."""
    letters = {letter for text in cell.operands for letter in text if letter.isalpha()}
    return not letters and "-0.0" not in " ".join(cell.operands)


def _index(row: OpDef, cell: Special) -> str:
    """Where the indices of a cell point in the vector that is its first operand."""
    operands = [special_value(text, i64) for text in cell.operands]
    first = row.domain.indices
    assert first is not None
    indices = operands[first].reshape(-1)
    # What is read or written at each index: the row's sizes, or all of the operand before them.
    window = dict(cell.attrs).get("sizes", (1,))[0] if first == 1 else operands[1].size
    if not indices.size:
        return "no-index"
    if (indices < 0).any():
        return "negative-index"
    if (indices > operands[0].size - window).any():
        return "index-past-end"
    if not window:
        return "no-element"
    return "repeated-index" if len(set(indices.tolist())) < indices.size else "index-inside"


def told(attrs: Sequence[tuple[str, Any]]) -> str:
    """Attributes as part of a slug, for cells whose operands are the same."""
    return _hyphens(*(f"{name.replace('_', '-')}-{_value(value)}" for name, value in attrs))


def _hyphens(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _converted(row: OpDef, cell: Special, word: str) -> tuple[str, ...]:
    """The word of the only operand, with the dtype it becomes."""
    target = dict(cell.attrs).get("dtype")
    if target is not None and row.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT):
        return (word, "to", str(target))
    return ("of", word)


def _word(text: str) -> str:
    """An operand in words: of arrays the elements in order."""
    text = text.strip().rpartition(":")[2]
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("["):
        inner = [part for part in re.split(r"[\[\], ]+", text) if part]
        return "-".join(map(_word, inner)) or "empty"
    return _number(text)


def _number(text: str) -> str:
    text = text.replace(".", "-point-")
    return f"minus-{text[1:]}" if text.startswith("-") else text.replace("+", "")


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(map(_value, value)) or "none"
    text = str(value).lower()
    return _number(text[:-2] if text.endswith(".0") else text)


def _shared(row: OpDef, dtype: DType, cell: Special, values: list[Array]) -> str:
    """The rule of many cells that this one is an instance of, or nothing."""
    results = (cell.result,) if isinstance(cell.result, str) else cell.result
    operands, result = " ".join(cell.operands), " ".join(results)
    rule = _OWN_RULES.get(row.name)
    slug = "" if rule is None else rule(dtype, cell, values, result)
    if dtype.is_integer and rule is None:
        return _wraps(row, dtype, cell, values)
    if slug or not dtype.is_float:
        return slug
    if row.kind is Kind.ORDER:
        return _ordered(values, result)
    if "nan" in operands:
        return _of_nan(row, cell, operands, result)
    if "nan" in result and any(v.size for v in values) and _keeps_dtype(cell):
        return "invalid-operation"
    if "SUBNORMAL" in operands and "SUBNORMAL" in result:
        return "subnormal-kept"
    overflows = "MAX" in operands and "inf" in result and "inf" not in operands
    return "overflows" if overflows and _keeps_dtype(cell) else ""


def _ordered(values: list[Array], result: str) -> str:
    if np.isnan(values[0]).any():
        return "nans-last" if result.endswith("nan]") else "nans-first"
    zeros = values[0][values[0] == 0]
    return "zeros-keep-their-order" if 0 < np.signbit(zeros).sum() < zeros.size else ""


def _keeps_dtype(cell: Special) -> bool:
    """Whether the result is of the operands' dtype, so that no other dtype has to be told."""
    return "dtype" not in dict(cell.attrs)


def _of_nan(row: OpDef, cell: Special, operands: str, result: str) -> str:
    if re.search("[+-]nan", operands) and "nan" in result and row.kind is Kind.MOVEMENT:
        return "nan-bits-kept"
    moved = row.kind in (Kind.MOVEMENT, Kind.INDEXED, Kind.ORDER)
    signed = re.search("[+-]nan", result) is not None
    propagates = "nan" in result and not moved and not signed and _keeps_dtype(cell)
    return "nan-propagates" if propagates else ""


def _wraps(row: OpDef, dtype: DType, cell: Special, values: list[Array]) -> str:
    """Whether the exact result of integers lies outside of their dtype."""
    attrs = dict(cell.attrs)
    exact: Any = 0
    if row.accuracy_for(attrs).accumulates and "kind" in attrs:
        terms = values[0].reshape(-1)
        if row.domain.indices is not None:  # a single element, with what is added to it
            terms = np.concatenate([terms, values[2]]) if terms.size == 1 else terms[:0]
        exact = MONOIDS[attrs["kind"]].ufunc.reduce(terms.astype(object))
    elif Trait.PIECEWISE_MONOTONE in row.traits:  # arithmetic: nothing else leaves the range
        # numpy computes with Python's integers, which have no end.
        exact = row.reference(*(np.array(int(v), object) for v in values), **attrs)
    info = np.iinfo(dtype.numpy)
    return "" if int(info.min) <= exact <= int(info.max) else "wraps"


# -- rules of single ops ---------------------------------------------------------------------------


def _compare(dtype: DType, cell: Special, values: list[Array], _result: str) -> str:
    if not dtype.is_float:
        return ""
    if "nan" in cell.operands:
        return "unordered"
    return "zeros" if all(v.ndim == 0 and v == 0 for v in values) else ""


def _power(dtype: DType, _cell: Special, values: list[Array], result: str) -> str:
    if not dtype.is_float or "nan" in result:
        return ""
    if values[0] == 1:
        return "1-to-anything"
    return "to-the-zero" if values[1] == 0 else ""


def _divide(dtype: DType, cell: Special, values: list[Array], result: str) -> str:
    special = not dtype.is_integer and ("inf" not in result or "inf" in " ".join(cell.operands))
    return "by-zero" if values[1] == 0 and not special else ""


def _shift(dtype: DType, _cell: Special, values: list[Array], _result: str) -> str:
    return "" if 0 <= int(values[1]) < dtype.bits else "amount-past-width"


def _case(_dtype: DType, cell: Special, values: list[Array], _result: str) -> str:
    inside = 0 <= int(values[0]) < len(dict(cell.attrs)["branches"])
    return "" if inside else "branch-out-of-range"


#: Ops with shared rules of their own, which come before those of all ops.
_OWN_RULES: dict[str, Callable[[DType, Special, list[Array], str], str]] = {
    "compare": _compare,
    "pow": _power,
    "div": _divide,
    "rem": _divide,
    "shl": _shift,
    "shr": _shift,
    "case": _case,
}
