"""What rows that hold sub-graphs share: checking them, running them, and cutting them down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, Instr, Value, has_effects, replay
from bringup.ops._numeric import Array
from bringup.ops.table import Attrs, Trait, Types, opdef
from bringup.records import record
from bringup.types import TensorType


def graph_attr(name: str, attrs: Attrs, key: str) -> Graph:
    """An attribute that must be a graph."""
    value = attrs[key]
    if not isinstance(value, Graph):
        raise OpTypeError(
            f"{name}: attribute {key!r} must be a graph, got {type(value).__name__}",
            fix="build one with Builder, or call the function of that name on Python functions",
        )
    return value


def as_tuple(results: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    """What calling a row gives, always as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def types_of(values: Iterable[Value]) -> Types:
    """The types of values."""
    return tuple(v.type for v in values)


def check_types(name: str, what: str, found: Types, wanted: Types, source: str) -> None:
    """Raise OpTypeError unless two lists of types are equal, naming the first that differs."""
    if len(found) != len(wanted):
        raise OpTypeError(
            f"{name}: {what} {_counted(found)}, {source} {_counted(wanted)}",
            fix=f"make both {_counted(wanted)}",
        )
    for position, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one is not other:
            raise OpTypeError(
                f"{name}: {what} {one} as value {position}, {source} {other}",
                fix=f"make both {other}",
            )


def _counted(types: Types) -> str:
    return f"{len(types)} value{'' if len(types) == 1 else 's'}"


def run(graph: Graph, arrays: Sequence[Any]) -> list[Array]:
    """The outputs of a graph on arrays, of wider dtypes too where the rows take them."""
    return runner(graph)(arrays)


def runner(graph: Graph) -> Callable[[Sequence[Any]], list[Array]]:
    """What runs a graph as `run` does, for many arrays: what needs no input is computed once."""
    known: dict[Value, Any] = {}
    each_time: list[Instr] = []
    for instr in graph.instrs:
        row = opdef(instr)
        # A loop that nobody reaches may have no end.
        once = not (row.holds_graphs or row.effects)
        if once and known.keys() >= set(instr.operands):
            _apply(instr, known)
        else:
            each_time.append(instr)

    def call(arrays: Sequence[Any]) -> list[Array]:
        values = {**known, **dict(zip(graph.inputs, arrays, strict=True))}
        for instr in each_time:
            _apply(instr, values)
        return [np.asarray(values[v]) for v in graph.outputs]

    return call


def _apply(instr: Instr, values: dict[Value, Any]) -> None:
    results = opdef(instr).reference(*[values[v] for v in instr.operands], **instr.attrs)
    parts = results if isinstance(results, tuple) else (results,)
    values.update(zip(instr.results, parts, strict=True))


def reached(graph: Graph, outputs: Iterable[int]) -> frozenset[int]:
    """The positions of the inputs that some outputs depend on."""
    live = {graph.outputs[i] for i in outputs}
    for instr in reversed(graph.instrs):
        if not live.isdisjoint(instr.results):
            live.update(instr.operands)
    return frozenset(i for i, v in enumerate(graph.inputs) if v in live)


def restricted(graph: Graph, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
    """The part of a graph that makes some of its outputs of some of its inputs."""
    kept = tuple(graph.outputs[i] for i in outputs)
    live, instrs = set(kept), []
    for instr in reversed(graph.instrs):
        if not live.isdisjoint(instr.results) or has_effects(instr.op, instr.attrs):
            live.update(instr.operands)
            instrs.append(instr)
    taken = [graph.inputs[i] for i in inputs]
    part = Graph(taken, instrs[::-1], kept, graph.name)
    builder = Builder()
    return builder.build(replay(part, builder=builder), graph.name)


def is_zero(value: Value) -> bool:
    """Whether a value is known to be zeros."""
    literal = value.literal
    return bool(literal is not None and literal.is_splat and literal.scalar == 0)


def rows_of(type_: TensorType, name: str, length: int, position: int) -> TensorType:
    """The type of one row of an operand that is read row by row.  Raises OpTypeError."""
    if not type_.shape or type_.shape[0] != length:
        raise OpTypeError(
            f"{name}: operand {position} is {type_}, its first dimension must be length={length}",
            fix="stack the rows along the first dimension",
        )
    return type_.with_shape(type_.shape[1:])


def known_trips(state: Sequence[Value], cond: Graph, body: Graph) -> int | None:
    """How often a while runs its body, if it only counts up by one from and to constants."""
    test = cond.outputs[0].producer
    if test is None or test.op.name != "compare" or test.attrs["direction"] != "lt":
        return None
    counter, limit = test.operands
    if counter not in cond.inputs or counter.dtype.is_float:
        return None
    place = cond.inputs.index(counter)
    after = body.outputs[place].producer
    if after is None or after.op.name != "add" or after.operands[0] is not body.inputs[place]:
        return None
    known = [_number(v) for v in (state[place], limit, after.operands[1])]
    start, stop, step = known
    if start is None or stop is None or step != 1:
        return None
    return max(0, stop - start)


def _number(value: Value) -> int | None:
    return None if value.literal is None or value.shape else int(value.literal.scalar)


def chosen(index: int, branches: int) -> int:
    """The branch that an index selects."""
    return index if 0 <= index < branches else branches - 1


@record
class Parts:
    """How operands, and the inputs and outputs of the body, divide.

    consts, carries: how many of the operands they are; the rest are the stacks read row by row.
    """

    consts: int
    carries: int

    @property
    def first_stack(self) -> int:
        """The position of the first stack among the operands."""
        return self.consts + self.carries

    @property
    def carried(self) -> tuple[tuple[int, int], ...]:
        """Each input of the body that carries, and the output that follows it."""
        return tuple((self.consts + i, i) for i in range(self.carries))


def is_loop(instr: Instr) -> bool:
    """Whether an instruction is a loop."""
    return Trait.LOOP in opdef(instr).traits


def is_branch(instr: Instr) -> bool:
    """Whether an instruction runs one of several graphs."""
    return Trait.BRANCH in opdef(instr).traits


def is_control(instr: Instr) -> bool:
    """Whether an instruction is a loop or a branch, which a program runs as a step of its own."""
    return is_loop(instr) or is_branch(instr)


def loop_parts(instr: Instr) -> Parts:
    """How the operands of a loop divide: without attributes that say so, all are carried."""
    attrs = instr.attrs
    return Parts(attrs.get("consts", 0), attrs.get("carries", len(instr.operands)))


def trips_of(instr: Instr) -> int | None:
    """How often a loop runs its body, None if that is unknown."""
    length: int | None = instr.attrs.get("length")
    return known_trips(instr.operands, **instr.attrs) if length is None else length


def carried(instr: Instr) -> tuple[tuple[int, int], ...]:
    """Pairs of an operand of a loop and the result that starts as it; none for a branch."""
    return loop_parts(instr).carried if is_loop(instr) else ()


def unchanged(instr: Instr) -> list[tuple[int, int]]:
    """The pairs of `carried` whose part of the state the body returns as it got it."""
    body: Any = instr.attrs.get("body")
    return [(i, o) for i, o in carried(instr) if body.outputs[o] is body.inputs[i]]
