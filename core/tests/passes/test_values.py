"""Passes keep values: random small graphs, dense in what the rules look for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.dtypes import DType, bool_, f16, f32, i8, i32, u8
from bringup.graph import Builder, Graph, Value, replay
from bringup.graph.verify import verify
from bringup.ops.build import convert, rows, splat
from bringup.ops.table import all_ops, opdef
from bringup.passes import everything, passes_for
from bringup.passes.base import Maker
from bringup.passes.check import check_values
from bringup.passes.dce import dce
from bringup.passes.decompose import decompose
from bringup.passes.defer import defer
from bringup.passes.fold import fold
from bringup.passes.known import split
from bringup.passes.simplify import canonicalise, cse, simplify

CONSTANTS = (0.0, -0.0, 1, -1, 2, 0.25, 3, -4, math.inf, -math.inf, 127)
DTYPES = (f32, i32, f16, i8, u8, bool_)
TIER0 = frozenset(claim for op in all_ops() for claim in op.tier0_claims)

Choose = Callable[[int], int]


class Growth:
    """A graph grown step by step from small numbers, so that it shrinks to few steps."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = iter(numbers)
        self.values: list[Value] = []

    def below(self, limit: int) -> int:
        return next(self.numbers, 0) % limit

    def pick(self, wanted: Callable[[Value], bool]) -> Value | None:
        found = [v for v in reversed(self.values) if wanted(v)]
        return found[self.below(len(found))] if found else None

    def like(self, x: Value) -> Value:
        """Another value of the type, or a constant."""
        if self.below(3) == 0:
            number = CONSTANTS[self.below(len(CONSTANTS))]
            return splat(_fit(number, x.dtype), x.type)
        same = self.pick(lambda v: v.type is x.type)
        assert same is not None
        return same

    def step(self) -> Value | None:
        x = self.pick(lambda v: True)
        assert x is not None
        makers = (self.unary, self.binary, self.binary, self.logical, self.move, self.move)
        return makers[self.below(len(makers))](x)

    def unary(self, x: Value) -> Value | None:
        names = ["neg", "abs"] if x.dtype is not bool_ else []
        names += ["floor", "sqrt"] if x.dtype.is_float else []
        choice = self.below(len(names) + 2)
        if choice < len(names):
            return getattr(rows, names[choice])(x)  # type: ignore[no-any-return]
        return convert(x, DTYPES[self.below(len(DTYPES))])

    def binary(self, x: Value) -> Value | None:
        bitwise = ["and", "or", "xor"] if not x.dtype.is_float else []
        shifts = ["shl"] if x.dtype.is_integer else []
        names = ["add", "sub", "mul", "div", "max", "min"] if x.dtype is not bool_ else []
        names = names + bitwise + shifts
        name = names[self.below(len(names))]
        operands = (x, self.like(x)) if self.below(2) else (self.like(x), x)
        return getattr(rows, name)(*operands)  # type: ignore[no-any-return]

    def logical(self, x: Value) -> Value | None:
        y = self.like(x)
        choice = self.below(8)
        if choice < 6:
            direction = ("eq", "ne", "lt", "le", "gt", "ge")[choice]
            return rows.compare(x, y, direction=direction)
        predicate = self.pick(lambda v: v.dtype is bool_ and v.shape == x.shape)
        return rows.select(predicate, x, y) if predicate is not None else None

    def move(self, x: Value) -> Value | None:
        rank, shape = len(x.shape), x.shape
        choice = self.below(7)
        if choice == 0:
            return rows.reshape(x, shape=(*shape, 1) if self.below(2) else (x.type.size,))
        if choice == 1 and rank:
            turn = self.below(rank)
            order = tuple(range(rank))
            return rows.transpose(x, permutation=order[turn:] + order[:turn])
        if choice == 2 and x.type.size < 40:
            at, n = self.below(rank + 1), 1 + self.below(2)
            dims = tuple(d for d in range(rank + 1) if d != at)
            return rows.broadcast_in_dim(x, shape=(*shape[:at], n, *shape[at:]), dims=dims)
        if choice == 3 and rank:
            return self.cut(x)
        if choice == 4 and rank and x.type.size < 40:
            lo, hi = (tuple(self.below(3) - (n > 1) for n in shape) for _ in range(2))
            return rows.pad(x, splat(_fit(0.0, x.dtype), x.type.with_shape(())), lo=lo, hi=hi)
        if choice == 5 and rank and x.type.size < 40:
            return rows.concatenate(x, self.like(x), dim=self.below(rank))
        kinds = ("and", "or") if x.dtype is bool_ else ("max", "min")
        dims = tuple(d for d in range(rank) if self.below(2))
        return rows.reduce(x, kind=kinds[self.below(2)], dims=dims)

    def cut(self, x: Value) -> Value:
        start, limit, stride = [], [], []
        for n in x.shape:
            low = self.below(n + 1)
            high = low + self.below(n - low + 1)
            backwards = self.below(4) == 1 and high > low
            start.append(high - 1 if backwards else low)
            limit.append(low - 1 if backwards else high)
            stride.append((-1 if backwards else 1) * (1 + self.below(2)))
        return rows.slice(x, start=tuple(start), limit=tuple(limit), stride=tuple(stride))


def _fit(number: float, dtype: DType) -> float | int:
    """The number as an element of the dtype, without an overflow."""
    if dtype.is_float:
        return number
    whole = int(number) if math.isfinite(number) else 1
    return whole % 2 if dtype is bool_ else whole & 127 if dtype is u8 else whole


def grown(numbers: list[int]) -> Graph:
    growth = Growth(numbers)
    with Builder() as builder:
        dtype = DTYPES[growth.below(len(DTYPES))]
        shape = ((4,), (2, 3), (1, 4), (3, 1, 2), ())[growth.below(5)]
        growth.values += [builder.input(dtype[shape]) for _ in range(2)]
        for _ in range(len(numbers) // 6):
            made = growth.step()
            if made is not None:
                growth.values.append(made)
        outputs = growth.values[-3:]
        return builder.build(outputs)


graphs = st.lists(st.integers(0, 209), min_size=6, max_size=90).map(grown)


@pytest.mark.parametrize(
    "make", [fold, canonicalise, simplify, defer, cse, dce], ids=lambda m: m.__name__
)
@settings(max_examples=50)
@given(graph=graphs)
def test_a_pass_keeps_values(make: Maker, graph: Graph) -> None:
    after = make(everything).run(graph)
    verify(after)
    check_values(make.__name__, graph, after)


@settings(max_examples=30)
@given(graph=graphs)
def test_decomposition_to_tier_0_keeps_values(graph: Graph) -> None:
    made = decompose(lambda instr: opdef(instr).claim(instr.attrs) in TIER0)
    after = made.run(graph)
    verify(after, made.level)
    check_values("decompose", graph, after)


@settings(max_examples=30)
@given(graph=graphs)
def test_the_pipeline_keeps_values_and_what_the_device_has(graph: Graph) -> None:
    after = graph
    passes = passes_for(lambda instr: opdef(instr).claim(instr.attrs) in TIER0)
    for each in passes:
        after = each.run(after)
    verify(after, next(each.level for each in passes if each.name == "decompose"))
    check_values("pipeline", graph, after)


@settings(max_examples=50)
@given(graph=graphs, chosen=st.integers(0, 3))
def test_a_graph_cut_at_what_is_known_keeps_values(graph: Graph, chosen: int) -> None:
    known = [n for n in range(len(graph.inputs)) if chosen >> n & 1]
    constants, rest = split(graph, known)
    verify(constants)
    verify(rest)
    builder = Builder()
    inputs = [builder.input(v.type) for v in graph.inputs]
    made = replay(constants, builder=builder, arguments=[inputs[n] for n in known])
    others = [value for n, value in enumerate(inputs) if n not in known]
    outputs = replay(rest, builder=builder, arguments=[*others, *made])
    check_values("split", graph, builder.build(outputs))


@settings(max_examples=30)
@given(graph=graphs)
def test_simplify_ends_at_a_fixpoint(graph: Graph) -> None:
    clean = dce(everything)
    once = clean.run(simplify(everything).run(graph))
    assert clean.run(simplify(everything).run(once)).key == once.key


@st.composite
def pooled(draw: st.DrawFn) -> Graph:
    """Functions, then the extreme of windows."""
    builder = Builder()
    names = st.sampled_from(("tanh", "exp", "logistic", "erf", "atan", "sign", "neg"))
    size, gap = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pads = st.tuples(st.integers(-1, 2), st.integers(-1, 2))
    x = builder.input(draw(st.sampled_from((f32, f16)))[4, 5])
    with builder:
        for name in draw(st.lists(names, min_size=1, max_size=3)):
            x = getattr(rows, name)(x)
        kind = draw(st.sampled_from(("max", "min")))
        window = {
            "window": (size, 2),
            "dilation": (gap, 1),
            "strides": (draw(st.integers(1, 2)), 2),
        }
        y = rows.reduce_window(x, kind=kind, **window, lo=draw(pads), hi=draw(pads))
        outputs = [rows.reduce(y, kind=kind, dims=(0,))] if y.shape[0] > 1 else [y]
    return builder.build([*outputs, x] if draw(st.integers(0, 4)) == 0 else outputs)


@settings(max_examples=100)
@given(graph=pooled())
def test_deferred_functions_keep_values(graph: Graph) -> None:
    after = defer(everything).run(graph)
    verify(after)
    check_values("defer", graph, after)


def test_the_graphs_are_dense_in_what_rules_look_for() -> None:
    """Otherwise the properties above would hold for passes that do nothing."""
    shrunk = [
        len(dce(everything).run(graph)) > len(dce(everything).run(simplify(everything).run(graph)))
        for graph in _sample()
    ]
    assert sum(shrunk) > 0.6 * len(shrunk)


def _sample() -> Iterator[Graph]:
    state = 1
    for _ in range(100):
        numbers = []
        for _ in range(72):
            state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            numbers.append((state >> 33) % 210)
        yield grown(numbers)
