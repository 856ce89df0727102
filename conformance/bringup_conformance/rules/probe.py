"""Which rules tests show to hold on a device that declares everything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from bringup.backend.capabilities import Capabilities, Claims
from bringup.dtypes import STORED, DType
from bringup.ops.table import all_ops
from bringup_conformance.cases import Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.plan import Budget, Plan
from bringup_conformance.execution.support import Support

#: Every kind of random program is among so many.
_BUDGET = Budget(programs=60, limit=64, large=False, data=1, split=1)


def everything() -> Capabilities:
    """Capabilities that leave nothing out that a rule may need."""
    dtypes: frozenset[DType] = frozenset(STORED)
    claims: Claims = {claim: dtypes for row in all_ops() for claim in row.claims}
    return Capabilities(ops=claims, kernels=claims, asynchronous=True)


@cache
def carried_by_tests(wanted: frozenset[str] | None = None) -> Mapping[str, str]:
    """Rule ids, each with the name of the first test that carries it.

    wanted: the search ends when these are found; of None it makes every test.
    """
    plan = Plan(everything(), Support(lambda _graph: None), 0, _BUDGET)
    found: dict[str, str] = {}
    for level in levels.LEVELS:
        for unit in levels.units(plan, level):
            if wanted is not None and wanted <= found.keys():
                return MappingProxyType(found)
            for item in unit.make():
                if not isinstance(item, Unsupported):
                    for rule in item.rules:
                        found.setdefault(rule, item.name)
    return MappingProxyType(found)
