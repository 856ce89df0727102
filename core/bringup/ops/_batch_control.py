"""The batch columns of the rows with sub-graphs.

`map_graph` is the transformation itself: what a sub-graph gives for one example it then gives for
all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bringup.graph import Builder, Graph, Value, replay
from bringup.ops import build
from bringup.ops.batching import Flags, spread, to_front
from bringup.ops.build import rows
from bringup.ops.table import MapGraph

Values = tuple[Value, ...]
Body = Callable[[Flags], "tuple[Graph, tuple[bool, ...]]"]


def _carried(body: Body, flags: Flags, after: Callable[[Flags], Flags]) -> list[bool]:
    """Which values of a loop differ between examples, at last.

    after: the flags of the inputs that follow those of the outputs.
    """
    found = list(flags)
    while True:
        following = after(body(found)[1])
        more = [a or b for a, b in zip(found, following, strict=True)]
        if more == found:
            return found
        found = more


def _spread(values: Iterable[Value], has: Flags, wants: Flags, size: int) -> list[Value]:
    """Values with the batch dimension where it is wanted."""
    pairs = zip(values, has, wants, strict=True)
    return [spread(v, size) if want and not given else v for v, given, want in pairs]


def _giving(graph: Graph, has: Flags, wants: Flags, size: int) -> Graph:
    """A graph with the batch dimension on the outputs where it is wanted."""
    with Builder() as builder:
        return builder.build(_spread(replay(graph), has, wants, size), graph.name)


def batch_while(
    operands: Values, batched: Flags, size: int, /, *, cond: Graph, body: Graph, map_graph: MapGraph
) -> Any:
    """One loop, for as long as any example goes on; those that are done stay as they are."""

    def one(flags: Flags) -> tuple[Graph, tuple[bool, ...]]:
        return map_graph(body, flags, size)

    flags = _carried(one, batched, lambda found: found)
    test, (differs,) = map_graph(cond, flags, size)
    if differs:
        # What the body changes it changes in some examples and not in others.
        changed = [o is not i for i, o in zip(body.inputs, body.outputs, strict=True)]
        flags = [flag or new for flag, new in zip(flags, changed, strict=True)]
        test, _ = map_graph(cond, flags, size)
    step, has = one(flags)
    step = _giving(step, has, flags, size)
    state = _spread(operands, batched, flags, size)
    if differs:
        return _while_any(state, flags, test, step)
    return rows.while_(*state, cond=test, body=step)


def _while_any(state: Sequence[Value], flags: Flags, test: Graph, step: Graph) -> Values:
    """The loop whose state begins with the condition of each example."""

    def going(*values: Value) -> Value:
        (holds,) = replay(test, arguments=values)
        return holds

    def advance(holds: Value, *before: Value) -> list[Value]:
        after = replay(step, arguments=before)
        chosen = [
            _chosen(holds, new, old) if flag else old
            for new, old, flag in zip(after, before, flags, strict=True)
        ]
        return [going(*chosen), *chosen]

    first = [going(*state), *state]
    found: Any = rows.while_(
        *first,
        cond=_graph(test.name, lambda holds, *_: [build.reduce("or", holds, (0,))], first),
        body=_graph(step.name, advance, first),
    )
    return tuple(found[1:])


def _chosen(holds: Value, new: Value, old: Value) -> Value:
    """Per example the new value or the old one."""
    return rows.select(build.broadcast_to(holds, new.shape, (0,)), new, old)


def _graph(name: str, emit: Callable[..., Sequence[Value]], like: Sequence[Value]) -> Graph:
    with Builder() as builder:
        return builder.build(emit(*[builder.input(v.type) for v in like]), name)


def batch_case(
    operands: Values,
    batched: Flags,
    size: int,
    /,
    *,
    branches: tuple[Graph, ...],
    map_graph: MapGraph,
) -> Any:
    """A choice of batched branches; all of them, and a choice per example, if the index has one."""
    index, *rest = operands
    mapped = [map_graph(branch, batched[1:], size) for branch in branches]
    flags = [batched[0] or any(each) for each in zip(*(has for _, has in mapped), strict=True)]
    made = tuple(_giving(graph, has, flags, size) for graph, has in mapped)
    if not batched[0]:
        return rows.case(index, *rest, branches=made)
    *others, last = [replay(branch, arguments=rest) for branch in made]
    chosen = list(last)
    for number, results in enumerate(others):
        mine = build.compare("eq", index, build.like(index, number))
        chosen = [_chosen(mine, y, z) for y, z in zip(results, chosen, strict=True)]
    return tuple(chosen)


def batch_scan(
    operands: Values,
    batched: Flags,
    size: int,
    /,
    *,
    body: Graph,
    consts: int,
    carries: int,
    map_graph: MapGraph,
    **attrs: Any,
) -> Any:
    """One scan whose rows are those of all examples."""
    stacks = consts + carries

    def one(flags: Flags) -> tuple[Graph, tuple[bool, ...]]:
        return map_graph(body, flags, size)

    def after(found: Flags) -> Flags:
        return [*batched[:consts], *found[:carries], *batched[stacks:]]

    flags = _carried(one, batched, after)
    step, has = one(flags)
    wants = [*flags[consts:stacks], *has[carries:]]
    given = _spread(operands[:stacks], batched[:stacks], flags[:stacks], size)
    rest = zip(operands[stacks:], batched[stacks:], strict=True)
    given += [to_front(x, 1) if flag else x for x, flag in rest]
    step = _giving(step, has, wants, size)
    results: Any = rows.scan(*given, body=step, consts=consts, carries=carries, **attrs)
    made = results if isinstance(results, tuple) else (results,)
    ends = zip(made[carries:], wants[carries:], strict=True)
    return (*made[:carries], *(to_front(y, 1) if flag else y for y, flag in ends))
