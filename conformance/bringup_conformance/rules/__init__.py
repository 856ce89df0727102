"""The rules a device is held to, each with an id that tests carry and reports name.

Three tables: the cells of the ops' special values (`cells`), the numerics of everything else
(`numerics`), and what a device promises beyond the values of one program (`contract`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from bringup_conformance.rules.cells import special_rules
from bringup_conformance.rules.contract import CONTRACT
from bringup_conformance.rules.form import ID, Rule
from bringup_conformance.rules.numerics import NUMERICS


def all_rules() -> tuple[Rule, ...]:
    """Every rule: the contract, numerics, then special values in the order of the op table.

    >>> [rule.id for rule in all_rules() if rule.id.startswith("sqrt.f32.of-m")]
    ['sqrt.f32.of-minus-zero']
    """
    return tuple(by_id().values())


@cache
def by_id() -> Mapping[str, Rule]:
    """Every rule by its id."""
    special = [rule for rule, _ in special_rules()]
    return {rule.id: rule for rule in (*CONTRACT, *NUMERICS, *special)}


def untested(shown: Iterable[str]) -> tuple[Rule, ...]:
    """The rules that are not among those that tests show.

    shown: ids, such as those that `bringup_conformance.rules.probe.carried_by_tests` gives.

    >>> len(untested([])) == len(all_rules())
    True
    """
    known = frozenset(shown)
    return tuple(rule for rule in all_rules() if rule.id not in known)


__all__ = ["CONTRACT", "ID", "NUMERICS", "Rule", "all_rules", "by_id", "untested"]
