"""The passes that leave fewer, cheaper or more uniform instructions of the same value.

`simplify` applies exact rewrites to a fixpoint in one replay.  Replacements are kept canonical and
folded as they are made, and equal instructions are one, so that each rule sees what the others
left.
"""

from __future__ import annotations

from bringup.graph import Graph, rebuild
from bringup.passes.base import Available, Pass, deep
from bringup.passes.rewrite import Rules, apply_rules
from bringup.passes.rules import arithmetic, control, logic, movement, reduction, traits

#: One spelling of what can be written in several ways.
CANONICAL = Rules(traits.COMMUTE, *logic.CANONICAL, *movement.CANONICAL)

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


def canonicalise(available: Available) -> Pass:
    """Make the pass: constants right, less-than only, one reshape, transpose or slice in a row."""

    def run(graph: Graph) -> Graph:
        return apply_rules(graph, CANONICAL, available)

    return Pass("canonicalise", "several spellings of a value -> one", deep(run))


def merge(graph: Graph) -> Graph:
    """Let equal instructions be one; floats in attributes are equal if their bits are."""
    return rebuild(graph, dedupe=True)


def cse(_available: Available) -> Pass:
    """Make the pass; it makes no new kind of instruction, so any device has what it needs."""
    return Pass("cse", "equal instructions -> the first of them", deep(merge))
