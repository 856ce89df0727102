"""Functions that keep the order of numbers, deferred until the largest or smallest is known.

The largest ``tanh(x)`` of a window is the tanh of its largest ``x``: one evaluation for each result
in place of one for each element.  Equal numbers and NaN are the same on both sides.  So are the
bits, unless rounding lets an implementation fall by an ULP where its function rises; both results
are then within the accuracy of the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from bringup.graph import Graph, Instr, Value, rebuild
from bringup.ops.table import OpDef, Trait, opdef
from bringup.passes.base import Available, Pass, as_results, deep
from bringup.passes.dce import eliminate

_RISES = frozenset({Trait.MONOTONE, Trait.EXPENSIVE})


def defer(_available: Available) -> Pass:
    """Make the pass; it makes no new kind of instruction, so any device has what it needs."""
    doc = "the largest or smallest of f(x), where f never falls -> f of that of x"
    return Pass("defer", doc, deep(_deferred))


def _deferred(graph: Graph) -> Graph:
    """Behind one fold, functions may stand before the next."""
    while True:
        chains: dict[Instr, list[Instr]] = {}
        picking = [instr for instr in graph.instrs if _picks(instr)]
        if picking:
            users, outputs = graph.users(), frozenset(graph.outputs)
            chains = {instr: _chain(instr, users, outputs) for instr in picking}
        if not any(chains.values()):
            return graph
        graph = eliminate(rebuild(graph, partial(_rewrite, chains)))


def _rewrite(
    chains: Mapping[Instr, list[Instr]], instr: Instr, operands: tuple[Value, ...]
) -> Sequence[Value] | None:
    functions = chains.get(instr)
    if not functions:
        return None
    (x,) = operands
    for _ in functions:
        assert x.producer is not None
        (x,) = x.producer.operands
    result = opdef(instr)(x, **instr.attrs)
    for function in reversed(functions):
        result = opdef(function)(result, **function.attrs)
    return as_results(result)


def _chain(instr: Instr, users: dict[Value, list[Instr]], outputs: frozenset[Value]) -> list[Instr]:
    """The functions of the operand that nothing else reads, the last first."""
    chain: list[Instr] = []
    (x,) = instr.operands
    while (producer := x.producer) is not None and _rises(opdef(producer)):
        if len(users[x]) > 1 or x in outputs:
            break
        chain.append(producer)
        (x,) = producer.operands
    return chain


def _picks(instr: Instr) -> bool:
    """Whether results are fewer than elements, and each is one of them, never the edge alone."""
    attrs = instr.attrs
    if instr.op.name not in ("reduce", "reduce_window") or attrs["kind"] not in ("max", "min"):
        return False
    if not 0 < instr.result.type.size < instr.operands[0].type.size:
        return False
    if instr.op.name == "reduce":
        return True
    table = zip(attrs["lo"], attrs["hi"], attrs["window"], attrs["dilation"], strict=True)
    return all(max(lo, hi) < (size if gap == 1 else 1) for lo, hi, size, gap in table)


def _rises(op: OpDef) -> bool:
    """Whether a function of one operand never falls, and gives NaN for NaN alone."""
    if op.arity != 1 or not op.traits >= _RISES:
        return False
    partial = (c for c in op.special if "nan" in str(c.result) and "nan" not in c.operands[0])
    return next(partial, None) is None


__all__ = ["defer"]
