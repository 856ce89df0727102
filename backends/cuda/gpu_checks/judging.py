"""Whether a device's results lie within the bounds that the suite's oracle derives.

Bounds that are carried through a long program get so wide that they say nothing.  A program is
therefore judged in pieces, each on the reference's own values; a piece whose bounds say nothing of
some element is cut in two and judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bringup.graph import Builder, Graph, Instr, Value
from bringup.ops.evaluate import run_instr
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.verdict import Verdict, judge

Array = np.ndarray[Any, Any]
#: Instructions of a piece, at first.
LONGEST = 48


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a graph as one of its own, and the values of its inputs."""

    graph: Graph
    inputs: tuple[Array, ...]

    @property
    def size(self) -> int:
        """In instructions."""
        return len(self.graph.instrs)


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a program.

    pieces: how many there were in the end.  late: the time was up before the last one.
    """

    verdict: Verdict
    pieces: int
    late: bool

    def row(self) -> dict[str, Any]:
        """For the results."""
        return {
            "wrong": self.verdict.wrong,
            "compared": self.verdict.compared,
            "open": self.verdict.open,
            "of_bound": round(self.verdict.ratio, 4),
            "pieces": self.pieces,
            "late": self.late,
            "first": [str(each) for each in self.verdict.mismatches[:1]],
        }


def judge_graph(
    target: DeviceTarget,
    graph: Graph,
    inputs: Sequence[Array],
    left: Callable[[], float],
    longest: int = LONGEST,
) -> Judged:
    """Judge a graph's results for these inputs, in pieces.  left: gives the seconds there are."""
    verdict, pieces = Verdict(), 0
    waiting = list(reversed(list(_cut(graph, inputs, longest))))
    while waiting:
        if left() < 0:
            return Judged(verdict, pieces, late=True)
        piece = waiting.pop()
        found = _judge_piece(target, piece)
        if found.ok and found.open and piece.size > 1:
            halves = _cut(piece.graph, piece.inputs, (piece.size + 1) // 2)
            waiting += reversed(list(halves))
            continue
        verdict += found
        pieces += 1
    return Judged(verdict, pieces, late=False)


def _judge_piece(target: DeviceTarget, piece: Piece) -> Verdict:
    spans = analyse(piece.graph, piece.inputs, target.capabilities.numerics)
    results = target.compile(piece.graph)(piece.inputs)
    verdict = Verdict()
    for number, (result, span) in enumerate(zip(results, spans, strict=True)):
        verdict += judge(result, span, number)
    return verdict


def _cut(graph: Graph, inputs: Sequence[Array], longest: int) -> Iterator[Piece]:
    """Pieces of at most ``longest`` instructions, in order."""
    values = dict(zip(graph.inputs, inputs, strict=True))
    needed = set(graph.outputs)
    runs = [graph.instrs[i : i + longest] for i in range(0, len(graph.instrs), longest)]
    for number, instrs in enumerate(runs):
        later = needed | {v for run in runs[number + 1 :] for i in run for v in i.operands}
        yield _piece(instrs, later, values)
        for instr in instrs:
            with np.errstate(all="ignore"):
                made = run_instr(instr, [values[v] for v in instr.operands])
            values.update(zip(instr.results, made, strict=True))


def _piece(instrs: Sequence[Instr], later: set[Value], values: dict[Value, Array]) -> Piece:
    made = {v for instr in instrs for v in instr.results}
    taken = dict.fromkeys(v for i in instrs for v in i.operands if v not in made)
    with Builder() as builder:
        table = {v: builder.input(v.type) for v in taken}
        for instr in instrs:
            results = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
            table.update(zip(instr.results, results, strict=True))
        outputs = [table[v] for i in instrs for v in i.results if v in later]
        graph = builder.build(outputs)
    return Piece(graph, tuple(values[v] for v in taken))
