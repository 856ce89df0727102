"""Running a part of a program on arrays at hand, and what is wrong with the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bringup.dtypes import BY_NAME
from bringup.graph import Builder, Graph, Value
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.ops.evaluate import evaluate, run_instr
from bringup_conformance.cases import Case, Problem
from bringup_conformance.execution.running import error_text, judged, made_inputs
from bringup_conformance.execution.targets import Runnable, Target
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.oracle.special import judge_cells, operands
from bringup_conformance.oracle.verdict import Verdict

Values = dict[Value, Array]


def sets_of(case: Case) -> list[list[Array]]:
    """The arrays of every data set, or those that hold the special cells."""
    if case.cells:
        dtype = BY_NAME[case.dtype]
        return [[array for cells in case.cells for array in operands(cells, dtype)]]
    return [made_inputs(case, number) for number in range(len(case.data))]


def verdict(target: Target, case: Case, results: Sequence[Array], inputs: list[Array]) -> Verdict:
    """What there is to say of a case's results."""
    if not case.cells:
        return judged(case, results, inputs, target)
    total = Verdict()
    for output, (actual, cells) in enumerate(zip(results, case.cells, strict=True)):
        total = total + judge_cells(actual, cells, case.graph.outputs[output].dtype, output)
    return total


def examine(
    target: Target, runnable: Runnable, case: Case, sets: Sequence[list[Array]]
) -> tuple[Problem | None, list[Array]]:
    """Run on every set, then on the first again; the first problem, and the results that show it.

    As a whole case is run: a fault may need a call before.
    """
    first: list[Array] = []
    for number, inputs in enumerate([*sets, *sets[:1]] if len(sets) > 1 else sets):
        given = [x.copy() for x in inputs]
        try:
            results = [x.copy() for x in runnable(given)]
        except Exception as error:  # noqa: BLE001  (what a device raises is a result)
            return Problem("crash", f"running: {error_text(error)}", number), []
        types = [(v.shape, v.dtype.numpy) for v in case.graph.outputs]
        if [(x.shape, x.dtype) for x in results] != types:
            return Problem("shape", "the results have other shapes", number), results
        if not _equal(given, inputs):
            return Problem("input", "an input changed", number), results
        found = verdict(target, case, results, inputs)
        if not found.ok:
            odd = any(
                x.dtype == np.bool_ and int(x.view(np.uint8).max()) > 1 for x in results if x.size
            )
            what = "a bool is neither 0 nor 1 in memory" if odd else str(found.mismatches[0])
            return Problem("wrong", what, number, True, found), results
        settled = number == len(sets) and target.capabilities.deterministic
        if settled and not _equal(first, results):
            return Problem("unstable", "two runs on equal data differ", 0), results
        first = first or results
    return None, []


def _equal(first: Sequence[Array], second: Sequence[Array]) -> bool:
    return all(bool(same_bits(x, y).all()) for x, y in zip(first, second, strict=True))


def values_of(graph: Graph, inputs: Sequence[Array]) -> Values:
    """The right array of every value of a graph."""
    values = dict(zip(graph.inputs, inputs, strict=True))
    return finished(graph, values)


def finished(graph: Graph, values: Values) -> Values:
    """The values of a graph of which some are given, wrong ones perhaps: what follows from them."""
    found = dict(values)
    for instr in graph.instrs:
        if all(v in found for v in instr.results):
            continue
        results = run_instr(instr, [found[v] for v in instr.operands])
        found.update({v: x for v, x in zip(instr.results, results, strict=True) if v not in found})
    return found


def unread(graph: Graph, given: Sequence[Value], wanted: Sequence[Value]) -> list[Value]:
    """Inputs that values are made of besides those given: what a kernel need not read, since it
    makes no difference to its results, such as the start of a slice that has no other place.
    """
    known, found = set(given), dict[Value, None]()
    stack, seen = list(wanted), set[Value]()
    while stack:
        value = stack.pop()
        if value in known or value in seen:
            continue
        seen.add(value)
        if value.producer is None:
            found[value] = None
        else:
            stack.extend(value.producer.operands)
    return list(found)


def part(graph: Graph, given: Sequence[Value], wanted: Sequence[Value]) -> Graph:
    """The part of a graph that makes some values of others."""
    builder = Builder()
    table = {value: builder.input(value.type) for value in given}
    needed = set(wanted)
    kept = []
    for instr in reversed(graph.instrs):
        if any(v in needed and v not in table for v in instr.results):
            needed.update(instr.operands)
            kept.append(instr)
    for instr in reversed(kept):
        results = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
        pairs = zip(instr.results, results, strict=True)
        table.update({v: made for v, made in pairs if v not in table})
    return builder.build([table[v] for v in wanted], graph.name)


def about(case: Case, graph: Graph) -> Case:
    """A case that is judged by its bounds, of another graph."""
    return replace(case, graph=graph, data=(), cells=(), split=False)


def evaluating(graph: Graph) -> Runnable:
    """The reference evaluator as something to call."""
    return lambda inputs: evaluate(graph, inputs)


def by_kernel(launch: Launch, kernel: Kernel) -> Runnable:
    """Core's evaluator of kernels as something to call, on memory that holds 0xFF at first."""

    def run(inputs: Sequence[Array]) -> list[Array]:
        table = dict(zip(launch.reads, map(np.ascontiguousarray, inputs), strict=False))
        for value in launch.writes:
            raw = np.full(value.type.nbytes, 0xFF, np.uint8)
            table[value] = raw.view(value.dtype.numpy).reshape(value.shape)
        evaluate_kernel(kernel, [table[v] for v in launch.values])
        return [table[v] for v in launch.writes]

    return run
