"""The special-value table as rules: to which rule each cell of a row belongs, for every dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from bringup.dtypes import DType
from bringup.ops.special_values import UNSPECIFIED, Special, special_value
from bringup.ops.table import OpDef, all_ops
from bringup_conformance.rules import slugs
from bringup_conformance.rules.form import Rule

# The kind of attributes that are no part of a slug: whole graphs.
_NOT_SHOWN = "graph"


@cache
def cells_of(row: OpDef, dtype: DType) -> tuple[Special, ...]:
    """The cells that hold for a dtype, in the order of the row."""
    return tuple(
        cell
        for cell in row.special
        if cell.holds_for(dtype) and cell.result != UNSPECIFIED and _has_values(cell, dtype)
    )


def _has_values(cell: Special, dtype: DType) -> bool:
    """Whether every operand has a value of the dtype."""
    try:
        for text in cell.operands:
            special_value(text, dtype)
    except (OverflowError, ValueError):
        return False
    return True


def rule_of(row: OpDef, dtype: DType, cell: Special) -> str:
    """The id of the rule to which a cell belongs.

    >>> from bringup.dtypes import f32
    >>> from bringup.ops.table import lookup
    >>> add = lookup("add")
    >>> {rule_of(add, f32, cell) for cell in add.special if "nan" in cell.operands}
    {'add.f32.nan-propagates'}
    """
    return _ids(row, dtype)[_key(cell)]


def special_rules() -> Iterator[tuple[Rule, tuple[Special, ...]]]:
    """Every rule of the table with its cells, row by row and dtype by dtype."""
    for row in all_ops():
        for dtype in row.dtypes:
            yield from rules_of(row, dtype).items()


def rules_of(row: OpDef, dtype: DType) -> Mapping[Rule, tuple[Special, ...]]:
    """The rules of one row and dtype with their cells.  A rule says the sentence that its cells
    share, or else the cell as it stands in the table.
    """
    grouped: dict[str, list[Special]] = {}
    for cell in cells_of(row, dtype):
        grouped.setdefault(rule_of(row, dtype, cell), []).append(cell)
    rules = {}
    for id_, cells in grouped.items():
        shared = slugs.slug(row, dtype, cells[0]).shared
        says = slugs.SHARED[shared] if shared else "; ".join(shown(row, cell) for cell in cells)
        rules[Rule(id_, says)] = tuple(cells)
    return rules


def shown(row: OpDef, cell: Special) -> str:
    """A cell as text: the op with operands and attributes but graphs, and the result.

    >>> from bringup.ops.table import lookup
    >>> shown(lookup("max"), Special(("0.0", "-0.0"), "0.0"))
    'max(0.0, -0.0) → 0.0'
    """
    parts = [*cell.operands, *(f"{name}={_text(value)}" for name, value in _told(row, cell))]
    result = cell.result if isinstance(cell.result, str) else " or ".join(cell.result)
    return f"{row.name}({', '.join(parts)}) → {result}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)


def _told(row: OpDef, cell: Special) -> list[tuple[str, Any]]:
    kinds = {a.name: a.kind for a in row.attrs}
    return [(name, value) for name, value in cell.attrs if kinds.get(name) != _NOT_SHOWN]


def _key(cell: Special) -> tuple[Any, ...]:
    return (cell.operands, cell.result, cell.attrs, cell.kinds)


@cache
def _ids(row: OpDef, dtype: DType) -> dict[tuple[Any, ...], str]:
    """Ids of the cells of one row and dtype.  Cells of equal operands that share no rule are told
    apart by the attributes that differ between them.
    """
    alike: dict[slugs.Slug, list[Special]] = {}
    for cell in cells_of(row, dtype):
        alike.setdefault(slugs.slug(row, dtype, cell), []).append(cell)
    ids = {}
    for slug, cells in alike.items():
        differing = frozenset[str]() if slug.shared else _differing(row, cells)
        for cell in cells:
            attrs = [pair for pair in _told(row, cell) if pair[0] in differing]
            suffix = f"-{slugs.told(attrs)}" if attrs else ""
            ids[_key(cell)] = f"{row.name}.{dtype.name}.{slug.text}{suffix}"
    return ids


def _differing(row: OpDef, cells: list[Special]) -> frozenset[str]:
    """Names of the attributes that are not the same in all of some cells."""
    attributes = [dict(_told(row, cell)) for cell in cells]
    names = {name for attrs in attributes for name in attrs}
    return frozenset(n for n in names if len({repr(attrs.get(n)) for attrs in attributes}) > 1)
