"""Containers as JSON: what arguments and results are made of, without code that makes them.

A leaf is a text, None is null, and a container is an object of one key, its kind: ``{"dict": [["w",
"f32[4]"], ["b", null]]}``.  Of classes, those of this package that are containers can be written.
"""

from __future__ import annotations

import importlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from bringup.errors import ConversionError, ParseError
from bringup.tracing.pytree import LEAF, MAX_DEPTH, Static, TreeDef, definition, flatten

_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list}
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict}
_NAMES: dict[type | None, str] = {kind: n for n, kind in {**_SEQUENCES, **_MAPPINGS}.items()}
#: The classes that are written, by their public names, and where they are imported from when a
#: file names them.
_CLASSES = {
    "ComplexArray": "bringup.api.complex",
    "amp.AmaxHistory": "bringup.amp",
    "amp.LossScale": "bringup.amp",
    "amp.Quantized": "bringup.amp",
    "optim.State": "bringup.optim",
    "prune.PruningState": "bringup.prune",
    "quant.Int4Array": "bringup.quant",
    "quant.Int8Array": "bringup.quant",
    "random.Key": "bringup.api.keys",
}
_CLASS_NAMES = {f"{module}.{name.rpartition('.')[2]}": name for name, module in _CLASSES.items()}
#: What a key of a dict, and a field of a class that is no array, may be.
_SCALARS = (str, bool, int, float, type(None))


def tree_to_json(tree: TreeDef, leaves: Iterable[str], what: str) -> Any:
    """A container as JSON, with texts for its leaves, in order.

    what: what messages call it.  Raises ConversionError for what a file cannot hold.
    """
    return _written(tree, iter(leaves), what)


def _written(tree: TreeDef, leaves: Iterator[str], what: str) -> Any:
    if tree.kind is None:
        return next(leaves)
    if tree.kind is type(None):
        return None
    inner = [
        _written(child, leaves, f"{what}{step}")
        for step, child in zip(tree.steps, tree.children, strict=True)
    ]
    name = _NAMES.get(tree.kind)
    if name in _SEQUENCES:
        return {name: inner}
    rest: Any = () if tree.rest is None else tree.rest
    if name is not None:
        keys = [_scalar(key, f"{what} has the key {key!r}") for key in rest]
        return {name: [list(pair) for pair in zip(keys, inner, strict=True)]}
    name = _CLASS_NAMES.get(f"{tree.kind.__module__}.{tree.kind.__qualname__}")
    if name is None:
        raise ConversionError(
            f"{what} is a {tree.kind.__name__}, and a program file holds no classes",
            fix="use tuples, lists and dicts there",
        )
    fields = [_scalar(field.value, f"{what} has the field {field.value!r}") for field in rest]
    return {name: [fields, inner]}


def _scalar(value: Any, what: str) -> Any:
    if type(value) in _SCALARS and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise ConversionError(
        f"{what}, which a program file does not hold", fix="use texts and whole numbers"
    )


def tree_of_json(tree: Any) -> tuple[TreeDef, list[str]]:
    """The reverse of `tree_to_json`.  Raises ParseError."""
    leaves: list[str] = []
    return _read(tree, leaves, MAX_DEPTH), leaves


def _read(tree: Any, leaves: list[str], depth: int) -> TreeDef:
    if tree is None:
        return flatten(None)[1]
    if isinstance(tree, str):
        leaves.append(tree)
        return LEAF
    if not depth or not isinstance(tree, dict) or len(tree) != 1:
        raise _unknown(tree)
    [(name, inner)] = tree.items()
    if not isinstance(inner, list):
        raise _unknown(tree)
    if name in _SEQUENCES:
        children = [_read(child, leaves, depth - 1) for child in inner]
        return definition(_SEQUENCES[name], None, children)
    if name in _MAPPINGS:
        pairs = [pair for pair in inner if isinstance(pair, list) and len(pair) == 2]
        keys = tuple(key for key, _ in pairs if isinstance(key, _SCALARS))
        if not len(keys) == len(set(keys)) == len(inner):
            raise _unknown(tree)
        children = [_read(child, leaves, depth - 1) for _, child in pairs]
        return definition(_MAPPINGS[name], keys, children)
    match inner:
        case [[*fields], [*parts]] if name in _CLASSES:
            module = importlib.import_module(_CLASSES[name])
            kind = getattr(module, name.rpartition(".")[2])
            children = [_read(child, leaves, depth - 1) for child in parts]
            return definition(kind, tuple(map(Static, fields)), children)
    raise _unknown(tree)


def _unknown(tree: Any) -> ParseError:
    return ParseError(f"{json.dumps(tree)[:80]} is no container that is known")


__all__ = ["tree_of_json", "tree_to_json"]
