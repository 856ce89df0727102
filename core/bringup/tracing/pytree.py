"""Nested Python containers of arrays: taken apart, put together, and named by path.

Containers are tuples, namedtuples, lists, dicts, `None` (which holds nothing), dataclasses, and
what `register` adds. Everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeVar

from bringup.dtypes import DType
from bringup.errors import ConversionError
from bringup.graph import attr_key
from bringup.records import record

T = TypeVar("T")

#: ``split(container) -> (children, their path steps, what else identifies the container)``
Split = Callable[[Any], "tuple[Sequence[Any], Sequence[str], Hashable]"]
#: ``join(rest, children) -> container``
Join = Callable[[Any, Sequence[Any]], Any]
#: ``view(value) -> the value itself, or the container it is taken for``
View = Callable[[Any], Any]


@record
class TreeDef:
    """The shape of a nested container; hashable, equal for the same leaves in the same places.

    kind: the container's class, or None for a leaf.
    rest: what else rebuilds it, such as a dict's keys.
    leaves: how many there are below.

    >>> flatten({"w": 1, "b": (2, None)})[1]
    {'b': (*, None), 'w': *}
    """

    kind: type | None
    rest: Hashable
    children: tuple[TreeDef, ...]
    steps: tuple[str, ...] = dataclasses.field(compare=False)
    leaves: int = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return self.text(repeat("*"))

    def text(self, leaves: Iterator[str]) -> str:
        """The container with these texts as its leaves."""
        if self.kind is None:
            return next(leaves)
        inner = [child.text(leaves) for child in self.children]
        if self.kind is type(None):
            return "None"
        if self.kind is tuple:
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        if self.kind is list:
            return f"[{', '.join(inner)}]"
        if self.kind is dict and isinstance(self.rest, tuple):
            pairs = zip(self.rest, inner, strict=True)
            return f"{{{', '.join(f'{key!r}: {child}' for key, child in pairs)}}}"
        names = (step.lstrip(".") for step in self.steps)
        fields = zip(names, inner, strict=True)
        return f"{self.kind.__name__}({', '.join(f'{name}={child}' for name, child in fields)})"

    def paths(self, prefix: str = "") -> Iterator[str]:
        """The path of every leaf, in order: ``prefix['w'][0].bias``."""
        if self.kind is None:
            yield prefix
        for step, child in zip(self.steps, self.children, strict=True):
            yield from child.paths(prefix + step)


class Static:
    """A value that belongs to a signature: equal when type and bits are.

    So 1, 1.0, True, 0.0 and -0.0 all differ.  Raises ConversionError if the value is not hashable.

    >>> Static(1) == Static(True), Static(float("nan")) == Static(float("nan"))
    (False, True)
    """

    __slots__ = ("_hash", "_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = attr_key(value)
        try:
            self._hash = hash(self._key)
        except TypeError:
            raise ConversionError(
                f"a static value must be hashable, and {type(value).__name__} is not",
                fix="pass a tuple instead of a list, or make the argument an array",
            ) from None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __repr__(self) -> str:
        return repr(self.value)


#: The most levels of a container: comparing them recurses four calls a level, of Python's 1000.
MAX_DEPTH = 200

LEAF = TreeDef(None, None, (), (), 1)
_EMPTY = TreeDef(type(None), None, (), (), 0)


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """The leaves of a nested container, and the definition that puts them back.

    Dicts are taken in the order of their sorted keys where those sort, so that equal dicts are
    equal trees.
    Raises ConversionError for containers nested deeper than `MAX_DEPTH`, or in themselves.

    >>> flatten({"w": 1, "b": (2, None)})
    ([2, 1], {'b': (*, None), 'w': *})
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, MAX_DEPTH)


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """The container of that definition with these leaves.

    Raises ConversionError if their number is wrong.

    >>> unflatten(flatten({"w": 1, "b": (2, None)})[1], [5, 6])
    {'b': (5, None), 'w': 6}
    """
    leaves = list(leaves)
    if len(leaves) != treedef.leaves:
        raise ConversionError(f"{treedef} takes {treedef.leaves} leaves, got {len(leaves)}")
    return _unflatten(treedef, iter(leaves))


def tree_map(fn: Callable[..., Any], tree: T, *rest: Any) -> T:
    """`tree` with ``fn(leaf, *leaves of the rest at the same place)`` in place of each leaf.

    Raises ConversionError if the trees are not alike.

    >>> tree_map(lambda p, g: p - g, {"w": 5, "b": 2}, {"w": 1, "b": 1})
    {'b': 1, 'w': 4}
    """
    leaves, treedef = flatten(tree)
    columns = [leaves]
    for further in rest:
        further_leaves, definition = flatten(further)
        if definition != treedef:
            raise ConversionError(
                f"trees differ: {treedef} and {definition}", fix="give trees of the same containers"
            )
        columns.append(further_leaves)
    result: T = _unflatten(treedef, iter([fn(*row) for row in zip(*columns, strict=True)]))
    return result


def definition(kind: type, rest: Hashable, children: Sequence[TreeDef]) -> TreeDef:
    """The definition of a container of these parts.

    Raises ConversionError for a class that is no container.

    >>> definition(dict, ("w", "b"), [LEAF, definition(tuple, None, [LEAF])])
    {'b': (*,), 'w': *}
    """
    container = _CONTAINERS.get(kind) or _recognise(kind)
    if container is None:
        raise ConversionError(f"{kind.__name__} is no container", fix="see `register`")
    ordered, steps, identity = container[0](container[1](rest, children))
    leaves = sum(child.leaves for child in ordered)
    return TreeDef(kind, identity, tuple(ordered), tuple(steps), leaves)


def prefix_leaves(prefix: Any, treedef: TreeDef, path: str) -> list[Any]:
    """The option for each leaf of a tree, from a tree of options.

    prefix: like the tree, but one leaf may stand for a whole subtree.  Here None is a leaf.
    path: what messages call the prefix.
    Raises ConversionError, with the path, where the two differ.

    >>> prefix_leaves((0, None), flatten((1, {"w": 2, "b": 3}))[1], "axes")
    [0, None, None]
    """
    kind = type(prefix)
    container = _CONTAINERS.get(kind) or (None if kind in _LEAVES else _recognise(kind))
    view = _view_of(kind) if container is None else None
    seen = prefix if view is None else view(prefix)
    if seen is not prefix:
        return prefix_leaves(seen, treedef, path)
    if prefix is None or container is None:
        return [prefix] * treedef.leaves
    children, steps, identity = container[0](prefix)
    if kind is not treedef.kind or (identity, len(children)) != (
        treedef.rest,
        len(treedef.children),
    ):
        raise ConversionError(
            f"{path} is a {kind.__name__} of {len(children)} where the tree has {treedef}",
            fix="use the same containers, or one value for a whole subtree",
        )
    pairs = zip(children, treedef.children, steps, strict=True)
    return [leaf for c, below, step in pairs for leaf in prefix_leaves(c, below, path + step)]


def register(kind: type, split: Split, join: Join) -> None:
    """Make a class a container.

    split: ``container -> (children, path steps such as ".bias", hashable rest)``.
    join: ``(rest, children) -> container``.
    Raises ValueError if the class is one already.
    """
    if kind in _CONTAINERS:
        raise ValueError(f"{kind.__name__} is a container already")
    _CONTAINERS[kind] = (split, join)
    _LEAVES.pop(kind, None)


def register_view(kind: type, view: View) -> None:
    """Let some values of a class that is no container stand for one, as its subclasses' do.

    view: ``value -> the value itself if it is a leaf, or a container``.
    """
    _VIEWS[kind] = view
    for met in [met for met in _LEAVES if issubclass(met, kind)]:
        del _LEAVES[met]


def _flatten(tree: Any, leaves: list[Any], depth: int) -> TreeDef:
    if not depth:
        raise ConversionError(
            f"a container is nested more than {MAX_DEPTH} levels deep, or holds itself",
            fix="use containers of fewer levels, none of them a part of itself",
        )
    if tree is None:
        return _EMPTY
    kind = type(tree)
    container = _CONTAINERS.get(kind)
    if container is None:
        if kind not in _LEAVES:
            container = _recognise(kind)
        if container is None:
            view = _view_of(kind)
            seen = tree if view is None else view(tree)
            if seen is not tree:
                return _flatten(seen, leaves, depth - 1)
            leaves.append(tree)
            return LEAF
    children, steps, identity = container[0](tree)
    before = len(leaves)
    definitions = tuple([_flatten(child, leaves, depth - 1) for child in children])
    return TreeDef(kind, identity, definitions, tuple(steps), len(leaves) - before)


def _unflatten(treedef: TreeDef, leaves: Iterator[Any]) -> Any:
    if treedef.kind is None:
        return next(leaves)
    if treedef.kind is type(None):
        return None
    children = [_unflatten(child, leaves) for child in treedef.children]
    return _CONTAINERS[treedef.kind][1](treedef.rest, children)


def _view_of(kind: type) -> View | None:
    """The view of values of a class that is no container; None if they are leaves."""
    if kind not in _LEAVES:
        _LEAVES[kind] = next((_VIEWS[base] for base in kind.__mro__ if base in _VIEWS), None)
    return _LEAVES[kind]


def _recognise(kind: type) -> tuple[Split, Join] | None:
    """Namedtuples and dataclasses become containers when they are first met."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        container = _namedtuple(kind)
    elif dataclasses.is_dataclass(kind) and kind is not DType:  # a dtype stands for its scalar
        container = _dataclass(kind)
    else:
        return None
    return _CONTAINERS.setdefault(kind, container)


def _namedtuple(kind: Any) -> tuple[Split, Join]:
    steps = tuple(f".{name}" for name in kind._fields)
    return (lambda t: (t, steps, None)), (lambda _, children: kind._make(children))


def _dataclass(kind: type) -> tuple[Split, Join]:
    """Fields are children, those with ``metadata={"static": True}`` part of the tree."""
    names: list[str] = []
    static: list[str] = []
    for field in dataclasses.fields(kind):
        (static if field.metadata.get("static") else names).append(field.name)
    steps = tuple(f".{name}" for name in names)
    getters = [attrgetter(name) for name in names]

    def split(value: Any) -> tuple[Sequence[Any], Sequence[str], Hashable]:
        return (
            [get(value) for get in getters],
            steps,
            tuple(Static(getattr(value, n)) for n in static),
        )

    def join(static_values: Any, children: Sequence[Any]) -> Any:
        # Leaves may be tracers or types, so ``__init__`` and ``__post_init__`` must not see them.
        value: Any = object.__new__(kind)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(value, name, child)
        for name, wrapped in zip(static, static_values, strict=True):
            object.__setattr__(value, name, wrapped.value)
        return value

    return split, join


def _split_sequence(value: Sequence[Any]) -> tuple[Sequence[Any], Sequence[str], Hashable]:
    return value, [f"[{i}]" for i in range(len(value))], None


def _split_dict(value: dict[Any, Any]) -> tuple[Sequence[Any], Sequence[str], Hashable]:
    try:
        keys = tuple(sorted(value))
    except TypeError:
        keys = tuple(value)
    return [value[key] for key in keys], [f"[{key!r}]" for key in keys], keys


def _split_ordered(value: OrderedDict[Any, Any]) -> tuple[Sequence[Any], Sequence[str], Hashable]:
    return list(value.values()), [f"[{key!r}]" for key in value], tuple(value)


def _join_dict(keys: Any, children: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(keys, children, strict=True))


#: Classes that were met and are no containers.
_LEAVES: dict[type, View | None] = {}
_VIEWS: dict[type, View] = {}
_CONTAINERS: dict[type, tuple[Split, Join]] = {
    tuple: (_split_sequence, lambda _, children: tuple(children)),
    list: (_split_sequence, lambda _, children: list(children)),
    dict: (_split_dict, _join_dict),
    OrderedDict: (
        _split_ordered,
        lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
    ),
}
