"""The verifier: a level of the IR is a specification as data, checked after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bringup.dtypes import DType
from bringup.errors import GraphError, OpTypeError
from bringup.graph.ir import Graph, Instr, Literal, Value, attrs_key
from bringup.graph.printer import Numbering, format_attr, format_instr
from bringup.records import record
from bringup.types import TensorType

Allowed = Callable[[Instr], str | None]
Problem = tuple[Instr | None, str]
Check = Callable[[Graph], Iterable[Problem]]

CONTEXT = 3  # lines shown on either side of the instruction at fault


@record
class LevelSpec:
    """What may stand in a graph at one level.

    name: as messages call it.
    ops: names of the ops allowed, None for every op.
    allowed: what is wrong with an instruction, None for nothing.
    checks: further ones over a whole graph, as (instruction or None, what is wrong).  All of them
    hold for sub-graphs too.

    >>> LevelSpec("movement", ops=frozenset({"reshape", "transpose"})).name
    'movement'
    """

    name: str
    ops: frozenset[str] | None = None
    allowed: Allowed | None = None
    checks: tuple[Check, ...] = ()

    def complaint(self, instr: Instr) -> str | None:
        """What the level has against an instruction, or None."""
        if self.ops is not None and instr.op.name not in self.ops:
            return f"{instr.op.name} is not an op of this level"
        return self.allowed(instr) if self.allowed is not None else None


ANY = LevelSpec("graph")


def verify(graph: Graph, spec: LevelSpec = ANY) -> None:
    """Check SSA form, types, attributes and the level's own rules, sub-graphs included.

    Raises GraphError that shows the first instruction at fault among its neighbours.
    """
    for instr, what in problems(graph, spec):
        raise _error(graph, spec, instr, what)
    for inner in subgraphs(graph):
        verify(inner, spec)


def subgraphs(graph: Graph) -> Iterator[Graph]:
    """The graphs held directly by the attributes of a graph's instructions, in order."""
    for instr in graph.instrs:
        yield from subgraphs_of(instr)


def subgraphs_of(instr: Instr) -> Iterator[Graph]:
    """The graphs held directly by an instruction's attributes, in order."""
    for value in instr.attrs.values():
        yield from _graphs_in(value)


def _graphs_in(value: Any) -> Iterator[Graph]:
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _graphs_in(item)


def problems(graph: Graph, spec: LevelSpec = ANY) -> Iterator[Problem]:
    """Everything wrong with a graph itself, as (instruction or None, what)."""
    defined: set[Value] = set()
    for index, value in enumerate(graph.inputs):
        if value in defined:
            yield None, f"input {index} appears twice"
        elif value.producer is not None:
            yield None, f"input {index} is the result of {value.producer.op.name}"
        defined.add(value)
    later = {result for instr in graph.instrs for result in instr.results}
    for instr in graph.instrs:
        for index, value in enumerate(instr.operands):
            if value not in defined:
                where = (
                    "used before it is defined" if value in later else "not a value of this graph"
                )
                yield instr, f"operand {index} is {where}"
        yield from _results_of(instr, defined)
        yield from _typing(instr)
        complaint = spec.complaint(instr)
        if complaint is not None:
            yield instr, complaint
    for index, value in enumerate(graph.outputs):
        if value not in defined:
            yield None, f"output {index} is not a value of this graph"
    for check in spec.checks:
        yield from check(graph)


def _results_of(instr: Instr, defined: set[Value]) -> Iterator[Problem]:
    for index, value in enumerate(instr.results):
        if value in defined:
            yield instr, f"result {index} is defined twice"
        elif value.producer is not instr or value.index != index:
            yield instr, f"result {index} does not point back at its instruction"
        defined.add(value)


def _typing(instr: Instr) -> Iterator[Problem]:
    """Bind and infer again, and compare."""
    for name, value in instr.attrs.items():
        if not _is_plain(value):
            yield instr, f"attribute {name} is not plain: a {type(value).__name__}"
            return
    try:
        bound = instr.op.bind(instr.attrs)
        types = instr.op.result_types(tuple(v.type for v in instr.operands), bound)
    except OpTypeError as error:
        yield instr, error.what
        return
    if attrs_key(bound) != attrs_key(instr.attrs):
        yield instr, f"attributes are not bound; expected {_attrs(bound)}"
    declared = tuple(v.type for v in instr.results)
    if types != declared:
        yield instr, f"has types {_types(declared)}, inferred {_types(types)}"


def _is_plain(value: Any) -> bool:
    """Hashable, immutable, and with a text of its own."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    kinds = (bool, int, float, str, DType, TensorType, Literal, Graph)
    return value is None or isinstance(value, kinds) or hasattr(value, "__ir__")


def _attrs(attrs: dict[str, Any]) -> str:
    return ", ".join(f"{name}={format_attr(value)}" for name, value in attrs.items()) or "none"


def _types(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types)) or "none"


def _error(graph: Graph, spec: LevelSpec, instr: Instr | None, what: str) -> GraphError:
    numbering = Numbering(graph.inputs, graph.instrs)
    title = f"{spec.name} {graph.name}: {what}"
    if instr is None:
        return GraphError(title)
    at = graph.instrs.index(instr)
    shown = graph.instrs[max(at - CONTEXT, 0) : at + CONTEXT + 1]
    notes = tuple(
        ("> " if other is instr else "  ") + format_instr(other, numbering) for other in shown
    )
    return GraphError(
        title,
        notes=notes,
        location=instr.location,
        instruction=format_instr(instr, numbering),
    )
