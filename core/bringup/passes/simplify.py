"""Simplification: exact rewrites to fewer or cheaper instructions, to a fixpoint in one replay.

Replacements are kept canonical and folded as they are made, and equal instructions are one, so
that each rule sees what the others left.
"""

from __future__ import annotations

from bringup.graph import Graph
from bringup.passes.base import Available, Pass, deep
from bringup.passes.canonicalise import CANONICAL
from bringup.passes.rewrite import Rules, apply_rules
from bringup.passes.rules import arithmetic, control, logic, movement, reduction, traits

SIMPLIFY = Rules(
    *CANONICAL,
    *traits.RULES,
    *arithmetic.RULES,
    *logic.RULES,
    *movement.RULES,
    *reduction.RULES,
    *control.RULES,
)


def simplify(available: Available) -> Pass:
    """Make the pass; a replacement stands only if the device has every op of it."""

    def run(graph: Graph) -> Graph:
        return apply_rules(graph, SIMPLIFY, available, dedupe=True, fold=True)

    return Pass(
        "simplify",
        "instructions some rule makes cheaper -> what it makes of them",
        deep(run),
        settles=("simplify", "fold", "canonicalise", "cse"),
    )
