"""Linear SSA: values, instructions, graphs.  Immutable once built; identity equality; deterministic
text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bringup.dtypes import DType
from bringup.errors import Location
from bringup.types import TensorType


class Literal:
    """The content of a constant: a dense array that hashes and compares by type and bytes.

    A splat (all elements equal in bits) is stored as one element, however large its shape.

    >>> from bringup.dtypes import f32
    >>> Literal.splat(1.5, f32[1000]).is_splat
    True
    """

    __slots__ = ("_data", "_hash", "type")

    def __init__(self, array: np.ndarray[Any, Any], type_: TensorType) -> None:
        """array: one element (a splat) or all of them, of the dtype of `type_`."""
        data = np.ascontiguousarray(array, dtype=type_.dtype.numpy).reshape(-1)
        if data.size > 1 and _all_same_bits(data):
            data = data[:1]
        self._data = data.copy()
        self._data.flags.writeable = False
        self.type = type_
        self._hash = hash((type_, self._data.tobytes()))

    @classmethod
    def of(cls, array: object, dtype: DType) -> Literal:
        """A literal with the shape of `array`."""
        with np.errstate(over="ignore"):  # as in arithmetic, what is too large is infinite
            dense = np.asarray(array, dtype=dtype.numpy)
        return cls(dense, TensorType(dense.shape, dtype))

    @classmethod
    def splat(cls, value: object, type_: TensorType) -> Literal:
        """A literal whose elements are all `value`."""
        with np.errstate(over="ignore"):
            return cls(np.asarray(value).astype(type_.dtype.numpy), type_)

    @property
    def is_splat(self) -> bool:
        """Whether one element stands for all."""
        return self._data.size == 1

    @property
    def scalar(self) -> Any:
        """The element of a splat, as a numpy scalar."""
        assert self.is_splat
        return self._data[0]

    @property
    def elements(self) -> np.ndarray[Any, Any]:
        """The stored elements, flat: one for a splat."""
        return self._data

    def array(self) -> np.ndarray[Any, Any]:
        """The dense read-only array."""
        if self.is_splat:
            return np.broadcast_to(self._data.reshape(()), self.type.shape)
        return self._data.reshape(self.type.shape)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Literal)
            and self.type is other.type
            and self._data.tobytes() == other._data.tobytes()
        )

    def __repr__(self) -> str:
        return (
            f"Literal({self.type}, {self._data[:4].tolist()}{'…' if self._data.size > 4 else ''})"
        )


def _all_same_bits(data: np.ndarray[Any, Any]) -> bool:
    words = data.view(np.dtype(f"u{data.dtype.itemsize}"))
    return bool((words == words[0]).all())


class Operation(Protocol):
    """What the graph level needs to know of an op; the op table's rows provide it."""

    @property
    def name(self) -> str:
        """As it is printed."""

    def bind(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Fill defaults, normalise and check attribute names."""
        ...

    def result_types(
        self, operands: tuple[TensorType, ...], attrs: Mapping[str, Any]
    ) -> tuple[TensorType, ...]:
        """Types of the results; raises OpTypeError."""
        ...


class Value:
    """One SSA value.  producer: None for a graph input.  index: counts results (or inputs)."""

    __slots__ = ("__weakref__", "index", "producer", "type")

    def __init__(self, type_: TensorType, producer: Instr | None = None, index: int = 0) -> None:
        self.type = type_
        self.producer = producer
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        """The type's shape."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The type's dtype."""
        return self.type.dtype

    @property
    def literal(self) -> Literal | None:
        """The content, if an instruction of the op ``constant`` makes this value."""
        return None if self.producer is None else self.producer.literal

    def __repr__(self) -> str:
        made = self.producer.op.name if self.producer is not None else "input"
        return f"<Value {self.type} by {made}>"


class Instr:
    """One instruction: an op applied to operands under attributes.  `Builder.emit` makes it."""

    __slots__ = ("attrs", "location", "op", "operands", "results")

    def __init__(
        self,
        op: Operation,
        operands: tuple[Value, ...],
        attrs: Mapping[str, Any],
        types: Sequence[TensorType],
        location: Location | None,
    ) -> None:
        self.op = op
        self.operands = operands
        self.attrs = attrs
        self.location = location
        self.results = tuple(Value(t, self, i) for i, t in enumerate(types))

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1
        return self.results[0]

    @property
    def literal(self) -> Literal | None:
        """The content of the result, if this is a constant."""
        return self.attrs["value"] if self.op.name == "constant" else None

    def __repr__(self) -> str:
        return f"<Instr {self.op.name} -> {', '.join(map(str, (r.type for r in self.results)))}>"


class Graph:
    """Inputs, instructions in topological order, outputs.

    >>> print(g)                                            # doctest: +SKIP
    graph f(%0: f32[4]) {
      %1: f32[4] = exp(%0)
      return %1
    }
    """

    __slots__ = ("_key", "inputs", "instrs", "name", "outputs")

    def __init__(
        self,
        inputs: Sequence[Value],
        instrs: Sequence[Instr],
        outputs: Sequence[Value],
        name: str = "main",
    ) -> None:
        self.inputs = tuple(inputs)
        self.instrs = tuple(instrs)
        self.outputs = tuple(outputs)
        self.name = name
        self._key: tuple[Any, ...] | None = None

    def __iter__(self) -> Iterator[Instr]:
        return iter(self.instrs)

    def __len__(self) -> int:
        return len(self.instrs)

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable structure equal for graphs that compute the same thing the same way (names and
        locations aside).
        """
        if self._key is None:
            self._key = _structure(self)
        return self._key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.key == other.key)

    def __str__(self) -> str:
        from bringup.graph.printer import print_graph  # the printer stands on this module

        return print_graph(self)

    def __repr__(self) -> str:
        takes, gives = (", ".join(str(v.type) for v in vs) for vs in (self.inputs, self.outputs))
        gives = gives if len(self.outputs) == 1 else f"({gives})"
        count = len(self.instrs)
        return f"<Graph {self.name}: ({takes}) -> {gives}, {count} instruction{'s' * (count != 1)}>"

    def users(self) -> dict[Value, list[Instr]]:
        """Every value's reading instructions, in order; a graph output counts as no user."""
        table: dict[Value, list[Instr]] = {v: [] for v in self.inputs}
        for instr in self.instrs:
            for operand in dict.fromkeys(instr.operands):
                table.setdefault(operand, []).append(instr)
            for result in instr.results:
                table.setdefault(result, [])
        return table


def has_effects(op: Operation, attrs: Mapping[str, Any]) -> bool:
    """Whether an instruction does more than give results, itself or in a sub-graph: it is neither
    dropped where nobody reads these, nor merged with an equal one.
    """
    if getattr(op, "effects", False):
        return True
    if not getattr(op, "holds_graphs", True):
        return False
    return any(
        has_effects(instr.op, instr.attrs) for value in attrs.values() for instr in _inside(value)
    )


def _inside(value: Any) -> Iterator[Instr]:
    if isinstance(value, Graph):
        yield from value.instrs
    elif isinstance(value, tuple):
        for item in value:
            yield from _inside(item)


def attr_key(value: Any) -> Any:
    """A hashable stand-in for an attribute: floats by bit pattern, types apart, so that 0.0, -0.0,
    False and 0 all differ.

    >>> attr_key(0.0) == attr_key(-0.0), attr_key(True) == attr_key(1)
    (False, False)
    >>> attr_key(float("nan")) == attr_key(float("nan"))
    True
    """
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, tuple):
        return ("tuple", tuple(map(attr_key, value)))
    return (type(value).__name__, value)


def attrs_key(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """`attr_key` of a whole attribute mapping, in name order."""
    return tuple((name, attr_key(attrs[name])) for name in sorted(attrs))


def _structure(graph: Graph) -> tuple[Any, ...]:
    number = {v: i for i, v in enumerate(graph.inputs)}
    rows: list[Any] = []
    for instr in graph.instrs:
        rows.append(
            (instr.op.name, tuple(number[v] for v in instr.operands), attrs_key(instr.attrs))
        )
        for result in instr.results:
            number[result] = len(number)
    inputs = tuple(v.type for v in graph.inputs)
    return (inputs, tuple(rows), tuple(number[v] for v in graph.outputs))
