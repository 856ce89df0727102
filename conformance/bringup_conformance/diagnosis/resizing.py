"""Programs with other sizes and other dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from bringup.dtypes import BY_NAME, DType
from bringup.errors import BringupError
from bringup.graph import Graph, Instr, Literal, Value
from bringup.graph.builder import Builder
from bringup.records import record
from bringup.types import TensorType
from bringup_conformance.diagnosis.edits import Candidate

#: What is tried in the place of less usual dtypes.
_PLAINER = {
    "f64": "f32", "f16": "f32", "bf16": "f32", "i64": "i32", "i16": "i32", "i8": "i32",
    "u64": "i32", "u32": "i32", "u16": "i32", "u8": "i32",
}  # fmt: skip
Shape = tuple[int, ...]


def smaller_sizes(candidate: Candidate) -> Iterator[Candidate]:
    """A size replaced by a smaller one wherever it stands."""
    graph, recipes = candidate
    values = [*graph.inputs, *(v for instr in graph.instrs for v in instr.results)]
    sizes = sorted({n for v in values for n in v.shape if n > 1}, reverse=True)
    for size in sizes:
        for other in dict.fromkeys((1, 2, 3, size // 4, size // 2, size - size // 4, size - 1)):
            if 0 < other < size:
                smaller = _Retyping(sizes={size: other}).graph(graph)
                if smaller is not None:
                    yield smaller, recipes


def plainer_dtypes(candidate: Candidate) -> Iterator[Candidate]:
    """A dtype replaced by a plainer one wherever it stands."""
    graph, recipes = candidate
    present = {v.dtype.name for v in graph.inputs}
    present |= {v.dtype.name for instr in graph.instrs for v in instr.results}
    for old, new in _PLAINER.items():
        if old in present:
            plainer = _Retyping(dtypes={BY_NAME[old]: BY_NAME[new]}).graph(graph)
            if plainer is not None:
                yield plainer, recipes


@record
class _Retyping:
    """Replaces sizes and dtypes in a graph and in the attributes of its instructions."""

    sizes: Mapping[int, int] = field(default_factory=dict)
    dtypes: Mapping[DType, DType] = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph | None:
        """The graph with other types, or None if some instruction does not take them."""
        builder = Builder()
        table = {v: builder.input(self._type(v.type)) for v in graph.inputs}
        try:
            for instr in graph.instrs:
                operands = [table[v] for v in instr.operands]
                attrs = {name: self._attribute(value) for name, value in instr.attrs.items()}
                resize = _RESIZE.get(instr.op.name)
                if resize is not None:
                    attrs.update(resize(self, instr, attrs, operands))
                results = builder.emit(instr.op, operands, attrs)
                table.update(zip(instr.results, results, strict=True))
        except (BringupError, ValueError, OverflowError):
            return None
        return builder.build([table[v] for v in graph.outputs], graph.name)

    def shape(self, shape: Sequence[int]) -> Shape:
        """A shape with other sizes."""
        return tuple(self.sizes.get(n, n) for n in shape)

    def _type(self, type_: TensorType) -> TensorType:
        return TensorType(self.shape(type_.shape), self.dtypes.get(type_.dtype, type_.dtype))

    def _attribute(self, value: Any) -> Any:
        """An attribute with other dtypes, and sub-graphs with other types.

        Raises ValueError if a sub-graph does not take them.
        """
        if isinstance(value, tuple) and any(isinstance(each, Graph) for each in value):
            return tuple(map(self._attribute, value))
        if isinstance(value, Graph):
            retyped = self.graph(value)
            if retyped is None:
                raise ValueError(f"{value.name} does not take other types")
            return retyped
        if isinstance(value, DType):
            return self.dtypes.get(value, value)
        if isinstance(value, TensorType):
            return value.with_dtype(self.dtypes.get(value.dtype, value.dtype))
        if isinstance(value, Literal) and value.type.dtype in self.dtypes:
            type_ = value.type.with_dtype(self.dtypes[value.type.dtype])
            with np.errstate(all="ignore"):
                return Literal(value.elements.astype(type_.dtype.numpy), type_)
        return value


Attrs = dict[str, Any]


def _iota(to: _Retyping, _instr: Instr, attrs: Attrs, _operands: Sequence[Value]) -> Attrs:
    return {"type": attrs["type"].with_shape(to.shape(attrs["type"].shape))}


def _constant(to: _Retyping, _instr: Instr, attrs: Attrs, _operands: Sequence[Value]) -> Attrs:
    literal: Literal = attrs["value"]
    shape = to.shape(literal.type.shape)
    type_ = literal.type.with_shape(shape)
    if literal.is_splat:
        return {"value": Literal(literal.elements, type_)}
    return {"value": Literal(literal.array()[tuple(map(slice, shape))], type_)}


def _reshape(to: _Retyping, _instr: Instr, attrs: Attrs, operands: Sequence[Value]) -> Attrs:
    """Where the new shape holds another number of elements, one of its sizes is made to fit."""
    shape, size = to.shape(attrs["shape"]), operands[0].type.size
    if math.prod(shape) == size:
        return {"shape": shape}
    for d in range(len(shape)):
        others = math.prod(shape[:d] + shape[d + 1 :])
        if others and size % others == 0:
            return {"shape": (*shape[:d], size // others, *shape[d + 1 :])}
    raise ValueError(f"no shape like {shape} holds {size} elements")


def _broadcast(to: _Retyping, _instr: Instr, attrs: Attrs, operands: Sequence[Value]) -> Attrs:
    shape = list(to.shape(attrs["shape"]))
    for n, d in zip(operands[0].shape, attrs["dims"], strict=True):
        shape[d] = n if n != 1 else shape[d]
    return {"shape": tuple(shape)}


def _slice(_to: _Retyping, instr: Instr, attrs: Attrs, operands: Sequence[Value]) -> Attrs:
    """Distances from either end stay; what no longer fits becomes a slice of less."""
    starts, limits = [], []
    columns = zip(
        instr.operands[0].shape, operands[0].shape, attrs["start"], attrs["limit"],
        attrs["stride"], strict=True,
    )  # fmt: skip
    for before, after, start, limit, stride in columns:
        if stride > 0:
            end = max(after - (before - limit), min(start, after))
            starts.append(min(start, end))
            limits.append(end)
        else:
            top = max(after - (before - start), min(limit, after - 1))
            starts.append(top)
            limits.append(max(-1, min(limit, top)))
    return {"start": tuple(starts), "limit": tuple(limits)}


def _scan(to: _Retyping, _instr: Instr, attrs: Attrs, _operands: Sequence[Value]) -> Attrs:
    return {"length": to.shape((attrs["length"],))[0]}


#: Ops with attributes that hold sizes, and what makes these fit.  Each raises ValueError where it
#: is not clear how.
_RESIZE: Mapping[str, Callable[[_Retyping, Instr, Attrs, Sequence[Value]], Attrs]] = {
    "iota": _iota,
    "constant": _constant,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "scan": _scan,
}
