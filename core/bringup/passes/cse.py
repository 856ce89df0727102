"""Common subexpression elimination: a replay through a de-duplicating builder."""

from __future__ import annotations

from bringup.graph import Graph, rebuild
from bringup.passes.base import Available, Pass, deep


def merge(graph: Graph) -> Graph:
    """Let equal instructions be one; floats in attributes are equal if their bits are."""
    return rebuild(graph, dedupe=True)


def cse(_available: Available) -> Pass:
    """Make the pass; it makes no new kind of instruction, so any device has what it needs."""
    return Pass("cse", "equal instructions -> the first of them", deep(merge))
