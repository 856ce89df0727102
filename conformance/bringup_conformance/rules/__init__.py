"""The rules a device is held to, each with an id that tests carry and reports name.

Three tables: the cells of the ops' special values (`cells`), the numerics of everything else
(`NUMERICS`), and what a device promises beyond the values of one program (`contract`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from bringup_conformance.rules.cells import special_rules
from bringup_conformance.rules.contract import CONTRACT
from bringup_conformance.rules.form import ID, Rule

# How accurate every result must be, except for special values.
_SENTENCES = {
    "elementwise": "A result of an elementwise op is within the op's declared units in the last "
    "place of the exact one.",
    "sums": "Sums, products, dots and scans are within (L + log₂(n/L) + c)·u·Σ|x| of the exact "
    "ones, L being the longest chain that the device declares.",
    "precision": "Factors of f32 keep all their bits unless an op asks for less; with tf32 they "
    "may be rounded to nearest, to mantissas of 10 bits or more, and the bound of sums holds for "
    "the rounded factors.",
    "moves": "What an op moves keeps its bits, including NaN payloads and signs of zeros.",
    "integers": "Integers, booleans and comparisons are exact; integers wrap.",
    "programs": "Results of whole programs are within the bound that the bounds of their ops give, "
    "propagated through the graph.",
    "exact-data": "Where every partial result is representable, results are bit-equal to the exact "
    "ones, in any order and any fusion.",
    "unfused": "A program run instruction by instruction is right as well.",
    "mapped": "A program mapped over examples gives for each example what it gives for that one "
    "alone.",
    "residuals": "Factors of matrices, solutions and transforms have residuals within the bound of "
    "the op.",
}

NUMERICS: tuple[Rule, ...] = tuple(
    Rule(f"numerics.{slug}", says) for slug, says in _SENTENCES.items()
)


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

    shown: ids, such as those that `bringup_conformance.reporting.listing.carried_by_tests` gives.

    >>> len(untested([])) == len(all_rules())
    True
    """
    known = frozenset(shown)
    return tuple(rule for rule in all_rules() if rule.id not in known)


__all__ = ["CONTRACT", "ID", "NUMERICS", "Rule", "all_rules", "by_id", "untested"]
