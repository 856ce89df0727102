"""The graph level: SSA values and instructions, the builder, text both ways, the verifier."""

from bringup.graph.builder import Builder, Rewrite, current_builder, rebuild, replay, user_location
from bringup.graph.ir import Graph, Instr, Literal, Operation, Value, attr_key, attrs_key

__all__ = [
    "Builder",
    "Graph",
    "Instr",
    "Literal",
    "Operation",
    "Rewrite",
    "Value",
    "attr_key",
    "attrs_key",
    "current_builder",
    "rebuild",
    "replay",
    "user_location",
]
