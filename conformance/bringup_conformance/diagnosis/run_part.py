"""Parts of a program run on given arrays, and what is wrong with the results."""

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
from bringup_conformance.execution.running import (
    changed_input,
    judged,
    made_inputs,
    odd_bool,
    problem_raised,
)
from bringup_conformance.execution.targets import Runnable, Target
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.oracle.special import judge_cells, operands
from bringup_conformance.oracle.verdict import Verdict

#: Arrays of the values of a graph.
Values = dict[Value, Array]
#: Inputs of a graph, for each data set.
DataSets = Sequence[list[Array]]


def data_sets(case: Case) -> list[list[Array]]:
    """The arrays of every data set, or those that hold the special cells."""
    if case.cells:
        dtype = BY_NAME[case.dtype]
        return [[array for cells in case.cells for array in operands(cells, dtype)]]
    return [made_inputs(case, number) for number in range(len(case.data))]


def verdict(target: Target, case: Case, results: Sequence[Array], inputs: list[Array]) -> Verdict:
    """The verdict on a case's results."""
    if not case.cells:
        return judged(case, results, inputs, target)
    total = Verdict()
    for output, (actual, cells) in enumerate(zip(results, case.cells, strict=True)):
        total = total + judge_cells(actual, cells, case.graph.outputs[output].dtype, output)
    return total


def run_and_compare(
    target: Target, runnable: Runnable, case: Case, sets: DataSets
) -> tuple[Problem | None, list[Array]]:
    """Run on every set, then on the first again; the first problem, and the results that show it.

    Sets are run in the order of a whole case, because a fault may need a call before.
    """
    first: list[Array] = []
    for number, inputs in enumerate([*sets, *sets[:1]] if len(sets) > 1 else sets):
        copies = [x.copy() for x in inputs]
        try:
            results = [x.copy() for x in runnable(copies)]
        except Exception as error:  # noqa: BLE001  (what a device raises is a result)
            return problem_raised(error, "running: ", number), []
        types = [(v.shape, v.dtype.numpy) for v in case.graph.outputs]
        if [(x.shape, x.dtype) for x in results] != types:
            return Problem("shape", "the results have other shapes", number), results
        wrong = changed_input(copies, inputs)
        if wrong:
            return Problem("input", wrong, number), results
        wrong = odd_bool(results)
        if wrong:
            return Problem("wrong", wrong, number), results
        judgement = verdict(target, case, results, inputs)
        if not judgement.ok:
            what = str(judgement.mismatches[0])
            return Problem("wrong", what, number, True, judgement), results
        repeated = number == len(sets) and target.capabilities.deterministic
        if repeated and not _equal(first, results):
            return Problem("unstable", "two runs on equal data differ", 0), results
        first = first or results
    return None, []


def _equal(first: Sequence[Array], second: Sequence[Array]) -> bool:
    return all(bool(same_bits(x, y).all()) for x, y in zip(first, second, strict=True))


def reference_values(graph: Graph, inputs: Sequence[Array]) -> Values:
    """The right array of every value of a graph."""
    return completed(graph, dict(zip(graph.inputs, inputs, strict=True)))


def completed(graph: Graph, known: Values) -> Values:
    """All values of a graph, computed from those that are known, which may be wrong ones."""
    values = dict(known)
    for instr in graph.instrs:
        if not all(v in values for v in instr.results):
            results = run_instr(instr, [values[v] for v in instr.operands])
            for value, array in zip(instr.results, results, strict=True):
                values.setdefault(value, array)
    return values


def unread_inputs(graph: Graph, inputs: Sequence[Value], outputs: Sequence[Value]) -> list[Value]:
    """Graph inputs that outputs depend on besides those given.

    A kernel need not read what makes no difference to its results, such as the start of a slice
    that can only start at 0.
    """
    seen, unread = set(inputs), dict[Value, None]()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.producer is None:
            unread[value] = None
        else:
            stack.extend(value.producer.operands)
    return list(unread)


def subgraph(graph: Graph, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
    """The part of a graph that makes some of its values from others."""
    builder = Builder()
    table = {value: builder.input(value.type) for value in inputs}
    needed, live = set(outputs), []
    for instr in reversed(graph.instrs):
        if any(v in needed and v not in table for v in instr.results):
            needed.update(instr.operands)
            live.append(instr)
    for instr in reversed(live):
        results = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
        for value, made in zip(instr.results, results, strict=True):
            table.setdefault(value, made)
    return builder.build([table[v] for v in outputs], graph.name)


def case_of(case: Case, graph: Graph) -> Case:
    """A case of another graph, judged by its bounds."""
    return replace(case, graph=graph, data=(), cells=(), split=False)


def graph_reference(graph: Graph) -> Runnable:
    """The reference evaluator of a graph, as something to call."""
    return lambda inputs: evaluate(graph, inputs)


def kernel_reference(launch: Launch, kernel: Kernel) -> Runnable:
    """Core's evaluator of a kernel, as something to call, on memory that holds 0xFF at first."""

    def run(inputs: Sequence[Array]) -> list[Array]:
        table = dict(zip(launch.reads, map(np.ascontiguousarray, inputs), strict=False))
        for value in launch.writes:
            raw = np.full(value.type.nbytes, 0xFF, np.uint8)
            table[value] = raw.view(value.dtype.numpy).reshape(value.shape)
        evaluate_kernel(kernel, [table[v] for v in launch.values])
        return [table[v] for v in launch.writes]

    return run
