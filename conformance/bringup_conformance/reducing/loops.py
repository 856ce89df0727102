"""Instruction by instruction, where no program is at hand; and into the bodies of loops and
branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from bringup.graph import Graph, Instr, Value
from bringup.graph.printer import print_graph
from bringup.ops.evaluate import evaluate
from bringup.ops.subgraphs import chosen
from bringup_conformance.cases import Case
from bringup_conformance.execution.running import error_text
from bringup_conformance.execution.targets import Target
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.reducing.cause import Cause
from bringup_conformance.reducing.trials import Values, about, examine, part, values_of

#: Runs of one body that are looked at.
_MOST = 8
# What is wrong, the graph that it is wrong of, and its wrong elements.
_Found = tuple[str, Graph, tuple[str, ...]]


class Locate(Protocol):
    """`bringup_conformance.reducing.locate.located`."""

    def __call__(
        self, target: Target, case: Case, sets: Sequence[list[Array]], *, fuse: bool,
        skip: frozenset[str], suspect: None,
    ) -> Cause:  # fmt: skip
        """What is guilty of a case's failure on arrays at hand."""
        ...


def by_instruction(
    target: Target,
    case: Case,
    sets: Sequence[list[Array]],
    fuse: bool,
    skip: frozenset[str],
    locate: Locate,
) -> Cause:
    """The first instruction that is wrong alone; else the least part of the graph that is wrong."""
    graph = case.graph
    right = [values_of(graph, inputs) for inputs in sets]
    for instr, found in _wrong(target, case, right, fuse, skip):
        inner = inside(target, case, instr, right, skip, locate)
        return inner or _accused("op", instr.op.name, f"on right inputs, alone: {found[0]}",
                                 found[1], found[2])  # fmt: skip
    for instr in graph.instrs:
        small = part(graph, graph.inputs, instr.results)
        joint = _tried(target, case, small, right, graph.inputs, fuse, skip)
        if joint is not None and instr.op.name != "constant":
            what = f"every instruction is right alone; up to here they are wrong: {joint[0]}"
            return _accused("together", instr.op.name, what, joint[1], joint[2])
    what = "every instruction is right by itself, and so are all up to each"
    return Cause("unknown", "", what, ir_before=print_graph(graph))


def wrong_alone(
    target: Target, case: Case, sets: Sequence[list[Array]], skip: frozenset[str]
) -> tuple[str, ...]:
    """Names of the ops of a graph that are wrong alone, each on its right inputs."""
    right = [values_of(case.graph, inputs) for inputs in sets]
    wrong = _wrong(target, case, right, True, skip)
    return tuple(dict.fromkeys(instr.op.name for instr, _ in wrong))


def _wrong(
    target: Target, case: Case, right: Sequence[Values], fuse: bool, skip: frozenset[str]
) -> Iterator[tuple[Instr, _Found]]:
    """The instructions of a case that are wrong alone, on right inputs, with what is wrong."""
    for instr in case.graph.instrs:
        if instr.op.name == "constant":
            continue
        given = [v for v in dict.fromkeys(instr.operands) if not _is_constant(v)]
        lone = part(case.graph, given, instr.results)
        found = _tried(target, case, lone, right, given, fuse, skip)
        if found is not None:
            yield instr, found


def _is_constant(value: Value) -> bool:
    return value.producer is not None and value.producer.op.name == "constant"


def _tried(
    target: Target, case: Case, graph: Graph, right: Sequence[Values], given: Sequence[Value],
    fuse: bool, skip: frozenset[str],
) -> _Found | None:  # fmt: skip
    sets = [[values[v] for v in given] for values in right]
    try:
        runnable = target.compile(graph, fuse=fuse, skip=skip, optimize=case.optimize)
    except Exception as error:  # noqa: BLE001  (what a backend raises is the answer)
        return f"compiling: {error_text(error)}", graph, ()
    problem, _ = examine(target, runnable, about(case, graph), sets)
    if problem is None:
        return None
    return problem.what, graph, tuple(map(str, problem.verdict.mismatches))


def _accused(kind: str, name: str, what: str, graph: Graph, lines: tuple[str, ...]) -> Cause:
    return Cause(kind, name, what, ir_before=print_graph(graph), mismatches=lines)


def inside(
    target: Target,
    case: Case,
    instr: Instr,
    right: Sequence[Values],
    skip: frozenset[str],
    locate: Locate,
) -> Cause | None:
    """What is guilty inside a loop or branch that is wrong; None if its parts are right."""
    runs: dict[Graph, list[list[Array]]] = {}
    for values in right:
        for graph, arrays in _runs(instr, [values[v] for v in instr.operands]):
            if len(runs.setdefault(graph, [])) < _MOST:
                runs[graph].append([x.copy() for x in arrays])
    for graph, sets in runs.items():
        given = [dict(zip(graph.inputs, arrays, strict=True)) for arrays in sets]
        if _tried(target, case, graph, given, graph.inputs, True, skip) is not None:
            return locate(target, about(case, graph), sets, fuse=True, skip=skip, suspect=None)
    return None


def _runs(instr: Instr, operands: list[Array]) -> Iterator[tuple[Graph, list[Array]]]:
    """The sub-graphs that a loop or branch runs, with the arrays they get."""
    name, attrs = instr.op.name, instr.attrs
    if name == "case":
        branches = attrs["branches"]
        yield branches[chosen(int(operands[0][()]), len(branches))], operands[1:]
    elif name == "while":
        yield from _while(attrs["cond"], attrs["body"], operands)
    elif name == "scan":
        yield from _scan(instr, operands)


def _while(cond: Graph, body: Graph, state: list[Array]) -> Iterator[tuple[Graph, list[Array]]]:
    for _ in range(_MOST):
        yield cond, state
        if not evaluate(cond, state)[0][()]:
            return
        yield body, state
        state = evaluate(body, state)


def _scan(instr: Instr, operands: list[Array]) -> Iterator[tuple[Graph, list[Array]]]:
    attrs, count = instr.attrs, instr.attrs["carries"]
    consts, rest = operands[: attrs["consts"]], operands[attrs["consts"] :]
    carry, stacks = rest[:count], rest[count:]
    order = range(attrs["length"])
    for i in list(reversed(order) if attrs["reverse"] else order)[:_MOST]:
        arrays = [*consts, *carry, *(stack[i] for stack in stacks)]
        yield attrs["body"], arrays
        carry = evaluate(attrs["body"], arrays)[:count]
