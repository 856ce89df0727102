"""Reverse-mode derivatives of graphs: a replay, then the rows' vjps backwards, in one builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.dtypes import accumulator
from bringup.errors import OpTypeError, UnsupportedError
from bringup.graph import Builder, Graph, Instr, Value, has_effects, rebuild, replay
from bringup.graph.verify import subgraphs_of
from bringup.ops.build import convert, splat, zeros_like
from bringup.ops.subgraphs import restricted
from bringup.ops.table import Kind, OpDef, lookup

if TYPE_CHECKING:
    from bringup.ops.calls import Rule  # its rows are needed by few programs


def vjp_graph(graph: Graph, wrt: Sequence[int], of: Sequence[int] | None = None) -> Graph:
    """The graph that computes `graph` and pulls cotangents of its outputs back to its inputs.

    wrt: positions of the inputs to differentiate by, of float dtype.
    of: positions of the outputs that have a cotangent (default: all).
    Returns a graph that takes the inputs of `graph`, then one cotangent per entry of `of`, and
    returns the outputs of `graph`, then one cotangent per entry of `wrt`, of that input's type.
    Raises OpTypeError for an input or output that is no float, UnsupportedError, with the op and
    the line, where a cotangent meets an op that has neither a vjp nor a decomposition.
    """
    of = range(len(graph.outputs)) if of is None else of
    _require_floats("input", graph.inputs, wrt)
    _require_floats("output", graph.outputs, of)
    graph = _with_residuals(_with_derivatives(graph, wrt), wrt)
    builder = Builder()
    table = {v: builder.input(v.type) for v in graph.inputs}
    seeds = [builder.input(graph.outputs[i].type) for i in of]
    with builder:
        for instr in graph.instrs:
            builder.location = instr.location
            operands = tuple([table[v] for v in instr.operands])
            results = builder.emit_again(instr, operands)
            table.update(zip(instr.results, results, strict=True))
        sweep = _Sweep(builder, table)
        for i, seed in zip(of, seeds, strict=True):
            sweep.add(graph.outputs[i], seed)
        active = _active(graph, wrt)
        for instr in reversed(graph.instrs):
            if not active.isdisjoint(instr.results):
                sweep.pull(instr, active)
        builder.location = None
        gradients = [sweep.cotangent(graph.inputs[i]) for i in wrt]
    return builder.build([*(table[v] for v in graph.outputs), *gradients], f"vjp_{graph.name}")


def jvp_graph(graph: Graph, wrt: Sequence[int], of: Sequence[int] | None = None) -> Graph:
    """The graph that computes `graph` and pushes tangents of its inputs on to its outputs.

    wrt, of: as for `vjp_graph`.
    Returns a graph that takes the inputs of `graph`, then one tangent per entry of `wrt`, and
    returns the outputs of `graph`, then one tangent per entry of `of`.

    What a vjp makes of its cotangents is linear in them, so its own vjp by them is the jvp; the
    cotangents themselves no longer matter, and what reads them goes.
    """
    of = range(len(graph.outputs)) if of is None else of
    _require_forward(graph, wrt, of)
    inputs, outputs = len(graph.inputs), len(graph.outputs)
    pulled = vjp_graph(graph, wrt, of)
    seeds = range(inputs, inputs + len(of))
    twice = vjp_graph(pulled, seeds, range(outputs, outputs + len(wrt)))
    builder = Builder()
    arguments = [builder.input(v.type) for v in graph.inputs]
    tangents = [builder.input(v.type) for v in twice.inputs[inputs + len(of) :]]
    with builder:
        zeros = [zeros_like(pulled.inputs[i]) for i in seeds]
        results = replay(twice, arguments=[*arguments, *zeros, *tangents])
    values = (*results[:outputs], *results[outputs + len(wrt) :])
    whole = builder.build(values, f"jvp_{graph.name}")
    return restricted(whole, range(len(whole.inputs)), range(len(values)))


#: Kinds whose ops move floats in ways a missing vjp cannot mean to ignore.
_OPAQUE = (Kind.INDEXED, Kind.ORDER, Kind.CONTROL)


def _sum(x: Value, y: Value) -> Value:
    """X + y; floats that are only stored meet in f32."""
    wide = accumulator(x.dtype) if x.dtype.is_storage else x.dtype
    return convert(lookup("add")(convert(x, wide), convert(y, wide)), x.dtype)


class _Sweep:
    """The way back: cotangents by value of the original graph, emitted after its replay."""

    def __init__(self, builder: Builder, table: dict[Value, Value]) -> None:
        self._builder = builder
        self._table = table
        self._cotangents: dict[Value, Value] = {}

    def add(self, value: Value, cotangent: Value) -> None:
        """Sum a further cotangent of a value."""
        assert cotangent.type is value.type, f"cotangent {cotangent.type} of {value.type}"
        before = self._cotangents.get(value)
        total = cotangent if before is None else _sum(before, cotangent)
        self._cotangents[value] = total

    def cotangent(self, value: Value) -> Value:
        """The cotangent of a value; zeros if nothing reached it."""
        cotangent = self._cotangents.get(value)
        return zeros_like(value) if cotangent is None else cotangent

    def pull(self, instr: Instr, active: set[Value]) -> None:
        """Hand the cotangents of the results to the operands."""
        if self._cotangents.keys().isdisjoint(instr.results):
            return
        op = instr.op
        assert isinstance(op, OpDef)
        if op.vjp is None and op.kind not in _OPAQUE:
            return  # the contract of the row: no operand of this primitive is differentiable
        if op.vjp is None:
            raise UnsupportedError(
                f"{op.name} has no derivative, and a gradient passes through it",
                location=instr.location,
                fix="keep the op off the path to the result, or give its row a vjp",
            )
        self._builder.location = instr.location
        cotangents = tuple(self.cotangent(v) for v in instr.results)
        results = tuple(self._table[v] for v in instr.results)
        operands = [self._table[v] for v in instr.operands]
        single = len(results) == 1
        inner = {"derive": _derived} if op.holds_graphs else {}
        pulled = op.vjp(
            cotangents[0] if single else cotangents,
            results[0] if single else results,
            *operands,
            **inner,
            **instr.attrs,
        )
        for operand, cotangent in zip(instr.operands, pulled, strict=True):
            if cotangent is not None and operand in active:
                self.add(operand, cotangent)


def _require_forward(graph: Graph, wrt: Sequence[int], of: Sequence[int]) -> None:
    """Raise UnsupportedError where tangents pass a rule of the user's that is for reverse mode."""
    active, live = _active(graph, wrt), {graph.outputs[i] for i in of}
    for instr in reversed(graph.instrs):
        if live.isdisjoint(instr.results):
            continue
        live.update(instr.operands)
        rule = None if active.isdisjoint(instr.results) else _reverse_alone(instr)
        if rule is not None:
            raise UnsupportedError(
                f"forward mode passes through {rule.name}, whose rule is for reverse mode alone",
                location=instr.location,
                fix="give it a rule by custom_jvp, which serves both modes, or use reverse mode",
            )


def _reverse_alone(instr: Instr) -> Rule | None:
    """The rule of a call, here or inside, through which no tangent may pass."""
    rule: Rule | None = instr.attrs.get("rule") if instr.op.name == "call" else None
    if rule is not None and not rule.forward:
        return rule
    inner = (i for graph in subgraphs_of(instr) for i in graph.instrs)
    return next(filter(None, map(_reverse_alone, inner)), None)


def _derived(graph: Graph, wrt: Sequence[int], of: Sequence[int] | None = None) -> Graph:
    """`vjp_graph` of a body that runs once more for it: its effects were had."""
    return vjp_graph(_without_effects(graph), wrt, of)


def _without_effects(graph: Graph) -> Graph:
    def inside(value: Any) -> Any:
        if isinstance(value, Graph):
            return _without_effects(value)
        return tuple(map(inside, value)) if isinstance(value, tuple) else value

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        op = instr.op
        assert isinstance(op, OpDef)
        if op.effects:
            return [splat(False, v.type) for v in instr.results]
        attrs = {name: inside(value) for name, value in instr.attrs.items()}
        results = op(*operands, **attrs)
        return results if isinstance(results, tuple) else (results,)

    effects = any(has_effects(instr.op, instr.attrs) for instr in graph.instrs)
    return rebuild(graph, rewrite) if effects else graph


def _require_floats(what: str, values: Sequence[Value], positions: Sequence[int]) -> None:
    for i in positions:
        if not values[i].dtype.is_float:
            raise OpTypeError(
                f"{what} {i} is {values[i].type}, and derivatives exist for floats only",
                fix=f"convert {what} {i} to a float dtype first, or leave it out",
            )


def _active(graph: Graph, wrt: Sequence[int]) -> set[Value]:
    """The float values that depend on the inputs named by `wrt`."""
    active = {graph.inputs[i] for i in wrt}
    for instr in graph.instrs:
        if not active.isdisjoint(instr.operands):
            active.update(v for v in instr.results if v.dtype.is_float)
    return active


def _with_derivatives(graph: Graph, wrt: Sequence[int]) -> Graph:
    """`graph` with composites decomposed that have no vjp and stand where a cotangent may pass."""
    while True:
        active = _active(graph, wrt)
        todo = {i for i in graph.instrs if _is_opaque(i) and not active.isdisjoint(i.results)}
        if not todo:
            return graph

        def rewrite(
            instr: Instr, operands: tuple[Value, ...], todo: set[Instr] = todo
        ) -> Sequence[Value] | None:
            if instr not in todo:
                return None
            op = instr.op
            assert isinstance(op, OpDef)
            assert op.decompose is not None
            results = op.decompose(*operands, **instr.attrs)
            return results if isinstance(results, tuple) else (results,)

        graph = rebuild(graph, rewrite)


def _with_residuals(graph: Graph, wrt: Sequence[int]) -> Graph:
    """`graph` whose instructions keep what their vjps read, where a cotangent may pass."""
    active = _active(graph, wrt)

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        op = instr.op
        assert isinstance(op, OpDef)
        if op.residuals is None or active.isdisjoint(instr.results):
            return None
        return op.residuals(*operands, **instr.attrs)[: len(instr.results)]

    keeps = any(isinstance(i.op, OpDef) and i.op.residuals is not None for i in graph.instrs)
    return rebuild(graph, rewrite) if keeps else graph


def _is_opaque(instr: Instr) -> bool:
    op = instr.op
    return isinstance(op, OpDef) and op.vjp is None and op.decompose is not None
