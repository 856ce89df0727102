"""A program while it grows: values with their reference spans, and operands found by backward
distance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from bringup.backend.capabilities import Numerics, Shapes
from bringup.dtypes import DType, bool_
from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, Literal, Value
from bringup.ops.table import lookup
from bringup.passes.base import as_results
from bringup.records import record
from bringup.types import TensorType
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.choices import Choices, chance, pick, weighted
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.bounds import propagate
from bringup_conformance.oracle.span import Span

#: Inputs a program may have.
MOST_INPUTS = 5
#: A value of which more than this share is open or not finite is dropped again.
MOST_LOST = 0.25

FLOAT_CONSTANTS = (1.0, 2.0, 0.5, -1.0, 0.0, -0.0, 3.0, -3.25, 1e-3, 100.0, 16777216.0)
INTEGER_CONSTANTS = (1, 2, 0, -1, 3, 7, 100)


@record
class GenConfig:
    """What programs are made for.

    exact: only ops and data whose results are known bit for bit.  limit: elements of the largest
    value.
    dtypes: of inputs, by weight.
    """

    support: Support
    numerics: Numerics
    shapes: Shapes
    exact: bool
    limit: int
    dtypes: tuple[tuple[int, DType], ...]


class ProgramBuilder:
    """A graph under construction."""

    def __init__(self, choices: Choices, config: GenConfig) -> None:
        self.choices = choices
        self.config = config
        self.builder = Builder()
        self.values: list[Value] = []
        self.recipes: dict[Value, Recipe] = {}
        self.spans: dict[Value, Span] = {}

    def input(self, type_: TensorType) -> Value | None:
        """A new input with a recipe, or None if there are many."""
        if len(self.recipes) >= MOST_INPUTS or type_.size > self.config.limit:
            return None
        recipe = self.recipe()
        value = self.builder.input(type_)
        self.recipes[value] = recipe
        self.spans[value] = Span.exactly(recipe.make(type_), type_.dtype)
        self.values.append(value)
        return value

    def recipe(self) -> Recipe:
        """Data of the kind the config wants."""
        kinds = ("small", "ramp", "ties", "onehot") if self.config.exact else (
            "signed", "small", "ramp", "positive", "negative", "ties", "onehot", "wide", "halfway",
        )  # fmt: skip
        layout = weighted(
            self.choices, ((12, "dense"), (1, "column"), (1, "reversed"), (1, "offset"))
        )
        return Recipe(pick(self.choices, kinds), self.choices.integer(0, 15), layout=layout)

    def emit(self, name: str, *operands: Value | None, **attrs: Any) -> Value | None:
        """One instruction, if it is valid, supported, small and leaves something to compare."""
        present = [v for v in operands if v is not None]
        if len(present) < len(operands):
            return None
        row = lookup(name)
        if not self.config.support.has(row, [v.type for v in present], attrs):
            return None
        try:
            with self.builder:
                results = as_results(row(*present, **attrs))
        except OpTypeError:
            return None
        return self._kept(results)

    def _kept(self, results: tuple[Value, ...]) -> Value | None:
        """The last of the results of an instruction, if all of them are worth comparing."""
        instr = results[0].producer
        assert instr is not None
        if any(v.type.size > 4 * self.config.limit for v in results):
            return None
        operands = [self.spans[v] for v in instr.operands]
        with np.errstate(all="ignore"):
            spans = propagate(instr, operands, self.config.numerics)
        if self.config.exact and not all(span.exact for span in spans):
            return None
        had = all(lost(x) <= MOST_LOST for x in operands)
        if had and any(lost(span) > MOST_LOST for span in spans):
            return None
        self.spans.update(zip(results, spans, strict=True))
        self.values += results
        return results[-1]

    def constant(self, type_: TensorType, number: float | None = None) -> Value | None:
        """A splat; drawn if no number is given."""
        if number is None:
            options = FLOAT_CONSTANTS if type_.dtype.is_float else INTEGER_CONSTANTS
            number = pick(self.choices, options)
        if type_.dtype.kind == "uint":
            number = abs(number)
        with np.errstate(all="ignore"):
            literal = Literal.splat(number, type_)
        return self.emit("constant", value=literal)

    def dense_constant(self, type_: TensorType) -> Value | None:
        """A constant with differing elements."""
        array = Recipe("small", self.choices.integer(0, 15)).make(type_)
        return self.emit("constant", value=Literal(array, type_))

    def find(self, wanted: Callable[[Value], bool]) -> Value | None:
        """A value found by backward distance: the last that fits, or one before it."""
        fitting = [v for v in reversed(self.values) if wanted(v)]
        if not fitting:
            return None
        distance = weighted(self.choices, ((5, 0), (3, 1), (2, 2), (2, 3), (1, 5), (1, 9)))
        return fitting[min(distance, len(fitting) - 1)]

    def partner(self, value: Value) -> Value | None:
        """A second operand of the type of `value`: an earlier one, a constant, one made to fit, or
        a new input.
        """
        way = weighted(
            self.choices, ((6, "back"), (2, "constant"), (3, "fit"), (2, "input"), (1, "dense"))
        )
        other: Value | None = None
        if way == "constant" and value.dtype is not bool_:
            return self.constant(value.type)
        if way == "dense" and value.type.size <= 64:
            return self.dense_constant(value.type)
        if way == "fit":
            other = self._fitted(value)
        if way == "input" and chance(self.choices, 1, 2):
            other = self.input(value.type)
        if other is not None:
            return other
        return self.find(lambda v: v.type is value.type)

    def _fitted(self, value: Value) -> Value | None:
        """Another value converted and broadcast to the type of `value`."""
        other = self.find(
            lambda v: v.type is not value.type and dims_to_fit(v.shape, value.shape) is not None
        )
        if other is None:
            return self._small_input(value)
        if other.dtype is not value.dtype:
            other = self.emit("convert", other, dtype=value.dtype)
        return self.spread(other, value.shape)

    def _small_input(self, value: Value) -> Value | None:
        shape = value.shape
        options: list[tuple[int, ...]] = [()]
        if shape:
            options += [shape[-1:], (shape[0],), tuple(1 if i else n for i, n in enumerate(shape))]
        small = self.input(value.type.with_shape(pick(self.choices, options)))
        return self.spread(small, shape)

    def spread(self, value: Value | None, shape: tuple[int, ...]) -> Value | None:
        """A value broadcast to a shape; itself if it has it."""
        if value is None or value.shape == shape:
            return value
        ways = dims_to_fit(value.shape, shape)
        if ways is None:
            return None
        return self.emit("broadcast_in_dim", value, shape=shape, dims=pick(self.choices, ways))

    def finished(self, outputs: Sequence[Value]) -> tuple[Graph, tuple[Recipe, ...]]:
        """The graph of what the outputs need, and the recipes of its inputs."""
        return pruned(self.builder.build(outputs), list(self.recipes.values()))


def lost(span: Span) -> float:
    """The share of elements that are open or not finite."""
    if not span.middle.size:
        return 0.0
    bad = span.unlimited()
    if span.dtype.is_float:
        bad = bad | ~np.isfinite(span.middle)
    return float(bad.mean())


def dims_to_fit(small: tuple[int, ...], large: tuple[int, ...]) -> list[tuple[int, ...]] | None:
    """The ways to broadcast one shape to another, the one along the last dimensions first; None if
    there is none.

    >>> dims_to_fit((3,), (3, 3)), dims_to_fit((2,), (3, 3))
    ([(1,), (0,)], None)
    """
    if len(small) > len(large):
        return None
    ways = [
        dims
        for dims in combinations(range(len(large)), len(small))
        if all(n in (1, large[d]) for n, d in zip(small, dims, strict=True))
    ]
    return ways[::-1] or None


def pruned(graph: Graph, recipes: Sequence[Recipe]) -> tuple[Graph, tuple[Recipe, ...]]:
    """Without the instructions and inputs that no output needs."""
    needed = set(graph.outputs)
    for instr in reversed(graph.instrs):
        if any(result in needed for result in instr.results):
            needed.update(instr.operands)
    live = [i for i, value in enumerate(graph.inputs) if value in needed]
    builder = Builder()
    table = {graph.inputs[i]: builder.input(graph.inputs[i].type) for i in live}
    for instr in graph.instrs:
        if any(result in needed for result in instr.results):
            results = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
            table.update(zip(instr.results, results, strict=True))
    outputs = [table[v] for v in graph.outputs]
    return builder.build(outputs, graph.name), tuple(recipes[i] for i in live)
