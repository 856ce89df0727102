"""What failures have in common, so that the first thing to fix is the one that fixes most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

from bringup.backend.capabilities import Capabilities
from bringup.errors import BringupError
from bringup.graph import Graph, Instr
from bringup.graph.parser import parse_graph
from bringup.ops.table import Kind, find, lookup
from bringup.passes.decompose import decompose
from bringup.records import record
from bringup_conformance.cases import PROGRAMS, without_numbers
from bringup_conformance.diagnosis.cause import KINDS, MOVES
from bringup_conformance.reporting.failures import Plain, problem_of, smallest

#: Kinds of problems that are about the device as a whole.
FATAL = ("crash", "hang", "oom")
#: What failures may share: its kind, and names.
Feature = tuple[str, ...]
# The most specific kind first: what explains as much in fewer words wins.
_KINDS = ("call", "rule", "op and dtype", "pass", "plan", "fusion", "op", *FATAL)
_NOTHING = Capabilities()
# The features of a failure that blames more things than this are not sought in other failures.
_MAX_BLAMED = 4


@record
class Root:
    """What failures share, and so perhaps their cause.

    failures: the numbers of those that it may explain, the best one to begin with first.
    """

    feature: Feature
    failures: tuple[int, ...]

    def __str__(self) -> str:
        kind, *names = self.feature
        match kind:
            case "op and dtype":
                return f"{names[0]} on {names[1]}"
            case "op":
                return " or ".join(names)
            case "call":
                return f"{KINDS[kind]} {names[0]}"
            case "fusion":
                return f"fusion of {' → '.join(names)}"
            case _:
                return f"{kind}{':' if kind in FATAL else ''} {names[0]}"


def roots(
    failures: Sequence[Plain],
    excused: Collection[str] = (),
    declared: Capabilities = _NOTHING,
) -> list[Root]:
    """Features that together explain every failure, the one with the most votes first.

    A failure that was shrunk has the features that it shows.  Any other may also have those that
    its program could have, if a shrunk one shows them.  Each failure has one vote, which it divides
    among its features.
    excused: names of cases that fail as expected, which have no vote.  declared: what the device
    claims, and so runs without decomposing it.
    """
    shown = [set(_features(each)) for each in failures]
    decisive = set[Feature]().union(*(each for each in shown if _blamed(each) <= _MAX_BLAMED))
    passes = _guilty_passes(failures)
    possible = [
        own | decisive.intersection(_possible(each, passes, declared))
        for own, each in zip(shown, failures, strict=True)
    ]

    def order(numbers: Collection[int]) -> list[int]:
        """Shrunk failures first; of these, those that blame the fewest things."""

        def key(n: int) -> tuple[bool, int, int, int]:
            failure = failures[n]
            return "reduced" not in failure, _blamed(shown[n]), failure.get("nodes", 0), n

        return sorted(numbers, key=key)

    left = {n for n, each in enumerate(failures) if each["case"]["name"] not in excused}
    causes: list[Root] = []
    while left:
        votes: dict[Feature, Fraction] = {}
        for n in left:
            for feature in possible[n]:
                ballot = shown[n] if feature in shown[n] else possible[n]
                share = Fraction(1, _blamed(ballot))
                votes[feature] = votes.get(feature, Fraction(0)) + share
        if not votes:
            return [*causes, Root(("unknown", "cause"), tuple(order(left)))]
        best = max(votes, key=lambda each: (votes[each], -_KINDS.index(each[0]), each))
        members = {n for n in left if best in possible[n]}
        sure = {n for n in members if best in shown[n]}
        numbers = (*order(sure), *order(members - sure))
        if best[0] == "op":  # with all ops that the very same failures show: it may be any of them
            equal = [
                each
                for each in votes
                if each[0] == "op"
                and votes[each] == votes[best]
                and {n for n in left if each in possible[n]} == members
            ]
            best = ("op", *sorted(name for _, name in equal))
        causes.append(Root(best, numbers))
        left -= members
    return causes


def _blamed(features: Collection[Feature]) -> int:
    """How many things features blame.  An op and the same op with a dtype are one thing; so are the
    ops that a program fuses, as the fault is in one of them.
    """
    kinds = [kind for kind, *_ in features]
    return max(1, len(kinds) - kinds.count("op and dtype") - max(0, kinds.count("fusion") - 1))


def _features(failure: Plain) -> Iterator[Feature]:
    """The features that a failure shows."""
    case, problem = failure["case"], problem_of(failure)
    if problem["kind"] == "crash" and problem.get("call") in MOVES:
        yield ("call", problem["call"])
        return
    if problem["kind"] in FATAL:
        yield (problem["kind"], without_numbers(problem["what"]))
    graph = graph_of(smallest(failure))
    if graph is None:
        yield from (("rule", rule) for rule in problem.get("rules") or case.get("rules", ()))
        if not case.get("rules") and problem["kind"] not in FATAL:
            yield ("op", case["op"])
        return
    cause, without = failure.get("cause", {}), failure.get("guilty", ())
    kind = cause.get("kind")
    if kind in ("pass", "kernel pass"):
        yield ("pass", cause["name"])
    elif kind == "plan":
        yield ("plan", "of buffers")
    elif kind == "kernel" and kernel_ops(cause):
        yield from (("op", name) for name in kernel_ops(cause))
        if "fusion" in without:
            yield from _fusions(graph)
    elif kind == "op" and cause.get("ir_before"):
        yield from _ops(parse_graph(cause["ir_before"], find))
    elif any(instr.op.name == case["op"] for instr in graph.instrs):
        yield from _op_features(case["op"], case["dtype"])
    elif "reduced" in failure or len(graph) == 1:
        yield from (("pass", name) for name in without if name != "fusion")
        fusions = list(_fusions(graph))
        if "fusion" in without:
            yield from fusions
        if not without or not fusions:
            yield from _ops(graph)


def _possible(
    failure: Plain, passes: Mapping[str, set[str]], declared: Capabilities
) -> Iterator[Feature]:
    """The features that a program which was not shrunk could have, or an op that is decomposed."""
    graph, op = graph_of(smallest(failure)), failure["case"]["op"]
    if graph is None or "reduced" in failure or (op == PROGRAMS and len(graph) == 1):
        return
    if op != PROGRAMS and lookup(op).decompose is None:
        return

    def is_whole(instr: Instr) -> bool:
        composite = lookup(instr.op.name).kind is Kind.COMPOSITE
        return not composite or declared.available(instr)

    try:
        parts = decompose(is_whole).run(graph)
    except BringupError:
        parts = graph
    yield from _ops(parts)
    if problem_of(failure).get("fused", True):
        yield from _fusions(parts)
        names = {instr.op.name for instr in graph.instrs}
        yield from (("pass", name) for name, removed in passes.items() if removed & names)


def _op_features(op: str, dtype: str) -> Iterator[Feature]:
    yield ("op", op)
    yield ("op and dtype", op, dtype)


def _ops(graph: Graph) -> Iterator[Feature]:
    """The ops that have operands; sources only where there is nothing else."""
    for instr in [i for i in graph.instrs if i.operands] or graph.instrs:
        dtype = instr.operands[0].dtype if instr.operands else instr.results[0].dtype
        yield from _op_features(instr.op.name, dtype.name)


def _fusions(graph: Graph) -> Iterator[Feature]:
    """Pairs of ops of which the second reads the first."""
    for instr in graph.instrs:
        for value in instr.operands:
            producer = value.producer
            row = None if producer is None else find(producer.op.name)
            if producer is not None and row is not None and row.kind is not Kind.SOURCE:
                yield ("fusion", producer.op.name, instr.op.name)


def _guilty_passes(failures: Sequence[Plain]) -> dict[str, set[str]]:
    """The guilty passes, each with the ops that it removes."""
    passes: dict[str, set[str]] = {}
    for each in failures:
        cause = each.get("cause", {})
        if cause.get("kind") == "pass":
            passes.setdefault(cause["name"], set()).update(removed_ops(cause))
    return passes


def removed_ops(cause: Plain) -> set[str]:
    """Names of the ops that a guilty pass removed."""
    before, after = (graph_of({"ir": cause.get(key)}) for key in ("ir_before", "ir_after"))
    if before is None or after is None:
        return set()
    counts = [Counter(instr.op.name for instr in graph.instrs) for graph in (before, after)]
    return set(counts[0] - counts[1])


def kernel_ops(cause: Plain) -> set[str]:
    """Names of the ops of a guilty kernel that are wrong alone; if none is, of all it computes."""
    if cause.get("ops"):
        return set(cause["ops"])
    rows = map(find, re.findall(r" = (\w+)\(", cause.get("kernel", "")))
    return {row.name for row in rows if row is not None and row.kind is not Kind.SOURCE}


def graph_of(case: Plain) -> Graph | None:
    """The program of a case; None of a check, or if this version cannot read it."""
    try:
        return parse_graph(case["ir"], find) if case.get("ir") else None
    except (BringupError, ValueError, KeyError, TypeError):
        return None
