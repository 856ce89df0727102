"""Constant folding by the reference column of the op table, in the instruction's own dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.errors import GraphError
from bringup.graph import Graph, Instr, Literal, Operation, Value, rebuild
from bringup.ops.build import rows
from bringup.ops.table import Kind, OpDef, Trait
from bringup.passes.base import Available, Pass, deep
from bringup.types import TensorType

MAX_ELEMENTS = 4096  # of one instruction's results; more are cheaper to compute than to load
MAX_OPERANDS = 1 << 20  # elements read for it; a splat may stand for more than fits in memory

# Sources are as small as constants already; loops may take long, or never end.
_NEVER = (Kind.SOURCE, Kind.CONTROL)

Array = np.ndarray[Any, Any]


def fold_call(
    op: Operation, operands: Sequence[Value], attrs: Mapping[str, Any]
) -> tuple[Literal, ...] | None:
    """The results of an instruction if they are known and small, or splats of any size; else None.

    They are known if every operand is a constant or has no elements, or if they have none.
    """
    assert isinstance(op, OpDef)
    if op.kind in _NEVER or op.holds_graphs:
        return None
    known = [v.literal if v.type.size else _empty(v.type) for v in operands]
    literals = [each for each in known if each is not None]
    # Without moving, elements come from elements: no need to infer types to see that some exist.
    if (
        len(literals) < len(known)
        and op.kind is not Kind.MOVEMENT
        and all(v.type.size for v in operands)
    ):
        return None
    types = op.result_types(tuple(v.type for v in operands), attrs)
    if not any(t.size for t in types):
        return tuple(map(_empty, types))
    if len(literals) < len(known):
        return None
    if all(each.is_splat for each in literals):
        one = _fold_splats(op, literals, attrs, types)
        if one is not None:
            return one
    if not _is_small(op, literals, types):
        return None
    return _evaluate(op, [each.array() for each in literals], attrs, types)


def _empty(type_: TensorType) -> Literal:
    return Literal(np.empty(0, type_.dtype.numpy), type_)


def _is_small(op: OpDef, literals: Sequence[Literal], types: Sequence[TensorType]) -> bool:
    size = sum(t.size for t in types)
    if sum(each.type.size for each in literals) > MAX_OPERANDS:
        return False
    # Spreading a dense constant would only turn arithmetic on indices into memory traffic.
    grows = op.kind is Kind.MOVEMENT and size > max(each.elements.size for each in literals)
    return size <= MAX_ELEMENTS and not grows


def _fold_splats(
    op: OpDef, literals: Sequence[Literal], attrs: Mapping[str, Any], types: Sequence[TensorType]
) -> tuple[Literal, ...] | None:
    """Elementwise ops and moves of one repeated element, whatever the shape."""
    if op.kind is Kind.MOVEMENT:
        first = literals[0].elements.tobytes()
        if any(each.elements.tobytes() != first for each in literals):
            return None
        return tuple(Literal(literals[0].elements, t) for t in types)
    if op.kind is not Kind.ELEMENTWISE and Trait.POINTWISE not in op.traits:
        return None
    scalars = tuple(t.with_shape(()) for t in types)
    found = _evaluate(op, [each.elements.reshape(()) for each in literals], attrs, scalars)
    return tuple(Literal(each.elements, t) for each, t in zip(found, types, strict=True))


def _evaluate(
    op: OpDef, arrays: Sequence[Array], attrs: Mapping[str, Any], types: Sequence[TensorType]
) -> tuple[Literal, ...]:
    with np.errstate(all="ignore"):
        results = op.reference(*arrays, **attrs)
    found = [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]
    for array, type_ in zip(found, types, strict=True):
        if array.dtype != type_.dtype.numpy or array.shape != type_.shape:
            raise GraphError(
                f"{op.name}: the reference gives {array.dtype}{array.shape}, inferred {type_}"
            )
    return tuple(Literal(a, t) for a, t in zip(found, types, strict=True))


def fold_graph(graph: Graph, available: Available) -> Graph:
    """Replace instructions with known results by constants the device can hold."""

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        literals = fold_call(instr.op, operands, instr.attrs)
        if literals is None:
            return None
        values = [rows.constant(value=each) for each in literals]
        made = [v.producer for v in values]
        return values if all(m is not None and available(m) for m in made) else None

    return rebuild(graph, rewrite)


def fold(available: Available) -> Pass:
    """Make the pass; a constant of a dtype the device has no constants of stays computed."""
    return Pass(
        "fold",
        "small results of constants -> constants",
        deep(lambda graph: fold_graph(graph, available)),
    )
