"""What rows that hold sub-graphs share: checking them, running them, and cutting them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, Value, replay
from bringup.ops._numeric import Array
from bringup.ops.table import Attrs, OpDef, Types
from bringup.types import TensorType


def graph_attr(name: str, attrs: Attrs, key: str) -> Graph:
    """An attribute that must be a graph."""
    value = attrs[key]
    if not isinstance(value, Graph):
        raise OpTypeError(
            f"{name}: attribute {key!r} must be a graph, got {type(value).__name__}",
            fix="build one with Builder, or call the function of that name on Python functions",
        )
    return value


def as_tuple(results: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    """What calling a row gives, always as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def types_of(values: Iterable[Value]) -> Types:
    """The types of values."""
    return tuple(v.type for v in values)


def check_types(name: str, what: str, found: Types, wanted: Types, source: str) -> None:
    """Raise OpTypeError unless two lists of types are equal, naming the first that differs."""
    if len(found) != len(wanted):
        raise OpTypeError(
            f"{name}: {what} {_counted(found)}, {source} {_counted(wanted)}",
            fix=f"make both {_counted(wanted)}",
        )
    for position, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one is not other:
            raise OpTypeError(
                f"{name}: {what} {one} as value {position}, {source} {other}",
                fix=f"make both {other}",
            )


def _counted(types: Types) -> str:
    return f"{len(types)} value{'' if len(types) == 1 else 's'}"


def run(graph: Graph, arrays: Sequence[Any]) -> list[Array]:
    """The outputs of a graph on arrays, of wider dtypes too where the rows take them."""
    values: dict[Value, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for instr in graph.instrs:
        assert isinstance(instr.op, OpDef)
        results = instr.op.reference(*[values[v] for v in instr.operands], **instr.attrs)
        parts = results if isinstance(results, tuple) else (results,)
        values.update(zip(instr.results, parts, strict=True))
    return [np.asarray(values[v]) for v in graph.outputs]


def reached(graph: Graph, outputs: Iterable[int]) -> frozenset[int]:
    """The positions of the inputs that some outputs depend on."""
    live = {graph.outputs[i] for i in outputs}
    for instr in reversed(graph.instrs):
        if not live.isdisjoint(instr.results):
            live.update(instr.operands)
    return frozenset(i for i, v in enumerate(graph.inputs) if v in live)


def restricted(graph: Graph, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
    """The part of a graph that makes some of its outputs of some of its inputs."""
    kept = tuple(graph.outputs[i] for i in outputs)
    live, instrs = set(kept), []
    for instr in reversed(graph.instrs):
        if not live.isdisjoint(instr.results):
            live.update(instr.operands)
            instrs.append(instr)
    taken = [graph.inputs[i] for i in inputs]
    part = Graph(taken, instrs[::-1], kept, graph.name)
    builder = Builder()
    return builder.build(replay(part, builder=builder), graph.name)


def invariant(body: Graph, carried: Sequence[tuple[int, int]]) -> frozenset[int]:
    """The outputs of a loop's body that are its own inputs, from iteration to iteration.

    carried: pairs of an input and the output that follows it.
    """
    return frozenset(o for i, o in carried if body.outputs[o] is body.inputs[i])


def is_zero(value: Value) -> bool:
    """Whether a value is known to be zeros."""
    made = value.producer
    if made is None or made.op.name != "constant":
        return False
    literal = made.attrs["value"]
    return bool(literal.is_splat and literal.scalar == 0)


def rows_of(type_: TensorType, name: str, length: int, position: int) -> TensorType:
    """The type of one row of an operand that is read row by row.  Raises OpTypeError."""
    if not type_.shape or type_.shape[0] != length:
        raise OpTypeError(
            f"{name}: operand {position} is {type_}, its first dimension must be length={length}",
            fix="stack the rows along the first dimension",
        )
    return type_.with_shape(type_.shape[1:])
