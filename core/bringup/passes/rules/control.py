"""Rules on control flow whose course is known."""

from __future__ import annotations

from bringup.graph import Graph, Value, replay
from bringup.ops.build import reshape, rows
from bringup.ops.subgraphs import Parts, chosen, known_trips
from bringup.passes.rewrite import Rule, rule

Values = tuple[Value, ...]


@rule("case")
def known_branch(index: Value, *operands: Value, branches: tuple[Graph, ...]) -> Values | None:
    """case(1, x, y, branches=(FIRST, SECOND)) -> y
    case(c, x, y, branches=(FIRST,)) -> x where c: i32[]
    """
    literal = index.literal
    if literal is None and len(branches) > 1:
        return None
    number = 0 if literal is None else chosen(int(literal.scalar), len(branches))
    return replay(branches[number], arguments=operands)


@rule("while")
def no_trips(*state: Value, cond: Graph, body: Graph) -> Values | None:
    """while_(3, cond=BELOW_2, body=ONE_MORE) -> 3 where x: i32[]"""
    return state if known_trips(state, cond, body) == 0 else None


@rule("scan")
def one_row(
    *operands: Value, body: Graph, length: int, reverse: bool, consts: int, carries: int
) -> Values | None:
    """scan(x, y, body=SUMS, length=1, carries=1) -> add(x, reshape(y, shape=()))
    where x: f32[], y: f32[1]
    """
    del reverse
    if length != 1:
        return None
    first = Parts(consts, carries).first_stack
    stacks = [reshape(v, v.shape[1:]) for v in operands[first:]]
    found = replay(body, arguments=(*operands[:first], *stacks))
    return (*found[:carries], *(rows.reshape(v, shape=(1, *v.shape)) for v in found[carries:]))


RULES: tuple[Rule, ...] = (known_branch, no_trips, one_row)
