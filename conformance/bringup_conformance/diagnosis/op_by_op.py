"""The search for a cause instruction by instruction, where there is no program to look into; and
inside the bodies of loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from bringup.graph import Graph, Instr, Value
from bringup.graph.printer import print_graph
from bringup.ops.evaluate import subgraph_runs
from bringup.records import record
from bringup_conformance.cases import Case
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.diagnosis.run_part import (
    DataSets,
    Values,
    case_of,
    reference_values,
    run_and_compare,
    subgraph,
)
from bringup_conformance.execution.running import error_text
from bringup_conformance.execution.targets import Target
from bringup_conformance.oracle.numbers import Array

#: Runs of one body that are looked at.
_MOST_RUNS = 8


class Locate(Protocol):
    """`bringup_conformance.diagnosis.locate.located`."""

    def __call__(
        self, target: Target, case: Case, sets: DataSets, *, fuse: bool, skip: frozenset[str],
        suspect: None,
    ) -> Cause:  # fmt: skip
        """The cause of a case's failure on given arrays."""
        ...


@record
class _Wrong:
    """What is wrong with a graph's results, and their wrong elements."""

    what: str
    graph: Graph
    mismatches: tuple[str, ...]

    def cause(self, kind: str, instr: Instr, context: str) -> Cause:
        """An instruction as the cause.  context: where its results are wrong."""
        before = print_graph(self.graph)
        return Cause(
            kind, instr.op.name, f"{context}: {self.what}", ir_before=before,
            mismatches=self.mismatches,
        )  # fmt: skip


@record
class _Trials:
    """Runs of parts of a case on right inputs.

    values: the right array of every value of its graph, for each data set.
    """

    target: Target
    case: Case
    values: Sequence[Values]
    fuse: bool
    skip: frozenset[str]

    def run(self, graph: Graph, inputs: Sequence[Value]) -> _Wrong | None:
        """Run a part of the graph; ``inputs`` are the values that its inputs stand for."""
        sets = [[values[v] for v in inputs] for values in self.values]
        try:
            runnable = self.target.compile(
                graph, fuse=self.fuse, skip=self.skip, optimize=self.case.optimize
            )
        except Exception as error:  # noqa: BLE001  (what a backend raises is the answer)
            return _Wrong(f"compiling: {error_text(error)}", graph, ())
        problem, _ = run_and_compare(self.target, runnable, case_of(self.case, graph), sets)
        if problem is None:
            return None
        return _Wrong(problem.what, graph, tuple(map(str, problem.verdict.mismatches)))

    def wrong_instructions(self) -> Iterator[tuple[Instr, _Wrong]]:
        """The instructions that are wrong when they run alone."""
        for instr in _computing(self.case.graph):
            operands = dict.fromkeys(instr.operands)
            inputs = [v for v in operands if v.producer is None or _is_computed(v.producer)]
            wrong = self.run(subgraph(self.case.graph, inputs, instr.results), inputs)
            if wrong is not None:
                yield instr, wrong


def _computing(graph: Graph) -> Iterator[Instr]:
    return filter(_is_computed, graph.instrs)


def _is_computed(instr: Instr) -> bool:
    return instr.literal is None


def cause_by_instruction(
    target: Target, case: Case, sets: DataSets, fuse: bool, skip: frozenset[str], locate: Locate
) -> Cause:
    """The first instruction that is wrong alone; else the least part of the graph that is wrong."""
    graph = case.graph
    trials = _Trials(target, case, [reference_values(graph, x) for x in sets], fuse, skip)
    for instr, wrong in trials.wrong_instructions():
        inside = cause_inside(target, case, instr, trials.values, skip, locate)
        return inside or wrong.cause("op", instr, "on right inputs, alone")
    for instr in _computing(graph):
        joint = trials.run(subgraph(graph, graph.inputs, instr.results), graph.inputs)
        if joint is not None:
            context = "every instruction is right alone; up to here they are wrong"
            return joint.cause("together", instr, context)
    what = "every instruction is right by itself, and so are all up to each"
    return Cause("unknown", "", what, ir_before=print_graph(graph))


def ops_wrong_alone(
    target: Target, case: Case, sets: DataSets, skip: frozenset[str]
) -> tuple[str, ...]:
    """Names of the ops of a graph that are wrong alone, each on its right inputs."""
    values = [reference_values(case.graph, inputs) for inputs in sets]
    wrong = _Trials(target, case, values, True, skip).wrong_instructions()
    return tuple(dict.fromkeys(instr.op.name for instr, _ in wrong))


def cause_inside(
    target: Target,
    case: Case,
    instr: Instr,
    values: Sequence[Values],
    skip: frozenset[str],
    locate: Locate,
) -> Cause | None:
    """The cause inside a loop or branch that is wrong; None if its sub-graphs are right.

    values: the right array of every value, for each data set.
    """
    runs: dict[Graph, list[list[Array]]] = {}
    for known in values:
        inside = subgraph_runs(instr, [known[v] for v in instr.operands])
        for graph, arrays, _ in islice(inside, 2 * _MOST_RUNS):  # conditions count as well
            if len(runs.setdefault(graph, [])) < _MOST_RUNS:
                runs[graph].append([x.copy() for x in arrays])
    for graph, sets in runs.items():
        inputs = [dict(zip(graph.inputs, arrays, strict=True)) for arrays in sets]
        if _Trials(target, case, inputs, True, skip).run(graph, graph.inputs) is not None:
            return locate(target, case_of(case, graph), sets, fuse=True, skip=skip, suspect=None)
    return None
