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
from dataclasses import dataclass, replace

from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.ops.build import broadcast_to, reshape, rows, transpose
from bringup.ops.contraction import free_dims
from bringup.ops.table import lookup
from bringup.passes.base import Pass, as_results, opdef
from bringup.passes.known import Dims, known_values, moved_dims, narrowed


@dataclass(frozen=True, slots=True)
class _Factor:
    """A known factor on its way to the weights.

    op: mul or div.  value: of the type of what it scales.
    moves: the transposes and reshapes between that and the value reached so far.
    """

    op: str
    value: Value
    moves: tuple[Instr, ...] = ()


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
        known = [i for i in self.graph.instrs if self._is_known(i)]
        others = [i for i in self.graph.instrs if not self._is_known(i)]
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

    def _is_known(self, instr: Instr) -> bool:
        return all(v in self.known.varying for v in instr.results)

    # -- where factors go --------------------------------------------------------------------------

    def _plan(self, instr: Instr) -> None:
        source = self._through(instr)
        if source is None or len(instr.results) > 1:
            return
        passed = self.factors.get(instr.result, ())
        if moved_dims(instr) is not None:
            passed = tuple(replace(each, moves=(*each.moves, instr)) for each in passed)
        elif instr.op.name in ("mul", "div"):
            own = self._other(instr, source)
            if self._reaches_weights(source, self.known.varying[own]):
                self.folded.add(instr)
                passed = (_Factor(instr.op.name, own), *passed)
        if passed:
            self.factors[source] = passed

    def _through(self, instr: Instr) -> Value | None:
        """The one operand whose scaling scales the result, known operands scaled alike."""
        name, operands = instr.op.name, instr.operands
        if not instr.results[0].dtype.is_float:
            return None
        if name == "neg" or moved_dims(instr) is not None:
            return operands[0]
        if name not in ("add", "sub", "mul", "div"):
            return None
        unknown = [v for v in operands if v not in self.known.varying]
        if len(unknown) != 1 or (name == "div" and unknown[0] is operands[1]):
            return None
        return unknown[0]

    @staticmethod
    def _other(instr: Instr, source: Value) -> Value:
        left, right = instr.operands
        return right if left is source else left

    def _reaches_weights(self, value: Value, dims: Dims) -> bool:
        """Whether a factor that varies along `dims` can become part of known weights."""
        while True:
            instr = value.producer
            if instr is None or len(self.users[value]) != 1 or value in self.graph.outputs:
                return False
            weights = self._weights(instr)
            if weights is not None:
                return dims <= weights[1].keys()
            source, moved = self._through(instr), moved_dims(instr)
            if source is None:
                return False
            if moved is not None:
                back = {new: old for old, new in moved.items()}
                dims = frozenset(back[d] for d in dims)
            value = source

    def _weights(self, instr: Instr) -> tuple[int, dict[int, int]] | None:
        """Which operand of a product is known, and by dimension of the result that of the operand
        that it is.
        """
        if instr.op.name not in ("convolution", "dot_general"):
            return None
        held = [n for n, v in enumerate(instr.operands) if v in self.known.held]
        dtype = instr.result.dtype
        if any(instr.operands[n] in self.known.expanded for n in held):
            return None  # the rest makes these weights each time
        if len(held) != 1 or not dtype.is_float or dtype is not instr.operands[0].dtype:
            return None
        at = held[0]
        if instr.op.name == "convolution":
            dims = {instr.attrs["out_dims"][1]: instr.attrs["rhs_dims"][0]}
            return (at, dims) if at == 1 else None
        batch, contract = instr.attrs["batch"], instr.attrs["contract"]
        free = [
            free_dims(len(v.shape), b, c)
            for v, b, c in zip(instr.operands, batch, contract, strict=True)
        ]
        first = len(batch[0]) + (len(free[0]) if at else 0)
        return at, {**dict(enumerate(batch[at])), **dict(enumerate(free[at], first))}

    # -- the replay --------------------------------------------------------------------------------

    def _rewrite(self, instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value]:
        if self._is_known(instr):
            results = as_results(opdef(instr)(*operands, **instr.attrs))
            self.new.update(zip(instr.results, results, strict=True))
            return results
        source = self._through(instr)
        at = instr.operands.index(source) if source is not None else 0
        if instr in self.folded:
            return (operands[at],)
        factors = self.factors.get(instr.results[0], ())
        weights = self._weights(instr)
        if weights is not None:
            return (self._product(instr, operands, factors, *weights),)
        if instr.op.name in ("add", "sub") and source is not None:
            addend = operands[1 - at]
            for each in factors:
                addend = lookup(each.op)(addend, self._value(each))
            return (self._shifted(instr, operands[at], addend, at),)
        results = as_results(opdef(instr)(*operands, **instr.attrs))
        if moved_dims(instr) is not None and operands[0] in self.products:
            self.products.update(results)
        return results

    def _value(self, factor: _Factor) -> Value:
        """A factor as one of the value that it reached."""
        value = self.new[factor.value]
        for move in factor.moves:
            if move.op.name == "transpose":
                order = move.attrs["permutation"]
                value = transpose(value, [order.index(d) for d in range(len(order))])
            else:
                value = reshape(value, move.operands[0].shape)
        return value

    def _product(
        self,
        instr: Instr,
        operands: tuple[Value, ...],
        factors: Sequence[_Factor],
        at: int,
        places: dict[int, int],
    ) -> Value:
        """A product by weights that are multiplied by the factors."""
        weights = operands[at]
        for each in factors:
            dims = self.known.varying[each.value]
            for move in each.moves:
                moved = moved_dims(move)
                assert moved is not None
                dims = frozenset(old for old, new in moved.items() if new in dims)
            order = sorted(dims, key=places.__getitem__)
            each_once = narrowed(self._value(each), dims)
            ordered = transpose(each_once, [sorted(dims).index(d) for d in order])
            factor = broadcast_to(ordered, weights.shape, [places[d] for d in order])
            weights = lookup(each.op)(weights, factor)
        ready = (*operands[:at], weights, *operands[at + 1 :])
        (result,) = as_results(opdef(instr)(*ready, **instr.attrs))
        self.products.add(result)
        return result

    def _shifted(self, instr: Instr, x: Value, addend: Value, at: int) -> Value:
        """The sum or difference of a value and a known one; of a product, with all known addends
        in one.
        """
        base, before = self.shifted.get(x, (x, None))
        held = instr.operands[1 - at] in self.known.held
        if base not in self.products or not held or (instr.op.name == "sub" and at == 1):
            (result,) = as_results(opdef(instr)(*((x, addend) if at == 0 else (addend, x))))
            return result
        if instr.op.name == "sub":
            addend = rows.neg(addend)
        if before is not None and len(self.users[instr.operands[at]]) == 1:
            addend = rows.add(before, addend)
        else:
            base = x
        result = rows.add(base, addend)
        if base in self.products:
            self.shifted[result] = (base, addend)
        return result


def fold_scales(inputs: frozenset[int]) -> Pass:
    """Make the pass for graphs whose inputs at these positions are known."""
    return Pass(
        "fold_scales",
        "products by known weights, scaled and shifted -> products by other weights, shifted once",
        lambda graph: _Folding(graph, inputs).run(),
    )
