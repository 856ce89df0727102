"""Passes: transformations of graphs, each a function from graph to graph, in one visible list."""

from bringup.passes.base import Available, Maker, Pass, everything
from bringup.passes.pipeline import PIPELINE, passes_for
from bringup.passes.run import PassContext, run_pipeline

__all__ = [
    "PIPELINE",
    "Available",
    "Maker",
    "Pass",
    "PassContext",
    "everything",
    "passes_for",
    "run_pipeline",
]
