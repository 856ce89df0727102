"""The batch columns of the rows with sub-graphs.

`map_graph` is the transformation itself: it turns a sub-graph for one example into one for all.
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
    """Which values of a loop differ between examples after any number of iterations.

    after: takes the flags of the outputs, gives those of the inputs of the next iteration.
    """
    carried = list(flags)
    while True:
        following = after(body(carried)[1])
        more = [a or b for a, b in zip(carried, following, strict=True)]
        if more == carried:
            return carried
        carried = more


def _spread(values: Iterable[Value], has: Flags, wants: Flags, size: int) -> list[Value]:
    """Values, with the batch dimension added where `wants` asks for it and `has` lacks it."""
    pairs = zip(values, has, wants, strict=True)
    return [spread(v, size) if want and not flag else v for v, flag, want in pairs]


def _batch_outputs(graph: Graph, has: Flags, wants: Flags, size: int) -> Graph:
    """A graph whose outputs have the batch dimension where `wants` asks for it."""
    with Builder() as builder:
        return builder.build(_spread(replay(graph), has, wants, size), graph.name)


def batch_while(
    operands: Values, batched: Flags, size: int, /, *, cond: Graph, body: Graph, map_graph: MapGraph
) -> Any:
    """One loop, for as long as any example goes on; those that are done stay as they are."""

    def mapped_body(inputs: Flags) -> tuple[Graph, tuple[bool, ...]]:
        return map_graph(body, inputs, size)

    flags = _carried(mapped_body, batched, lambda flags_after: flags_after)
    test, (differs,) = map_graph(cond, flags, size)
    if differs:
        # The body changes values of the examples that go on, and not of those that are done.
        changed = [o is not i for i, o in zip(body.inputs, body.outputs, strict=True)]
        flags = [flag or new for flag, new in zip(flags, changed, strict=True)]
        test, _ = map_graph(cond, flags, size)
    step, has = mapped_body(flags)
    step = _batch_outputs(step, has, flags, size)
    state = _spread(operands, batched, flags, size)
    if differs:
        return _while_any(state, flags, test, step)
    return rows.while_(*state, cond=test, body=step)


def _while_any(state: Sequence[Value], flags: Flags, test: Graph, step: Graph) -> Values:
    """The loop until no example goes on; its state begins with the condition of each example."""

    def holds_for(*values: Value) -> Value:
        (holds,) = replay(test, arguments=values)
        return holds

    def advance(holds: Value, *before: Value) -> list[Value]:
        after = replay(step, arguments=before)
        chosen = [
            _chosen(holds, new, old) if flag else old
            for new, old, flag in zip(after, before, flags, strict=True)
        ]
        return [holds_for(*chosen), *chosen]

    first = [holds_for(*state), *state]
    results: Any = rows.while_(
        *first,
        cond=_graph(test.name, lambda holds, *_: [build.reduce("or", holds, (0,))], first),
        body=_graph(step.name, advance, first),
    )
    return tuple(results[1:])


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
    """The batched branch of an index; for a batched index all of them, and a choice per example."""
    index, *branch_operands = operands
    mapped = [map_graph(branch, batched[1:], size) for branch in branches]
    flags = [
        batched[0] or any(output_flags)
        for output_flags in zip(*(has for _, has in mapped), strict=True)
    ]
    spread_branches = tuple(_batch_outputs(graph, has, flags, size) for graph, has in mapped)
    if not batched[0]:
        return rows.case(index, *branch_operands, branches=spread_branches)
    *earlier, last = [replay(branch, arguments=branch_operands) for branch in spread_branches]
    chosen = list(last)
    for number, results in enumerate(earlier):
        selected = build.compare("eq", index, build.like(index, number))
        chosen = [_chosen(selected, y, z) for y, z in zip(results, chosen, strict=True)]
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

    def mapped_body(inputs: Flags) -> tuple[Graph, tuple[bool, ...]]:
        return map_graph(body, inputs, size)

    def after(outputs: Flags) -> Flags:
        return [*batched[:consts], *outputs[:carries], *batched[stacks:]]

    flags = _carried(mapped_body, batched, after)
    step, has = mapped_body(flags)
    wants = [*flags[consts:stacks], *has[carries:]]
    scan_operands = _spread(operands[:stacks], batched[:stacks], flags[:stacks], size)
    stack_flags = zip(operands[stacks:], batched[stacks:], strict=True)
    scan_operands += [to_front(x, 1) if flag else x for x, flag in stack_flags]
    step = _batch_outputs(step, has, wants, size)
    results: Any = rows.scan(*scan_operands, body=step, consts=consts, carries=carries, **attrs)
    parts = results if isinstance(results, tuple) else (results,)
    stack_results = zip(parts[carries:], wants[carries:], strict=True)
    return (*parts[:carries], *(to_front(y, 1) if flag else y for y, flag in stack_results))
