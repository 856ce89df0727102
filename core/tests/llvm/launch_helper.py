"""The launches of a graph as CPUs run them, and what their results must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from func_helper import run

from bringup.graph import Builder, Graph, Value
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.limits import Limits
from bringup.kernel.split import even_chunks, split_launch
from bringup.llvm.func.schedules import scheduled
from bringup.llvm.loops.schedule import schedule
from bringup.loops import Func, verify_func
from bringup.ops.evaluate import evaluate
from bringup.passes.check import disagreement, generated_inputs, is_strict
from bringup.target import Target
from bringup.types import TensorType

Array = np.ndarray[Any, Any]
Make = Callable[[Kernel], Func]
TARGET = Target(vector_bits=256)


def as_run(kernel: Kernel) -> Func:
    """The loops of a kernel as a CPU runs them."""
    func = scheduled(schedule(kernel, TARGET)).after
    verify_func(func)
    return func


class Launches:
    """The launches of a graph, each rendered from the loops that ``make`` gives."""

    def __init__(self, graph: Graph, make: Make) -> None:
        self.graph, self.make = graph, make
        self.steps: Sequence[Launch] = fuse(graph, Limits())
        self.funcs = [make(step.kernel) for step in self.steps if step.kernel is not None]
        assert len(self.funcs) == len(self.steps)

    def cut(self, chunk: int) -> None:
        """Cut long folds into chunks of so many elements."""
        length = partial(even_chunks, elements=chunk, max_points=1000)
        parts = [part for step in self.steps for part in split_launch(step, length, 32)]
        assert len(parts) > len(self.steps), "nothing is long enough to be cut"
        self.steps = parts
        self.funcs = [self.make(step.kernel) for step in parts if step.kernel is not None]

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        values: dict[Value, Array] = dict(zip(self.graph.inputs, inputs, strict=True))
        for launch, func in zip(self.steps, self.funcs, strict=True):
            outputs = run(func, *(values[v] for v in launch.values if v not in launch.writes))
            for value, output in zip(
                (v for v in launch.values if v in launch.writes), outputs, strict=True
            ):
                values[value] = output.reshape(value.shape)
        return [values[v] for v in self.graph.outputs]


def check(graph: Graph, make: Make) -> None:
    found = disagreement(graph, Launches(graph, make), strict=is_strict(graph))
    assert found is None, f"{found[0]}\n{graph}"


def graph_of(build: Callable[..., Value], *types: TensorType) -> Graph:
    with Builder() as b:
        return b.build([build(*(b.input(t) for t in types))])


def exact(build: Callable[..., Value], *types: TensorType) -> None:
    """Scheduled loops give the bits of the reference."""
    graph = graph_of(build, *types)
    inputs = generated_inputs(graph, 1, special=True)
    (wanted,), (found,) = evaluate(graph, inputs), Launches(graph, as_run)(inputs)
    bits = np.dtype(f"u{wanted.dtype.itemsize}")
    same = wanted.reshape(-1).view(bits) == found.reshape(-1).view(bits)
    if wanted.dtype.kind == "f":
        same |= (np.isnan(wanted) & np.isnan(found)).reshape(-1)
    assert same.all(), f"{wanted}\nand not\n{found}"


def whole(build: Callable[..., Value], *types: TensorType, chunk: int = 0) -> None:
    """Scheduled folds of small whole numbers, which are exact in any order.

    chunk: elements of a piece that long folds are cut into, whose last one ends early.
    """
    graph = graph_of(build, *types)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, t.shape).astype(t.dtype.numpy) for t in types]
    launches = Launches(graph, as_run)
    if chunk:
        launches.cut(chunk)
    (wanted,), (found,) = evaluate(graph, inputs), launches(inputs)
    assert np.array_equal(wanted, found), f"{wanted}\nand not\n{found}"
