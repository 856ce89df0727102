"""The graph level: SSA values and instructions, the builder, text both ways, the verifier."""

from bringup.graph.builder import (
    NOT_USERS,
    Builder,
    Rewrite,
    current_builder,
    origins,
    rebuild,
    replay,
    user_location,
)
from bringup.graph.ir import (
    Graph,
    Instr,
    Literal,
    Operation,
    Value,
    attr_key,
    attrs_key,
    has_effects,
)

__all__ = [
    "NOT_USERS",
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
    "has_effects",
    "origins",
    "rebuild",
    "replay",
    "user_location",
]
