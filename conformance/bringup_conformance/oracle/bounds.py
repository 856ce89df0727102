"""The reference run: every value of a graph by numpy, with the span of what a right implementation
may give.

The bound is propagated through the graph as it is evaluated.  Exact operands of exact or correctly
rounded ops give one allowed value, and so do sums of integers that fit.  Everything else gives an
interval that contains every legal result of any order, fusion or decomposition; a select whose
predicate is uncertain may give either of its operands.  So a result outside its interval is a
fault, and a right device has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bringup.backend.capabilities import Numerics
from bringup.dtypes import bool_
from bringup.graph import Graph, Instr, Value, attrs_key
from bringup.ops.evaluate import run_instr
from bringup.ops.monoids import MONOIDS, ROUNDING, Derivative
from bringup.ops.table import Kind, OpDef, opdef
from bringup.passes.decompose import expand
from bringup_conformance.oracle import elementwise, sums
from bringup_conformance.oracle.control_and_order import control_spans, prefixes, sorted_spans
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.span import Span, spanning

_EXPANSIONS = 4096
#: Ops whose results have a rule of their own.  It gives the span of the result, or None where the
#: rule of any op of that kind holds.
_RULES: Mapping[str, Callable[[Instr, Sequence[Span], Numerics], Span | None]] = {
    "select": elementwise.select,
    "compare": elementwise.compare,
    "convert": elementwise.convert,
    "pow": elementwise.power,
    "cumulative": sums.running_fold,
}


def analyse(graph: Graph, inputs: Sequence[Array], numerics: Numerics) -> list[Span]:
    """The spans of a graph's outputs for given inputs.

    >>> from bringup import ops
    >>> from bringup.dtypes import f32
    >>> from bringup.graph import Builder
    >>> with Builder() as b:
    ...     x = b.input(f32[1])
    ...     g = b.build([ops.exp(x), ops.neg(x)])
    >>> e, minus = analyse(g, [np.ones(1, np.float32)], Numerics())
    >>> e.low < e.middle < e.high, minus.exact
    (array([ True]), True)
    """
    spans = [
        Span.exactly(np.asarray(array), value.dtype)
        for array, value in zip(inputs, graph.inputs, strict=True)
    ]
    if numerics.flush_subnormals:
        spans = [elementwise.flushed(x) if x.dtype.is_float else x for x in spans]
    with np.errstate(all="ignore"):
        return run(graph, spans, numerics)


def run(graph: Graph, inputs: Sequence[Span], numerics: Numerics) -> list[Span]:
    """The spans of a graph's outputs for spans of its inputs."""
    table: dict[Value, Span] = dict(zip(graph.inputs, inputs, strict=True))
    for instr in graph.instrs:
        results = propagate(instr, [table[v] for v in instr.operands], numerics)
        table.update(zip(instr.results, results, strict=True))
    return [table[v] for v in graph.outputs]


def propagate(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Sequence[Span]:
    """The spans of one instruction's results."""
    row = opdef(instr)
    accuracy = row.accuracy_for(instr.attrs)
    if row.holds_graphs:
        return control_spans(instr, operands, lambda graph, x: run(graph, x, numerics))
    if row.kind in (Kind.ELEMENTWISE, Kind.SOURCE, Kind.MOVEMENT):
        return [_simple(instr, operands, numerics)]
    if _only_moves(row) and all(x.exact for x in operands[row.domain.indices :]):
        return [elementwise.movement(instr, operands)]
    if row.kind is Kind.REDUCTION:
        return [_reduction(instr, operands[0], numerics)]
    if row.kind is Kind.CONTRACTION and instr.result.dtype.is_float:
        return [sums.dot(instr, operands, numerics)]
    if accuracy.residual is not None:
        return [_anything(value) for value in instr.results]
    if accuracy.exact and all(x.exact for x in operands):
        results = run_instr(instr, [x.middle for x in operands])
        pairs = zip(results, instr.results, strict=True)
        return [
            elementwise.settled(Span.exactly(array, value.dtype), numerics, rounded=False)
            for array, value in pairs
        ]
    if elementwise.is_monotone(row) or accuracy.ulp:
        return [elementwise.computed(instr, operands, numerics)]
    span = _by_own_rule(instr, operands, numerics)
    if span is not None:
        return [span]
    if row.kind is Kind.ORDER:
        return sorted_spans(instr, operands)
    if row.decompose is not None:
        spans = run(_expansion(instr), operands, numerics)
        references = run_instr(instr, [x.middle for x in operands])
        return [elementwise.including(x, y) for x, y in zip(spans, references, strict=True)]
    return [elementwise.known_only(instr, operands)]


def _only_moves(row: OpDef) -> bool:
    """Whether a row with indices moves elements, and combines none as a scatter does."""
    return row.kind is Kind.INDEXED and row.index_map is not None


def _anything(value: Value) -> Span:
    """The span that allows everything: the result is judged as a whole, by its residual (see
    `residuals`).
    """
    middle = np.zeros(value.shape, value.dtype.numpy)
    return spanning(value.dtype, middle, middle, middle, np.ones(value.shape, np.bool_))


def _by_own_rule(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Span | None:
    rule = _RULES.get(opdef(instr).name)
    return None if rule is None else rule(instr, operands, numerics)


def _simple(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Span:
    span = _by_own_rule(instr, operands, numerics)
    if span is not None:
        return span
    row = opdef(instr)
    if row.kind in (Kind.SOURCE, Kind.MOVEMENT):
        span = elementwise.movement(instr, operands)
        return elementwise.settled(span, numerics, rounded=False) if not operands else span
    if elementwise.is_monotone(row) or row.accuracy_for(instr.attrs).ulp:
        return elementwise.computed(instr, operands, numerics)
    if instr.result.dtype is bool_ and all(x.dtype is bool_ for x in operands):
        return elementwise.logical(instr, operands)
    span = elementwise.known_only(instr, operands)
    return elementwise.settled(span, numerics, rounded=False)


def _reduction(instr: Instr, operand: Span, numerics: Numerics) -> Span:
    monoid = MONOIDS[instr.attrs["kind"]]
    if monoid.name not in ROUNDING:
        return sums.reduce_ordered(instr, operand)
    if not operand.dtype.is_float:
        return _wrapping(instr, operand)
    linear = monoid.derivative is Derivative.LINEAR
    fold = sums.reduce_sum if linear else sums.reduce_product
    return fold(instr, operand, numerics)


def _wrapping(instr: Instr, operand: Span) -> Span:
    middle = elementwise.references(instr, [operand.middle])
    unlimited = ~np.asarray(operand.known().all(axis=instr.attrs["dims"]))
    return spanning(operand.dtype, middle, middle, middle, unlimited)


def _expansion(instr: Instr) -> Graph:
    types = tuple(v.type for v in instr.operands)
    return _expand((opdef(instr).name, types, attrs_key(instr.attrs)), _Held(instr))


class _Held:
    """An instruction beside a key of a cache, equal to any other."""

    __slots__ = ("instr",)

    def __init__(self, instr: Instr) -> None:
        self.instr = instr

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)


@lru_cache(_EXPANSIONS)
def _expand(_key: tuple[Any, ...], held: _Held) -> Graph:
    """The decomposition.  Running folds get one of quadratic cost, since their own decomposition is
    more accurate than a device must be.
    """
    running = held.instr.op.name == "cumulative"
    return prefixes(held.instr) if running else expand(held.instr)
