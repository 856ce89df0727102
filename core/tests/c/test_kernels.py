"""Lowered kernels, compiled as C, against the evaluation of the graphs they were fused from."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from toolchain import Array, Compiled

from bringup.dtypes import f32
from bringup.graph import Builder, Graph, Value
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.loops import lower_kernel
from bringup.ops.build import kept, rows, sum_
from bringup.passes.check import disagreement, is_strict

sys.path.append(str(Path(__file__).parents[1] / "kernel"))
from growing import LIMITS, grown

GRAPHS = 120


def _softmax() -> Graph:
    """Of rows whose tile is too long for a local array."""
    with Builder() as b:
        x = b.input(f32[7, 600])
        top = kept(rows.reduce(x, kind="max", dims=(1,)), (1,), x.shape)
        e = rows.exp(rows.sub(x, top))
        return b.build([rows.div(e, kept(sum_(e, (1,)), (1,), x.shape))])


def _product() -> Graph:
    with Builder() as b:
        x, y = b.input(f32[9, 40]), b.input(f32[40, 17])
        return b.build([rows.dot_general(x, y, batch=((), ()), contract=((1,), (0,)))])


#: Graphs that random ones leave out, by numbers after theirs.
TYPICAL = (_softmax, _product)


@cache
def fused(seed: int) -> tuple[Graph, list[Launch]]:
    """A random graph and its launches, for a device that takes everything in kernels."""
    if seed >= GRAPHS:
        graph = TYPICAL[seed - GRAPHS]()
        return graph, fuse(graph, Limits(), depth=True)
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 5040, int(rng.integers(6, 90))).tolist()
    graph = grown(numbers)
    return graph, fuse(graph, LIMITS[seed % len(LIMITS)])


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """The kernels of all graphs in one source."""
    funcs = []
    for seed in range(GRAPHS + len(TYPICAL)):
        for n, launch in enumerate(fused(seed)[1]):
            assert launch.kernel is not None
            funcs.append(replace(lower_kernel(launch.kernel), name=f"kernel_{seed}_{n}"))
    return Compiled(funcs, flags=["-O1"])


def run(compiled: Compiled, seed: int, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph; a split of the units that is different for each launch."""
    graph, launches = fused(seed)
    values: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for n, launch in enumerate(launches):
        for value in launch.writes:
            bits = np.full(value.type.nbytes, 0xFF, np.uint8)
            values[value] = bits.view(value.type.dtype.numpy).reshape(value.type.shape)
        arrays = [np.ascontiguousarray(values[v]) for v in launch.values]
        compiled.run(f"kernel_{seed}_{n}", arrays, parts=n % 4 + 1)
    return [values[v] for v in graph.outputs]


@pytest.mark.parametrize("seed", range(GRAPHS + len(TYPICAL)))
def test_graphs(compiled: Compiled, seed: int) -> None:
    graph, _ = fused(seed)
    strict = is_strict(graph)
    complaint = disagreement(graph, lambda inputs: run(compiled, seed, inputs), strict=strict)
    assert complaint is None, (complaint[0], str(graph))


def test_graphs_hold_what_is_hard(compiled: Compiled) -> None:
    """Masks, loaded indices, several stages and divided indices occur, each many times."""
    text = compiled.source
    parts = (" ? b", r"\(int64_t\)v", " / ", " % ", r"bu_max_f32\(", r"bu_muladd_f32\(")
    assert "(uint8_t *)scratch" in text
    for part in parts:
        assert len(re.findall(part, text)) >= 5, part
