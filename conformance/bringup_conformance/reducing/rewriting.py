"""Smaller programs from a program: cuts, rewirings, other outputs, other sizes, other dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bringup.dtypes import DType
from bringup.errors import BringupError
from bringup.graph import Builder, Graph, Instr, Literal, Value
from bringup.ops.table import lookup
from bringup.types import TensorType
from bringup_conformance.generate.growing import pruned
from bringup_conformance.generate.recipes import Recipe

#: A program under reduction: a graph and a recipe for each input.
Small = tuple[Graph, tuple[Recipe, ...]]
_FRESH = (Recipe("ramp"), Recipe("signed"), Recipe("negative"), Recipe("special"))


def with_output(small: Small, value: Value) -> Small:
    """The part that one value needs, with that value as the output."""
    graph, recipes = small
    return pruned(Graph(graph.inputs, graph.instrs, (value,), graph.name), recipes)


def single_outputs(small: Small) -> Iterator[Small]:
    """Each value that is computed as the only output, the one that needs least first."""
    graph, _ = small
    made = [v for instr in graph.instrs for v in instr.results if instr.op.name != "constant"]
    found = [with_output(small, v) for v in made]
    yield from sorted(found, key=lambda s: len(s[0].instrs))


def fewer_outputs(small: Small) -> Iterator[Small]:
    """All outputs but one, if there are several."""
    graph, recipes = small
    if len(graph.outputs) > 1:
        for i in range(len(graph.outputs)):
            kept = graph.outputs[:i] + graph.outputs[i + 1 :]
            yield pruned(Graph(graph.inputs, graph.instrs, kept, graph.name), recipes)


def cuts(small: Small) -> Iterator[Small]:
    """A result replaced by a new input, those nearest to the outputs first."""
    graph, recipes = small
    for instr in reversed(graph.instrs):
        if instr.op.name == "constant" and instr.results[0].type.size < 1:
            continue
        for recipe in _FRESH:
            yield _replaced(small, instr, None, (*recipes, recipe))


def rewirings(small: Small) -> Iterator[Small]:
    """A result replaced by an operand of its type, or by a constant."""
    graph, recipes = small
    for instr in reversed(graph.instrs):
        for operand in dict.fromkeys(instr.operands):
            if operand.type is instr.results[0].type:
                yield _replaced(small, instr, operand, recipes)
        if instr.operands:
            yield _replaced(small, instr, 1, recipes)


def _replaced(
    small: Small, at: Instr, stand_in: Value | int | None, recipes: tuple[Recipe, ...]
) -> Small:
    """The first result of an instruction replaced: by a value, a splat, or (None) a new input."""
    graph, _ = small
    builder = Builder()
    table: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    for instr in graph.instrs:
        if instr is not at or len(at.results) > 1:  # its other results may have readers
            results = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
            table.update(zip(instr.results, results, strict=True))
        if instr is not at:
            continue
        result = at.results[0]
        if stand_in is None:
            table[result] = builder.input(result.type)
        elif isinstance(stand_in, int):
            with builder:
                literal = Literal.splat(stand_in, result.type)
                table[result] = lookup("constant")(value=literal)
        else:
            table[result] = table[stand_in]
    outputs = [table[v] for v in graph.outputs]
    return pruned(builder.build(outputs, graph.name), recipes)


def smaller_sizes(small: Small) -> Iterator[Small]:
    """A size replaced by a smaller one wherever it stands."""
    graph, recipes = small
    values = [*graph.inputs, *(v for instr in graph.instrs for v in instr.results)]
    sizes = sorted({n for v in values for n in v.shape if n > 1}, reverse=True)
    for size in sizes:
        for other in dict.fromkeys((1, 2, 3, size // 4, size // 2, size - size // 4, size - 1)):
            if 0 < other < size:
                made = _rebuilt(graph, partial(_swap, size, other), None)
                if made is not None:
                    yield made, recipes


def _swap(old: int, new: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(new if n == old else n for n in shape)


def simpler_dtypes(small: Small, wanted: Sequence[tuple[DType, DType]]) -> Iterator[Small]:
    """A dtype replaced by another wherever it stands."""
    graph, recipes = small
    present = {v.dtype for v in graph.inputs}
    present |= {v.dtype for instr in graph.instrs for v in instr.results}
    for old, new in wanted:
        if old in present:
            made = _rebuilt(graph, tuple, {old: new})
            if made is not None:
                yield made, recipes


Resize = Callable[[Sequence[int]], tuple[int, ...]]


def _rebuilt(graph: Graph, resize: Resize, dtypes: Mapping[DType, DType] | None) -> Graph | None:
    """The graph with other shapes and dtypes, or None if some instruction does not take them."""
    swap = dtypes or {}
    builder = Builder()
    table = {
        v: builder.input(TensorType(resize(v.shape), swap.get(v.dtype, v.dtype)))
        for v in graph.inputs
    }
    try:
        for instr in graph.instrs:
            operands = [table[v] for v in instr.operands]
            attrs = {name: _retyped(a, swap) for name, a in instr.attrs.items()}
            attrs = _resized(instr, attrs, operands, resize)
            results = builder.emit(instr.op, operands, attrs)
            table.update(zip(instr.results, results, strict=True))
    except (BringupError, ValueError, OverflowError):
        return None
    return builder.build([table[v] for v in graph.outputs], graph.name)


def _retyped(value: Any, swap: Mapping[DType, DType]) -> Any:
    if isinstance(value, DType):
        return swap.get(value, value)
    if isinstance(value, TensorType):
        return value.with_dtype(swap.get(value.dtype, value.dtype))
    if isinstance(value, Literal) and value.type.dtype in swap:
        type_ = value.type.with_dtype(swap[value.type.dtype])
        with np.errstate(all="ignore"):
            return Literal(value.elements.astype(type_.dtype.numpy), type_)
    return value


def _resized(
    instr: Instr, attrs: dict[str, Any], operands: Sequence[Value], resize: Resize
) -> dict[str, Any]:
    """Attributes that hold sizes, made to fit the operands' new ones.

    Raises ValueError if that is not clear.
    """
    name = instr.op.name
    if name == "iota":
        return {**attrs, "type": attrs["type"].with_shape(resize(attrs["type"].shape))}
    if name == "constant":
        return {**attrs, "value": _cropped(attrs["value"], resize(attrs["value"].type.shape))}
    if name == "reshape":
        return {**attrs, "shape": _reshaped(resize(attrs["shape"]), operands[0].type.size)}
    if name == "broadcast_in_dim":
        shape = list(resize(attrs["shape"]))
        for n, d in zip(operands[0].shape, attrs["dims"], strict=True):
            shape[d] = n if n != 1 else shape[d]
        return {**attrs, "shape": tuple(shape)}
    if name == "slice":
        return {**attrs, **_sliced(instr, attrs, operands[0].shape)}
    return attrs


def _cropped(literal: Literal, shape: tuple[int, ...]) -> Literal:
    type_ = literal.type.with_shape(shape)
    if literal.is_splat:
        return Literal(literal.elements, type_)
    return Literal(literal.array()[tuple(map(slice, shape))], type_)


def _reshaped(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if math.prod(shape) == size:
        return shape
    for d in range(len(shape)):
        rest = math.prod(shape[:d] + shape[d + 1 :])
        if rest and size % rest == 0:
            return (*shape[:d], size // rest, *shape[d + 1 :])
    raise ValueError(f"no shape like {shape} holds {size} elements")


def _sliced(instr: Instr, attrs: dict[str, Any], shape: Sequence[int]) -> dict[str, Any]:
    old = instr.operands[0].shape
    starts, limits = [], []
    columns = zip(old, shape, attrs["start"], attrs["limit"], attrs["stride"], strict=True)
    for before, after, start, limit, stride in columns:
        # Distances from either end stay; what no longer fits becomes a slice of less.
        if stride > 0:
            end = max(after - (before - limit), min(start, after))
            starts.append(min(start, end))
            limits.append(end)
        else:
            top = max(after - (before - start), min(limit, after - 1))
            starts.append(top)
            limits.append(max(-1, min(limit, top)))
    return {"start": tuple(starts), "limit": tuple(limits)}
