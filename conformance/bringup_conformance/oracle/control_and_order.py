"""How spans are propagated through loops, branches, sorts and running folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bringup.dtypes import i32
from bringup.graph import Builder, Graph, Instr
from bringup.ops import build
from bringup.ops.build import rows
from bringup.ops.evaluate import run_instr
from bringup.ops.monoids import MONOIDS
from bringup.ops.subgraphs import chosen
from bringup.types import TensorType
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.span import Span, spanning

#: Gives the spans of a graph's outputs.
Run = Callable[[Graph, Sequence[Span]], list[Span]]
Spans = Sequence[Span]


def control_spans(instr: Instr, operands: Spans, run: Run) -> Spans:
    """The spans of the results, trip by trip for as long as it is certain what runs next."""
    rule = {"while": _while, "case": _case, "scan": _scan, "call": _call}[instr.op.name]
    spans = rule(instr, operands, run)
    if spans is not None:
        return spans
    middles = run_instr(instr, [x.middle for x in operands])
    return [
        spanning(v.dtype, m, m, m, np.ones(m.shape, np.bool_))
        for m, v in zip(middles, instr.results, strict=True)
    ]


def _call(instr: Instr, operands: Spans, run: Run) -> Spans | None:
    return run(instr.attrs["body"], operands)


def _while(instr: Instr, state: Spans, run: Run) -> Spans | None:
    while True:
        (flag,) = run(instr.attrs["cond"], state)
        if not flag.exact:
            return None
        if not flag.middle[()]:
            return state
        state = run(instr.attrs["body"], state)


def _case(instr: Instr, operands: Spans, run: Run) -> Spans | None:
    index, *rest = operands
    branches = instr.attrs["branches"]
    if not index.exact:
        return None
    return run(branches[chosen(int(index.middle[()]), len(branches))], rest)


def _scan(instr: Instr, operands: Spans, run: Run) -> Spans:
    attrs, count = instr.attrs, instr.attrs["carries"]
    consts = operands[: attrs["consts"]]
    carry = list(operands[len(consts) : len(consts) + count])
    stacks, length = operands[len(consts) + count :], attrs["length"]
    row_results: list[Spans] = []
    for i in reversed(range(length)) if attrs["reverse"] else range(length):
        results = run(attrs["body"], [*consts, *carry, *(_row(x, i) for x in stacks)])
        carry = results[:count]
        row_results.append(results[count:])
    if attrs["reverse"]:
        row_results.reverse()
    types = [v.type for v in instr.results[count:]]
    return [*carry, *(_stacked([row[n] for row in row_results], t) for n, t in enumerate(types))]


def _row(span: Span, index: int) -> Span:
    return Span(span.dtype, span.low[index], span.middle[index], span.high[index]).simplified()


def _stacked(spans: Spans, type_: TensorType) -> Span:
    if not spans:
        return Span.exactly(np.empty(type_.shape, type_.dtype.numpy), type_.dtype)
    low, middle, high = (
        np.stack([getattr(x, end) for x in spans]) for end in ("low", "middle", "high")
    )
    return Span(type_.dtype, low, middle, high).simplified()


# -- sorts and running folds -----------------------------------------------------------------------


def prefixes(instr: Instr) -> Graph:
    """A running fold as one fold for each element, in any order: quadratic, and hence bounded as
    folds are, whatever way the device takes.
    """
    (operand,) = instr.operands
    kind, dim = instr.attrs["kind"], instr.attrs["dim"]
    rank, size = len(operand.shape), operand.shape[dim]
    others = [d for d in range(rank) if d != dim]
    with Builder() as builder:
        x = builder.input(operand.type)
        line = build.transpose(x, (*others, dim))
        spread = build.broadcast_to(line, (*operand.shape, size), (*others, rank))
        places = spread.type.with_dtype(i32)
        mine, other = rows.iota(type=places, dim=dim), rows.iota(type=places, dim=rank)
        first, second = (mine, other) if instr.attrs["reverse"] else (other, mine)
        direction = "lt" if instr.attrs["exclusive"] else "le"
        taken = build.compare(direction, first, second)
        neutral = MONOIDS[kind].neutral(operand.dtype.numpy)
        chosen = rows.select(taken, spread, build.like(spread, neutral))
        return builder.build([build.reduce(kind, chosen, (rank,))])


def sorted_spans(instr: Instr, operands: Sequence[Span]) -> list[Span]:
    """The spans of a sort's results.

    Known keys move their payloads' spans; of one uncertain operand the k-th smallest element lies
    between those of the lower and of the upper ends; nothing can be said of anything else.
    """
    count = instr.attrs["num_keys"]
    middles = run_instr(instr, [x.middle for x in operands])
    if all(x.exact for x in operands[:count]):
        lows = run_instr(instr, _ends(operands, count, "low"))
        highs = run_instr(instr, _ends(operands, count, "high"))
        return [
            Span(x.dtype, *ends).simplified() if not x.exact else Span.exactly(ends[1], x.dtype)
            for x, *ends in zip(operands, lows, middles, highs, strict=True)
        ]
    lost = np.ones(middles[0].shape, np.bool_)
    spans = [
        spanning(x.dtype, middle, middle, middle, lost)
        for x, middle in zip(operands, middles, strict=True)
    ]
    if len(operands) == 1:
        spans[0] = _sorted_ends(instr, operands[0], middles[0], instr.attrs["dim"])
    return spans


def _ends(operands: Sequence[Span], count: int, end: str) -> list[Array]:
    return [x.middle if n < count else getattr(x, end) for n, x in enumerate(operands)]


def _sorted_ends(instr: Instr, operand: Span, middle: Array, dim: int) -> Span:
    (low,), (high,) = (run_instr(instr, [end]) for end in (operand.low, operand.high))
    # Of a line with an element that may be anything, every element may be; so may NaN be.
    unlimited = np.broadcast_to(operand.unlimited().any(axis=dim, keepdims=True), middle.shape)
    if operand.dtype.is_float:
        zeros = (low == 0) & ~np.signbit(low)
        low = np.where(zeros, operand.dtype.numpy.type(-0.0), low)
        zeros = (high == 0) & np.signbit(high)
        high = np.where(zeros, operand.dtype.numpy.type(0.0), high)
    return spanning(operand.dtype, low, middle, high, unlimited)
