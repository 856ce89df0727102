"""Instructions with sub-graphs as steps: their programs, and the memory that running them takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bringup.dtypes import bool_, u8
from bringup.errors import Location
from bringup.graph import Graph, Instr, Value, rebuild
from bringup.ops._subgraphs import Parts, known_trips
from bringup.program.program import CaseStep, ControlStep, Program, ScanStep, Slot, WhileStep
from bringup.records import record
from bringup.types import TensorType

#: Makes the program of a sub-graph.
Inner = Callable[[Graph], Program]
Slots = tuple[Slot, ...]


@record(eq=False)
class Nested:
    """What a step of an instruction needs, before anything has a place.

    kept: positions of the results that the step writes; the others are operands of it.
    places: types of the memory it needs while it runs.
    make: the step, given the slots of operands, kept results and places.
    """

    kept: tuple[int, ...]
    places: tuple[TensorType, ...]
    make: Callable[[Slots, Slots, Slots, Location | None], ControlStep]


def nest(instr: Instr, inner: Inner) -> Nested:
    """The programs of an instruction that `is_nested`."""
    return _MAKERS[instr.op.name](instr, inner)


def is_nested(instr: Instr) -> bool:
    """Whether an instruction left whole becomes a step with programs of its own."""
    return instr.op.name in _MAKERS


def forward_invariants(graph: Graph) -> Graph:
    """What a loop returns as it got it -> the operand."""
    if not any(map(is_nested, graph.instrs)):
        return graph

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        pairs = _unchanged(instr)
        if not pairs:
            return None
        made = instr.op(*operands, **instr.attrs)  # type: ignore[operator]
        results = list(made if isinstance(made, tuple) else (made,))
        for operand, result in pairs:
            results[result] = operands[operand]
        return results

    return rebuild(graph, rewrite)


def _carried(instr: Instr) -> tuple[tuple[int, int], ...]:
    """Pairs of an operand and the result that starts as it."""
    if instr.op.name == "while":
        return tuple((i, i) for i in range(len(instr.operands)))
    if instr.op.name == "scan":
        return Parts(instr.attrs["consts"], instr.attrs["carries"]).carried
    return ()


def _unchanged(instr: Instr) -> list[tuple[int, int]]:
    body: Any = instr.attrs.get("body")
    return [(i, o) for i, o in _carried(instr) if body.outputs[o] is body.inputs[i]]


def _changed(instr: Instr) -> list[tuple[int, int]]:
    same = _unchanged(instr)
    return [pair for pair in _carried(instr) if pair not in same]


def _with_outputs(graph: Graph, positions: Iterable[int]) -> Graph:
    return Graph(graph.inputs, graph.instrs, [graph.outputs[i] for i in positions], graph.name)


def _scratch(*programs: Program) -> TensorType:
    return u8[max(program.arena_bytes for program in programs)]


def _while(instr: Instr, inner: Inner) -> Nested:
    cond, body = inner(instr.attrs["cond"]), instr.attrs["body"]
    carried = tuple(i for i, _ in _changed(instr))
    run = inner(_with_outputs(body, carried))
    trips = known_trips(instr.operands, instr.attrs["cond"], body)
    places = (*run.outputs, bool_[()], _scratch(cond, run))

    def make(operands: Slots, results: Slots, held: Slots, at: Location | None) -> WhileStep:
        *spare, flag, scratch = held
        return WhileStep(
            cond, run, carried, operands, results, tuple(spare), flag, scratch, trips, at
        )

    return Nested(carried, places, make)


def _scan(instr: Instr, inner: Inner) -> Nested:
    attrs, body = instr.attrs, instr.attrs["body"]
    parts = Parts(attrs["consts"], attrs["carries"])
    changed = _changed(instr)
    kept = (*(o for _, o in changed), *range(parts.carries, len(body.outputs)))
    run = inner(_with_outputs(body, kept))
    carried = tuple(i for i, _ in changed)
    stacks = tuple(range(parts.first_stack, len(instr.operands)))
    places = (*run.outputs[: len(carried)], _scratch(run))

    def make(operands: Slots, results: Slots, held: Slots, at: Location | None) -> ScanStep:
        *spare, scratch = held
        how = (attrs["length"], attrs["reverse"], carried, stacks)
        return ScanStep(run, *how, operands, results, tuple(spare), scratch, at)

    return Nested(kept, places, make)


def _case(instr: Instr, inner: Inner) -> Nested:
    branches = tuple(map(inner, instr.attrs["branches"]))

    def make(operands: Slots, results: Slots, held: Slots, at: Location | None) -> CaseStep:
        return CaseStep(branches, operands, results, held[0], at)

    return Nested(tuple(range(len(instr.results))), (_scratch(*branches),), make)


_MAKERS: dict[str, Callable[[Instr, Inner], Nested]] = {
    "while": _while,
    "scan": _scan,
    "case": _case,
}
