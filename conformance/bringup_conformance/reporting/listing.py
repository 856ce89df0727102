"""What the suite holds, as plain data."""

from __future__ import annotations

from typing import Any

from bringup.ops.table import OpDef, all_ops, lookup
from bringup_conformance.execution import levels
from bringup_conformance.generate.recipes import KINDS
from bringup_conformance.rules import all_rules
from bringup_conformance.rules.cells import shown
from bringup_conformance.rules.cells import special_rules as special
from bringup_conformance.rules.probe import carried_by_tests


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


def rules(only: str = "") -> list[dict[str, Any]]:
    """Every rule with its sentence, and the first test that carries it, if any does.

    Rules of special values also with their cells.  only: an area of the contract, an op, an op and
    dtype, or an id; empty for all.

    >>> rules("sqrt.f32")[1]["id"]
    'sqrt.f32.of-minus-zero'
    """
    chosen = [rule for rule in all_rules() if not only or f"{rule.id}.".startswith(f"{only}.")]
    tests = carried_by_tests(frozenset(rule.id for rule in chosen) if only else None)
    cells = {rule.id: [shown(lookup(rule.area), c) for c in given] for rule, given in special()}
    return [
        {
            "id": rule.id,
            "says": rule.says,
            "cells": cells.get(rule.id, []),
            "needs": rule.needs,
            "test": tests.get(rule.id),
        }
        for rule in chosen
    ]


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
