"""Nested containers of arrays, as ``bringup.tree``, and as ``bringup.tree_util`` with the names
of JAX's.

A path is the text by which a leaf is reached: ``['w'][0].bias``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from bringup.api.boundary import publish
from bringup.tracing.pytree import TreeDef, flatten, register, tree_map, unflatten

T = TypeVar("T")

map = tree_map


def leaves(tree: Any) -> list[Any]:
    """The leaves of a container, in the order of `flatten`.

    >>> bu.tree.leaves({"w": 1, "b": (2, None)})
    [2, 1]
    """
    return flatten(tree)[0]


def structure(tree: Any) -> TreeDef:
    """The definition of a container, which takes leaves back, see `unflatten`.

    >>> bu.tree.structure({"w": 1, "b": (2, None)})
    {'b': (*, None), 'w': *}
    """
    return flatten(tree)[1]


def leaves_with_path(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a container and their paths.

    >>> bu.tree.leaves_with_path({"w": 1, "b": (2, None)})
    [("['b'][0]", 2), ("['w']", 1)]
    """
    result, treedef = flatten(tree)
    return list(zip(treedef.paths(), result, strict=True))


def map_with_path(fn: Callable[..., Any], tree: T, *rest: Any) -> T:
    """`tree` with ``fn(path, leaf, *leaves of the rest at the same place)`` in place of each leaf.

    Raises ConversionError if the trees are not alike.

    >>> bu.tree.map_with_path(lambda path, x: path if x else x, {"w": 1, "b": 0})
    {'b': 0, 'w': "['w']"}
    """
    paths = flatten(tree)[1].paths()
    return tree_map(lambda *row: fn(next(paths), *row), tree, *rest)


def reduce(fn: Callable[[Any, Any], Any], tree: Any, *initializer: Any) -> Any:
    """What `fn` makes of the leaves, two at a time, from the initializer on if there is one.

    >>> bu.tree.reduce(lambda x, y: x + y, {"w": 1, "b": (2, None)}, 10)
    13
    """
    return functools.reduce(fn, flatten(tree)[0], *initializer)


def all(tree: Any) -> bool:
    """Whether all leaves are true.

    >>> bu.tree.all({"w": True, "b": (False, None)})
    False
    """
    return False not in [bool(leaf) for leaf in flatten(tree)[0]]


tree_all = all
tree_flatten = flatten
tree_leaves = leaves
tree_reduce = reduce
tree_structure = structure
tree_unflatten = unflatten

__all__ = [
    "TreeDef", "all", "flatten", "leaves", "leaves_with_path", "map", "map_with_path", "reduce",
    "register", "structure", "tree_all", "tree_flatten", "tree_leaves", "tree_map", "tree_reduce",
    "tree_structure", "tree_unflatten", "unflatten",
]  # fmt: skip

publish(globals(), "bringup.tree")
