"""What the suite holds, as plain data."""

from __future__ import annotations

from typing import Any

from bringup.ops.table import OpDef, all_ops
from bringup_conformance.execution import levels
from bringup_conformance.generate.recipes import KINDS


def contents() -> dict[str, Any]:
    """Levels, ops and kinds of data: name and meaning, and what is checked of each op.

    >>> [level["name"] for level in contents()["levels"]]
    ['smoke', 'ops', 'fusion', 'runtime', 'exhaustive', 'soak']
    """
    made = levels.MADE.items()
    return {
        "levels": [{"name": name, "holds": _sentence(make.__doc__)} for name, make in made],
        "ops": [_op(row) for row in all_ops()],
        "data": [{"name": name, "holds": _sentence(make.__doc__)} for name, make in KINDS.items()],
    }


def _op(row: OpDef) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind.value,
        "tier": row.tier,
        "dtypes": [dtype.name for dtype in row.dtypes],
        "special_cells": len(row.special),
    }


def _sentence(doc: str | None) -> str:
    return " ".join((doc or "").split())
