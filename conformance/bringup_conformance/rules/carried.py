"""Which general rules a passing case confirms, and which a problem breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from bringup.dtypes import BY_NAME
from bringup.ops.table import Kind, OpDef, find
from bringup_conformance.cases import PROGRAMS, Case, Problem, keeps_bits
from bringup_conformance.execution.plan import Item, Plan

INPUTS = "memory.input-unchanged"
OWN = "aliasing.outputs-own"
AGAIN = "repeat.run-equal"
CLAIMS = "declaration.claims-run"
UNFUSED = "numerics.unfused"
_NUMERICS = "numerics."
_LAYOUTS = {
    "column": "transfer.strided-source",
    "strided": "transfer.strided-source",
    "reversed": "transfer.reversed-source",
    "offset": "transfer.offset-source",
}
PRECISION = "numerics.precision"
_TAGS = {"exact": "numerics.exact-data", "mapped": "numerics.mapped"}


def carrying(plan: Plan, make: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """The items of a unit; each case also names the general rules that it confirms."""
    for item in make():
        if isinstance(item, Case):
            general = general_rules(item, deterministic=plan.capabilities.deterministic)
            yield replace(item, rules=tuple(dict.fromkeys((*item.rules, *general))))
        else:
            yield item


def general_rules(case: Case, *, deterministic: bool) -> tuple[str, ...]:
    """Ids of the rules, other than cells of the table, that a case confirms.

    deterministic: whether two runs are compared bit for bit.
    """
    rules = [] if case.op == PROGRAMS else [CLAIMS]
    rules += [OWN] if case.graph.inputs else []
    if case.cells:
        return tuple(rules)
    rules += _of_values(case)
    types = [v.type for v in case.graph.inputs]
    rules += [INPUTS] if types else []
    rules += [AGAIN] if deterministic else []
    rules += [UNFUSED] if case.split else []
    rules += ["limits.empty"] if any(t.size == 0 for t in types) else []
    rules += ["limits.scalars"] if any(t.rank == 0 for t in types) else []
    layouts = {recipe.layout for recipes in case.data for recipe in recipes}
    return tuple(dict.fromkeys((*rules, *(_LAYOUTS[x] for x in sorted(layouts & {*_LAYOUTS})))))


def _of_values(case: Case) -> list[str]:
    """The rules of accuracy."""
    tagged = [_TAGS[tag] for tag in case.tags if tag in _TAGS]
    if any(i.attrs.get("precision", "highest") != "highest" for i in case.graph.instrs):
        tagged.append(PRECISION)
    row = None if case.op == PROGRAMS else find(case.op)
    if row is None:
        return tagged or [f"{_NUMERICS}programs"]
    return [*_of_row(row, case.dtype), *tagged]


@cache
def _of_row(row: OpDef, dtype: str) -> tuple[str, ...]:
    accuracy = row.accuracy
    moves = keeps_bits(row) or row.kind is Kind.INDEXED
    slugs = ["moves"] if moves else []
    if accuracy.residual is not None:
        slugs.append("residuals")
    elif not BY_NAME[dtype].is_float:
        slugs.append("integers")
    elif accuracy.accumulates:
        slugs.append("sums")
    elif not moves:
        whole = accuracy.exact or accuracy.ulp
        slugs.append("elementwise" if whole else "programs")
    return tuple(_NUMERICS + slug for slug in slugs)


def broken(problem: Problem, rules: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a case's rules that a problem breaks; all of them if its kind does not tell."""
    return problem.rules or tuple(filter(_suspects(problem, rules), rules)) or rules


def _suspects(problem: Problem, rules: tuple[str, ...]) -> Callable[[str], bool]:
    if problem.kind == "input":
        return INPUTS.__eq__
    if problem.kind == "broken":
        return OWN.__eq__
    if problem.kind == "unstable":
        return AGAIN.__eq__
    if problem.kind not in ("wrong", "shape"):
        return {CLAIMS, f"{_NUMERICS}programs"}.__contains__
    if not problem.fused and UNFUSED in rules:
        return UNFUSED.__eq__
    if any(map(_is_special, rules)):
        return _is_special
    return lambda rule: rule.startswith(_NUMERICS) and rule != UNFUSED


def _is_special(rule: str) -> bool:
    return rule.count(".") == 2
