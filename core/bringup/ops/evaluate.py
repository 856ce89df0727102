"""The reference interpreter: a graph run op by op on the reference column."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bringup.errors import ConversionError
from bringup.graph import Graph, Instr, Value
from bringup.ops.subgraphs import chosen, is_branch, is_loop, loop_parts
from bringup.ops.table import OpDef
from bringup.types import TensorType

Array = np.ndarray[Any, Any]


def evaluate(graph: Graph, inputs: Sequence[object]) -> list[Array]:
    """The outputs of a graph for `inputs`, by numpy alone.

    inputs: one array for each graph input, of its shape and dtype.
    Returns arrays of the outputs' shapes and dtypes; read-only where they share memory.
    Raises ConversionError if an input does not have the type of the graph's.

    >>> from bringup import ops
    >>> from bringup.dtypes import f32
    >>> from bringup.graph import Builder
    >>> with Builder() as b:
    ...     x = b.input(f32[2])
    ...     g = b.build([ops.neg(x)])
    >>> evaluate(g, [np.array([1, -2], np.float32)])
    [array([-1.,  2.], dtype=float32)]
    """
    if len(inputs) != len(graph.inputs):
        raise ConversionError(
            f"{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}",
            fix="pass one array for each input",
        )
    values: dict[Value, Array] = {}
    for position, (value, given) in enumerate(zip(graph.inputs, inputs, strict=True)):
        values[value] = _checked(np.asarray(given), value.type, f"input {position}")
    for instr in graph.instrs:
        results = run_instr(instr, [values[v] for v in instr.operands])
        values.update(zip(instr.results, results, strict=True))
    return [values[v] for v in graph.outputs]


def run_instr(instr: Instr, operands: Sequence[Array]) -> tuple[Array, ...]:
    """The results of one instruction on arrays."""
    row = instr.op
    assert isinstance(row, OpDef)
    results = row.reference(*operands, **instr.attrs)
    if not isinstance(results, tuple):
        results = (results,)
    pairs = zip(results, instr.results, strict=True)
    return tuple(_shaped(np.asarray(array), value.type, row.name) for array, value in pairs)


def subgraph_runs(
    instr: Instr, operands: Sequence[Array]
) -> Iterator[tuple[Graph, list[Array], list[Array]]]:
    """Each run of a graph inside a loop, branch or call: the graph, its inputs and its outputs.

    A loop without an end gives runs for ever; other instructions give none.
    """
    attrs = instr.attrs
    if is_loop(instr):
        yield from _loop_runs(instr, operands)
    elif is_branch(instr):
        index, *inputs = operands
        branch: Graph = attrs["branches"][chosen(int(index), len(attrs["branches"]))]
        yield branch, inputs, evaluate(branch, inputs)
    elif isinstance(attrs.get("body"), Graph):
        yield attrs["body"], list(operands), evaluate(attrs["body"], operands)


def _loop_runs(
    instr: Instr, operands: Sequence[Array]
) -> Iterator[tuple[Graph, list[Array], list[Array]]]:
    body: Graph = instr.attrs["body"]
    cond: Graph | None = instr.attrs.get("cond")
    trips: int = instr.attrs.get("length", 0)
    parts = loop_parts(instr)
    state, stacks = list(operands[: parts.first_stack]), operands[parts.first_stack :]
    for run in itertools.count():
        if cond is not None:
            flags = evaluate(cond, state)
            yield cond, list(state), flags
            if not flags[0]:
                return
        elif run == trips:
            return
        row = trips - 1 - run if instr.attrs.get("reverse") else run
        inputs = [*state, *(np.asarray(stack[row]) for stack in stacks)]
        outputs = evaluate(body, inputs)
        yield body, inputs, outputs
        state[parts.consts :] = outputs[: parts.carries]


def _checked(array: Array, type_: TensorType, what: str) -> Array:
    if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
        raise ConversionError(
            f"{what} must be {type_}, got an array of shape {array.shape} and dtype {array.dtype}",
            fix=f"convert the array to {type_.dtype.long_name} and shape {type_.shape}",
        )
    return array


def _shaped(array: Array, type_: TensorType, name: str) -> Array:
    actual = (array.shape, array.dtype)
    assert actual == (type_.shape, type_.dtype.numpy), f"{name}: reference gave {actual}: {type_}"
    return array
