"""Graphs of one example to graphs of many: a replay with a batch dimension before all others."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import UnsupportedError
from bringup.graph import Builder, Graph, Instr, Value
from bringup.ops.batching import carried
from bringup.ops.table import Kind, OpDef, Trait, opdef


def batch_graph(graph: Graph, batched: Sequence[bool], size: int) -> tuple[Graph, tuple[bool, ...]]:
    """The graph that computes `graph` for `size` examples at once.

    batched: per input whether it has a value per example: one more dimension, before all others.
    Returns the graph, and per output whether it has that dimension; what depends on no batched
    input is computed once and has not.
    Raises UnsupportedError, with the op and the line, for an op without a rule.
    """
    builder = Builder()
    arguments = [
        builder.input(v.type.with_shape((size, *v.shape)) if flag else v.type)
        for v, flag in zip(graph.inputs, batched, strict=True)
    ]
    with builder:
        outputs = batched_replay(graph, builder, arguments, size)
    flags = tuple(_differ(new, old) for new, old in zip(outputs, graph.outputs, strict=True))
    return builder.build(outputs, f"vmap_{graph.name}"), flags


def batched_replay(
    graph: Graph, builder: Builder, arguments: Sequence[Value], size: int
) -> list[Value]:
    """Emit `graph` for `size` examples and return its outputs.

    builder: the active one.
    arguments: what stands for the inputs: of their types, or with a batch dimension.
    """
    table = dict(zip(graph.inputs, arguments, strict=True))
    outer = builder.location
    for instr in graph.instrs:
        builder.location = instr.location or outer
        operands = tuple([table[v] for v in instr.operands])
        flags = tuple(map(_differ, operands, instr.operands))
        if any(flags):
            results = _emit(instr, builder, operands, flags, size)
        else:
            results = builder.emit_again(instr, operands)
        for old, new in zip(instr.results, results, strict=True):
            assert new.shape in (old.shape, (size, *old.shape)), f"{instr.op.name}: {new.type}"
            table[old] = new
    builder.location = outer
    return [table[v] for v in graph.outputs]


def _differ(new: Value, old: Value) -> bool:
    """Whether a value of the batched graph has the batch dimension."""
    return new.type is not old.type


def _emit(
    instr: Instr, builder: Builder, operands: tuple[Value, ...], flags: tuple[bool, ...], size: int
) -> Sequence[Value]:
    """One instruction for all examples: by the rule of its kind, its row, or its decomposition."""
    op = opdef(instr)
    if op.kind is Kind.ELEMENTWISE or Trait.POINTWISE in op.traits:
        return builder.emit(op, carried(operands, flags, size), instr.attrs)
    results = None
    if op.batch is not None:
        inner = {"map_graph": batch_graph} if op.holds_graphs else {}
        results = op.batch(operands, flags, size, **inner, **instr.attrs)
    if results is None and op.decompose is not None:
        return batched_replay(_decomposed(instr, op), builder, operands, size)
    if results is None:
        raise UnsupportedError(
            f"{op.name} has no rule for many examples at once, and vmap passes through it",
            location=instr.location,
            fix="keep the op off the mapped arguments, or give its row a batch rule",
        )
    return results if isinstance(results, tuple) else (results,)


def _decomposed(instr: Instr, op: OpDef) -> Graph:
    """The decomposition of an instruction, for one example."""
    builder = Builder()
    inputs = [builder.input(v.type) for v in instr.operands]
    assert op.decompose is not None
    with builder:
        results = op.decompose(*inputs, **instr.attrs)
    return builder.build(results if isinstance(results, tuple) else (results,), op.name)
