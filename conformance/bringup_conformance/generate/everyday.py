"""Programs that everybody writes first: a weighted sum, softmax, and a dense layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bringup.dtypes import DType, f32
from bringup.graph import Builder, Graph, Value
from bringup.ops.table import lookup
from bringup_conformance.cases import PROGRAMS, Case, Unsupported
from bringup_conformance.execution.support import Support, reason_of
from bringup_conformance.generate.recipes import Recipe


def cases(support: Support, vector: int, seed: int) -> Iterator[Case | Unsupported]:
    """Each of the programs in f32, on sizes around the device's vector."""
    for build in (weighted_sum, softmax, dense_layer):
        graph = build(f32, vector)
        place = f"smoke/{PROGRAMS}/{f32.name}/{graph.name}"
        reason = reason_of(graph, support)
        if reason is not None:
            yield Unsupported(place, "smoke", PROGRAMS, f32.name, reason)
            continue
        data = tuple(
            tuple(Recipe(kind, seed + i) for i in range(len(graph.inputs)))
            for kind in ("signed", "small")
        )
        yield Case(place, "smoke", PROGRAMS, f32.name, graph, data, split=True)


def weighted_sum(dtype: DType, vector: int) -> Graph:
    """``sum(x + y * z)``."""

    def build(builder: Builder) -> Value:
        x, y, z = (builder.input(dtype[5, 4 * vector + 3]) for _ in range(3))
        weighted = lookup("add")(x, lookup("mul")(y, z))
        total: Value = lookup("reduce")(weighted, kind="add", dims=(0, 1))
        return total

    return _built("weighted_sum", build)


def softmax(dtype: DType, vector: int) -> Graph:
    """Softmax of rows."""

    def build(builder: Builder) -> Value:
        result: Value = lookup("softmax")(builder.input(dtype[7, 2 * vector + 5]), dims=(1,))
        return result

    return _built("softmax", build)


def dense_layer(dtype: DType, vector: int) -> Graph:
    """``relu(x @ weights + bias)``."""

    def build(builder: Builder) -> Value:
        x, weights = builder.input(dtype[5, vector + 1]), builder.input(dtype[vector + 1, 7])
        bias = builder.input(dtype[7])
        product = lookup("dot_general")(x, weights, batch=((), ()), contract=((1,), (0,)))
        spread = lookup("broadcast_in_dim")(bias, shape=(5, 7), dims=(1,))
        result: Value = lookup("relu")(lookup("add")(product, spread))
        return result

    return _built("dense_layer", build)


def _built(name: str, build: Callable[[Builder], Value]) -> Graph:
    with Builder() as builder:
        output = build(builder)
    return builder.build([output], name)
