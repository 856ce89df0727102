"""Known weights of products, laid out once as the panels that a device packs them into.

A device that sums products tile by tile packs the right factor into panels first: a few columns
that are neighbours, for the first inner index, then for the next.  Of weights that are known, the
panels are a constant.  A product reads the weights from it through the movement that undoes the
layout and becomes an index map, so that nothing else of the program changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.integers import round_up
from bringup.ops.build import convert, pad, reshape, slice_dim, transpose
from bringup.ops.contraction import free_dims
from bringup.ops.table import opdef
from bringup.passes.base import as_results
from bringup.passes.dce import eliminate
from bringup.passes.known import known_values
from bringup.records import record

Dims = tuple[int, ...]
#: Rows, inner indices and columns from which products are packed.
_PACKED = 16
#: Results with features in other places than last are stored one by one as columns: that pays up to
#: so many places of a feature, and from so many products in a sum.
_PLACES = 96
_SUMMED = 512
#: The same where rows of places fill so small a part of their vectors.
_SHORT, _SHORT_PLACES, _SHORT_SUMMED = 0.7, 128, 128


@record
class _Layout:
    """How weights become panels.

    order: their dimensions, first those of the batch, then those that are summed over.
    matrix: sizes of the batch, of what is summed over, and of the columns.
    width: columns of a panel.
    """

    order: tuple[int, ...]
    matrix: tuple[int, int, int]
    width: int

    def panels(self, weights: Value) -> Value:
        """Weights -> [batch, panels, inner indices, columns of a panel]."""
        x = reshape(transpose(weights, self.order), self.matrix)
        x = pad(x, 0, (0, 0, 0), (0, 0, -self.matrix[2] % self.width))
        x = reshape(x, (*self.matrix[:2], x.shape[2] // self.width, self.width))
        return transpose(x, (0, 2, 1, 3))

    def weights(self, panels: Value, shape: tuple[int, ...]) -> Value:
        """Panels -> weights of that shape."""
        batch, inner, columns = self.matrix
        x = reshape(transpose(panels, (0, 2, 1, 3)), (batch, inner, panels.shape[1] * self.width))
        x = reshape(slice_dim(x, 2, 0, columns), [shape[d] for d in self.order])
        return transpose(x, [self.order.index(d) for d in range(len(shape))])


def in_panels(constants: Graph, rest: Graph, bits: int, products: int) -> tuple[Graph, Graph]:
    """Lay out the weights of large products as panels.

    constants, rest: as `known.split` returns them: what the first computes are the last inputs of
    the second.
    bits: of a row of a panel.  products: multiplications from which a product is packed.
    Returns both graphs anew; panels stand for a constant that nothing else reads.
    """
    first = len(rest.inputs) - len(constants.outputs)
    known = known_values(rest, range(first, len(rest.inputs)))
    stored = {
        instr: _stored(instr.operands[1])
        for instr in rest.instrs
        if opdef(instr).factor_dims is not None and instr.operands[0] not in known.fixed
    }
    layouts = {
        instr: layout
        for instr, weights in stored.items()
        if weights in known.held
        and not _is_expanded(weights)
        and (layout := _layout(instr, bits, products)) is not None
    }
    if not layouts:
        return constants, rest
    made, builder = Builder(), Builder()
    outputs = list(replay(constants, builder=made))
    there = dict(zip(rest.inputs[first:], outputs, strict=True))
    inputs: dict[tuple[Value, _Layout], Value] = {}

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if known.fixed.issuperset(instr.results):
            results = made.emit_again(instr, tuple(there[v] for v in instr.operands))
            there.update(zip(instr.results, results, strict=True))
        layout = layouts.get(instr)
        if layout is None:
            return None
        key = (stored[instr], layout)
        if key not in inputs:
            with made:
                outputs.append(layout.panels(there[stored[instr]]))
            inputs[key] = builder.input(outputs[-1].type)
        weights = layout.weights(inputs[key], operands[1].shape)
        weights = convert(weights, operands[1].dtype)
        return as_results(opdef(instr)(operands[0], weights, **instr.attrs))

    arguments = [builder.input(v.type) for v in rest.inputs]
    results = replay(rest, rewrite, builder=builder, arguments=arguments)
    graph = eliminate(builder.build(results, rest.name))
    read = {v for instr in graph.instrs for v in instr.operands}.union(graph.outputs)
    kept = [n for n, v in enumerate(graph.inputs) if n < first or v in read]
    left = Graph([graph.inputs[n] for n in kept], graph.instrs, graph.outputs, graph.name)
    computed = made.build([outputs[n - first] for n in kept if n >= first], constants.name)
    return eliminate(computed), left


def _layout(product: Instr, bits: int, products: int) -> _Layout | None:
    """The layout of the right factor; None where nothing would be packed."""
    width = bits // product.attrs["accumulate"].bits
    dims = _right_dims(product, width // 2)
    if dims is None:
        return None
    weights = product.operands[1]
    parts = [math.prod(weights.shape[d] for d in part) for part in dims]
    batch, inner, columns = parts
    rows = product.result.type.size // max(1, batch * columns)
    if columns < width or rows * inner * columns < products:
        return None
    # Columns that fill their panels are another axis, whatever loops over it; others are found by
    # a division, which only packed products do without.
    even = columns % width == 0
    packed = min(rows, inner, columns) >= _PACKED
    return _Layout(sum(dims, ()), (batch, inner, columns), width) if even or packed else None


def _right_dims(product: Instr, lanes: int) -> tuple[Dims, Dims, Dims] | None:
    """Which dimensions of the second factor are of the batch, summed over, and columns, in the
    order in which a kernel goes over them; None if its columns are no right factor.

    lanes: of a vector, of which a panel has two beside each other.
    """
    attrs = product.attrs
    if product.op.name == "dot_general":
        batch, contract = attrs["batch"][1], attrs["contract"][1]
        return batch, contract, free_dims(len(product.operands[1].shape), batch, contract)
    if product.op.name != "convolution" or attrs["groups"] > 1 or max(attrs["strides"]) > 1:
        return None
    made, taken, *spatial = attrs["rhs_dims"]
    if attrs["lhs_dims"][1] == attrs["out_dims"][1] == len(attrs["rhs_dims"]) - 1:
        return (), (*spatial, taken), (made,)
    sizes = product.operands[1].shape
    places, inner = product.result.type.size // sizes[made], math.prod(sizes) // sizes[made]
    row = product.result.type.shape[attrs["out_dims"][-1]]
    pays = places <= _PLACES and inner >= _SUMMED
    if row <= _SHORT * round_up(row, lanes):
        pays = places <= _SHORT_PLACES and inner >= _SHORT_SUMMED
    return ((), (taken, *spatial), (made,)) if pays else None


def _stored(weights: Value) -> Value:
    """Weights before a conversion, which kernels do as they read them."""
    made = weights.producer
    return made.operands[0] if made is not None and made.op.name == "convert" else weights


def _is_expanded(value: Value) -> bool:
    """Whether a view takes more memory than what it is a view of."""
    while (made := value.producer) is not None:
        if value.type.nbytes > made.operands[0].type.nbytes:
            return True
        value = made.operands[0]
    return False
