"""Nested containers of arrays, as ``bringup.tree``."""

from __future__ import annotations

from bringup.api.names import publish
from bringup.tracing.pytree import TreeDef, flatten, register, tree_map, unflatten

__all__ = ["TreeDef", "flatten", "register", "tree_map", "unflatten"]

publish(globals(), "bringup.tree")
