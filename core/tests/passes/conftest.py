"""Shared by the tests of passes: text to graph, and examples in docstrings to pairs of graphs."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bringup.ops  # noqa: F401  (fills the table)
from bringup.dtypes import BY_NAME, f32
from bringup.graph import Builder, Graph, Literal, Value
from bringup.graph.parser import parse_graph
from bringup.ops.table import OpDef, all_ops, find, lookup
from bringup.types import TensorType

#: By the names under which examples hold them.
SUBGRAPHS = {
    "FIRST": "graph first(%0: f32[4], %1: f32[4]) { return %0 }",
    "SECOND": "graph second(%0: f32[4], %1: f32[4]) { return %1 }",
    "BELOW_2": """graph below(%0: i32[]) {
        %1: i32[] = constant() {value=i32[](2)}
        %2: bool[] = compare(%0, %1) {direction="lt"}
        return %2
    }""",
    "ONE_MORE": """graph more(%0: i32[]) {
        %1: i32[] = constant() {value=i32[](1)}
        %2: i32[] = add(%0, %1)
        return %2
    }""",
    "SUMS": "graph sums(%0: f32[], %1: f32[]) { %2: f32[] = add(%0, %1) return %2 }",
}

Parse = Callable[[str], Graph]
Pair = tuple[Graph, Graph]


@pytest.fixture
def parse() -> Parse:
    return lambda text: parse_graph(inspect.cleandoc(text), find)


@pytest.fixture
def examples() -> Callable[[str], Iterator[tuple[str, Graph, Graph]]]:
    return examples_of


def examples_of(doc: str) -> Iterator[tuple[str, Graph, Graph]]:
    """The examples of a rule: its text, and the graphs left and right of the arrow.

    An example is a line ``left -> right``, with ``where x: i32[4], …`` if the operands are not all
    f32[4]; it may go on in lines that start with the arrow or the where.
    """
    joined = re.sub(r"\n *(?=->|where )", " ", inspect.cleandoc(doc))
    for line in joined.split("\n"):
        if " -> " not in line:
            continue
        rewrite, _, declared = line.partition(" where ")
        left, right = rewrite.split(" -> ")
        types = dict(re.findall(r"(\w+): (\w+\[[\d,]*\])", declared))
        yield line, *_graphs(left, right, {n: TensorType.parse(t) for n, t in types.items()})


def _graphs(left: str, right: str, types: dict[str, TensorType]) -> Pair:
    names = sorted(set(re.findall(r"\b[cxyz]\b", left)))
    first = _graph(left, names, types, None)
    return first, _graph(right, names, types, first.outputs[0].type)


def _graph(
    text: str, names: list[str], types: dict[str, TensorType], result: TensorType | None
) -> Graph:
    with Builder() as builder:
        table: dict[str, Any] = {n: builder.input(types.get(n, f32[4])) for n in names}
        table |= {d.name: d for d in BY_NAME.values()} | {"inf": float("inf")}
        table |= {name: parse_graph(text, find) for name, text in SUBGRAPHS.items()}
        for op in all_ops():
            name = op.name + "_" if keyword.iskeyword(op.name) else op.name
            table[name] = _caller(op, types.get("x", f32[4]))
        value = eval(text, {"__builtins__": {}}, table)
        if not isinstance(value, Value):
            assert result is not None
            value = _splat(value, result)
        return builder.build([value])


def _caller(op: OpDef, default: TensorType) -> Callable[..., Any]:
    return lambda *operands, **attrs: op(*_values(op.name, operands, default), **attrs)


def _values(op: str, operands: tuple[Any, ...], default: TensorType) -> list[Value]:
    """Numbers become constants: bool if they are True or False, else like the other operands."""
    if op == "dynamic_slice":
        starts = [_splat(n, BY_NAME["i32"][()]) for n in operands[1:]]
        operands = (operands[0], *starts)
    if op == "case" and isinstance(operands[0], int):
        operands = (_splat(operands[0], BY_NAME["i32"][()]), *operands[1:])
    like = next((v.type for v in operands if isinstance(v, Value)), default)
    if op == "pad":
        like = like.with_shape(())
    return [v if isinstance(v, Value) else _splat(v, _type_of(v, like)) for v in operands]


def _type_of(number: Any, like: TensorType) -> TensorType:
    return like.with_dtype(BY_NAME["bool"]) if isinstance(number, bool) else like


def _splat(number: Any, type_: TensorType) -> Value:
    value: Value = lookup("constant")(value=Literal.splat(number, type_))
    return value
