"""Instructions with sub-graphs as steps: their programs, and the memory that running them takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bringup.dtypes import bool_, u8
from bringup.errors import Location
from bringup.graph import Graph, Instr, Value
from bringup.ops.subgraphs import Parts, carried, known_trips, unchanged
from bringup.ops.table import OpDef, Trait
from bringup.program.program import CaseStep, ControlStep, Program, ScanStep, Slot, WhileStep
from bringup.records import record
from bringup.types import TensorType

#: Makes the program of a sub-graph, some of whose outputs may take the memory of an input.
Inner = Callable[[Graph, Mapping[int, int]], Program]
Slots = tuple[Slot, ...]


@record(eq=False)
class Nested:
    """What a step of an instruction needs, before anything has a place.

    kept: positions of the results that the step writes; the others are operands of it.
    places: types of the memory it needs while it runs.
    make: the step, given the slots of operands, kept results and places.
    replaced: pairs of an operand and the result that may have its memory.
    """

    kept: tuple[int, ...]
    places: tuple[TensorType, ...]
    make: Callable[[Slots, Slots, Slots, Location | None], ControlStep]
    replaced: tuple[tuple[int, int], ...] = ()


def nest(instr: Instr, inner: Inner) -> Nested:
    """The programs of a loop or branch."""
    return _MAKERS[instr.op.name](instr, inner)


def _changed(instr: Instr) -> list[tuple[int, int]]:
    same = unchanged(instr)
    return [pair for pair in carried(instr) if pair not in same]


def _with_outputs(graph: Graph, positions: Iterable[int]) -> Graph:
    return Graph(graph.inputs, graph.instrs, [graph.outputs[i] for i in positions], graph.name)


def _scratch(*programs: Program) -> TensorType:
    return u8[max(program.arena_bytes for program in programs)]


@record(eq=False)
class _Body:
    """The program of a loop's body.

    carried, updated: positions of operands, as in `WhileStep`.  kept: positions of the outputs that
    the program has, those of carried and updated parts first.  replaced: as in `Nested`.
    """

    program: Program
    carried: tuple[int, ...]
    updated: tuple[int, ...]
    kept: tuple[int, ...]
    replaced: tuple[tuple[int, int], ...]


def _body(instr: Instr, inner: Inner) -> _Body:
    """Parts that ops change in place are changed so, if the rest of the body allows it."""
    body = instr.attrs["body"]
    changed = _changed(instr)
    rest = range(len(carried(instr)), len(body.outputs))
    updated = [(i, o) for i, o in changed if _is_update(body.outputs[o], body.inputs[i])]
    while True:
        swapped = [pair for pair in changed if pair not in updated]
        kept = (*(o for _, o in (*swapped, *updated)), *rest)
        own = {len(swapped) + n: i for n, (i, _) in enumerate(updated)}
        program = inner(_with_outputs(body, kept), own)
        held = [pair for n, pair in enumerate(updated) if len(swapped) + n in dict(program.aliases)]
        if held == updated:
            places = tuple(i for i, _ in swapped), tuple(i for i, _ in updated)
            return _Body(program, *places, kept, tuple(updated))
        updated = held


def _is_update(value: Value, start: Value) -> bool:
    """Whether ops that change their first operand make a value of another one."""
    while value is not start:
        made = value.producer
        if made is None or not isinstance(made.op, OpDef) or Trait.IN_PLACE not in made.op.traits:
            return False
        value = made.operands[0]
    return True


def _while(instr: Instr, inner: Inner) -> Nested:
    cond, body = inner(instr.attrs["cond"], {}), _body(instr, inner)
    trips = known_trips(instr.operands, **instr.attrs)
    count = len(body.carried)
    places = (*body.program.outputs[:count], bool_[()], _scratch(cond, body.program))

    def make(operands: Slots, results: Slots, held: Slots, at: Location | None) -> WhileStep:
        *spare, flag, scratch = held
        how = (cond, body.program, body.carried, body.updated)
        return WhileStep(*how, operands, results, tuple(spare), flag, scratch, trips, at)

    return Nested(body.kept, places, make, body.replaced)


def _scan(instr: Instr, inner: Inner) -> Nested:
    attrs, body = instr.attrs, _body(instr, inner)
    first = Parts(attrs["consts"], attrs["carries"]).first_stack
    stacks = tuple(range(first, len(instr.operands)))
    places = (*body.program.outputs[: len(body.carried)], _scratch(body.program))

    def make(operands: Slots, results: Slots, held: Slots, at: Location | None) -> ScanStep:
        *spare, scratch = held
        how = (attrs["length"], attrs["reverse"], body.carried, body.updated, stacks)
        return ScanStep(body.program, *how, operands, results, tuple(spare), scratch, at)

    return Nested(body.kept, places, make, body.replaced)


def _case(instr: Instr, inner: Inner) -> Nested:
    branches = tuple(inner(branch, {}) for branch in instr.attrs["branches"])

    def make(operands: Slots, results: Slots, held: Slots, at: Location | None) -> CaseStep:
        return CaseStep(branches, operands, results, held[0], at)

    return Nested(tuple(range(len(instr.results))), (_scratch(*branches),), make)


_MAKERS: dict[str, Callable[[Instr, Inner], Nested]] = {
    "while": _while,
    "scan": _scan,
    "case": _case,
}
