"""Value checks around a pass: the reference interpreter runs both graphs on generated inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.dtypes import DType
from bringup.errors import GraphError
from bringup.graph import Graph, Instr
from bringup.graph.printer import print_graph
from bringup.graph.verify import subgraphs, subgraphs_of
from bringup.ops.evaluate import evaluate
from bringup.ops.subgraphs import is_loop, trips_of
from bringup.ops.table import opdef
from bringup.types import TensorType

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]

SEEDS = range(3)
STRICT_SEEDS = range(8)  # the first without special values
# Relative to the largest magnitude of an output.  Wide on purpose: a wrong rewrite is wrong by
# more, and a reordered sum or another decomposition is not wrong.
_TOLERANCE = {"f8e4m3fn": 2.0, "f8e5m2": 2.0, "f16": 5e-2, "bf16": 2e-1, "f32": 1e-3, "f64": 1e-9}


def generated_inputs(graph: Graph, seed: int, *, special: bool) -> list[Array]:
    """Deterministic inputs of small values.

    special: put the extremes of the dtypes, zeros of both signs, inf and NaN among them.
    """
    rng = np.random.default_rng(seed)
    return [_draw(v.type, rng, special) for v in graph.inputs]


def _draw(type_: TensorType, rng: np.random.Generator, special: bool) -> Array:
    dtype, shape = type_.dtype, type_.shape
    if dtype.is_float:
        array = rng.standard_normal(shape).astype(dtype.numpy)
    elif dtype.is_integer:
        array = rng.integers(-8 if dtype.is_signed else 0, 9, shape).astype(dtype.numpy)
    else:
        array = rng.integers(0, 2, shape).astype(dtype.numpy)
    if special and dtype.kind != "bool":
        extremes = rng.permutation(_extremes(dtype))
        # All of them, if there is room, rather than some of them twice.
        picked = np.resize(extremes, max(type_.size, 1))[: type_.size].reshape(shape)
        array = np.where(rng.integers(0, 3, shape) == 0, array, picked)
    return np.ascontiguousarray(array).reshape(shape)


def _extremes(dtype: DType) -> Array:
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return np.array([0, 1, info.min, info.max, info.max - 1], dtype=dtype.numpy)
    tiny = {"f16": 6e-8, "f64": 5e-324}.get(dtype.name, 1e-40)
    values = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, tiny, 6e4, -3.0]
    return np.array(values).astype(dtype.numpy)


#: Runs of bodies in an evaluation by numpy, each of which takes some µs per instruction.
_MOST_RUNS = 1 << 14


def terminates(graph: Graph) -> bool:
    """Whether every loop of a graph counts to a known number, and all of them to no great one:
    generated inputs might never satisfy another condition.
    """
    runs = _runs(graph)
    return runs is not None and runs <= _MOST_RUNS


def _runs(graph: Graph) -> int | None:
    """How often bodies run in one evaluation, or None if that is not known."""
    total = 0
    for instr in graph.instrs:
        inside = [_runs(inner) for inner in subgraphs_of(instr)]
        known = [n for n in inside if n is not None]
        trips = trips_of(instr) if is_loop(instr) else int(bool(inside))
        if trips is None or len(known) < len(inside):
            return None
        total += trips * (1 + sum(known))
    return total


def is_strict(graph: Graph) -> bool:
    """Whether equal programs have equal bits: nothing accumulates, everything is rounded right."""
    return all(map(_is_strict, graph.instrs)) and all(map(is_strict, subgraphs(graph)))


def _is_strict(instr: Instr) -> bool:
    accuracy = opdef(instr).accuracy_for(instr.attrs)
    if not any(v.dtype.is_float for v in instr.results):
        return True
    rounded = bool(accuracy.ulp) and all(ulp <= 0.5 for ulp in accuracy.ulp.values())
    return (accuracy.exact or rounded) and not accuracy.accumulates


def check_values(name: str, before: Graph, after: Graph) -> None:
    """Run both graphs and compare, as `disagreement` says.

    Raises GraphError naming the pass, with both graphs and the inputs.
    """
    strict = is_strict(before) and is_strict(after)
    found = disagreement(before, lambda inputs: evaluate(after, inputs), strict=strict)
    if found is not None:
        complaint, inputs = found
        raise GraphError(
            f"pass {name} changed the value of graph {before.name}: {complaint}",
            notes=(
                *("before:", *print_graph(before).splitlines()),
                *("after:", *print_graph(after).splitlines()),
                *shown_inputs(before, inputs),
            ),
            fix=f"run the graph below through {name} alone, and see which rewrite is wrong",
        )


def disagreement(graph: Graph, run: Run, *, strict: bool) -> tuple[str, list[Array]] | None:
    """Compare a run with the graph's own evaluation on generated inputs.

    strict: every bit must agree (one NaN is as good as another), on special values too.  Otherwise
    a wide tolerance must hold on one of the input sets at least, as a comparison of nearly equal
    numbers may turn.
    Returns what differs and the inputs that show it, or None.
    """
    complaint = ""
    for seed in STRICT_SEEDS if strict else SEEDS:
        inputs = generated_inputs(graph, seed, special=strict and seed > 0)
        complaint = _difference(graph, run, inputs, strict)
        if complaint and strict:
            break
        if not complaint and not strict:
            return None
    return (complaint, inputs) if complaint else None


def _difference(graph: Graph, run: Run, inputs: Sequence[Array], strict: bool) -> str:
    wanted, found = evaluate(graph, inputs), run(inputs)
    for index, (a, b) in enumerate(zip(wanted, found, strict=True)):
        wrong = ~(_same(a, b) if strict else _close(a, b, graph.outputs[index].dtype))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return (
                f"output {index} at {at} was {a[at]}, is {b[at]} ({wrong.sum()} of {a.size} differ)"
            )
    return ""


def _same(a: Array, b: Array) -> Array:
    """Equal in bits, or NaN both."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return np.asarray(equal | ((a != a) & (b != b))).reshape(a.shape)  # noqa: PLR0124


def _close(a: Array, b: Array, dtype: DType) -> Array:
    if not dtype.is_float:
        return np.asarray(a == b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.abs(x[np.isfinite(x)])
    bound = _TOLERANCE[dtype.name] * max(1.0, float(finite.max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= bound
    return np.asarray(near | (x == y) | (np.isnan(x) & np.isnan(y)))


def shown_inputs(graph: Graph, inputs: Sequence[Array]) -> tuple[str, ...]:
    """One line for each input, abridged."""
    with np.printoptions(threshold=64, edgeitems=4):
        return tuple(
            f"{v.type} input {i}: {' '.join(str(array.tolist()).split())[:400]}"
            for i, (v, array) in enumerate(zip(graph.inputs, inputs, strict=True))
        )
