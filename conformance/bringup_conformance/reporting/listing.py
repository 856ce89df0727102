"""What the suite consists of, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from bringup.backend.capabilities import Capabilities, Claims
from bringup.dtypes import STORED, DType
from bringup.ops.table import all_ops, lookup
from bringup_conformance.cases import Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.plan import Budget, Plan
from bringup_conformance.execution.schedule import TAGS, Selection
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.recipes import KINDS
from bringup_conformance.rules import all_rules
from bringup_conformance.rules.cells import shown
from bringup_conformance.rules.cells import special_rules as special


def contents() -> dict[str, Any]:
    """Levels, tags, ops and kinds of data: name and meaning, and what is checked of each op.

    >>> [level["name"] for level in contents()["levels"]]
    ['smoke', 'ops', 'fusion', 'runtime', 'exhaustive', 'soak']
    """

    def documented(functions: Mapping[str, Callable[..., Any]]) -> list[dict[str, str]]:
        docs = {name: " ".join((make.__doc__ or "").split()) for name, make in functions.items()}
        return [{"name": name, "holds": doc} for name, doc in docs.items()]

    return {
        "levels": documented(levels.MADE),
        "tags": [{"name": name, "holds": holds} for name, holds in TAGS.items()],
        "ops": [
            {
                "name": row.name,
                "kind": row.kind.value,
                "tier": row.tier,
                "dtypes": [dtype.name for dtype in row.dtypes],
                "special_cells": len(row.special),
            }
            for row in all_ops()
        ],
        "data": documented(KINDS),
    }


def rules(only: str = "") -> list[dict[str, Any]]:
    """Every rule with its sentence, and the first test that shows it, if any does.

    Rules of special values also with their cells.  only: an area of the contract, an op, an op and
    dtype, or an id; empty for all.

    >>> rules("sqrt.f32")[1]["id"]
    'sqrt.f32.of-minus-zero'
    """
    chosen = [rule for rule in all_rules() if not only or f"{rule.id}.".startswith(f"{only}.")]
    tests = carried_by_tests(frozenset(rule.id for rule in chosen) if only else None)
    cells = {
        rule.id: [shown(lookup(rule.area), c) for c in special_cells]
        for rule, special_cells in special()
    }
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


#: So many random programs are of every kind.
_BUDGET = Budget(programs=60, limit=64, large=False, data=1, split=1)


def everything() -> Capabilities:
    """Capabilities with everything that a rule may need."""
    dtypes: frozenset[DType] = frozenset(STORED)
    claims: Claims = {claim: dtypes for row in all_ops() for claim in row.claims}
    return Capabilities(ops=claims, kernels=claims, asynchronous=True)


def _plan() -> Plan:
    return Plan(everything(), Support(lambda _graph: None), 0, _BUDGET)


def level_of(only: str) -> str | None:
    """The lowest level that has a case of a selection, for a device that has everything.

    >>> level_of("special/sin"), level_of("nonesuch")
    ('ops', None)
    """
    plan, selection = _plan(), Selection(only)
    for level in levels.LEVELS:
        units = (unit for unit in levels.units(plan, level) if selection.reaches(unit))
        if any(selection.admits(item) for unit in units for item in unit.make()):
            return level
    return None


@cache
def carried_by_tests(wanted: frozenset[str] | None = None) -> Mapping[str, str]:
    """Rule ids, each with the name of the first test that shows it.

    wanted: the search ends when these are found; None to make every test.
    """
    plan = _plan()
    tests: dict[str, str] = {}
    for level in levels.LEVELS:
        for unit in levels.units(plan, level):
            if wanted is not None and wanted <= tests.keys():
                return MappingProxyType(tests)
            for item in unit.make():
                if not isinstance(item, Unsupported):
                    for rule in item.rules:
                        tests.setdefault(rule, item.name)
    return MappingProxyType(tests)
