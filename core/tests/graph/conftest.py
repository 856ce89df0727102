"""A table of toy ops: the graph level knows no op of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bringup.errors import OpTypeError
from bringup.graph import Graph, Operation
from bringup.graph.parser import parse_graph
from bringup.types import TensorType

Types = tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class Toy:
    """An op whose attributes all have defaults."""

    name: str
    infer: Callable[[Types, dict[str, Any]], Types]
    defaults: dict[str, Any]

    def bind(self, attrs: Any) -> dict[str, Any]:
        for name in attrs:
            if name not in self.defaults:
                raise OpTypeError(f"{self.name}: no attribute {name!r}", fix="leave it out")
        return {**self.defaults, **attrs}

    def result_types(self, operands: Types, attrs: Any) -> Types:
        return self.infer(operands, attrs)


def _same(operands: Types, attrs: dict[str, Any]) -> Types:
    first, *others = operands
    for other in others:
        if other is not first:
            raise OpTypeError(f"add: operand types differ: {first} and {other}", fix="reshape one")
    return (first,)


def _constant(_: Types, attrs: dict[str, Any]) -> Types:
    if attrs["value"] is None:
        raise OpTypeError("constant: attribute 'value' is missing")
    return (attrs["value"].type,)


TOYS: dict[str, Operation] = {
    op.name: op
    for op in (
        Toy("add", _same, {}),
        Toy("exp", _same, {}),
        Toy("constant", _constant, {"value": None}),
        Toy("both", lambda types, _: types * 2, {}),
        Toy("tag", lambda types, _: types, {"note": None, "more": ()}),
        Toy("call", lambda _, attrs: tuple(v.type for v in attrs["body"].outputs), {"body": None}),
    )
}


@pytest.fixture
def toys() -> dict[str, Operation]:
    return TOYS


@pytest.fixture
def parse() -> Callable[[str], Graph]:
    return lambda text: parse_graph(text, TOYS.get)
