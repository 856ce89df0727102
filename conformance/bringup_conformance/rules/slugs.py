"""Slugs of special cells, made from nothing but the cell: the same wherever it stands in a row."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from bringup.dtypes import DType, i64
from bringup.ops.special_values import Special, special_value
from bringup.ops.table import Kind, OpDef, Trait
from bringup.records import record
from bringup_conformance.oracle.numbers import Array

#: Slugs that cells share, and what all of them say.
SHARED = {
    "nan-propagates": "A NaN operand gives NaN.",
    "nan-bits-kept": "What is moved keeps the bits of a NaN, its sign too.",
    "invalid-operation": "Operands without a result, none of them NaN, give NaN.",
    "overflows": "Finite operands whose result is too large for the dtype give an infinity.",
    "subnormal-kept": "Subnormal values are neither read nor given as 0, unless that is declared.",
    "by-zero": "Division by 0 has this value, and does not trap.",
    "wraps": "Integers wrap.",
    "amount-past-width": "A shift by the width or more, as an unsigned number, moves all bits out.",
    "unordered": "NaN is neither equal to, nor less or greater than anything, itself too.",
    "zeros": "The zeros of both signs are equal.",
    "nans-last": "NaNs come behind everything else.",
    "nans-first": "NaNs come before everything else.",
    "zeros-keep-their-order": "The zeros of both signs are equal, so they keep their order.",
    "branch-out-of-range": "An index that names no branch takes the last one.",
    "to-the-zero": "Anything to the power of a zero is 1, NaN too.",
    "1-to-anything": "1 to any power is 1, NaN too.",
}

# What stands between the operands of an op; elsewhere "and".
_JOINED = {
    "div": "by", "rem": "by", "shl": "by", "shr": "by", "pow": "to", "sub": "less",
    "atan2": "over", "pad": "with",
}  # fmt: skip
# The operand that holds indices.
_INDICES = {"gather": 1, "scatter": 1, "dynamic_slice": 1, "dynamic_update_slice": 2}
_WORDS = {
    "0.0": "zero", "0": "zero", "-0.0": "minus-zero", "inf": "inf", "-inf": "minus-inf",
    "nan": "nan", "+nan": "plus-nan", "-nan": "minus-nan", "MAX": "max", "-MAX": "minus-max",
    "TINY": "tiny", "-TINY": "minus-tiny", "SUBNORMAL": "subnormal", "[]": "empty",
    "-SUBNORMAL": "minus-subnormal", "INT_MIN": "int-min", "INT_MAX": "int-max", "BITS": "width",
}  # fmt: skip
_EXACT: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "abs": abs, "square": lambda x: x * x,
}  # fmt: skip
_FOLDED: dict[str, Callable[[list[int]], int]] = {
    "add": sum,
    "mul": partial(reduce, operator.mul),
}


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
    compares = row.name == "compare"
    if row.name in _INDICES:
        return _hyphens(variant, _index(row, cell))
    if row.kind is Kind.MOVEMENT and "dtype" not in dict(cell.attrs) and _is_plain(cell):
        return told(cell.attrs)
    words = [_word(text) for text in cell.operands]
    if row.name == "case":
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
    """Whether the operands are numbers that only show where they go."""
    letters = {letter for text in cell.operands for letter in text if letter.isalpha()}
    return not letters and "-0.0" not in " ".join(cell.operands)


def _index(row: OpDef, cell: Special) -> str:
    """Where the indices of a cell lie, or begin, in the vector that its first operand is."""
    operands = [special_value(text, i64) for text in cell.operands]
    places = operands[_INDICES[row.name]].reshape(-1)
    window = {"dynamic_slice": dict(cell.attrs).get("sizes", (1,))[0]}.get(row.name, 1)
    if row.name == "dynamic_update_slice":
        window = operands[1].size
    if not places.size:
        return "no-index"
    if (places < 0).any():
        return "negative-index"
    if (places > operands[0].size - window).any():
        return "index-past-end"
    if not window:
        return "no-element"
    return "repeated-index" if len(set(places.tolist())) < places.size else "index-inside"


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
    if row.name == "case":
        inside = 0 <= int(values[0]) < len(dict(cell.attrs)["branches"])
        return "" if inside else "branch-out-of-range"
    if dtype.is_integer:
        return _integer(row, dtype, cell, values)
    if not dtype.is_float:
        return ""
    given, found = " ".join(cell.operands), " ".join(results)
    if row.kind is Kind.ORDER:
        return _ordered(values, found)
    if "nan" in given:
        return _of_nan(row, cell, given, found)
    if row.name == "compare" and all(v.ndim == 0 and v == 0 for v in values):
        return "zeros"
    if row.name == "pow" and (values[0] == 1 or values[1] == 0):
        return "1-to-anything" if values[0] == 1 else "to-the-zero"
    if "nan" in found and any(v.size for v in values) and _keeps_kind(row, cell):
        return "invalid-operation"
    if "SUBNORMAL" in given and "SUBNORMAL" in found:
        return "subnormal-kept"
    if "inf" in given or "inf" not in found:
        return ""
    if row.name == "div" and values[1] == 0:
        return "by-zero"
    return "overflows" if "MAX" in given and _keeps_kind(row, cell) else ""


def _ordered(values: list[Array], found: str) -> str:
    if np.isnan(values[0]).any():
        return "nans-last" if found.endswith("nan]") else "nans-first"
    zeros = values[0][values[0] == 0]
    return "zeros-keep-their-order" if 0 < np.signbit(zeros).sum() < zeros.size else ""


def _keeps_kind(row: OpDef, cell: Special) -> bool:
    """Whether the result is of the operands' dtype, so that no other dtype has to be told."""
    return "dtype" not in dict(cell.attrs)


def _of_nan(row: OpDef, cell: Special, given: str, found: str) -> str:
    if row.name == "compare":
        return "unordered"
    if row.name == "pow" and "nan" not in found:
        return "1-to-anything" if cell.operands[0] == "1" else "to-the-zero"
    if re.search("[+-]nan", given) and "nan" in found and row.kind is Kind.MOVEMENT:
        return "nan-bits-kept"
    moved = row.kind in (Kind.MOVEMENT, Kind.INDEXED, Kind.ORDER)
    signed = re.search("[+-]nan", found) is not None
    if "nan" in found and not moved and not signed and _keeps_kind(row, cell):
        return "nan-propagates"
    return ""


def _integer(row: OpDef, dtype: DType, cell: Special, values: list[Array]) -> str:
    if row.name in ("div", "rem") and values[1] == 0:
        return "by-zero"
    if row.name in ("shl", "shr"):
        amount = int(values[1])
        return "amount-past-width" if not 0 <= amount < dtype.bits else ""
    info = np.iinfo(dtype.numpy)
    exact: float = 0
    if row.name in _EXACT:
        exact = _EXACT[row.name](*(int(v) for v in values))
    elif row.kind is Kind.REDUCTION or row.name in ("cumulative", "scatter"):
        fold = _FOLDED.get(str(dict(cell.attrs).get("kind")))
        folded = values[0].reshape(-1)
        if row.name == "scatter":
            folded = np.concatenate([folded, values[2]]) if folded.size == 1 else folded[:0]
        exact = fold([int(x) for x in folded]) if fold and folded.size else 0
    assert math.isfinite(exact)
    return "" if int(info.min) <= exact <= int(info.max) else "wraps"
