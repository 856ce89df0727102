"""Columns that say how an op treats its operands: index maps, linearity, dimensions of factors."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.dtypes import f32, i32
from bringup.graph.index import Element, Expr
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, all_ops, lookup

MOVING = [row.name for row in all_ops() if row.index_map is not None]
LINEAR = [row.name for row in all_ops() if row.linear]
PRODUCTS = [row.name for row in all_ops() if row.factor_dims is not None]


def drawn(types, seed=0):
    """Small numbers, which as indices are inside, outside and negative."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 7, t.shape).astype(t.dtype.numpy) for t in types]


class Reader:
    """Elements of arrays by index expressions without axes."""

    def __init__(self, graph, arrays):
        self.arrays = dict(zip(graph.inputs, arrays, strict=True))

    def raw(self, element: Element) -> int:
        return int(self.arrays[element.value][tuple(map(self.number, element.index))])

    def number(self, expr: Expr) -> int:
        def leaf(atom):
            return Expr(min(max(self.raw(atom), 0), atom.last))

        return expr.rewrite(leaf).const

    def read(self, source, operands):
        if any(not 0 <= self.raw(e) <= e.last for e in source.inside):
            return 0
        return self.arrays[operands[source.operand]][tuple(map(self.number, source.index))]

    def holds(self, source):
        return all(b.low <= self.number(b.expr) < b.high for b in source.bounds)


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("dtype", [f32, i32], ids=str)
def test_each_element_is_where_the_index_map_says(kit, name, dtype) -> None:
    row = lookup(name)
    for types, attrs in kit.cases(row, dtype):
        graph, arrays = kit.graph(row, types, attrs), drawn(types)
        (instr,) = graph.instrs
        wanted, reader = evaluate(graph, arrays)[0], Reader(graph, arrays)
        for place in np.ndindex(wanted.shape):
            index = tuple(map(Expr, place))
            sources = row.index_map(index, (), *instr.operands, **instr.attrs)
            source = next(s for s in sources if reader.holds(s))
            assert reader.read(source, instr.operands) == wanted[place], (types, attrs, place)


def test_all_movement_has_an_index_map() -> None:
    moving = {row.name for row in all_ops() if row.kind is Kind.MOVEMENT}
    assert moving <= set(MOVING)
    assert {lookup(name).kind for name in MOVING} == {Kind.MOVEMENT, Kind.INDEXED}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_operands_scale_the_result(kit, name) -> None:
    row = lookup(name)
    linear = {operand for group in row.linear for operand in group}
    for types, attrs in kit.cases(row, f32):
        graph, arrays = kit.graph(row, types, attrs), drawn(types)
        (wanted,) = evaluate(graph, arrays)

        def scales(group, graph=graph, arrays=arrays, wanted=wanted):
            scaled = [x * np.float32(4) if i in group else x for i, x in enumerate(arrays)]
            return np.array_equal(evaluate(graph, scaled)[0], wanted * 4, equal_nan=True)

        assert all(map(scales, row.linear))
        others = [i for i, t in enumerate(types) if t.dtype is f32 and i not in linear]
        assert not any(scales((i,)) for i in others) or not wanted.any()


@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_take_scales_along_their_dimensions(kit, name) -> None:
    row, seen = lookup(name), set()
    for types, attrs in kit.cases(row, f32):
        graph, arrays = kit.graph(row, types, attrs), drawn(types)
        (instr,) = graph.instrs
        product = evaluate(graph, arrays)[0]
        for position in range(2):
            dims = row.factor_dims(position, *instr.operands, **instr.attrs) or {}
            for of_result, of_factor in dims.items():
                scale = np.float32(2) ** np.arange(product.shape[of_result])
                line = [-1 if d == of_factor else 1 for d in range(len(types[position].shape))]
                scaled = list(arrays)
                scaled[position] = (arrays[position] * scale.reshape(line)).astype(np.float32)
                line = [-1 if d == of_result else 1 for d in range(product.ndim)]
                wanted = product * scale.reshape(line)
                assert np.array_equal(evaluate(graph, scaled)[0], wanted), (types, attrs)
                seen.add(position)
    assert 1 in seen
