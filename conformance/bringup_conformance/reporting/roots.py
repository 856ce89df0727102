"""What failures have in common, so that the first thing to mend is the one that clears most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from bringup.errors import BringupError
from bringup.graph import Graph
from bringup.graph.parser import parse_graph
from bringup.ops.table import Kind, find, lookup
from bringup.passes.decompose import decompose
from bringup_conformance.cases import PROGRAMS
from bringup_conformance.reporting.failures import Plain, problem_of, smallest

#: Kinds of problems that are about the device as a whole.
FATAL = ("crash", "hang", "oom")
#: What failures may share: its kind, and names.
Feature = tuple[str, ...]
# The most specific first: what explains as much in fewer words wins.
_SPECIFIC = ("rule", "op and dtype", "pass", "plan", "fusion", "op", *FATAL)


# A failure that blames more things than this shows none of them for others.
_DECISIVE = 4


@dataclass(frozen=True, slots=True)
class Root:
    """What failures share, and so perhaps their cause.

    failures: numbers of those that it may explain, the best to begin with first.
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
            case "fusion":
                return f"fusion of {' → '.join(names)}"
            case _:
                return f"{kind}{':' if kind in FATAL else ''} {names[0]}"


def roots(failures: Sequence[Plain], excused: Collection[str] = ()) -> list[Root]:
    """Features that together explain every failure, the one that is most to blame first.

    What was made small shows its features for sure; what was not is taken to have one that it could
    have.  Each failure has one vote, which it shares out among its features.
    excused: names of cases that fail as expected, and have no part in it.
    """
    sure = [set(_features(each)) for each in failures]
    # A feature is believed of what was not made small only if something smaller shows it.
    known = set[Feature]().union(*(each for each in sure if _names(each) <= _DECISIVE))
    passes = _passes(failures)
    possible = [
        own | known.intersection(_maybe(each, passes))
        for own, each in zip(sure, failures, strict=True)
    ]
    left = {n for n, each in enumerate(failures) if each["case"]["name"] not in excused}
    found: list[Root] = []
    while left:
        votes = _votes(sure, possible, left)
        if not votes:
            return [*found, Root(("unknown", "cause"), tuple(_sorted(failures, sure, left)))]
        best = max(votes, key=lambda each: (votes[each], -_SPECIFIC.index(each[0]), each))
        members = {n for n in left if best in possible[n]}
        shown_by = {n for n in members if best in sure[n]}
        order = [_sorted(failures, sure, each) for each in (shown_by, members - shown_by)]
        found.append(Root(_alike(best, votes, possible, left), (*order[0], *order[1])))
        left -= members
    return found


def _alike(
    best: Feature,
    votes: Mapping[Feature, Fraction],
    possible: Sequence[set[Feature]],
    left: Collection[int],
) -> Feature:
    """A feature; of an op, with all others that the very same failures show: it may be any."""
    if best[0] != "op":
        return best

    def shown(feature: Feature) -> set[int]:
        return {n for n in left if feature in possible[n]}

    alike = [
        x for x in votes if x[0] == "op" and votes[x] == votes[best] and shown(x) == shown(best)
    ]
    return ("op", *sorted(name for _, name in alike))


def _votes(
    sure: Sequence[set[Feature]], possible: Sequence[set[Feature]], left: Collection[int]
) -> dict[Feature, Fraction]:
    found: dict[Feature, Fraction] = {}
    for n in left:
        for feature in possible[n]:
            voters = sure[n] if feature in sure[n] else possible[n]
            found[feature] = found.get(feature, Fraction(0)) + Fraction(1, _names(voters))
    return found


def _names(features: Collection[Feature]) -> int:
    """How many things are blamed.  An op and the same op with a dtype are one; so are the ops that
    a program fuses, of which the one is meant that most programs share.
    """
    kinds = [kind for kind, *_ in features]
    return max(1, len(kinds) - kinds.count("op and dtype") - max(0, kinds.count("fusion") - 1))


def _sorted(
    failures: Sequence[Plain], sure: Sequence[set[Feature]], which: Collection[int]
) -> list[int]:
    """Those that were made small first; of these, those that blame fewest things."""

    def key(n: int) -> tuple[bool, int, int, int]:
        failure = failures[n]
        return "reduced" not in failure, _names(sure[n]), failure.get("nodes", 0), n

    return sorted(which, key=key)


def _features(failure: Plain) -> Iterator[Feature]:
    """What a failure shows for sure."""
    case, what = failure["case"], problem_of(failure)
    if what["kind"] in FATAL:
        yield (what["kind"], _gist(what["what"]))
    graph = graph_of(smallest(failure))
    if graph is None:
        yield from (("rule", rule) for rule in what.get("rules") or case.get("rules", ()))
        if not case.get("rules") and what["kind"] not in FATAL:
            yield ("op", case["op"])
        return
    guilty = failure.get("cause", {})
    if guilty.get("kind") in ("pass", "kernel pass"):
        yield ("pass", guilty["name"])
    elif guilty.get("kind") == "plan":
        yield ("plan", "of buffers")
    elif guilty.get("kind") == "kernel" and kernel_ops(guilty):
        yield from (("op", name) for name in kernel_ops(guilty))
        if "fusion" in failure.get("guilty", ()):
            yield from (("fusion", *edge) for edge in _edges(graph))
    elif any(instr.op.name == case["op"] for instr in graph.instrs):
        yield from _of_op(case["op"], case["dtype"])
    elif "reduced" in failure or len(graph) == 1:
        yield from _of_program(graph, failure.get("guilty", ()))


def _of_op(op: str, dtype: str) -> Iterator[Feature]:
    yield ("op", op)
    yield ("op and dtype", op, dtype)


def _of_program(graph: Graph, guilty: Sequence[str]) -> Iterator[Feature]:
    yield from (("pass", name) for name in guilty if name != "fusion")
    edges = list(_edges(graph))
    if "fusion" in guilty and edges:
        yield from (("fusion", *edge) for edge in edges)
    if not guilty or not edges:
        yield from _ops(graph)


def _ops(graph: Graph) -> Iterator[Feature]:
    """Ops that work on something; sources only where there is nothing else."""
    working = [i for i in graph.instrs if i.operands] or graph.instrs
    for instr in working:
        dtype = instr.operands[0].dtype if instr.operands else instr.results[0].dtype
        yield from _of_op(instr.op.name, dtype.name)


def _edges(graph: Graph) -> Iterator[tuple[str, str]]:
    for instr in graph.instrs:
        for value in instr.operands:
            maker = value.producer
            row = None if maker is None else find(maker.op.name)
            if maker is not None and row is not None and row.kind is not Kind.SOURCE:
                yield (maker.op.name, instr.op.name)


def _maybe(failure: Plain, passes: Mapping[str, set[str]]) -> Iterator[Feature]:
    """What a program that was not made small, or one op made of others, may fail for."""
    graph = graph_of(smallest(failure))
    if graph is None:
        return
    op = failure["case"]["op"]
    if op == PROGRAMS and ("reduced" in failure or len(graph) == 1):
        return
    if op != PROGRAMS and lookup(op).decompose is None:
        return
    parts = _taken_apart(graph)
    yield from _ops(parts)
    if problem_of(failure).get("fused", True):
        yield from (("fusion", *edge) for edge in _edges(parts))
        there = {instr.op.name for instr in graph.instrs}
        yield from (("pass", name) for name, gone in passes.items() if gone & there)


def _passes(failures: Sequence[Plain]) -> dict[str, set[str]]:
    """The guilty passes, with the ops that they do away with."""
    found: dict[str, set[str]] = {}
    for each in failures:
        cause = each.get("cause", {})
        if cause.get("kind") == "pass":
            found.setdefault(cause["name"], set()).update(undone(cause))
    return found


def undone(cause: Plain) -> set[str]:
    """Names of the ops that a guilty pass did away with."""
    before, after = (graph_of({"ir": cause.get(key)}) for key in ("ir_before", "ir_after"))
    if before is None or after is None:
        return set()
    counts = [Counter(instr.op.name for instr in graph.instrs) for graph in (before, after)]
    return set(counts[0] - counts[1])


def _taken_apart(graph: Graph) -> Graph:
    """The program with nothing in it that is made of others."""
    try:
        return decompose(lambda instr: lookup(instr.op.name).kind is not Kind.COMPOSITE).run(graph)
    except BringupError:
        return graph


def kernel_ops(cause: Plain) -> set[str]:
    """Names of the ops of a guilty kernel that are wrong alone; if none is, of all it computes."""
    if cause.get("ops"):
        return set(cause["ops"])
    rows = map(find, re.findall(r" = (\w+)\(", cause.get("kernel", "")))
    return {row.name for row in rows if row is not None and row.kind is not Kind.SOURCE}


def graph_of(case: Plain) -> Graph | None:
    """The program of a case; nothing of a check, or if this version cannot read it."""
    try:
        return parse_graph(case["ir"], find) if case.get("ir") else None
    except (BringupError, ValueError, KeyError, TypeError):
        return None


def _gist(what: str) -> str:
    """The first line of what a device says, without the numbers that differ each time."""
    line = what.strip().split("\n", maxsplit=1)[0]
    for phase in ("compiling: ", "running: "):
        line = line.removeprefix(phase)
    return re.sub(r"0x[0-9a-f]+|\d+", "N", line)[:100]
