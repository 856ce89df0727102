"""What a pass is: a name, a contract in one line, and a function from graph to graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bringup.graph import Graph, Instr, Value, rebuild
from bringup.graph.verify import ANY, LevelSpec
from bringup.ops.table import opdef
from bringup.records import record

#: Whether the device can run an instruction without decomposing it.
Available = Callable[[Instr], bool]


def everything(_instr: Instr) -> bool:
    """The `Available` of a device that has every op."""
    return True


@record
class Pass:
    """One transformation.

    name: as dumps and timings call it.
    doc: ``before -> after``.
    run: the function; it does not change its argument, and may return it.
    level: what its result satisfies, and every later graph too.
    settles: the names of passes that find nothing to do in its result.
    required: whether what comes after needs it, so that it cannot be left out.
    retypes: whether it may change the types of inputs.

    >>> Pass("nothing", "anything -> the same", lambda graph: graph).name
    'nothing'
    """

    name: str
    doc: str
    run: Callable[[Graph], Graph]
    level: LevelSpec = ANY
    settles: tuple[str, ...] = ()
    required: bool = False
    retypes: bool = False


#: Given what the device has, a pass.
Maker = Callable[[Available], Pass]


def deep(run: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
    """The same transformation for a graph and the sub-graphs in its attributes, inside out."""

    def inside(value: Any) -> Any:
        if isinstance(value, Graph):
            return transform(value)
        if isinstance(value, tuple):
            return tuple(map(inside, value))
        return value

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if not any(map(holds_graph, instr.attrs.values())):
            return None
        attrs = {name: inside(value) for name, value in instr.attrs.items()}
        return as_results(opdef(instr)(*operands, **attrs))

    def transform(graph: Graph) -> Graph:
        nested = any(holds_graph(v) for instr in graph.instrs for v in instr.attrs.values())
        return run(rebuild(graph, rewrite) if nested else graph)

    return transform


def holds_graph(value: Any) -> bool:
    """Whether an attribute is, or contains, a sub-graph."""
    return isinstance(value, Graph) or (isinstance(value, tuple) and any(map(holds_graph, value)))


def as_results(results: Value | Iterable[Value]) -> tuple[Value, ...]:
    """What calling an op gives, always as a tuple."""
    return (results,) if isinstance(results, Value) else tuple(results)
