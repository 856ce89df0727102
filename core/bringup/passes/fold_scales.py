"""Folding of scales and shifts into the weights of products, where these are known.

A convolution or product ``y = x · w`` that is scaled by feature, ``y * s``, is ``x · (w * s)``, and
known addends on the way are one: ``(y + b - c) * s + d`` is ``x · (w * s) + ((b - c) * s + d)``.
A batch norm of known statistics is such an expression, and nothing here asks for its name.

The real numbers are the same, and rounding is not.  With a unit roundoff u, and γ(k) = k u /
(1 - k u), both results of a sum of n products followed by m scales and shifts are within
``γ(n + m + 1) (sum |x| |w| |s| + |shifts|)`` of the exact one (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1), where nothing overflows and no ``w * s`` leaves the normal
range.  Half floats are summed in f32: there n u is n times the roundoff of f32, and what is new is
``u sum |x| |w| |s|``, as scaled weights are rounded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.ops.build import rows
from bringup.ops.table import Kind, OpDef, opdef
from bringup.passes.base import Pass, as_results
from bringup.passes.known import known_values, moved_dims, pointwise, repeated, spread
from bringup.records import record


@record(eq=False)
class _Factor:
    """A known factor on its way to the weights.

    op: what scales by it, such as mul or div.  value: as it stands in the graph.
    places: by dimension along which it differs, where the value reached so far has that.
    """

    op: OpDef
    value: Value
    places: dict[int, int]

    def through(self, back: dict[int, int]) -> _Factor:
        """The factor of an operand.  back: by dimension of the result, that of the operand."""
        return replace(self, places={d: back[to] for d, to in self.places.items()})


class _Folding:
    """One run of the pass: readers first decide what goes where, then a replay does it."""

    def __init__(self, graph: Graph, inputs: frozenset[int]) -> None:
        self.graph = graph
        self.known = known_values(graph, inputs)
        self.users = graph.users()
        self.factors: dict[Value, tuple[_Factor, ...]] = {}
        self.folded: set[Instr] = set()
        self.new: dict[Value, Value] = {}
        # By result of the replay: a product, or the product and the known addend that it is.
        self.products: set[Value] = set()
        self.shifted: dict[Value, tuple[Value, Value]] = {}

    def run(self) -> Graph:
        known = [i for i in self.graph.instrs if self.known.fixed.issuperset(i.results)]
        others = [i for i in self.graph.instrs if not self.known.fixed.issuperset(i.results)]
        if not any(map(self._weights, others)):
            return self.graph
        for instr in reversed(others):
            self._plan(instr)
        builder = Builder()
        inputs = [builder.input(v.type) for v in self.graph.inputs]
        self.new.update(zip(self.graph.inputs, inputs, strict=True))
        # What is known comes first, as weights need factors that stand after their product.
        ordered = Graph(self.graph.inputs, [*known, *others], self.graph.outputs, self.graph.name)
        outputs = replay(ordered, self._rewrite, builder=builder, arguments=inputs)
        return builder.build(outputs, self.graph.name)

    # -- where factors go --------------------------------------------------------------------------

    def _plan(self, instr: Instr) -> None:
        at, back = self._through(instr)
        if at is None:
            return
        passed = tuple(each.through(back) for each in self.factors.get(instr.result, ()))
        if _is_scaling(instr, at):
            other = instr.operands[1 - at]
            dims = repeated(other)[1].values()
            if self._reaches_weights(instr.operands[at], set(dims)):
                self.folded.add(instr)
                passed = (_Factor(opdef(instr), other, {d: d for d in dims}), *passed)
        if passed:
            self.factors[instr.operands[at]] = passed

    def _through(self, instr: Instr) -> tuple[int | None, dict[int, int]]:
        """Which operand, scaled, scales the result, as known operands are scaled with it; and by
        dimension of the result that of this operand.
        """
        op, moved = opdef(instr), moved_dims(instr)
        if not instr.results[0].dtype.is_float:
            return None, {}
        if moved is not None:
            repeats = instr.result.type.size > instr.operands[0].type.size
            return (None, {}) if repeats else (0, {new: old for old, new in moved.items()})
        unknown = [n for n, v in enumerate(instr.operands) if v not in self.known.fixed]
        if op.kind is not Kind.ELEMENTWISE or len(unknown) != 1:
            return None, {}
        if not _is_shift(instr) and (unknown[0],) not in op.linear:
            return None, {}
        return unknown[0], {d: d for d in range(len(instr.results[0].shape))}

    def _reaches_weights(self, value: Value, dims: set[int]) -> bool:
        """Whether a factor that differs along `dims` can become part of known weights."""
        while True:
            instr = value.producer
            if instr is None or len(self.users[value]) != 1 or value in self.graph.outputs:
                return False
            weights = self._weights(instr)
            if weights is not None:
                return dims <= weights[1].keys()
            at, back = self._through(instr)
            if at is None:
                return False
            value, dims = instr.operands[at], {back[d] for d in dims}

    def _weights(self, instr: Instr) -> tuple[int, dict[int, int]] | None:
        """Which operand of a product is known, and by dimension of the result that of the operand
        that it is.
        """
        factor_dims = opdef(instr).factor_dims
        if factor_dims is None:
            return None
        held = [n for n, v in enumerate(instr.operands) if v in self.known.held]
        dtype = instr.result.dtype
        if len(held) != 1 or not dtype.is_float or dtype is not instr.operands[0].dtype:
            return None
        at = held[0]
        if instr.operands[at] in self.known.expanded:
            return None  # the rest makes these weights each time
        dims = factor_dims(at, *instr.operands, **instr.attrs)
        return None if dims is None else (at, dims)

    # -- the replay --------------------------------------------------------------------------------

    def _rewrite(self, instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value]:
        at, _ = self._through(instr)
        if instr in self.folded:
            assert at is not None
            return (operands[at],)
        factors = self.factors.get(instr.results[0], ())
        weights = self._weights(instr)
        if weights is not None:
            at, places = weights
            for each in (factor.through(places) for factor in factors):
                value = spread(self.new[each.value], each.places, operands[at].shape)
                scaled = each.op(operands[at], value)
                operands = (*operands[:at], scaled, *operands[at + 1 :])
        elif at is not None and _is_shift(instr):
            addend = operands[1 - at]
            for each in factors:
                value = spread(self.new[each.value], each.places, addend.shape)
                addend = pointwise(each.op.name, addend, value)
            return (self._shifted(instr, operands[at], addend, at),)
        results = as_results(opdef(instr)(*operands, **instr.attrs))
        if weights is not None or (moved_dims(instr) and operands[0] in self.products):
            self.products.update(results)
        self.new.update(zip(instr.results, results, strict=True))
        return results

    def _shifted(self, instr: Instr, x: Value, addend: Value, at: int) -> Value:
        """The sum or difference of a value and a known one; of a product, with all known addends
        in one.
        """
        base, before = self.shifted.get(x, (x, None))
        held = instr.operands[1 - at] in self.known.held
        if base not in self.products or not held or (instr.op.name == "sub" and at == 1):
            return as_results(opdef(instr)(*((x, addend) if at == 0 else (addend, x))))[0]
        if instr.op.name == "sub":
            addend = pointwise("neg", addend)
        if before is None or len(self.users[instr.operands[at]]) > 1:
            base = x
        else:
            addend = pointwise("add", before, addend)
        result = rows.add(base, addend)
        if base in self.products:
            self.shifted[result] = (base, addend)
        return result


def _is_scaling(instr: Instr, position: int) -> bool:
    """Whether a float is scaled by another operand, as products and quotients are."""
    return len(instr.operands) == 2 and (position,) in opdef(instr).linear


def _is_shift(instr: Instr) -> bool:
    """Whether two operands are scaled together, as those of a sum or difference are."""
    return (0, 1) in opdef(instr).linear


def fold_scales(inputs: frozenset[int]) -> Pass:
    """Make the pass for graphs whose inputs at these positions are known."""
    return Pass(
        "fold_scales",
        "products by known weights, scaled and shifted -> products by other weights, shifted once",
        lambda graph: _Folding(graph, inputs).run(),
    )
