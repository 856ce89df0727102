"""Canonical forms: one spelling of what can be written in several ways."""

from __future__ import annotations

from bringup.graph import Graph
from bringup.passes.base import Available, Pass, deep
from bringup.passes.rewrite import Rules, apply_rules
from bringup.passes.rules import logic, movement, traits

CANONICAL = Rules(traits.COMMUTE, *logic.CANONICAL, *movement.CANONICAL)


def canonicalise(available: Available) -> Pass:
    """Make the pass: constants right, less-than only, one reshape, transpose or slice in a row."""

    def run(graph: Graph) -> Graph:
        return apply_rules(graph, CANONICAL, available)

    return Pass("canonicalise", "several spellings of a value -> one", deep(run))
